"""Projects against Spark's analyzer: columns, refusals with their place, and queries bound anew."""

# ruff: noqa: S608 - statements of tests, put together from their own words

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.project.project import CheckedProject, Project
from shardline.app.protocol.objects import IndexDescription, SourceDescription, ViewDescription
from shardline.app.sql.problems import InvalidProject
from shardline.app.sql.queries import bind
from shardline.app.storage.formats import unknown_options
from support.profiles import one_of, wide_examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TABLES = """
CREATE SOURCE t USING json OPTIONS (path 'later')
  SCHEMA (a INT NOT NULL, s STRING, ts TIMESTAMP, m ARRAY<INT>, d DECIMAL(10, 2));
CREATE SOURCE u USING csv OPTIONS (path 'later') SCHEMA (Id INT, s STRING)
  ENVELOPE UPSERT KEY (ID);
"""


def check(spark: SparkSession, text: str) -> CheckedProject:
    return Project.parse({"p.sql": text}).check(spark)


def refused(spark: SparkSession, text: str) -> list[str]:
    with pytest.raises(InvalidProject) as error:
        check(spark, text)
    return [f"{p.place}: {p.message} | {p.hint}" for p in error.value.problems]


def temporary(spark: SparkSession) -> set[str]:
    return {table.name for table in spark.catalog.listTables() if table.isTemporary}


def test_a_project_becomes_descriptions(spark: SparkSession) -> None:
    """Inputs come first, columns are Spark's, keys are spelt as the columns are."""
    before = temporary(spark)
    resolved = check(
        spark,
        "CREATE MATERIALIZED VIEW w AS SELECT v.s, count(*) AS n FROM v JOIN u USING (s)\n"
        "  GROUP BY v.s;"
        "CREATE MATERIALIZED VIEW v COMMENT 'x' AS SELECT /* x */ a + 1 AS b,\n s, d FROM T;"
        "CREATE INDEX ON w (N);" + TABLES,
    )
    assert resolved.descriptions == {
        "t": SourceDescription(
            name="t",
            format="json",
            options={"path": "later"},
            schema="a INT NOT NULL,s STRING,ts TIMESTAMP,m ARRAY<INT>,d DECIMAL(10,2)",
        ),
        "u": SourceDescription(
            name="u",
            format="csv",
            options={"path": "later"},
            schema="Id INT,s STRING",
            envelope="upsert",
            key=("Id",),
        ),
        "v": ViewDescription(
            name="v",
            query="SELECT a + 1 AS b, s, d FROM T",
            inputs=("t",),
            schema="b INT NOT NULL,s STRING,d DECIMAL(10,2)",
            strategy="linear",
        ),
        "w": ViewDescription(
            name="w",
            query="SELECT v.s, count(*) AS n FROM v JOIN u USING (s) GROUP BY v.s",
            inputs=("u", "v"),
            schema="s STRING,n BIGINT NOT NULL",
            strategy="incremental",
            reason="an aggregate (count), a join of two inputs",
        ),
        "w_n_idx": IndexDescription(name="w_n_idx", on="w", key=("n",)),
    }
    order = list(resolved.descriptions)
    assert order.index("t") < order.index("v") < order.index("w") < order.index("w_n_idx")
    assert str(resolved.places["w"]) == "p.sql:1:26"
    assert resolved.comments == {"v": "x"}
    assert temporary(spark) == before


def test_sources_without_columns_have_those_of_their_format(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Generators and formats with columns of their own keep them; files are told what they hold."""
    spark.range(1).selectExpr("id AS x", "'a' AS y").write.parquet(str(tmp_path / "p"))
    resolved = check(
        spark,
        "CREATE SOURCE bids USING nexmark OPTIONS (table 'bid');"
        "CREATE SOURCE ticks USING rate;"
        f"CREATE SOURCE files USING parquet OPTIONS (path '{tmp_path / 'p'}');"
        "CREATE SOURCE changes USING json OPTIONS (path 'x') ENVELOPE DEBEZIUM KEY (id)"
        "  SCHEMA (before STRUCT<id: INT>, after STRUCT<id: INT, v: STRING>, op STRING);"
        "CREATE SOURCE sums USING csv OPTIONS (path 'x') SCHEMA (v INT, _diff BIGINT)"
        "  ENVELOPE DIFF;",
    )
    assert resolved.schemas["bids"].startswith("auction BIGINT,bidder BIGINT,price BIGINT")
    assert resolved.schemas["ticks"] == "timestamp TIMESTAMP,value BIGINT"
    assert resolved.schemas["files"] == "x BIGINT,y STRING"
    assert resolved.schemas["changes"] == "id INT,v STRING"
    assert resolved.schemas["sums"] == "v INT"
    kept = {
        name: description.schema
        for name, description in resolved.descriptions.items()
        if isinstance(description, SourceDescription)
    }
    assert (kept["bids"], kept["ticks"]) == ("", "")
    assert kept["files"] == "x BIGINT,y STRING"
    assert kept["changes"].startswith("before STRUCT<id: INT>,after")


def test_a_source_of_changes_says_how_many(spark: SparkSession, tmp_path: Path) -> None:
    """A shard does in its change feed alone; where it ran, each attempt would fail."""
    path = f"{tmp_path}/in"
    spark.range(1).write.format("shard").mode("append").save(path)
    shard = f"CREATE SOURCE s USING shard OPTIONS (path '{path}'"
    with pytest.raises(InvalidProject, match=r"MISSING_COLUMN(.|\n)*readChangeFeed true"):
        check(spark, f"{shard}) ENVELOPE DIFF;")
    assert check(spark, f"{shard}, readChangeFeed true) ENVELOPE DIFF;").schemas["s"]


def test_python_gives_what_sql_gives(spark: SparkSession) -> None:
    """The same objects, described in two ways, are equal."""
    made = (
        Project()
        .source("T", "csv", options={"path": "x", "header": True}, schema="a INT,b STRING")
        .view("v", "SELECT a  FROM t", retain="1h")
        .index("V", ["A"])
        .sink(
            "o",
            "v",
            "parquet",
            options={"path": "o"},
            envelope="upsert",
            key=["a"],
            snapshot=False,
        )
    )
    written = (
        "CREATE SOURCE t USING csv OPTIONS (path 'x', header true) SCHEMA (a int, b string);"
        "CREATE MATERIALIZED VIEW v RETAIN HISTORY '1h' AS SELECT a FROM t;"
        "CREATE INDEX ON v (a);"
        "CREATE SINK o FROM v USING parquet OPTIONS (path 'o') ENVELOPE UPSERT KEY (a)"
        "  WITHOUT SNAPSHOT"
    )
    assert made.check(spark).descriptions == check(spark, written).descriptions
    with pytest.raises(InvalidProject, match=r"view w:2:3: .* `zz` cannot be resolved"):
        made.view("w", "SELECT\n  zz FROM v").check(spark)


def test_every_problem_is_found_at_its_place(spark: SparkSession) -> None:
    """Spark's positions are those of the script; who reads what is broken is not blamed."""
    views = [
        ("SELECT t.a,\n  t.zz FROM t", "t.zz", "`zz` cannot be resolved"),
        ("SELECT x FROM t JOIN u\n ON nope(t.a) = u.id", "nope", "routine `nope`"),
        ("SELECT a, s AS A FROM t", "SELECT", "there are two columns 'A'"),
        ("SELECT count(*) FROM t", "SELECT", "column 'count(1)' has no name"),
        ("SELECT NULL AS n, a FROM t", "SELECT", "column 'n' has no type"),
        ("SELECT a AS _diff FROM t", "SELECT", "a name that a shard keeps"),
        ("SELECT a FROM t WHERE rand() < 1", "rand", "rand() gives another value"),
        ("SELECT a FROM t WHERE a = 1 OR now() > ts", "now", "now() depends"),
        ("SELECT uuid() AS x, a FROM t", "uuid", "uuid() gives another value"),
        ("SELECT t.a, monotonically_increasing_id() AS x FROM t", "mono", "_id() gives another"),
        ("SELECT input_file_name() AS x FROM t", "input", "input_file_name() gives"),
        ("SELECT a FROM t WHERE ts > TIMESTAMP 'now'", "TIMESTAMP", "the time at which"),
        ("SELECT a FROM t WHERE ts > to_date('today')", "SELECT", "'today' as a date"),
        ("SELECT current_user() AS c FROM t", "current", "current_user() depends"),
        ("SELECT a FROM t LIMIT 3", "SELECT", "LIMIT or OFFSET without ORDER BY"),
        ("SELECT first(a) AS f FROM t", "SELECT", "first() takes whichever"),
        ("SELECT collect_set(a) AS f FROM t", "SELECT", "collect_set() keeps rows as"),
        ("SELECT a, first(s) OVER (PARTITION BY a) AS f FROM t", "SELECT", "first() over a window"),
        ("SELECT a, row_number() OVER (ORDER BY 1) AS f FROM t", "SELECT", "row_number() over"),
        (
            "SELECT a, lag(s) OVER (PARTITION BY a ORDER BY a) AS f FROM t",
            "SELECT",
            "lag() over a window",
        ),
        (
            "SELECT sum(a) OVER (ROWS 1 PRECEDING) AS f FROM t",
            "SELECT",
            "a frame of ROWS over a window",
        ),
        (
            "SELECT collect_list(s) OVER (PARTITION BY a) AS f FROM t",
            "SELECT",
            "collect_list() over a window",
        ),
        ("SELECT collect_union(array(s)) AS f FROM t", "SELECT", "collect_union() keeps rows"),
        ("SELECT mode(s) AS f FROM t", "SELECT", "mode() takes whichever"),
        ("SELECT percentile_approx(a, 0.5) AS f FROM t", "SELECT", "approx_percentile() depends"),
        ("SELECT array_sort(collect_list(a), (l, r) -> 0) AS f FROM t", "SELECT", "collect_list()"),
        ("SELECT a FROM t ORDER BY 'x' LIMIT 1", "SELECT", "LIMIT or OFFSET without ORDER BY"),
        ("SELECT timestamp(concat('no', 'w')) AS x FROM t", "SELECT", "'now' as a date"),
        ("SELECT a FROM t WHERE ts > '10:00'", "SELECT", "'10:00' as a date"),
        (
            "SELECT a FROM t WHERE ts > current_date - 1",
            "current",
            "write d > now() for d > current_date()",
        ),
        ("SELECT parse_json(s) AS j FROM t", "SELECT", "is variant, whose values cannot be"),
        ("SELECT map(a, array(parse_json(s))) AS j FROM t", "SELECT", "values cannot be compared"),
        ("SELECT a FROM t UNION ALL SELECT a, s FROM t", "SELECT", "UNION can only"),
        ("SELECT value FROM IDENTIFIER('text.`/x`')", "SELECT", "'text./x', which is no object"),
    ]
    text, expected = TABLES, []
    for number, (query, at, said) in enumerate(views):
        head = f"CREATE MATERIALIZED VIEW v{number} AS "
        before = text + head + query[: query.index(at)]
        column = len(before) - before.rfind("\n")
        expected.append((f"p.sql:{before.count(chr(10)) + 1}:{column}: ", said))
        text += f"{head}{query};\n"
    found = refused(spark, text + "CREATE MATERIALIZED VIEW echo AS SELECT * FROM v0;")
    assert len(found) == len(expected), "\n".join(found)
    for problem, (place, said) in zip(found, expected, strict=True):
        assert problem.startswith(place)
        assert said in problem


def test_sources_and_sinks_that_cannot_be(spark: SparkSession) -> None:
    """Formats, columns and options that are not there, each at its place."""
    found = refused(
        spark,
        "CREATE SOURCE a USING parqet SCHEMA (a INT);\n"
        "CREATE SOURCE b USING csv OPTIONS (path 'p');\n"
        "CREATE SOURCE c USING rate SCHEMA (a INT);\n"
        "CREATE SOURCE d USING csv SCHEMA (a INT,\n  b FOO) OPTIONS (path 'p');\n"
        "CREATE SOURCE e USING nexmark OPTIONS (tabel 'bid');\n"
        "CREATE SOURCE f USING csv SCHEMA (a INT, A INT) OPTIONS (path 'p');\n"
        "CREATE SOURCE g USING csv SCHEMA (a INT) ENVELOPE UPSERT KEY (b)\n OPTIONS (path 'p');\n"
        "CREATE SOURCE h USING csv SCHEMA (after INT) ENVELOPE DEBEZIUM\n OPTIONS (path 'p');\n"
        "CREATE SOURCE i USING csv SCHEMA (a INT) OPTIONS (path 'p');\n"
        "CREATE INDEX ON i (aa);\n"
        "CREATE SINK k FROM i USING shrad;\n"
        "CREATE SOURCE l USING csv SCHEMA (a STRING COLLATE UTF8_LCASE)\n"
        "  ENVELOPE UPSERT KEY (a) OPTIONS (path 'p');\n"
        "CREATE SOURCE m USING csv SCHEMA (a INT, _Deleted BOOLEAN) OPTIONS (path 'p');\n"
        "CREATE SINK n FROM m USING shard ENVELOPE UPSERT KEY (a) OPTIONS (shard 'x');\n",
    )
    assert [problem.split(" |")[0].removeprefix("p.sql:") for problem in found] == [
        "1:23: there is no format 'parqet'",
        "2:23: format 'csv' has no columns of its own",
        "3:23: rateStreamProvider source does not support user-specified schema",
        '5:5: unsupported data type "FOO"',
        "6:31: unknown option 'tabel'",
        "7:35: there are two columns 'A'",
        "8:63: key 'b' is no column",
        "10:35: a change event of 'h' has no column 'after' that is a struct",
        "13:20: key 'aa' is no column",
        "14:28: there is no format 'shrad'",
        (
            "16:24: key column 'a' has a collation (UTF8_LCASE), to which different texts are one "
            "key; to a shard they are several"
        ),
        "18:34: 'm' has a column '_Deleted', and the envelope upsert adds one of this name",
    ]
    assert "did you mean 'parquet'?" in found[0]
    assert "did you mean 'shard'?" in found[-3]


def test_values_of_options_are_checked_by_what_reads_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Before anything starts, at the option that is to blame, and never with a secret's value."""
    path = f"path '{tmp_path}'"
    refusals = {
        f"csv OPTIONS ({path}, maxFilesPerTrigger 'many')": (
            "option 'maxFilesPerTrigger' cannot be 'many'", "must be a positive integer",
        ),
        f"csv OPTIONS (header 'yes', {path}, sep ';')": (
            "option 'header' cannot be 'yes'", "can be true or false",
        ),
        f"csv OPTIONS ({path}, mode 'IGNORE')": (
            "option 'mode' cannot be 'IGNORE'", "one of PERMISSIVE, DROPMALFORMED, FAILFAST",
        ),
        f"csv OPTIONS ({path}, modifiedBefore 'x')": (
            "option 'modifiedBefore' cannot be 'x'", "not allowed in file stream sources",
        ),
        f"json OPTIONS ({path}, multiLine '7')": (
            "option 'multiLine' cannot be '7'", "see Spark's page on the format 'json'",
        ),
        f"xml OPTIONS ({path}, rowTag 'r', excludeAttribute 'x')": (
            "option 'excludeAttribute' cannot be 'x'", "can be true or false",
        ),
        f"parquet OPTIONS ({path}, mergeSchema 'x', maxFileAge '1d')": (
            "option 'mergeSchema' cannot be 'x'", "format 'parquet'",
        ),
        f"csv OPTIONS ({path}, maxFileAge 'x', maxCachedFiles 'x')": (
            "option 'maxFileAge' cannot be 'x'", "time must be specified",
        ),
        "csv": ("option 'path' of source 's9' is missing", "the folder that its files come into"),
    }  # fmt: skip
    others = {
        "rate OPTIONS (rowsPerSecond 'x')": ("option 'rowsPerSecond' cannot be 'x'", ""),
        "counter OPTIONS (rate 'x')": ("option 'rate' cannot be 'x'", "events per second"),
        f"shard OPTIONS (location '{tmp_path}', shard 't', maxFilesPerTrigger 'many')": (
            "option 'maxFilesPerTrigger' cannot be 'many'", "a whole number of at least 1",
        ),
    }  # fmt: skip
    text = [f"CREATE SOURCE s{n} USING {one} SCHEMA (a INT);" for n, one in enumerate(refusals, 1)]
    text += [f"CREATE SOURCE o{n} USING {one};" for n, one in enumerate(others)]
    found = refused(spark, "\n".join(text))
    expected = [*refusals.values(), *others.values()]
    assert len(found) == len(expected), "\n".join(found)
    for number, (problem, (what, hint)) in enumerate(zip(found, expected, strict=True), 1):
        assert problem.startswith(f"p.sql:{number}:")
        said, _, advice = problem.partition(" | ")
        assert said.endswith(what)
        assert hint in advice


def test_a_source_whose_folder_is_not_there_is_told_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It is no mistake of the text: one that runs waits for it, so the plan decides."""
    nowhere = tmp_path / "nowhere"
    resolved = check(
        spark,
        f"CREATE SOURCE a USING csv OPTIONS (path '{tmp_path}') SCHEMA (a INT);"
        f"CREATE SOURCE b USING csv OPTIONS (path '{nowhere}') SCHEMA (a INT);"
        "CREATE SOURCE c USING json OPTIONS (path 'no where') SCHEMA (a INT);",
    )
    told = {name: (p.message, p.hint) for name, p in resolved.unreachable.items()}
    advice = "create the folder, or correct the path"
    assert told == {
        "b": (f"source 'b' reads '{nowhere}', which is not there", advice),
        "c": (
            "source 'c' reads 'no where', which is not there",
            f"{advice}: it counts from '{Path.cwd()}'",
        ),
    }
    place = resolved.unreachable["b"].place
    assert place is not None
    assert place.text[place.column - 1 :].startswith(f"path '{nowhere}'")


def test_options_are_those_of_the_format(spark: SparkSession) -> None:
    """Unknown options, missing packages, envelopes without room: told before anything runs."""
    found = refused(
        spark,
        "CREATE SOURCE a USING csv OPTIONS (path 'p',\n  haeder 'true', sepp ';') SCHEMA (a INT);\n"
        "CREATE SOURCE b USING kafka OPTIONS (subscribe 't');\n"
        "CREATE SOURCE i USING CSV OPTIONS (fs.own.key 'x', path 'p', HEADER 'true')\n"
        "  SCHEMA (a INT);\n"
        "CREATE SINK c FROM i USING parquet OPTIONS (path 'o', partitonBy 'a');\n"
        "CREATE SINK d FROM i USING delta OPTIONS (path 'o');\n"
        "CREATE SINK e FROM i USING csv OPTIONS (path 'x') ENVELOPE DEBEZIUM;\n"
        "CREATE SINK f FROM i USING orc;\n"
        "CREATE SINK g FROM i USING foreachBatch;\n",
    )
    kafka = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
    assert [tuple(problem.removeprefix("p.sql:").split(" | ")) for problem in found] == [
        ("2:3: format 'csv' has no option 'haeder'", "did you mean 'header'?"),
        ("2:18: format 'csv' has no option 'sepp'", "did you mean 'sep'?"),
        ("3:23: format 'kafka' is not on the class path", f"start with --packages {kafka}"),
        ("6:55: format 'parquet' has no option 'partitonBy'", "did you mean 'partitionBy'?"),
        (
            "7:28: format 'delta' is not on the class path",
            "start with --packages io.delta:delta-spark_2.13:VERSION",
        ),
        (
            "8:51: csv has no columns for rows inside of rows, as before and after are",
            "write json, or use the envelope diff or upsert",
        ),
        ("9:13: option 'path' of sink 'f' is missing", "the folder to write to"),
        (
            "10:13: option 'function' of sink 'g' is missing",
            "the name that the function was registered with",
        ),
    ]


def test_sinks_of_ours_and_formats_in_any_case(spark: SparkSession) -> None:
    """What Spark has no format for is one of ours; a format is spelt as we spell it."""
    resolved = check(
        spark,
        TABLES + "CREATE SINK a FROM t USING FOREACHBATCH OPTIONS (function 'f');"
        "CREATE SINK b FROM t USING memory; CREATE SINK c FROM t USING console;"
        "CREATE SINK d FROM t USING PARQUET OPTIONS (path 'o');"
        "CREATE SOURCE n USING Nexmark OPTIONS (table 'bid');",
    )
    formats = [getattr(resolved.descriptions[name], "format") for name in "abcdn"]  # noqa: B009
    assert formats == ["foreachBatch", "memory", "console", "parquet", "nexmark"]


def test_columns_are_guessed_for_the_hint(spark: SparkSession, tmp_path: Path) -> None:
    """A source without SCHEMA is refused with the one that its files seem to have."""
    (tmp_path / "airlines.csv").write_text("carrier,name,since\n9E,Endeavor,1985\n")
    (found,) = refused(
        spark,
        f"CREATE SOURCE a USING csv OPTIONS (path '{tmp_path}/airlines.csv', header 'true');",
    )
    assert "write SCHEMA (carrier STRING,name STRING,since INT)" in found


def test_every_option_of_spark_is_known(spark: SparkSession) -> None:
    """Spark is asked for the options of its formats: each is known, read and written."""
    sql = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    sources = sql.execution.datasources
    index = set(sources.FileIndexOptions.getAllOptions().mkString(",").split(","))
    of_formats = {
        "avro": sql.avro.AvroOptions,
        "csv": sql.catalyst.csv.CSVOptions,
        "json": sql.catalyst.json.JSONOptions,
        "orc": sources.orc.OrcOptions,
        "parquet": sources.parquet.ParquetOptions,
        "text": sources.text.TextOptions,
        "xml": sql.catalyst.xml.XmlOptions,
    }
    for name, options in of_formats.items():
        known = set(options.getAllOptions().mkString(",").split(","))
        assert known
        assert unknown_options(name, known | index, "source") == []
        assert unknown_options(name, known, "sink") == []


def test_a_refused_function_of_the_session_is_found_too(spark: SparkSession) -> None:
    """A Python function is deterministic unless it says otherwise."""
    from pyspark.sql.functions import udf

    spark.udf.register("dice", udf(lambda: 4, "int").asNondeterministic())
    spark.udf.register("twice", udf(lambda x: 2 * x, "int"))
    (problem,) = refused(
        spark,
        TABLES + "CREATE MATERIALIZED VIEW v AS SELECT dice() AS x FROM t;"
        "CREATE MATERIALIZED VIEW w AS SELECT twice(a) AS x FROM t",
    )
    assert "dice() gives another value" in problem


def test_views_of_the_session_are_neither_seen_nor_touched(spark: SparkSession) -> None:
    """A temporary view called like an object, or like none, makes no difference."""
    spark.sql("SELECT 1 AS other").createOrReplaceTempView("t")
    spark.sql("SELECT 1 AS other").createOrReplaceTempView("stranger")
    try:
        resolved = check(spark, TABLES + "CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        assert resolved.schemas["v"] == "a INT NOT NULL"
        (problem,) = refused(spark, "CREATE MATERIALIZED VIEW v AS SELECT * FROM stranger")
        assert "unknown source or view 'stranger'" in problem
        assert spark.table("t").columns == ["other"]
    finally:
        spark.catalog.dropTempView("t")
        spark.catalog.dropTempView("stranger")


QUERIES = {
    "linear": [
        "SELECT a + 1 AS b, s FROM t WHERE a > 1",
        "SELECT a, e FROM t LATERAL VIEW OUTER explode(m) x AS e",
        "SELECT explode(m) AS e FROM t",
        "WITH c AS (SELECT a FROM t WHERE s = 'x') SELECT a FROM c UNION ALL SELECT -a FROM c",
        "SELECT a FROM t UNION ALL SELECT a + 5 FROM t ORDER BY a",
        "SELECT * FROM (SELECT a FROM t) UNPIVOT (v FOR k IN (a))",
        "SELECT a FROM t UNION ALL SELECT 1",
        "SELECT a, hash(*) AS h FROM t UNION ALL SELECT id, 0 FROM range(3)",
        "VALUES (7, 1) UNION ALL SELECT a, b FROM t LATERAL VIEW explode(m) x AS b",
    ],
    "incremental": [
        "SELECT count(DISTINCT s) AS n FROM t",
        "SELECT l.a FROM t AS l JOIN t AS r ON l.s = r.s",
        "SELECT l.a FROM t AS l LEFT JOIN t AS r ON l.s = r.s",
        "SELECT a FROM t WHERE s IS NOT NULL UNION ALL SELECT l.a FROM t l, t r WHERE l.a = r.a",
        "SELECT a FROM t LEFT ANTI JOIN (SELECT a + 1 AS b FROM t) ON a = b",
        "SELECT count(*) AS n FROM t",
        "SELECT DISTINCT s FROM t",
        "SELECT s, max(a) AS n FROM t GROUP BY s HAVING sum(a) > 2",
        "SELECT a FROM t EXCEPT ALL SELECT 2",
        "SELECT a FROM t EXCEPT SELECT 1",
        "SELECT s, median(a) AS n FROM t GROUP BY s",
        "SELECT a, row_number() OVER (PARTITION BY s ORDER BY a) AS n, s FROM t",
        "SELECT a FROM t WHERE a = (SELECT max(a) FROM t)",
        "SELECT a FROM t ORDER BY a, s LIMIT 1",
    ],
    "recompute": ["SELECT a, row_number() OVER (ORDER BY a, s) AS n FROM t"],
}


def contents(spark: SparkSession, query: str, rows: str, which: str = "true") -> Counter[object]:
    there = spark.sql(f"SELECT * FROM VALUES {rows} AS t(a, s, m) WHERE {which}")
    there.createOrReplaceTempView("rows_of_t")
    try:
        return Counter(spark.sql(bind(query, {"t": "rows_of_t"})).collect())
    finally:
        spark.catalog.dropTempView("rows_of_t")


@pytest.mark.parametrize(
    ("strategy", "query"),
    [one for s, queries in QUERIES.items() for one in one_of(3, product([s], queries))],
)
def test_the_strategy_is_linear_just_where_results_add_up(
    spark: SparkSession, strategy: str, query: str
) -> None:
    """Over these rows the result of the whole is the sum of those of the halves, or is not.

    What it returns of no rows is counted once, as constants are.
    """
    rows = "(1, 'x', array(1, 2)), (2, 'x', array()), (2, 'x', array()), (3, 'y', NULL)"
    half = "(2, 'x', array(7)), (5, 'y', array(1, 1))"
    whole = contents(spark, query, f"{rows}, {half}")
    nothing = contents(spark, query, half, "false")
    adds_up = whole + nothing == contents(spark, query, rows) + contents(spark, query, half)
    assert adds_up == (strategy == "linear")
    resolved = check(
        spark,
        "CREATE SOURCE t USING json OPTIONS (path 'x') SCHEMA (a INT, s STRING, m ARRAY<INT>);"
        f"CREATE MATERIALIZED VIEW v AS {query}",
    )
    view = resolved.descriptions["v"]
    assert isinstance(view, ViewDescription)
    assert view.strategy == strategy
    assert (view.reason == "") == (strategy == "linear")


VALUES = {"f": "(1, 10), (2, 20), (2, 21)", "p": "(2, 5), (3, 6)"}
NAMES = {"f": "_other 1", "p": "_other_2"}


def place(spark: SparkSession, name: str, values: str) -> None:
    spark.sql(f"SELECT * FROM VALUES {values} AS v(a, b)").createOrReplaceTempView(f"`{name}`")


@pytest.fixture
def others(spark: SparkSession) -> Iterator[None]:
    """The two tables under names that no query uses."""
    for name, other in NAMES.items():
        place(spark, other, VALUES[name])
    yield
    for view in (*NAMES, *NAMES.values()):
        spark.catalog.dropTempView(view)


TABLE = st.sampled_from(["f", "p", "F", "`p`"])
ALIAS = st.sampled_from(["f", "p", "c", "x"])


@st.composite
def queries(draw: st.DrawFn, depth: int = 2, ctes: tuple[str, ...] = ()) -> str:
    """A query with columns `a` and `b`: names of tables, CTEs and aliases meet on purpose."""
    inner = queries(depth=depth - 1, ctes=ctes) if depth else st.nothing()
    table = draw(st.one_of([TABLE, *([st.sampled_from(ctes)] if ctes else [])]))
    alias = draw(ALIAS)
    match draw(st.integers(0, 6 if depth else 1)):
        case 0:
            text = f"SELECT {table}.a, {table}.b FROM {table}"
        case 1:
            text = f"SELECT {alias}.a, {alias}.b FROM {table} AS {alias} WHERE {alias}.a > 1"
        case 2:
            body = draw(queries(depth=depth - 1, ctes=(*ctes, alias)))
            text = f"SELECT * FROM (WITH {alias} AS ({draw(inner)}) ({body}))"
        case 3:
            text = f"SELECT {alias}.a, {alias}.b FROM ({draw(inner)}) {alias}, {table} AS y"
        case 4:
            text = f"({draw(inner)}) UNION ALL ({draw(inner)})"
        case 5:
            text = f"SELECT l.a, r.b FROM {table} l JOIN ({draw(inner)}) r ON l.a = r.a"
        case _:
            text = (
                f"SELECT a, b FROM {table} AS o WHERE EXISTS "
                f"(SELECT 1 FROM ({draw(inner)}) AS i WHERE i.a = o.a)"
            )
    return text


def rows(spark: SparkSession, query: str, values: dict[str, str]) -> Counter[object]:
    for name in NAMES:
        place(spark, name, values[name])
    return Counter(spark.sql(query).collect())


@wide_examples(0.4)
@given(query=queries())
def test_a_bound_query_is_the_same_query(spark: SparkSession, others: None, query: str) -> None:
    """It gives the rows of the query as written, whatever is there under the old names."""
    del others
    wrong = dict.fromkeys(NAMES, "(99, 99)")
    assert rows(spark, bind(query, NAMES), wrong) == rows(spark, query, VALUES)
