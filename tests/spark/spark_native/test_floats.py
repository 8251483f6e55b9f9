"""NaN and the two zeros in filtered reads: the rows that Spark keeps of the plain rows."""

from __future__ import annotations

import itertools
import math
import shutil
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardline import datasource
from shardline.app.compute.view.maintained_view import View
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.spark_compaction.driver import compact_on_spark
from shardline.datasource.spark_native.time_interval import Interval
from support.profiles import some_of
from support.spark.native import client_at, put
from support.spark.views import Bench, Following, contents, no_fence, view
from support.tree import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from shardline.datasource.spark_native.plan_rule import NativeReads

pytestmark = pytest.mark.spark

OLD = GOLDEN / "v1.3" / "floats.zip"
"""A location as state version 1.3 wrote it: the bounds in its parts leave NaN out."""

GROUP = 8

_KINDS = (
    [1.0, math.nan, 50.0, 2.0],
    [-0.0] * 4,
    [0.0] * 4,
    [1.5, 2.5, 3.5, 4.5],
    [None, math.nan, None, 1.0],
    [101.0, 250.0, math.inf, -math.inf],
)
"""Values of row groups: NaN beside small numbers, each zero by itself, nulls, what is large."""

COLUMNS = ("d", "f", "s.a", "s.b.c")

_COMPARISONS = (
    "{} > 100",
    "{} = double('NaN')",
    "{} >= 100",
    "NOT ({} <= 100)",
    "{} IN (7, double('NaN'))",
    "{} <=> double('NaN')",
    "{} BETWEEN 60 AND double('NaN')",
    "{} = 0D",
    "{} >= 0D AND {} < 1",
)
_MORE = (
    "{} >= double('Infinity')",
    "{} IN (200D, double('NaN'), 0D, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)",
    "{} NOT IN (1, 50, 0)",
    "{} BETWEEN 60 AND 1000",
    "{} <> 1",
    "isnan({})",
    "{} IS NULL",
    "{} = -0D",
    "{} <=> -0D",
    "{} IN (-0D, 99D)",
    "{} > -0D",
    "{} <= -0D",
    "{} < 0D",
    "{} <> 0D",
    "{} BETWEEN 0D AND 0D",
    "{} > 100 AND id > 2",
    "id = 8 AND {} = 0D",
)
FEW = (
    *(form.replace("{}", "d") for form in _COMPARISONS),
    *("f > 100F", "s.a > 100", "s.b.c = 0D", "d < 0D", "d = 0D OR f > 100"),
)
PREDICATES = (
    *(form.replace("{}", column) for column in COLUMNS for form in _COMPARISONS),
    *(form.replace("{}", "d") for form in _MORE),
    "f = 0F",
    "f > 100F",
    "d = 0D OR f > 100",
    "l[0] > 100",
    "m['k'] > 100",
)


def table_of(numbers: Sequence[int], width: int) -> pa.Table:
    """Rows with these ids; of `width` rows each that follow each other, one kind of values."""
    values = [_KINDS[n // width % len(_KINDS)][n % width % 4] for n in numbers]
    inner = pa.struct([("a", pa.float64()), ("b", pa.struct([("c", pa.float32())]))])
    structs = [
        None if n % 11 == 5 else {"a": v, "b": {"c": v}}
        for n, v in zip(numbers, values, strict=True)
    ]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "d": pa.array(values, pa.float64()),
            "f": pa.array(values, pa.float32()),
            "s": pa.array(structs, inner),
            "l": pa.array([[value] for value in values], pa.list_(pa.float64())),
            "m": pa.array([[("k", v)] for v in values], pa.map_(pa.string(), pa.float64())),
        }
    )


def plain(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The rows as Spark's own, which no file and no statistics know of."""
    return spark.createDataFrame(
        table.to_pylist(maps_as_pydicts="strict"),
        "id long, d double, f float, s struct<a: double, b: struct<c: float>>, "
        "l array<double>, m map<string, double>",
    )


def kept(
    spark: SparkSession, table: pa.Table, texts: Sequence[str] = PREDICATES
) -> Counter[tuple[str, int]]:
    """Which of the rows pass which predicate, by Spark's own expressions over the plain rows."""
    rows = plain(spark, table).selectExpr(
        "id", *(f"{text} AS p{place}" for place, text in enumerate(texts))
    )
    return Counter(
        (text, row[0])
        for row in rows.collect()
        for text, passes in zip(texts, row[1:], strict=True)
        if passes
    )


def passing(frame: DataFrame, texts: Sequence[str] = PREDICATES) -> Counter[tuple[str, int]]:
    """Which rows pass which predicate: each a filter of its own, in one job."""
    from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

    found = [frame.where(text).select(F.lit(text), "id") for text in texts]
    return Counter((row[0], row[1]) for row in reduce(type(frame).unionAll, found).collect())


SMALL = {"inline_part_bytes": 0, "row_group_rows": GROUP, "compact_inline_bytes": 0}
ROWS = table_of(range(48), GROUP)


def appended(_: SparkSession, location: str) -> None:
    """One part by our own writer."""
    put(client_at(location, **SMALL), "in", 1, ROWS)


def flushed(_: SparkSession, location: str) -> None:
    """A part that the state had no room for any more, and that became a file."""
    client = client_at(location, **SMALL | {"inline_part_bytes": 1 << 16, "inline_state_bytes": 1})
    put(client, "in", 1, ROWS)
    [part] = client.state("in").trace.batches[0].parts
    assert part.inline is None


def put_more(client: ShardClient, time: int, table: pa.Table) -> None:
    handle = client.writer("in")
    handle.compare_and_append(table, handle.upper(), Frontier(time + 1))


def merged(_: SparkSession, location: str) -> None:
    """Several parts merged into one."""
    client = client_at(location, **SMALL)
    put(client, "in", 1, ROWS.slice(0, 20))
    put_more(client, 2, ROWS.slice(20))
    client.compact("in", force=True)
    assert len(client.state("in").trace.batches) == 1


def merged_by_tasks(spark: SparkSession, location: str) -> None:
    """A merge of ranges by Spark tasks."""
    client = client_at(location, **SMALL)
    put(client, "in", 1, ROWS.slice(0, 20))
    put_more(client, 2, ROWS.slice(20))
    assert compact_on_spark(spark, client, "in", storage={}, force=True, range_bytes=2000)


def retracted(_: SparkSession, location: str) -> None:
    """Parts that must be consolidated."""
    client = client_at(location, **SMALL)
    put(client, "in", 1, pa.concat_tables([ROWS, ROWS.slice(0, 30)]))
    gone = ROWS.slice(0, 30)
    put_more(client, 2, gone.append_column("_diff", pa.array([-1] * 30, pa.int64())))


def saved(spark: SparkSession, location: str) -> None:
    """By Spark's own writer, with bloom filters if it makes any."""
    options = {"rowGroupRows": 1}
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("parquet.bloom.filter.enabled", "true")
    try:
        datasource.save(plain(spark, ROWS).coalesce(1), f"{location}/in", options=options)
    finally:
        conf.unset("parquet.bloom.filter.enabled")


def by_tasks(spark: SparkSession, location: str) -> None:
    """By the Arrow sink."""
    options = {"rowGroupRows": str(GROUP), "inlinePartBytes": "0"}
    frame = plain(spark, ROWS).coalesce(1)
    frame.write.format("shard").mode("append").options(**options).save(f"{location}/in")


@pytest.mark.parametrize(
    "write",
    some_of(
        [appended, flushed, merged, merged_by_tasks, retracted, saved, by_tasks],
        [merged_by_tasks],
    ),
    ids=lambda write: write.__name__,
)
def test_rows_are_those_of_the_plain_rows(
    spark: SparkSession,
    location: str,
    native_reads: NativeReads,
    write: Callable[[SparkSession, str], None],
) -> None:
    """Whoever wrote the parts: no row group is passed over that has a row that passes."""
    write(spark, location)
    texts = PREDICATES if write in (appended, saved) else FEW
    expected = kept(spark, ROWS, texts)
    assert passing(datasource.snapshot(spark, f"{location}/in"), texts) == expected
    assert passing(spark.read.format("shard").load(f"{location}/in"), FEW) == Counter(
        {row: number for row, number in expected.items() if row[0] in FEW}
    )
    assert native_reads.counts().keys() == {"native"}
    assert {text for text, _ in expected} >= {"d = 0D", "d > 100", "s.a > 100"}


@pytest.mark.parametrize(
    ("compacted", "shard"),
    some_of(
        itertools.product([False, True], ["known", "unknown"]),
        [(True, "unknown")],
    ),
)
def test_parts_of_older_versions(
    spark: SparkSession, location: str, shard: str, compacted: bool
) -> None:
    """Their bounds leave NaN out: nothing is passed over by them, with or without statistics."""
    shutil.unpack_archive(OLD, location)
    numbers = range(24) if shard == "known" else range(8, 32)
    if compacted:
        client_at(location, **SMALL).compact(shard, force=True)
    texts = PREDICATES if shard == "known" and not compacted else FEW
    found = passing(datasource.snapshot(spark, f"{location}/{shard}"), texts)
    assert found == kept(spark, table_of(numbers, 4), texts)


@pytest.fixture
def record_filters(spark: SparkSession) -> Iterator[None]:
    """Spark without its vectorized reader, and with Parquet's filters of single rows."""
    names = {
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.recordLevelFilter.enabled": "true",
    }
    for name, value in names.items():
        spark.conf.set(name, value)
    yield
    for name in names:
        spark.conf.unset(name)


@pytest.mark.usefixtures("record_filters")
def test_parquet_filters_no_single_rows(spark: SparkSession, location: str) -> None:
    """It takes the two zeros for different numbers, whatever the session says of its use."""
    appended(spark, location)
    found = passing(datasource.snapshot(spark, f"{location}/in"), FEW)
    assert found == kept(spark, ROWS, FEW)


def test_a_view_of_many_updates_keeps_nan(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    """More than the driver reads by itself, and NaN among them taken back later."""
    bench = Bench(spark, location, tmp_path / "checkpoints")
    source = bench.input("numbers", pa.schema([("id", pa.int64()), ("f", pa.float64())]))
    large = view(
        "large", "SELECT id, f FROM numbers WHERE f > 100", "id BIGINT, f DOUBLE", "numbers",
        strategy="linear",
    )  # fmt: skip

    def value(number: int) -> float:
        return math.nan if number % 997 == 0 else -0.0 if number % 3 else 1.0

    first = [((number, value(number)), 1) for number in range(20_000)]
    source.push(5, *first)
    running = View(bench.host, bench.incarnation("large", 5), large, no_fence, Following())
    running.advance(spark.newSession(), Interval(5, 6, starts=True))
    source.push(7, *((row, -1) for row, _ in first[:10_000]))
    running.advance(spark.newSession(), Interval(6, 8))
    for time in (5, 7):
        rows = Counter((n, "NaN") for n, f in source.at(time) if not f <= 100)
        assert rows
        assert contents(bench.client, "large", time) == rows


def test_filters_still_reach_the_files(spark: SparkSession, location: str) -> None:
    """What can be trusted is used: without NaN only the row group that is meant is read."""
    numbers: Any = pa.array([float(n) for n in range(1000)])
    client = client_at(location, **SMALL | {"row_group_rows": 100})
    put(client, "in", 1, pa.table({"f": numbers}))
    frame = datasource.snapshot(spark, f"{location}/in").where("f >= 900")
    assert frame.count() == 100
    assert read_rows(frame) == 100


def read_rows(frame: DataFrame) -> int:
    """How many rows the scan of a frame gave to the filter above it."""
    executed = frame._jdf.queryExecution()
    executed.toRdd().count()
    leaves = executed.executedPlan().collectLeaves()
    return int(
        sum(leaves.apply(i).metrics().apply("numOutputRows").value() for i in range(leaves.size()))
    )
