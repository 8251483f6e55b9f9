"""Values that others have no word for: beyond Python's range, or that Spark cannot compare."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from msgspec.structs import replace

from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.view_columns import parse_columns
from shardline.app.compute.view.view_plan import plan_view
from shardline.datasource.spark_native.time_interval import Interval
from support.profiles import one_of, some_of
from support.spark.view_world import START, ViewWorld
from support.spark.views import Following, Row, no_fence

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STEPS = 5

T = pa.schema(
    [
        ("id", pa.int64()),
        ("until", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("raw", pa.string()),
    ]
)

UNTIL = (253_402_318_799_000_000, -62_135_610_000_000_000)
"""The last second of the year 9999 in New York, and the first days of year 1 east of UTC, in us."""

DAYS = (2_932_897, -719_529)
"""The first day of the year 10000, and the last one of the year -1, from 1970 on."""


def rows_of(step: int) -> pa.Table:
    """Two rows, as a writer in another program brings them."""
    ids = [2 * step, 2 * step + 1]
    raw = pa.array([b"\xff%d" % number for number in ids], pa.binary())
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "until": pa.array(UNTIL, pa.timestamp("us", "UTC")),
            "day": pa.array(DAYS, pa.int32()).cast(pa.date32()),
            "raw": pa.Array.from_buffers(pa.string(), 2, raw.buffers()),
            "_ts": pa.array([START + 10 * step] * 2, pa.int64()),
            "_diff": pa.array([1, 1], pa.int64()),
        }
    )


def plainly(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows by the numbers and bytes that their values are."""
    columns = [
        table["id"],
        table["until"].cast(pa.int64()),
        table["day"].cast(pa.int32()),
        table["raw"].combine_chunks().view(pa.binary()),
    ]
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True))


@pytest.mark.parametrize("zone", one_of(2, ["America/New_York", "Asia/Tokyo"]))
@pytest.mark.parametrize(
    "query",
    one_of(
        2,
        [
            "SELECT id, max(until) AS until, max(day) AS day, max(raw) AS raw FROM t GROUP BY id",
            "SELECT id, until, day, raw FROM t WHERE id >= 0",
        ],
    ),
)
def test_values_that_python_has_not_stop_no_step(
    spark: SparkSession, tmp_path: Path, zone: str, query: str
) -> None:
    """In each step, also that in which a plan is proved by its rows."""
    world = ViewWorld(spark, tmp_path, (), ())
    bench = world.bench
    bench.host = dataclasses.replace(bench.host, self_check_every=2)
    world.session.conf.set("spark.sql.session.timeZone", zone)
    world.inputs["t"] = bench.input("t", T)
    kept = replace(world.kept("v", query), strategy="incremental")
    view = View(bench.host, bench.incarnation("v", START), kept, no_fence, Following())
    lower, wanted = START, []
    for step in range(STEPS):
        rows, upper = rows_of(step), START + 10 * step + 1
        world.inputs["t"].append_table(rows, upper)
        view.advance(world.session, Interval(lower, upper, starts=step == 0))
        wanted += plainly(rows)
        with bench.client.reader("v") as reader:
            assert plainly(reader.snapshot(upper - 1)) == wanted
        lower = upper
    ways = world.steps("v")
    assert ways["linear"] + ways["incremental"] == STEPS - 1


CUTS = (START + 1, 21, 31)
NUMBERS = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("x", pa.int64())])

FIRST = (
    "SELECT k, count(*) AS n FROM (SELECT *, rank() OVER (PARTITION BY k ORDER BY x) AS r "
    "FROM (SELECT *, {} AS v FROM t)) WHERE r = 1 GROUP BY k"
)
"""A region below a state, of whose rows one more column is a part."""


def ways_of(spark: SparkSession, folder: Path, query: str) -> set[str]:
    """The ways of the steps of a view of numbers, whose contents are right at every time."""
    world = ViewWorld(spark, folder, CUTS, (START, 20, 30))
    source = world.inputs["t"] = world.bench.input("t", NUMBERS)
    source.push(START, ((1, 1, 5), 1), ((2, 1, 5), 1), ((3, 2, 7), 1))
    source.push(20, ((4, 2, 7), 1), ((1, 1, 5), -1))
    source.push(30, ((5, 2, 6), 1))
    return world.follow(world.kept("v", query), lambda time: world.by_spark(query, time))


OPAQUE = {
    "variant": "parse_json(CAST(x AS STRING))",
    "inside": "array(named_struct('v', to_variant_object(array(x))))",
}


@pytest.mark.parametrize("kind", some_of(OPAQUE, {"variant"}))
def test_rows_whose_values_cannot_be_compared_are_not_added_up(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Spark cannot group by them: such a view is recomputed, and its plan says so."""
    query = FIRST.format(OPAQUE[kind])
    ways = ways_of(spark, tmp_path, query)
    assert ways == {"recompute"}
    columns = {"t": parse_columns("id BIGINT, k BIGINT, x BIGINT")}
    plan = plan_view(spark, "v", query, columns)
    assert (plan.strategy, plan.reason) == (
        "recompute",
        "a column below it whose values cannot be compared, nor rows added up",
    )


IN_THE_WAY = {
    "unused": "SELECT id, k, rank() OVER (PARTITION BY k ORDER BY x) AS r "
    "FROM (SELECT id, k, x, parse_json(CAST(x AS STRING)) AS v FROM t)",
    "interval": FIRST.format("make_interval(0, 0, 0, CAST(x AS INT))"),
}


@pytest.mark.parametrize("name", some_of(IN_THE_WAY, {"unused"}))
def test_columns_that_do_not_stand_in_the_way_do_not_matter(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Those that the query needs not; and intervals, which are compared, though not sorted."""
    ways = ways_of(spark, tmp_path, IN_THE_WAY[name])
    assert ways == {"recompute", "incremental"}


def test_a_plan_that_cannot_be_made_is_one_that_is_recomputed(spark: SparkSession) -> None:
    """What Spark keeps of a function may be more than is known of it here."""
    columns = {"t": parse_columns("id BIGINT, k BIGINT, x INT")}
    plan = plan_view(spark, "v", "SELECT k, try_sum(x) AS s FROM t GROUP BY k", columns)
    assert plan.strategy == "recompute"
    assert plan.reason == "sum keeps 2 values in this Spark"


ZEROS = {
    "distinct": "SELECT count(DISTINCT a) AS n FROM t GROUP BY x",
    "added_up": "SELECT count(*) AS n, sum(a) AS s, max(a) AS hi FROM t GROUP BY x",
}


@pytest.mark.parametrize("name", some_of(ZEROS, {"distinct"}))
def test_zeros_of_both_signs_are_one_group_of_a_state(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """And every NaN is one; the rows themselves are apart in a shard."""
    nan = float("nan")
    world = ViewWorld(spark, tmp_path, CUTS, (START, 20, 30))
    schema = pa.schema([("a", pa.int64()), ("x", pa.float64())])
    source = world.inputs["t"] = world.bench.input("t", schema)
    source.push(START, ((1, -0.0), 2), ((5, nan), 1))
    source.push(20, ((2, 0.0), 1), ((2, nan), 2))
    source.push(30, ((1, -0.0), -2), ((5, nan), -1))
    query = ZEROS[name]
    ways = world.follow(world.kept("v", query), lambda time: world.by_spark(query, time))
    assert ways == {"recompute", "incremental"}


def test_entries_of_a_map_are_a_key_that_tells_null_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In whatever order a map has them: Spark's own key of a map has no NULL among its values."""
    world = ViewWorld(spark, tmp_path, CUTS, (START, 20, 30))
    schema = pa.schema([("id", pa.int64()), ("m", pa.map_(pa.string(), pa.int32()))])
    source = world.inputs["t"] = world.bench.input("t", schema)
    some, turned = (("a", 1), ("b", None)), (("b", None), ("a", 1))
    source.push(START, ((1, some), 1), ((2, turned), 1), ((3, (("a", 1), ("b", 0))), 1))
    source.push(20, ((2, turned), -1), ((4, None), 1), ((5, ()), 1))
    source.push(30, ((1, some), -1), ((5, ()), -1))
    query = "SELECT sort_array(map_entries(m)) AS entries, count(*) AS n FROM t GROUP BY 1"
    null, zero = (("a", 1), ("b", None)), (("a", 1), ("b", 0))
    wanted: dict[int, Counter[Row]] = {
        START: Counter({(null, 2): 1, (zero, 1): 1}),
        20: Counter({(null, 1): 1, (zero, 1): 1, (None, 1): 1, ((), 1): 1}),
        30: Counter({(zero, 1): 1, (None, 1): 1}),
    }
    ways = world.follow(world.kept("v", query), wanted.__getitem__)
    assert ways == {"recompute", "incremental"}
