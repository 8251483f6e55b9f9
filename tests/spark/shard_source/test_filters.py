"""Option `where` in Spark: the rows that `DataFrame.where` keeps, from batch reads and streams."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given
from pyspark.errors import PySparkException

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.filters.parser import Condition
from shardline.datasource.types.schema import ShardSchema
from support.profiles import wide_examples
from support.strategies.conditions import FORMS, conditions, rows_sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ZONE = "Europe/Berlin"

EDGES = """
select * from values
  (0, 0L, 0.00BD, 0D, 0F, '', true, date'1970-01-01', timestamp'1970-01-01 00:00:00Z'),
  (1, 9007199254740992L, 10.55BD, -0D, -0F, 'a', false, date'2026-03-29',
     timestamp'2026-03-29 00:59:59.999999Z'),
  (-1, 9007199254740993L, 10.56BD, double('nan'), float('nan'), 'ab', null, date'2026-03-30',
     timestamp'2026-03-29 01:00:00Z'),
  (2147483647, 9223372036854775807L, 99999999.99BD, double('inf'), float('inf'), 'a%', true,
     date'1969-12-31', timestamp'2026-10-25 00:00:00Z'),
  (-2147483648, -9223372036854775807L, -99999999.99BD, double('-inf'), float('-inf'), 'EU', false,
     date'2026-10-25', timestamp'2026-10-25 01:00:00Z'),
  (null, null, null, null, null, null, null, null, null),
  (6, 6L, 6BD, 6D, 16777216F, 'b', true, date'2026-01-02', timestamp'2026-01-02 00:00:00Z'),
  (5, 1000000L, 10.50BD, 0.1D, 0.1F, 'é', true, date'2026-01-01',
     timestamp'2026-10-25 00:59:59.999999Z'),
  (16777217, 16777217L, 1BD, 1D, 1F, 'c', true, date'2026-01-03', timestamp'2026-01-03 00:00:00Z')
  as t(n, big, price, x, f, s, b, d, ts)
"""

CONDITIONS = [
    "n > 1.5",
    "n = 3000000000 or n < 3000000000 and n > 0",
    "n in (1, 5, null)",
    "n not in (1, 2.5)",
    "not (n = 5 or n is null)",
    "n <=> null or n <=> 5",
    "n between -1 and 5 and s like 'a%'",
    "s not like 'a%'",
    "not s not like 'a'",
    "n is distinct from 5",
    "big > 1e6",
    "big = 9007199254740993",
    "price = 10.555 or price > 10.555",
    "price >= 10.5 and price < 100",
    "price <= 10.5BD",
    "x > 5",
    "x <= 5",
    "x = double('NaN') or x = 0",
    "x <> 0",
    "isnan(x) or isnan(f)",
    "not isnan(x)",
    "x in (0, double('nan'))",
    "f = 0.1",
    "f = 0.1F",
    "f >= 16777217.0",
    "f >= 16777218 or f = -16777216",
    "f = 9223372036854775809 or f in (16777216, 0)",
    "s > 'a'",
    "s like 'a'",
    "startswith(s, 'a')",
    "b",
    "not b",
    "b is not true",
    "b = false or d = '2026-10-25'",
    "d > date '2026-01-01'",
    "ts = timestamp '2026-03-29 02:00:00'",
    "ts >= '2026-10-25 02:00:00'",
    "ts < timestamp '2026-10-25 02:30:00' and ts > date '2026-03-28'",
    "ts = '2026-10-25 02:00:00+01:00'",
    "ts >= timestamp_ntz '2026-10-25 02:00:00'",
    "d in ('2026-03-29', date '2026-10-25', null)",
    "d not in ('2026-03-29')",
    "n = 16777215F or n < -16777215F",
]

DOUBTFUL = [
    "ts = timestamp_ntz '2026-10-25 02:00:00+05:00'",
    "ts in (cast('2026-03-28 18:59:59.999999 -06:00' as timestamp_ntz))",
    "ts = date '2026-03-29 02:00:00'",
    "ts > cast('2026-10-25 02:00:00' as date)",
    "ts not in ('2026-01-02 01:00:00+01:00', timestamp '2026-10-25 00:00:00Z')",
    "ts in ('2026-10-25 2:0:0')",
    "d in ('2026-3-29')",
    "d not in (' 2026-03-29')",
    "n = 16777216F",
    "n < 2147483648F",
    "big in (16777216F)",
]
"""Conditions with another meaning than they seem to have: Spark's, or refused."""


@pytest.fixture(scope="module")
def berlin(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, in a zone whose clocks change."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(before))


def rows(frame: DataFrame) -> Counter[str]:
    """As text, in which NaN is itself."""
    return Counter(map(repr, frame.collect()))


def read(spark: SparkSession, place: str, **options: object) -> DataFrame:
    reader = spark.read.format("shard").option("timeZone", ZONE)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(place)


@pytest.fixture(params=["true", "false"], ids=["ansi", "no-ansi"])
def either(berlin: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The same session under each of Spark's two rules for types that differ."""
    before = berlin.conf.get("spark.sql.ansi.enabled")
    berlin.conf.set("spark.sql.ansi.enabled", request.param)
    yield berlin
    berlin.conf.set("spark.sql.ansi.enabled", str(before))


def test_rows_are_those_that_spark_keeps(either: SparkSession) -> None:
    """Every condition over the edges of every type, as Spark's own expressions answer it."""
    frame = either.sql(EDGES).coalesce(1)
    data = frame.toArrow()
    schema = ShardSchema.parse(frame.schema.json())
    answers = frame.selectExpr(*(f"{text} as `{i}`" for i, text in enumerate(CONDITIONS))).collect()
    for i, text in enumerate(CONDITIONS):
        found = Condition(text, ZONE).bind(schema).predicate.mask(data)
        assert found.to_pylist() == [row[str(i)] for row in answers], text


@pytest.mark.parametrize("text", DOUBTFUL)
def test_a_doubtful_condition_is_sparks_or_refused(either: SparkSession, text: str) -> None:
    """Under both rules, over rows of which some pass by either meaning."""
    frame = either.sql(EDGES).coalesce(1)
    refused, found = "", {}
    try:
        where = Condition(text, ZONE).bind(ShardSchema.parse(frame.schema.json()))
        found = {text: where.predicate.mask(frame.toArrow()).to_pylist()}
    except InvalidUsage as error:
        refused = error.code
    assert refused == "INVALID_WHERE" or found == answers(frame, [text])


def test_any_condition_is_sparks_or_refused(either: SparkSession) -> None:
    """Over a grammar of conditions: what is taken is Spark's, answer by answer, null or not.

    What Spark refuses is never taken, and something of every form is.
    """
    frame = either.sql(rows_sql()).coalesce(1)
    data = frame.toArrow()
    schema = ShardSchema.parse(frame.schema.json())
    taken: Counter[str] = Counter()

    @given(conditions())
    @wide_examples(0.6, derandomize=True, phases=[Phase.generate])
    def check(texts: list[str]) -> None:
        found: dict[str, list[bool | None]] = {}
        refused: dict[str, str] = {}
        for place, text in enumerate(texts):
            try:
                where = Condition(text, ZONE).bind(schema)
            except InvalidUsage as error:
                refused[text] = error.code
                continue
            found[text] = where.predicate.mask(data).to_pylist()
            taken[FORMS[place] if place < len(FORMS) else "joined"] += 1
        assert found == answers(frame, list(found))
        assert set(refused.values()) <= {"INVALID_WHERE"}, refused

    check()
    assert set(taken) == {*FORMS, "joined"}


def answers(frame: DataFrame, texts: list[str]) -> dict[str, Any]:
    """Spark's answers for each row, or why it refuses."""
    try:
        rows = frame.selectExpr(*(f"({text}) as `{i}`" for i, text in enumerate(texts))).collect()
    except PySparkException as error:
        if len(texts) == 1:
            return {texts[0]: str(error)}
        return {text: one for text in texts for one in answers(frame, [text]).values()}
    return {text: [row[i] for row in rows] for i, text in enumerate(texts)}


@pytest.mark.usefixtures("reads")
def test_rows_come_through_the_source(berlin: SparkSession, location: str) -> None:
    """From parts and row groups of one row; times are those of the session's zone."""
    frame = berlin.sql(EDGES).coalesce(1)
    small = {"inlinePartBytes": "0", "rowGroupRows": "1"}
    frame.write.format("shard").mode("append").options(**small).save(f"{location}/edges")
    text = "ts >= '2026-10-25 02:00:00' and (x > 5 or not isnan(x)) or s like 'a%' or n is null"
    assert rows(read(berlin, f"{location}/edges", where=text)) == rows(frame.where(text))


@pytest.mark.usefixtures("reads")
def test_columns_of_the_filter_need_not_be_read(berlin: SparkSession, location: str) -> None:
    """Batch: contents, with retractions, and the change feed."""
    place = f"{location}/people"
    first = berlin.sql("select id, id % 3 k, concat('n', id) name from range(20)")
    first.write.format("shard").mode("append").save(place)
    berlin.sql("select id, id % 3 k, concat('n', id) name from range(10)").write.format(
        "shard"
    ).mode("overwrite").save(place)

    found = read(berlin, place, columns="name", where="k = 1 and id >= 4")
    assert found.columns == ["name"]
    assert rows(found) == Counter(["Row(name='n4')", "Row(name='n7')"])
    feed = read(berlin, place, columns="id", where="k = 1 and id > 4", readChangeFeed=True)
    changes = Counter((row["id"], row["_diff"]) for row in feed.collect())
    gone = (10, 13, 16, 19)
    assert changes == Counter([(7, 1), *((id_, diff) for id_ in gone for diff in (1, -1))])


@pytest.mark.usefixtures("reads")
def test_a_stream_keeps_the_rows_that_pass(
    berlin: SparkSession, location: str, checkpoint: str
) -> None:
    """Those of the first snapshot and those that come later."""
    place = f"{location}/stream"
    seen: list[Any] = []

    def run() -> None:
        frame = (
            berlin.readStream.format("shard")
            .option("where", "k = 1")
            .option("columns", "id")
            .option("timeZone", ZONE)  # in any other one than the session's it is not native
            .load(place)
        )
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    berlin.sql("select id, id % 3 k from range(6)").write.format("shard").mode("append").save(place)
    run()
    assert sorted(row["id"] for row in seen) == [1, 4]
    berlin.sql("select id, id % 3 k from range(6, 12)").write.format("shard").mode("append").save(
        place
    )
    run()
    assert sorted(row["id"] for row in seen) == [1, 4, 7, 10]


def test_a_large_part_is_read_by_several_tasks(berlin: SparkSession, location: str) -> None:
    """Cut by row groups, every row once."""
    place = f"{location}/large"
    frame = berlin.range(200_000).coalesce(1)
    small = {"inlinePartBytes": "0", "rowGroupRows": "10000"}
    frame.write.format("shard").mode("append").options(**small).save(place)
    # Spark cuts files itself where it reads them.
    found = read(berlin, place, partitionBytes="5k", nativeReads="false")
    assert found.rdd.getNumPartitions() > 4
    counted = found.selectExpr("count(*)", "count(distinct id)", "sum(id)").collect()
    assert counted[0][:] == (200_000, 200_000, 19_999_900_000)


def test_what_a_filter_cannot_say_is_refused(berlin: SparkSession, location: str) -> None:
    """When the read is planned, by the piece that is not understood."""
    place = f"{location}/refused"
    berlin.range(3).write.format("shard").mode("append").save(place)
    for text, says in [
        ("upper(id) = 'A'", "INVALID_WHERE"),
        ("idd = 1", "mean 'id'"),
        ("id = 'x'", "INVALID_WHERE"),
    ]:
        with pytest.raises(Exception, match=says):
            read(berlin, place, where=text).collect()
