"""Plain reads of `format("shard")`, planned natively by a rule, and left alone: the same rows."""

from __future__ import annotations

import re
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline.datasource import plan_reads_natively
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.rows.updates import stamp
from shardline.datasource.shard.commands.readers import expire_leased
from shardline.datasource.shard_source.batch_reader import common_time
from shardline.datasource.spark_native import plan_rule
from shardline.datasource.spark_native.jvm import clone_of
from shardline.datasource.spark_native.plan_rule import NativeReads
from shardline.datasource.spark_native.rule_loader import SETTING
from shardline.datasource.types.schema import ShardSchema
from support.profiles import one_of, some_of, wide_examples
from support.spark import stored
from support.spark.native import (
    TYPES,
    arrow_of,
    client_at,
    collected,
    fresh_rule,
    ids,
    is_leased,
    plan_of,
    put,
)
from support.spark.s3a import CHOSEN
from support.strategies.rows import Case, cases, updates_of
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3a]

_LOADS = "shardline.datasource.spark_native.load_plans"


@pytest.fixture(autouse=True)
def native(spark: SparkSession) -> Iterator[NativeReads]:
    """The rule, anew for each test."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    with fresh_rule(spark) as installed:
        yield installed
    spark.conf.unset(SETTING)
    spark.conf.unset("spark.sql.timeType.enabled")


def load(spark: SparkSession, location: str, *, natively: bool, **options: Any) -> DataFrame:
    """A frame whose plan is made on the first or on the other path."""
    spark.conf.set(SETTING, str(natively).lower())
    path = location if "shards" in options else f"{location}/in"
    frame = spark.read.format("shard").options(**options).load(path)
    frame._jdf.queryExecution().optimizedPlan()
    spark.conf.unset(SETTING)
    return frame


def shown(frame: DataFrame) -> Counter[str]:
    """Rows as text, which tells -0.0 from 0.0 and shows NaN."""
    return Counter(map(repr, frame.collect()))


def is_native(frame: DataFrame) -> bool:
    """Whether a frame's rows come without Python, by the plan that Spark shows."""
    return "BatchScan" not in plan_of(frame)


# --- the same rows -----------------------------------------------------------------------------


@wide_examples(0.15)
@given(cases(TYPES, most=6), st.booleans())
def test_contents_of_any_type(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, case: Case, inline: bool
) -> None:
    """Both paths give the same rows under the same schema, wherever the parts are."""
    location = str(tmp_path_factory.mktemp("any"))
    number = len(case.rows)
    client = client_at(location, inline_part_bytes=4096 if inline else 0)
    client.create("in", case.schema)
    writer = client.writer("in")
    # The second append takes rows of the first away, so that parts need consolidation.
    for time, diff in ((1, 2), (2, -1)):
        updates = updates_of(case, [time] * number, [diff] * number)
        writer.compare_and_append(updates, writer.upper(), Frontier(time + 1))
    one, other = (load(spark, location, natively=n) for n in (True, False))
    assert is_native(one)
    assert not is_native(other)
    assert one.schema == other.schema
    assert arrow_of(one, case) == arrow_of(other, case)


SHARDS: dict[str, Callable[[ShardClient], None]] = {}
"""Contents, by what is special about their parts."""


def shard(make: Callable[[ShardClient], None]) -> Callable[[ShardClient], None]:
    SHARDS[make.__name__] = make
    return make


def rows(*numbers: int) -> pa.Table:
    texts = [f"t{n % 3}" for n in numbers]
    floats = [[float("nan"), -0.0, 0.0, None, 1.5][n % 5] for n in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "t": pa.array(texts),
            "x": pa.array(floats, pa.float64()),
            "s": pa.array([{"a": n} for n in numbers], pa.struct([("a", pa.int32())])),
        }
    )


@shard
def plain(client: ShardClient) -> None:
    put(client, "in", 1, rows(*range(20)))
    put(client, "in", 2, rows(*range(20, 40)))


@shard
def retracted(client: ShardClient) -> None:
    plain(client)
    put(client, "in", 3, stamp(rows(3, 4, 25), 3, -1))
    put(client, "in", 4, stamp(rows(50), 4, 3))


@shard
def inline_and_blobs(client: ShardClient) -> None:
    retracted(client)
    tiny = client_at(client.location.url, inline_part_bytes=4096)
    put(tiny, "in", 5, rows(60, 61))
    put(tiny, "in", 6, stamp(rows(60), 6, -1))


@shard
def evolved(client: ShardClient) -> None:
    plain(client)
    inner = pa.struct([("a", pa.int64()), ("b", pa.string())])
    wider = rows(1).schema.set(3, pa.field("s", inner)).append(pa.field("z", pa.string()))
    client.evolve("in", ShardSchema.from_arrow(wider))
    fields = {"a": pa.array([70], pa.int64()), "b": pa.array(["new"])}
    newest = {"s": pa.StructArray.from_arrays(list(fields.values()), list(fields)), "z": ["z"]}
    writer = client.writer("in")
    table = pa.table({"id": [70], "t": ["t1"], "x": [0.5], **newest}, wider)
    writer.compare_and_append(table, writer.upper(), Frontier(10))


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "all": lambda f: f,
    "select": lambda f: f.select("t", "id"),
    "where": lambda f: f.where("id > 10 and t = 't1'").select("x"),
    "nan": lambda f: f.where("x > 100 or x = 0").select("id", "x"),
    "nothing": lambda f: f.where("id < 0"),
    "struct": lambda f: f.where("s.a < 10").select("s.a"),
    "count": lambda f: f.groupBy().count(),
    "sum": lambda f: f.groupBy("t").agg(F.sum("id").alias("n")).select("t", "n"),
    "no columns": lambda f: f.selectExpr("1 as one"),
    "self-join": lambda f: (
        f.alias("a").join(f.alias("b"), F.expr("a.id = b.id + 1")).selectExpr("a.id", "b.t")
    ),
    "union": lambda f: f.where("id = 3").union(f.where("id > 30")).select("id"),
    "subquery": lambda f: f.where(F.col("id") > f.select(F.max("id") - 5).scalar()).select("id"),
    "udf": lambda f: f.where(F.udf(lambda n: n % 2 == 0, "boolean")("id")).select("id"),
    "distinct": lambda f: f.select("t").distinct(),
    "limit": lambda f: f.orderBy("id").limit(3).select("id"),
    "cached": lambda f: f.select("id", "t").cache().where("id < 9"),
}


@pytest.mark.disk
@pytest.mark.parametrize("kind", some_of(SHARDS, {"evolved"}))
def test_queries_mean_the_same(
    native: NativeReads, spark: SparkSession, location: str, kind: str
) -> None:
    """Whatever is asked of a frame, over parts of every kind."""
    SHARDS[kind](client_at(location, inline_part_bytes=0))
    one, other = (load(spark, location, natively=n) for n in (True, False))
    for name, query in QUERIES.items():
        asked, wanted = query(one), query(other)
        assert (name, shown(asked)) == (name, shown(wanted))
        assert is_native(asked)
        assert not is_native(wanted)
    spark.catalog.clearCache()
    assert native.counts().keys() <= {"native", "left: turned off"}


OPTIONS: list[dict[str, str]] = [
    {"columns": "x,id,t,s"},
    {"where": "id <> 5"},
    {"where": "x > 100 or t = 't2'", "columns": "id", "timeZone": "America/New_York"},
    {"timestampAsOf": "2"},
    {"timestampAsOf": "3", "columns": "s"},
    {"partitionBytes": "1b"},
    {"readChangeFeed": "true"},
    {"readChangeFeed": "true", "startingTimestamp": "2", "endingTimestamp": "5"},
    {"readChangeFeed": "true", "startingTimestamp": "900"},
    {"changeFormat": "cdf", "startingTimestamp": "3"},
    {"changeFormat": "cdf", "where": "id < 30", "columns": "id,t"},
    {"shards": "in,other"},
    {"shards": "in,other", "timestampAsOf": "3", "where": "id > 2"},
    {"shards": "other,in", "readChangeFeed": "true", "columns": "in.id,other.s"},
    {"shards": "in,other", "changeFormat": "cdf", "startingTimestamp": "2"},
]


@pytest.mark.parametrize("first", one_of(3, range(3)))
def test_options_mean_the_same(
    native: NativeReads, spark: SparkSession, location: str, first: int
) -> None:
    """All options of batch reads: parts in files and in the state, old schemas, retractions."""
    client = client_at(location, inline_part_bytes=0)
    inline_and_blobs(client)
    put(client, "other", 2, rows(*range(5)))
    put(client, "other", 4, stamp(rows(3), 4, -1))
    wider = pa.schema([*rows(1).schema, pa.field("z", pa.string())])
    client.evolve("in", ShardSchema.from_arrow(wider))
    newest = rows(70).append_column("z", pa.array(["z"]))
    put(client, "in", 9, newest)
    for options in OPTIONS[first::3]:
        one, other = (load(spark, location, natively=n, **options) for n in (True, False))
        assert one.schema == other.schema, options
        assert shown(one) == shown(other), options
        assert shown(one.select(one.columns[0])) == shown(other.select(one.columns[0])), options
        assert is_native(one), options
        assert not is_native(other), options
    assert native.counts().keys() <= {"native", "left: turned off"}


def test_every_way_to_name_a_shard(native: NativeReads, spark: SparkSession, location: str) -> None:
    """Views, SQL, a schema of the user's, another session, and a copy of a session."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1, 2, 3))
    path = f"{location}/in"
    spark.sql(f"CREATE TEMPORARY VIEW shard_in USING shard OPTIONS (path '{path}')")
    try:
        assert spark.sql("SELECT sum(id) FROM shard_in WHERE id > 1").collect() == [(5,)]
    finally:
        spark.sql("DROP VIEW shard_in")
    assert collected(spark.read.format("shard").schema("id bigint").load(path)) == [
        (1,),
        (2,),
        (3,),
    ]
    clone = clone_of(spark)
    assert collected(clone.read.format("shard").load(path).where("id = 2")) == [(2,)]
    assert native.counts() == {"native": 3}

    other = spark.newSession()
    installed = plan_reads_natively(other)
    assert installed is not None
    assert collected(other.read.format("shard").load(path)) == [(1,), (2,), (3,)]
    assert installed.counts() == {"native": 1}


def test_spark_prunes_columns_and_pushes_filters(spark: SparkSession, location: str) -> None:
    """Of parts in files and in the state, only what the query needs is read."""
    client = client_at(location, inline_part_bytes=0)
    plain(client)
    put(client_at(location, inline_part_bytes=4096), "in", 5, rows(60))
    plan = plan_of(load(spark, location, natively=True).where("id > 10").select("t"))

    assert "ReadSchema: struct<id:bigint,t:string>" in plan
    assert "PushedFilters: [IsNotNull(id), GreaterThan(id,10)]" in plan


# --- one load, one state -----------------------------------------------------------------------


def test_a_query_shows_one_time(
    native: NativeReads,
    spark: SparkSession,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loaded frame keeps its plan; two that are first run in one query show the same time."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1))
    before = load(spark, location, natively=True)
    lazy = [spark.read.format("shard").load(f"{location}/in") for _ in range(2)]
    put(client, "in", 2, ids(2))
    then = spark.read.format("shard").option("timestampAsOf", 1).load(f"{location}/in")
    assert collected(before) == [(1,)]

    def overtaken(states: list[Any]) -> int:
        time = common_time(states)
        put(client, "in", time + 5, ids(9))
        return time

    monkeypatch.setattr(f"{_LOADS}.common_time", overtaken)
    assert collected(lazy[0].union(lazy[1])) == [(1,), (1,), (2,), (2,)]
    monkeypatch.undo()
    assert collected(lazy[0].join(before, "id", "left_anti")) == [(2,)]
    assert collected(lazy[1].intersect(lazy[0])) == [(1,), (2,)]
    assert collected(then) == [(1,)]
    assert native.counts() == {"native": 8}


@pytest.mark.disk
def test_a_lease_ends_with_the_frames(
    native: NativeReads, spark: SparkSession, location: str
) -> None:
    """What was read again and again is held while it can be read, and not a moment longer."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1, 2, 3))
    assert not is_leased(spark, client)
    others = native.remembered()  # views that other tests have left
    kept = load(spark, location, natively=True)
    for number in range(12):
        feed = {"readChangeFeed": "true"} if number % 5 == 0 else {}
        frame = spark.read.format("shard").options(**feed).load(f"{location}/in")
        assert frame.where("id > 1").count() == 2
        del frame
    wait_until(
        "only the frame that is left is remembered",
        lambda: is_leased(spark, client) and native.remembered() <= others + 1,
        60,
    )
    assert is_leased(spark, client)
    assert kept.where("id = 2").count() == 1
    del kept
    wait_until("the lease is given up", lambda: not is_leased(spark, client), 60)
    assert native.remembered() <= others
    assert native.counts() == {"native": 14}


@pytest.mark.disk
def test_a_lease_lives_as_long_as_a_query(
    native: NativeReads, spark: SparkSession, location: str, tmp_path: Path
) -> None:
    """A query that runs keeps its hold, though nothing else refers to what was loaded."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1, 2, 3))
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            begun.touch()
            while not go_on.exists():  # a worker has no module of the tests
                threading.Event().wait(0.05)
            yield batch

    found: list[Any] = []

    def query() -> None:
        read = spark.read.format("shard").load(f"{location}/in")
        found.extend(read.mapInArrow(slowly, "id bigint").collect())

    thread = InheritableThread(target=query)
    thread.start()
    wait_until("the query runs", begun.exists, 120)
    assert is_leased(spark, client)
    go_on.touch()
    thread.join(120)
    assert len(found) == 3
    wait_until("the lease is given up", lambda: not is_leased(spark, client), 60)
    assert native.counts() == {"native": 1}


# --- faults ------------------------------------------------------------------------------------


def sentence(asked: Callable[[], object]) -> str:
    """What is said of a refusal or a failure: code, words and hint, without names of leases."""
    with pytest.raises(PySparkException) as raised:
        asked()
    [said] = set(re.findall(r"shardline\.datasource\.errors\.\w+: (\[.*)", str(raised.value)))
    return re.sub(r"lease \S+", "lease …", said)


def damage(location: str, key: str) -> None:
    data = stored.read(location, key)
    stored.replace(location, key, data[:40] + bytes([data[40] ^ 1]) + data[41:])


def cut(location: str, key: str) -> None:
    stored.replace(location, key, stored.read(location, key)[:-9])


def damage_end(location: str, key: str) -> None:
    data = stored.read(location, key)
    stored.replace(location, key, data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])


PART = "(part )?" if CHOSEN else "part "
"""Before the key in a sentence; not where only a read of an object store has found out."""

FAULTS: dict[Callable[[str, str], None], str] = {
    stored.delete: "BLOB_DELETED",
    damage: "CORRUPT_PART",
    cut: "CORRUPT_PART",
    damage_end: "CORRUPT_PART",
}


@pytest.mark.parametrize("fault", one_of(4, FAULTS), ids=lambda f: f.__name__)
def test_a_part_that_cannot_be_read_is_the_same_error(
    native: NativeReads, spark: SparkSession, location: str, fault: Callable[[str, str], None]
) -> None:
    """Before the plan or after it: code and sentence are those of the Python workers.

    No row vanishes, whatever the session says of missing files.
    """
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(*range(100)))
    put(client, "in", 2, ids(100))
    one, other = (load(spark, location, natively=n) for n in (True, False))
    [victim] = [p for b in client.state("in").trace.batches for p in b.parts if p.rows == 100]
    fault(location, victim.key)
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        said = sentence(other.select("id").collect)
        assert re.match(rf"\[{FAULTS[fault]}\] {PART}'{victim.key}'", said)
        # A footer whose bytes still have a meaning is compared on the local disk, only.
        if fault is not damage_end or not CHOSEN:
            assert sentence(one.select("id").collect) == said
            assert sentence(lambda: list(one.toLocalIterator())) == said
        counted = native.counts()
        if fault is not damage:  # this one costs reading all of a part; Spark compares pages
            late = spark.read.format("shard").load(f"{location}/in")
            assert sentence(late.collect) == said
            # To look at each part of an object store would be a request for each.
            path = "native" if CHOSEN else "left: a part is gone or damaged"
            assert native.counts() == counted | {path: counted.get(path, 0) + 1}
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_a_part_is_deleted_in_the_middle_of_a_read(spark: SparkSession, location: str) -> None:
    """The first rows have come when the part with the others goes: no end of the rows is shown."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(*range(100)))
    put(client, "in", 2, ids(100))
    frame = load(spark, location, natively=True)
    # A task for each file: with a byte for each Spark would run a job for each byte.
    spark.conf.set("spark.sql.files.maxPartitionBytes", "64k")
    try:
        iterator = frame.toLocalIterator()
        first = next(iterator)
        parts = [p for b in client.state("in").trace.batches for p in b.parts]
        [other] = [part for part in parts if (part.rows == 1) != (first.id == 100)]
        stored.delete(location, other.key)
        said = sentence(lambda: list(iterator))
        assert re.match(rf"\[BLOB_DELETED\] {PART}'{other.key}'", said)
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")


def test_a_lost_lease_is_said_to_be_lost(
    native: NativeReads, spark: SparkSession, location: str
) -> None:
    """Parts that garbage collection took after an admin has ended the lease."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1))
    frame = load(spark, location, natively=True)
    [reader] = client.state("in").leased
    client.machine("in").apply(partial(expire_leased, reader=reader))
    [part] = [p for b in client.state("in").trace.batches for p in b.parts]
    stored.delete(location, part.key)
    assert re.match(rf"\[LEASE_LOST\] {PART}'{part.key}'", sentence(frame.collect))
    assert native.counts() == {"native": 1}


@pytest.mark.disk
def test_refusals_have_the_same_words(
    native: NativeReads, spark: SparkSession, location: str
) -> None:
    """Times that cannot be read, shards that are gone: one code and one sentence on both paths."""
    client = client_at(location, inline_part_bytes=0)
    start = client.clock.now_ms()
    put(client, "in", start + 10, ids(1))
    put(client, "in", start + 20, ids(2))
    put(client, "gone", 1, ids(1))
    client.create("empty", ShardSchema.from_arrow(ids().schema))
    past = "2001-01-01 00:00:00"
    asked: dict[str, dict[str, Any]] = {
        "BEFORE_FIRST_CHANGE": {"timestampAsOf": past, "shard": "in"},
        "NOT_YET_READABLE": {"timestampAsOf": 10**15, "waitTimeout": "1ms", "shard": "in"},
        "NOTHING_APPENDED": {"shard": "empty"},
        "SHARD_DROPPED": {"shard": "gone"},
    }
    loads = {
        code: [
            spark.read.format("shard").options(location=location, **options).load()
            for _ in range(2)
        ]
        for code, options in asked.items()
    }
    client.drop("gone")
    for code, (one, other) in loads.items():
        said = sentence(one.collect)
        spark.conf.set(SETTING, "false")
        assert sentence(other.collect) == said
        spark.conf.unset(SETTING)
        assert (code, said[: len(code) + 2]) == (code, f"[{code}]")
    counts = native.counts()
    assert counts.pop("left: turned off") == len(asked)
    reasons = {code: f"refused: {code}" for code in asked}
    reasons["NOT_YET_READABLE"] = "the time is not settled yet"
    assert counts == {f"left: {reasons[code]}": 1 for code in asked}


@pytest.mark.disk
def test_nobody_waits_in_the_optimizer(
    native: NativeReads, spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read at a time to come is left to the Python workers at once, and they wait for it."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1))
    frame = spark.read.format("shard").option("timestampAsOf", 5).load(f"{location}/in")
    apply = plan_rule._Planner.apply

    def plan(planner: Any, request: Any) -> Any:
        made = apply(planner, request)
        put(client, "in", 5, ids(2))
        return made

    monkeypatch.setattr(plan_rule._Planner, "apply", plan)
    assert collected(frame) == [(1,), (2,)]
    assert native.counts() == {"left: the time is not settled yet": 1}


@pytest.mark.disk
def test_what_is_left_to_python(
    native: NativeReads, spark: SparkSession, location: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that Spark cannot reach is read as before; counted, shown, and said once."""
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{_LOADS}.hadoop_url", lambda *_: None)
        for _ in range(2):
            frame = spark.read.format("shard").load(f"{location}/in")
            assert collected(frame) == [(1,)]
            assert not is_native(frame)
    assert native.counts() == {"left: Spark has no file system for 'file'": 2}
    [record] = [r for r in caplog.records if "left to Python workers" in r.getMessage()]
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("Spark has no file system for 'file'")


@pytest.mark.disk
def test_a_load_that_was_run_keeps_its_plan(
    native: NativeReads, spark: SparkSession, location: str
) -> None:
    """What Python workers have read once is not planned anew by a rule that comes later."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1))
    frame = spark.read.format("shard").load(f"{location}/in")
    native.remove()
    assert collected(frame) == [(1,)]
    again = plan_reads_natively(spark)
    assert again is not None
    put(client, "in", 2, ids(2))
    assert collected(frame.select("id")) == [(1,)]
    assert again.counts() == {"left: run before": 1}
    again.remove()


@pytest.mark.disk
def test_a_failure_of_the_planner_fails_no_query(
    native: NativeReads,
    spark: SparkSession,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A load whose native plan could not be made is read by Python workers, for good."""
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1, 2))

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no plan")

    monkeypatch.setattr(f"{_LOADS}.make_leased_frame", fail)
    frame = spark.read.format("shard").load(f"{location}/in")
    assert collected(frame) == [(1,), (2,)]
    monkeypatch.undo()
    assert collected(frame.where("id = 2")) == [(2,)]
    assert native.counts() == {"left: failed: RuntimeError": 1}
