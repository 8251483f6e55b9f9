"""Shards by name in SQL: what Spark's catalog can do with a Python source, and what it cannot.

Spark 4.3 keeps a table's options to itself when a Python source is read by the table's name. What
is said at the use, `t WITH (path = '…')` or `option("path", …)`, does arrive. So a table gives its
columns and a view the place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.profiles import one_of, some_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from support.spark.native import Reads

pytestmark = pytest.mark.spark


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> str:
    """A shard with the rows 1 and 2, in a path that needs no quoting in SQL."""
    path = str(tmp_path / "läke" / "numbers")
    append(spark, path, 1, 2)
    return path


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    """A catalog table with a shard's columns, and without a place."""
    spark.sql("CREATE TABLE numbers (id BIGINT, name STRING) USING shard")
    yield "numbers"
    spark.sql("DROP TABLE numbers")


def sql(spark: SparkSession, text: str, path: str = "", other: str = "") -> DataFrame:
    """Run a statement; `@` and `@2` stand for the shards at the paths, where the query says it."""
    for sign, place in (("@2", other), ("@", path)):
        text = text.replace(sign, f"WITH (path = '{place}')")
    return spark.sql(text)


def frame(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(n, f"row {n}") for n in ids], "id bigint, name string")


def append(spark: SparkSession, path: str, *ids: int) -> None:
    frame(spark, *ids).write.format("shard").mode("append").save(path)


def ids(frame: DataFrame) -> Counter[int]:
    return Counter(row.id for row in frame.collect())


def contents(spark: SparkSession, path: str) -> Counter[int]:
    return ids(spark.read.format("shard").load(path))


def drain(streamed: DataFrame, path: str, checkpoint: str) -> None:
    """Append all that a streaming frame has now to the shard at `path`."""
    writer = streamed.writeStream.format("shard").option("checkpointLocation", checkpoint)
    assert writer.trigger(availableNow=True).start(path).awaitTermination(120)


# -- reading by name ---------------------------------------------------------------------------


def test_a_table_is_read_where_the_query_says(spark: SparkSession, path: str, table: str) -> None:
    """A table WITH a path has the shard's contents at the time of each query."""
    query = "SELECT id FROM numbers @ WHERE name <> 'row 1'"
    assert ids(sql(spark, query, path)) == Counter([2])

    append(spark, path, 3)

    assert ids(sql(spark, query, path)) == Counter([2, 3])
    assert ids(spark.read.option("path", path).table(table)) == Counter([1, 2, 3])


@pytest.mark.usefixtures("table")
def test_a_view_of_a_table_gives_a_shard_a_name(spark: SparkSession, path: str) -> None:
    """A view remembers the place of a shard; it is planned anew whenever it is used."""
    sql(spark, "CREATE VIEW live AS SELECT * FROM numbers @", path)
    try:
        assert ids(spark.table("live")) == Counter([1, 2])
        append(spark, path, 3)
        assert ids(spark.table("live")) == Counter([1, 2, 3])
        joined = "SELECT a.id FROM live a JOIN live b ON a.id = b.id + 1 WHERE b.id > 1"
        assert ids(spark.sql(joined)) == Counter([3])
    finally:
        spark.sql("DROP VIEW live")


def test_a_table_may_name_fewer_columns(spark: SparkSession, path: str) -> None:
    """The columns of the table are what is read; a column that no shard has is refused by name."""
    spark.sql("CREATE TABLE narrow (name STRING) USING shard")
    spark.sql("CREATE TABLE wrong (id BIGINT, nmae STRING) USING shard")
    try:
        found = sql(spark, "SELECT * FROM narrow @", path)
        assert Counter(found.collect()) == Counter([("row 1",), ("row 2",)])
        with pytest.raises(Exception, match=r"\[UNKNOWN_COLUMN\].*'nmae'"):
            sql(spark, "SELECT * FROM wrong @", path).collect()
    finally:
        spark.sql("DROP TABLE narrow")
        spark.sql("DROP TABLE wrong")


@pytest.mark.parametrize("way", ["readStream.table", "STREAM"])
def test_a_table_is_read_as_a_stream(
    spark: SparkSession, path: str, table: str, tmp_path: Path, way: str
) -> None:
    """A stream by the table's name starts with the contents and goes on with added rows."""
    out, checkpoint = str(tmp_path / "out" / "numbers"), str(tmp_path / "checkpoint")

    def streamed() -> DataFrame:
        if way == "STREAM":
            return sql(spark, "SELECT * FROM STREAM numbers @", path)
        return spark.readStream.option("path", path).table(table)

    drain(streamed(), out, checkpoint)
    assert contents(spark, out) == Counter([1, 2])

    append(spark, path, 3)
    drain(streamed(), out, checkpoint)
    assert contents(spark, out) == Counter([1, 2, 3])


def test_a_temporary_view_reads_and_writes(spark: SparkSession, path: str) -> None:
    """A temporary view carries its options; what it reads is fixed by its first use."""
    spark.sql(f"CREATE TEMPORARY VIEW fixed USING shard OPTIONS (path '{path}')")
    try:
        assert ids(spark.table("fixed")) == Counter([1, 2])
        spark.sql("INSERT INTO fixed VALUES (3, 'row 3')")
        assert contents(spark, path) == Counter([1, 2, 3])
        assert ids(spark.table("fixed")) == Counter([1, 2]), "Spark keeps the plan of a view"
    finally:
        spark.catalog.dropTempView("fixed")


# -- two shards by one name --------------------------------------------------------------------

TWICE: dict[str, tuple[str, list[int]]] = {
    "union": ("SELECT id FROM numbers @ UNION ALL SELECT id FROM numbers @2", [1, 2, 7]),
    "join": ("SELECT b.id FROM numbers @ a JOIN numbers @2 b ON a.id < b.id", [7, 7]),
    "subquery": ("SELECT id FROM numbers @ WHERE id < (SELECT max(id) FROM numbers @2)", [1, 2]),
    "views": ("SELECT id FROM one UNION ALL SELECT id FROM two", [1, 2, 7]),
}


@pytest.fixture
def other(spark: SparkSession, tmp_path: Path) -> str:
    """A second shard, with the row 7."""
    path = str(tmp_path / "other")
    append(spark, path, 7)
    return path


@pytest.fixture
def views(spark: SparkSession, path: str, other: str, table: str) -> Iterator[None]:
    """Views of both shards by the name of one table."""
    assert table == "numbers"
    sql(spark, "CREATE VIEW one AS SELECT * FROM numbers @", path)
    sql(spark, "CREATE VIEW two AS SELECT * FROM numbers @", other)
    yield
    spark.sql("DROP VIEW one")
    spark.sql("DROP VIEW two")


@pytest.mark.parametrize(
    ("query", "reads"),
    some_of(product(TWICE, ["arrow", "native"]), [("union", "arrow"), *product(TWICE, ["native"])]),
    indirect=["reads"],
)
@pytest.mark.usefixtures("views")
def test_two_shards_by_one_name(
    spark: SparkSession, path: str, other: str, query: str, reads: Reads
) -> None:
    """Natively, each use has the rows of its own shard; Python workers would read one of them."""
    text, expected = TWICE[query]
    if reads.path == "native":
        assert ids(sql(spark, text, path, other)) == Counter(expected)
    else:
        said = r"\[TABLE_WITH_OTHER_OPTIONS\].*differ in path,.*a table for each"
        with pytest.raises(Exception, match=said):
            sql(spark, text, path, other).collect()
    again = "SELECT id FROM numbers @ UNION ALL SELECT id FROM numbers @"
    assert ids(sql(spark, again, path)) == Counter([1, 2, 1, 2])


@pytest.mark.parametrize("reads", ["arrow", "native"], indirect=True)
@pytest.mark.usefixtures("table")
def test_one_shard_by_two_ways_of_reading_it(spark: SparkSession, path: str, reads: Reads) -> None:
    """Natively each use has its own; Python workers would take those of one of them for both."""
    tuned = f"WITH (path = '{path}', partitionBytes = '4096')"
    both = "SELECT id FROM numbers @1 UNION ALL SELECT id FROM numbers @2".replace("@2", tuned)
    query, same = both.replace("@1", f"WITH (path = '{path}')"), both.replace("@1", tuned)
    if reads.path == "native":
        assert ids(spark.sql(query)) == Counter([1, 2, 1, 2])
    else:
        said = r"\[TABLE_WITH_OTHER_OPTIONS\].*differ in partitionbytes,.*give all uses the same"
        with pytest.raises(Exception, match=said):
            spark.sql(query).collect()
    assert ids(spark.sql(same)) == Counter([1, 2, 1, 2])


@pytest.mark.usefixtures("table", "native_reads")
def test_two_streams_by_one_name_are_refused(
    spark: SparkSession, path: str, other: str, tmp_path: Path
) -> None:
    """Spark reads both from the first shard, and the second would be left out."""
    text = "SELECT * FROM STREAM numbers @ UNION ALL SELECT * FROM STREAM numbers @2"
    streamed = sql(spark, text, path, other)
    with pytest.raises(Exception, match=r"\[TABLE_WITH_OTHER_OPTIONS\]"):
        drain(streamed, str(tmp_path / "out"), str(tmp_path / "checkpoint"))


@pytest.mark.usefixtures("table", "reads")
def test_one_shard_is_copied_to_another_by_one_name(
    spark: SparkSession, path: str, other: str
) -> None:
    """What is written has a Python source of its own."""
    sql(spark, "INSERT INTO numbers @2 SELECT * FROM numbers @", path, other)

    assert contents(spark, other) == Counter([7, 1, 2])
    assert contents(spark, path) == Counter([1, 2])


# -- writing by name ---------------------------------------------------------------------------

WRITES: dict[str, Callable[[SparkSession, str, str], Any]] = {
    "INSERT INTO": lambda spark, _, path: sql(
        spark, "INSERT INTO numbers @ VALUES (3, 'row 3')", path
    ),
    "saveAsTable": lambda spark, table, path: (
        frame(spark, 3).write.format("shard").mode("append").option("path", path).saveAsTable(table)
    ),
    "writeTo": lambda spark, table, path: (
        frame(spark, 3).writeTo(table).option("path", path).append()
    ),
}


@pytest.mark.parametrize("way", WRITES)
def test_rows_are_appended_by_name(spark: SparkSession, path: str, table: str, way: str) -> None:
    """A table WITH a path takes rows as the shard at that path does."""
    WRITES[way](spark, table, path)

    assert contents(spark, path) == Counter([1, 2, 3])


@pytest.mark.usefixtures("table")
def test_a_table_is_overwritten_by_name(spark: SparkSession, path: str) -> None:
    """INSERT OVERWRITE replaces the contents."""
    sql(spark, "INSERT OVERWRITE numbers @ VALUES (2, 'row 2'), (7, 'seven')", path)

    assert contents(spark, path) == Counter([2, 7])


def test_a_stream_writes_by_name(
    spark: SparkSession, path: str, table: str, tmp_path: Path
) -> None:
    """`toTable` with a path appends what the stream reads to the shard there."""
    out = str(tmp_path / "out" / "numbers")
    streamed = spark.readStream.format("shard").load(path)
    writer = streamed.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.option("path", out).trigger(availableNow=True).toTable(table)

    assert query.awaitTermination(120)
    assert contents(spark, out) == Counter([1, 2])


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "create",
    [
        "CREATE TABLE kept USING shard OPTIONS (path '{path}')",
        "CREATE TABLE kept USING shard LOCATION '{path}'",
        "CREATE TABLE kept USING shard TBLPROPERTIES ('path' = '{path}')",
    ],
)
def test_a_table_cannot_keep_a_place(spark: SparkSession, path: str, create: str) -> None:
    """What CREATE TABLE would keep is refused at once, since no query would ever get it."""
    with pytest.raises(Exception, match=r"\[CATALOG_TABLE\].*WITH \(path") as refused:
        spark.sql(create.format(path=path))
    assert "TEMPORARY VIEW" in str(refused.value)
    assert not spark.catalog.tableExists("kept")


UNPLACED: dict[str, Callable[[SparkSession, str], Any]] = {
    "SELECT": lambda spark, _: spark.sql("SELECT * FROM numbers").collect(),
    "spark.table": lambda spark, table: spark.table(table).count(),
    "INSERT INTO": lambda spark, _: spark.sql("INSERT INTO numbers VALUES (3, 'row 3')"),
    "insertInto": lambda spark, table: frame(spark, 3).write.insertInto(table),
    "saveAsTable": lambda spark, table: (
        frame(spark, 3).write.format("shard").mode("append").saveAsTable(table)
    ),
    "CREATE TABLE AS": lambda spark, _: spark.sql(
        "CREATE TABLE copied USING shard OPTIONS (path '/nowhere/numbers') AS SELECT 1L id"
    ),
}


@pytest.mark.parametrize("way", one_of(2, UNPLACED))
def test_a_table_without_a_place_says_what_to_do(spark: SparkSession, table: str, way: str) -> None:
    """Where Spark brings no option along, the refusal says where to give the path."""
    with pytest.raises(Exception, match=r"\[MISSING_OPTION\].*WITH \(path") as refused:
        UNPLACED[way](spark, table)
    first, *rest = str(refused.value).splitlines()
    assert "save(path) instead of saveAsTable" in first
    assert not any(line.startswith("  File ") for line in rest)
    assert not spark.catalog.tableExists("copied")


def test_streams_without_a_place_say_what_to_do(
    spark: SparkSession, path: str, table: str, tmp_path: Path
) -> None:
    """The same for a stream from a table and for one into a table."""

    def run(streamed: DataFrame, start: Callable[[Any], Any]) -> None:
        writer = streamed.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        start(writer.trigger(availableNow=True)).awaitTermination(120)

    sources: list[tuple[DataFrame, Callable[[Any], Any]]] = [
        (spark.readStream.table(table), lambda writer: writer.format("noop").start()),
        (spark.readStream.format("shard").load(path), lambda writer: writer.toTable(table)),
    ]
    for streamed, start in sources:
        with pytest.raises(Exception, match=r"\[MISSING_OPTION\].*WITH \(path") as refused:
            run(streamed, start)
        assert "[MISSING_OPTION]" in str(refused.value).splitlines()[0]


NOT_SPARKS: dict[str, tuple[str, str]] = {
    "SELECT * FROM shard.`{path}`": ("UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY", "direct query"),
    "SELECT * FROM numbers TIMESTAMP AS OF '2026-01-01'": ("UNSUPPORTED_FEATURE", "[Tt]ime travel"),
    "DELETE FROM numbers WHERE id = 1": ("", "does not support deletes"),
    "TRUNCATE TABLE numbers": ("", "does not support truncates"),
    "SELECT * FROM numbers VERSION AS OF 1": ("UNSUPPORTED_FEATURE", "[Tt]ime travel"),
    "UPDATE numbers SET id = 1": ("UNSUPPORTED_FEATURE", "does not support UPDATE TABLE"),
    "MERGE INTO numbers USING (SELECT 1 AS id) s ON numbers.id = s.id WHEN MATCHED THEN DELETE": (
        "UNSUPPORTED_FEATURE",
        "does not support MERGE INTO TABLE",
    ),
}


@pytest.mark.parametrize("statement", one_of(2, NOT_SPARKS))
@pytest.mark.usefixtures("table")
def test_what_spark_does_not_offer_a_python_source(
    spark: SparkSession, path: str, statement: str
) -> None:
    """Statements that Spark refuses before it asks the source; a release that offers one shows."""
    code, said = NOT_SPARKS[statement]
    with pytest.raises(Exception, match=f"{code}.*{said}"):
        spark.sql(statement.format(path=path)).collect()
    assert contents(spark, path) == Counter([1, 2])


def test_partitions_are_refused_by_spark_in_a_batch_only(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    """A batch fails; a stream and a table are written as if they had not been asked for."""
    with pytest.raises(Exception, match="partitioning or clustering columns do not match"):
        frame(spark, 3).write.format("shard").mode("append").partitionBy("id").save(path)
    assert contents(spark, path) == Counter([1, 2])
    writer = spark.readStream.format("shard").load(path).writeStream.format("shard")
    parted = writer.partitionBy("id").option("checkpointLocation", str(tmp_path / "checkpoint"))
    into = str(tmp_path / "parted" / "numbers")
    parted.trigger(availableNow=True).start(into).awaitTermination(120)
    assert contents(spark, into) == Counter([1, 2])
