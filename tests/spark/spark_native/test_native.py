"""Native fetch and native write: the rows that Arrow gives, and the promises that go with them."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from shardline import datasource
from shardline.datasource.filters import comparisons
from shardline.datasource.frontier import Frontier
from shardline.datasource.parts import stage
from shardline.datasource.rows.updates import stamp
from shardline.datasource.spark_native import frames, touched_rows
from shardline.datasource.spark_native.blob_paths import hadoop_url
from shardline.datasource.spark_native.time_interval import Interval
from shardline.datasource.types.schema import ShardSchema
from support.processes.s3_server import S3Server, s3_server
from support.profiles import one_of
from support.spark import stored
from support.spark.native import TYPES, arrow_of, client_at, collected, few, ids, put
from support.strategies.rows import Case, cases, plain_rows, row_identity, summed, updates_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3a]


@pytest.fixture
def configured(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Sets session settings for one test."""
    before: dict[str, str | None] = {}

    def put_setting(name: str, value: str) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield put_setting
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.fixture(autouse=True)
def _times_of_day(configured: Callable[[str, str], None]) -> None:
    configured("spark.sql.timeType.enabled", "true")


# --- sessions ---


@pytest.mark.disk
@pytest.mark.parametrize(
    ("zone", "hour"), [("+02:00", 2), ("GMT+02:00", 2), ("UTC+1", 1), ("Z", 0), ("PST", -8)]
)
def test_a_session_in_any_zone_that_spark_takes(
    spark: SparkSession,
    location: str,
    configured: Callable[[str, str], None],
    zone: str,
    hour: int,
) -> None:
    """Plain times need none, and date-times without a zone are Spark's."""
    configured("spark.sql.session.timeZone", zone)
    put(client_at(location), "in", 20 * 3_600_000, ids(1))
    clock = dt.datetime.fromisoformat("1970-01-01 20:00:00") + dt.timedelta(hours=hour)
    [(spark_ms,)] = spark.sql(f"SELECT unix_millis(TIMESTAMP'{clock}')").collect()
    assert spark_ms == 20 * 3_600_000
    for as_of in (None, spark_ms, str(clock)):
        assert collected(datasource.snapshot(spark, f"{location}/in", as_of=as_of)) == [(1,)]
    some = datasource.changes(
        spark, f"{location}/in", start=str(clock), options={"where": "id = 1"}
    )
    assert collected(some) == [(1, spark_ms, 1)]


def test_short_names_of_zones_are_those_of_java(spark: SparkSession) -> None:
    """Spark looks names of zones up in this map of Java's."""
    jvm: Any = spark._jvm
    found = jvm.java.time.ZoneId.SHORT_IDS
    assert dict(comparisons._SHORT_NAMES) == {name: found[name] for name in found}


# --- the same rows -----------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[Case, pa.Table, int, bool, bool]:
    """Rows of any types added and taken away over a few times; what counts; blobs or inline; split.

    Split: groups are taken for so large that only their touched rows are consolidated.
    """
    case = draw(cases(TYPES, most=6))
    times, diffs = [], []
    there: Counter[Any] = Counter()
    time = 0
    for row in case.rows:
        time += draw(st.integers(0, 1))
        key = row_identity(row, case.schema)
        diff = draw(st.sampled_from([1, 1, 2, -1]))
        diff = max(diff, -there[key]) or 1
        there[key] += diff
        times.append(time)
        diffs.append(diff)
    until, inline, split = draw(st.integers(0, time + 1)), draw(st.booleans()), draw(st.booleans())
    return case, updates_of(case, times, diffs), until, inline, split


def model(case: Case, updates: pa.Table, until: int) -> dict[Any, int]:
    keys = [row_identity(row, case.schema) for row in plain_rows(updates, case.schema.names)]
    times, diffs = updates["_ts"].to_pylist(), updates["_diff"].to_pylist()
    return summed(
        (key, diff) for key, time, diff in zip(keys, times, diffs, strict=True) if time <= until
    )


@few
@given(histories())
def test_contents_of_any_type(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, history: tuple[Any, ...]
) -> None:
    """A snapshot is what a plain model says, whatever the types, wherever the parts are."""
    case, updates, as_of, inline, split = history
    location = str(tmp_path_factory.mktemp("any"))
    client = client_at(location, inline_part_bytes=4096 if inline else 0)
    client.create("in", case.schema)
    handle = client.writer("in")
    for time in sorted(set(updates["_ts"].to_pylist())):
        some = updates.filter(pa.compute.equal(updates["_ts"], time))
        handle.compare_and_append(some, handle.upper(), Frontier(time + 1))
    handle.compare_and_append(None, handle.upper(), Frontier(100))

    with mock.patch.object(frames, "is_worth_splitting", return_value=split):
        frame = datasource.snapshot(spark, f"{location}/in", as_of=as_of)
    assert arrow_of(frame, case) == Counter(model(case, updates, as_of))


def test_only_touched_rows_are_consolidated(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that no retraction can be equal to are scanned, and go through no shuffle."""
    monkeypatch.setattr(touched_rows, "_LEAST_ROWS", 1)
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    key = ("id",)
    many = pa.table({"id": [*range(40), 7, None], "v": ["a"] * 20 + ["b"] * 22})
    put(client, "in", 1, many, key)
    put(client, "in", 2, stamp(pa.table({"id": [7, None], "v": ["a", "b"]}), 2, -1), key)
    tiny = client_at(location, inline_part_bytes=4096, compact_inline_bytes=0)
    put(tiny, "in", 3, stamp(pa.table({"id": [7, 8], "v": ["c", "a"]}), 3, 1), key)

    frame = datasource.snapshot(
        spark, f"{location}/in", columns=["v"], options={"where": "id < 20 OR id IS NULL"}
    )
    assert "LeftAnti" in frame._jdf.queryExecution().executedPlan().toString()
    assert Counter(row.v for row in frame.collect()) == {"a": 20, "b": 1, "c": 1}


@pytest.mark.disk
def test_shapes_are_left_to_arrow(
    spark: SparkSession, location: str, configured: Callable[[str, str], None]
) -> None:
    """Values that Spark's Parquet keeps otherwise than parts do take the other way, both ways."""
    configured("spark.sql.geospatial.enabled", "true")
    point = "X'0101000000000000000000F03F0000000000000040'"
    frame = spark.range(3).selectExpr(f"st_geomfromwkb({point}) g", "id")
    datasource.save(frame, f"{location}/in")
    gone = frame.where("id = 1").selectExpr("*", "-1L as _diff")
    datasource.save(gone, f"{location}/in", options={"inlinePartBytes": 0})
    back = datasource.snapshot(spark, f"{location}/in")

    assert back.schema["g"].dataType == frame.schema["g"].dataType
    shown = back.selectExpr("id", "hex(st_asbinary(g))").collect()
    assert sorted(map(tuple, shown)) == [(0, point[2:-1]), (2, point[2:-1])]


def test_changes_of_an_interval(spark: SparkSession, location: str) -> None:
    """An interval's updates come with their times and diffs, read or known from metadata."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 3, ids(1, 2))
    several = pa.table(
        {
            "id": pa.array([2, 5, 6], pa.int64()),
            "_ts": pa.array([5, 6, 8], pa.int64()),
            "_diff": pa.array([-1, 3, 1], pa.int64()),
        }
    )
    put(client, "in", 8, several)

    every = datasource.changes(spark, f"{location}/in")
    assert collected(every) == [(1, 3, 1), (2, 3, 1), (2, 5, -1), (5, 6, 3), (6, 8, 1)]
    some = datasource.changes(spark, f"{location}/in", start=4, end=8, columns=["id"])
    assert collected(some) == [(2, 5, -1), (5, 6, 3)]
    first = datasource.changes(spark, f"{location}/in", start=3, where="_ts = 3")
    assert collected(first) == [(1, 3, 1), (2, 3, 1)]


def test_zeros_and_nans(spark: SparkSession, location: str) -> None:
    """All NaNs are one value; -0.0 and 0.0 are two, and each is taken away by itself."""
    client = client_at(location, inline_part_bytes=0)
    kind = pa.float64()
    put(client, "in", 1, pa.table({"x": pa.array([0.0, -0.0, float("nan"), None, 1.5], kind)}))
    gone = pa.table({"x": pa.array([0.0, -float("nan")], kind)})
    put(client, "in", 2, stamp(gone, 2, -1))

    left = datasource.snapshot(spark, f"{location}/in").collect()
    assert Counter(map(repr, (row.x for row in left))) == Counter(["-0.0", "None", "1.5"])


def test_more_removed_than_added_is_an_error(spark: SparkSession, location: str) -> None:
    """A row that was never there cannot be taken away unnoticed."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1, 2))
    put(client, "in", 2, stamp(ids(2, 2), 2, -1))

    with pytest.raises(Exception, match=r"\[NEGATIVE_MULTIPLICITY\]"):
        datasource.snapshot(spark, f"{location}/in").collect()


def test_rows_that_are_there_very_often(spark: SparkSession, location: str) -> None:
    """A diff of many copies is spelled out, beyond what fits one array."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, stamp(ids(1), 1, 200_001))
    put(client, "in", 2, stamp(ids(1), 2, -1))

    assert datasource.snapshot(spark, f"{location}/in").count() == 200_000


@pytest.mark.disk
@pytest.mark.parametrize("inline", one_of(2, [0, 1 << 20]))
def test_updates_that_change_nothing(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    """No way of reading makes rows of them: not of those of an older writer, and Spark writes none.

    Nor where rows are read with times and diffs because another row was retracted.
    """
    with monkeypatch.context() as patched:
        patched.setattr(stage, "_without_zeros", lambda updates: updates)
        older = ids(1, 2, 3).append_column("_diff", pa.array([1, 0, 1]))
        put(client_at(location, inline_part_bytes=inline), "in", 1, older)
    newer = spark.sql("select id, _diff from values (4L, 1L), (5L, 0L), (6L, 1L) as t(id, _diff)")
    datasource.save(newer, f"{location}/in")
    parts = [p for b in client_at(location).state("in").trace.batches for p in b.parts]
    assert sum(part.rows for part in parts) == 3 + 2

    def reads() -> list[list[tuple[Any, ...]]]:
        plain = spark.read.format("shard").load(f"{location}/in")
        return [collected(plain), collected(datasource.snapshot(spark, f"{location}/in"))]

    assert reads() == [[(1,), (3,), (4,), (6,)]] * 2
    cdf = spark.read.format("shard").option("changeFormat", "cdf").load(f"{location}/in")
    assert collected(cdf.select("id")) == [(1,), (3,), (4,), (6,)]
    datasource.save(spark.sql("select 1L id, -1L _diff"), f"{location}/in")
    assert reads() == [[(3,), (4,), (6,)]] * 2


def test_older_schemas(spark: SparkSession, location: str) -> None:
    """Parts of an older schema are read as the newest: nulls for what came later, types widened."""
    old = "struct<i:int,d:date,n:decimal(5,2),f:float,s:struct<a:int>,l:array<struct<a:smallint>>>"
    new = (
        "struct<i:bigint,d:timestamp_ntz,n:decimal(9,3),f:double,s:struct<a:bigint,b:string>,"
        "l:array<struct<a:int,c:string>>,z:string>"
    )
    from pyspark.sql.types import _parse_datatype_string

    client = client_at(location, inline_part_bytes=0)
    first, later = (ShardSchema.parse(_parse_datatype_string(text).json()) for text in (old, new))
    client.create("in", first)
    row = (1, dt.date(2020, 2, 29), Decimal("1.25"), 0.5, (7,), [(2,), None])
    spark.createDataFrame([row], old).write.format("shard").mode("append").option(
        "inlinePartBytes", 0
    ).save(f"{location}/in")
    client.evolve("in", later)
    arrow = spark.read.format("shard").load(f"{location}/in")
    native = datasource.snapshot(spark, f"{location}/in")

    assert native.schema == arrow.schema
    assert native.collect() == arrow.collect()
    assert native.where("s.b is null and z is null and i = 1 and f = 0.5").count() == 1
    assert native.select("l.c").collect() == [([None, None],)]


@pytest.mark.disk
def test_a_plan_grows_with_kinds_of_parts_only(spark: SparkSession, location: str) -> None:
    """A hundred parts at a hundred times are one scan, pruned and filtered by Spark itself."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    for time in range(1, 101):
        put(client, "in", time, pa.table({"id": [time], "s": [f"at {time}"]}))
    feed = datasource.changes(spark, f"{location}/in").where("id > 90").select("id", "_ts")
    plan = feed._jdf.queryExecution().executedPlan().toString()

    assert plan.count("FileScan") == 1
    assert "PushedFilters: [IsNotNull(id), GreaterThan(id,90)]" in plan
    assert "ReadSchema: struct<id:bigint>" in plan
    assert collected(feed) == [(n, n) for n in range(91, 101)]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_filter_of_the_plan(
    spark: SparkSession, location: str, configured: Callable[[str, str], None], zone: str
) -> None:
    """Option `where` counts for parts of every kind, over columns that are not read as well."""
    configured("spark.sql.session.timeZone", zone)
    client = client_at(location, inline_part_bytes=0)
    day = 86_400_000_000
    both = pa.table(
        {"id": [1, 2, 3, 4], "t": pa.array([0, 1, 2, 3], pa.int64())},
    ).set_column(1, "t", pa.array([0, day, 2 * day, 3 * day], pa.timestamp("us", tz="UTC")))
    put(client, "in", 1, both)
    put(client, "in", 2, stamp(both.slice(3), 2, -1))
    tiny = client_at(location, inline_part_bytes=4096)
    put(tiny, "in", 3, both.slice(2))
    given = {"where": "t >= timestamp '1970-01-02 09:00:00'", "timeZone": "Asia/Tokyo"}
    frame = datasource.snapshot(spark, f"{location}/in", columns=["id"], options=given)

    assert collected(frame) == [(2,), (3,), (3,), (4,)]
    feed = datasource.changes(spark, f"{location}/in", options=given)
    assert Counter(row._diff for row in feed.collect()) == Counter({1: 5, -1: 1})


def test_no_shuffle_without_retractions(spark: SparkSession, location: str) -> None:
    """Rows are exchanged only where a retraction can meet them."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1, 2))
    put(client, "in", 2, ids(11, 12))

    def plan() -> str:
        frame = datasource.snapshot(spark, f"{location}/in")
        return str(frame._jdf.queryExecution().executedPlan().toString())

    assert "Exchange" not in plan()
    put(client, "in", 3, stamp(ids(12), 3, -1))
    assert plan().count("Exchange") == 1
    assert collected(datasource.snapshot(spark, f"{location}/in")) == [(1,), (2,), (11,)]


# --- faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_no_setting_makes_rows_vanish(
    spark: SparkSession,
    location: str,
    configured: Callable[[str, str], None],
    damage: str,
) -> None:
    """A part that is missing or damaged is an error that names it, whatever the session says."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(*range(1000)))
    put(client, "in", 2, ids(7))
    configured("spark.sql.files.ignoreMissingFiles", "true")
    configured("spark.sql.files.ignoreCorruptFiles", "true")
    parts = [p for b in client.state("in").trace.batches for p in b.parts if p.rows == 1000]
    victim = parts[0].key
    data = bytearray(stored.read(location, victim))
    data[60] ^= 1
    if damage == "missing":
        stored.delete(location, victim)
    else:
        stored.replace(location, victim, bytes(data[:-100] if damage == "truncated" else data))

    with pytest.raises(Exception, match=victim):
        datasource.snapshot(spark, f"{location}/in").collect()


def test_a_refreshed_view_is_what_it_was(spark: SparkSession, location: str) -> None:
    """Spark lists a frame's files anew, and finds neither other parts nor other times."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1))
    datasource.snapshot(spark, f"{location}/in").createOrReplaceTempView("then")
    datasource.changes(spark, f"{location}/in").createOrReplaceTempView("feed")
    put(client, "in", 2, ids(2))
    for view in ("then", "feed"):
        spark.sql(f"refresh table {view}")

    assert spark.table("then").collect() == [(1,)]
    assert collected(spark.table("feed")) == [(1, 1, 1)]
    for view in ("then", "feed"):
        spark.catalog.dropTempView(view)


@pytest.mark.parametrize("by_path", [False, True])
def test_a_part_that_is_gone_is_missed_after_a_refresh(
    spark: SparkSession, location: str, by_path: bool
) -> None:
    """A listing in which a part is missing would lose its rows without an error."""
    client = client_at(location, inline_part_bytes=0)
    for value in (1, 2):
        put(client, "in", value, ids(value))
    parts = [part for batch in client.state("in").trace.batches for part in batch.parts]
    victim = parts[0].key
    frame = datasource.snapshot(spark, f"{location}/in")
    if by_path:
        frame.cache()
        assert frame.count() == 2
    frame.createOrReplaceTempView("then")
    stored.delete(location, victim)
    if by_path:
        spark.catalog.refreshByPath(hadoop_url(spark, location) or location)
    else:
        spark.sql("refresh table then")

    with pytest.raises(Exception, match=victim):
        spark.table("then").collect()
    spark.catalog.dropTempView("then")
    frame.unpersist()


# --- micro-batches -----------------------------------------------------------------------------


class _Sink:
    """Rows of each micro-batch as native fetch gave them, and failures on demand."""

    def __init__(self, *, compare: bool = False) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self.intervals: dict[int, Any] = {}
        self.compare = compare
        self.fail: set[int] = set()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = datasource.micro_batch(frame, batch)
        self.intervals[batch] = datasource.interval_of(frame, batch)
        assert rows.schema == frame.schema
        self.batches[batch] = collected(rows)
        if self.compare:
            assert self.batches[batch] == collected(frame)
        if batch in self.fail:
            raise RuntimeError("sink failed")


def run(spark: SparkSession, location: str, checkpoint: str, sink: _Sink, **options: object) -> Any:
    reader = spark.readStream.format("shard").option("readChangeFeed", "true")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    query = (
        reader.load(f"{location}/in")
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return query


@pytest.mark.parametrize("inline_part_bytes", one_of(2, [0, 4096]))
def test_a_micro_batch_is_the_streams_own_range(
    spark: SparkSession, location: str, checkpoint: str, inline_part_bytes: int
) -> None:
    """The first is the snapshot as updates, the others what changed: as the stream's own frame."""
    client = client_at(location, inline_part_bytes=inline_part_bytes)
    put(client, "in", 3, ids(1, 2))
    put(client, "in", 5, stamp(ids(2), 5, -1))
    sink = _Sink(compare=True)
    run(spark, location, checkpoint, sink)
    put(client, "in", 7, ids(8))
    put(client, "in", 9, stamp(ids(1, 8), 9, -1))
    run(spark, location, checkpoint, sink)

    assert sink.batches[0] == [(1, 5, 1)]
    later = sorted(row for number, rows in sink.batches.items() if number for row in rows)
    assert later == [(1, 9, -1), (8, 7, 1), (8, 9, -1)]


def test_the_sources_own_tasks_do_not_run(
    spark: SparkSession, location: str, checkpoint: str
) -> None:
    """Spark counts no row of the source when the frame itself is not touched."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 3, ids(1, 2))
    sink = _Sink()
    query = run(spark, location, checkpoint, sink)

    assert sink.batches == {0: [(1, 3, 1), (2, 3, 1)]}
    assert [progress.numInputRows for progress in query.recentProgress] == [0]


def test_a_replayed_micro_batch_has_the_same_range(
    spark: SparkSession, location: str, checkpoint: str
) -> None:
    """After a failure and a restart a micro-batch has its old range, whatever came since."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 3, ids(1))
    first = _Sink()
    first.fail = {0}
    with pytest.raises(Exception, match="sink failed"):
        run(spark, location, checkpoint, first)
    put(client, "in", 5, ids(2))
    again = _Sink()
    run(spark, location, checkpoint, again)

    assert again.batches[0] == first.batches[0] == [(1, 3, 1)]
    assert again.intervals[0] == first.intervals[0] == Interval(3, 4, starts=True)
    assert again.intervals[1] == Interval(4, 6)
    assert [row for n, rows in again.batches.items() if n for row in rows] == [(2, 5, 1)]


def test_only_frames_of_a_micro_batch_are_taken(spark: SparkSession) -> None:
    """Another frame is refused, with what to do."""
    with pytest.raises(Exception, match=r"\[NOT_A_MICRO_BATCH\].*foreachBatch"):
        datasource.micro_batch(spark.range(1), 0)


# --- places ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.mark.night
@pytest.mark.s3
def test_where_spark_has_no_way_to_the_location(spark: SparkSession, server: S3Server) -> None:
    """Without s3a on the class path the same calls go through Arrow, both ways."""
    place = f"s3://{server.new_bucket()}/a lake/in"
    datasource.save(spark.range(10), place, storage=server.options, txn=("etl", 1))
    gone = spark.range(0, 10, 2).selectExpr("id", "-1L as _diff")
    datasource.save(gone, place, storage=server.options, options={"inlinePartBytes": 0})
    frame = datasource.snapshot(spark, place, storage=server.options, where="id > 4")

    assert collected(frame) == [(5,), (7,), (9,)]
    feed = datasource.changes(spark, place, storage=server.options)
    assert Counter(row._diff for row in feed.collect()) == Counter({1: 10, -1: 5})


@pytest.mark.disk
@pytest.mark.parametrize(
    "metadata",
    [
        {"CURRENT_DEFAULT": "42", "EXISTS_DEFAULT": "42"},
        {"parquet.field.id": 7},
        {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"},
    ],
    ids=lambda metadata: next(iter(metadata)),
)
def test_metadata_that_readers_act_on_changes_no_value(
    spark: SparkSession,
    location: str,
    configured: Callable[[str, str], None],
    metadata: dict[str, Any],
) -> None:
    """Of a table of Spark, a shard has the rows as they were written, and says the same of them."""
    configured("spark.sql.parquet.fieldId.read.enabled", "true")
    configured("spark.sql.readSideCharPadding", "false")  # by a scan; above it is another matter
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, pa.table({"id": [1]}))
    wider = StructType(
        [
            StructField("id", LongType()),
            StructField("v", StringType(), metadata=metadata),
            StructField("w", StructType([StructField("x", LongType(), metadata=metadata)])),
        ]
    )
    client.evolve("in", ShardSchema.parse(wider.json()))
    more = pa.table({"id": [2], "v": ["ab"], "w": [{"x": 3}]})
    client.writer("in").compare_and_append(more, client.state("in").upper, Frontier(3))

    frame = datasource.snapshot(spark, f"{location}/in")
    assert "MapInArrow" not in frame._jdf.queryExecution().executedPlan().toString()
    assert sorted(frame.collect(), key=lambda row: row.id) == [(1, None, None), (2, "ab", (3,))]
    assert frame.schema == wider


@pytest.mark.parametrize("name", ["_metadata", "_Metadata"])
def test_a_column_with_the_name_of_metadata_of_files(
    spark: SparkSession, location: str, name: str
) -> None:
    """It may come from `select("*", "_metadata")`; the times of the rows are the shard's."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    then = pa.array(
        [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)] * 2, pa.timestamp("us", "UTC")
    )
    file = pa.StructArray.from_arrays([then], ["file_modification_time"])
    # NaN makes Spark read the column as an expression.
    rows = pa.table({"id": [1, 2], name: file, "x": [0.0, float("nan")]})
    put(client, "in", 7, rows)
    put(client, "in", 8, stamp(rows.slice(1), 8, -1))

    frame = datasource.changes(spark, f"{location}/in")
    assert "MapInArrow" not in frame._jdf.queryExecution().executedPlan().toString()
    assert frame.columns == ["id", name, "x", "_ts", "_diff"]
    assert collected(frame.select("id", "_ts", "_diff")) == [(1, 7, 1), (2, 7, 1), (2, 8, -1)]
    assert frame.select(f"{name}.file_modification_time").distinct().count() == 1
