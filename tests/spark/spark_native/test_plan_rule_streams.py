"""Plain streams of `format("shard")`: their micro-batches natively, and by Python workers."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.clientserver import JavaClient
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from typing_extensions import override

from shardline import datasource
from shardline.app.introspection.facts import Facts
from shardline.app.introspection.relation import instant
from shardline.app.introspection.relations.native_reads import native_reads_relation
from shardline.datasource import plan_reads_natively
from shardline.datasource.parts.prune import is_audited
from shardline.datasource.rows.updates import stamp
from shardline.datasource.spark_native import load_plans, plan_rule, rule_loader
from shardline.datasource.spark_native.plan_rule import NativeReads
from shardline.datasource.spark_native.read_counts import ReadCounts
from shardline.datasource.spark_native.rule_loader import SETTING
from support.fakes.clock import ManualClock
from support.profiles import some_of
from support.spark import stored
from support.spark.native import client_at, put
from support.spark.s3a import CHOSEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from shardline.datasource.client import ShardClient

pytestmark = [pytest.mark.spark, pytest.mark.s3a]

PATHS = ("native", "arrow")


@pytest.fixture(autouse=True)
def native(spark: SparkSession, native_reads: NativeReads) -> Iterator[NativeReads]:
    """The rule, anew for each test, which may turn it off for its session."""
    yield native_reads
    spark.conf.unset(SETTING)


def rows(*numbers: int) -> pa.Table:
    texts = [f"t{n % 3}" for n in numbers]
    return pa.table({"id": pa.array(numbers, pa.int64()), "t": texts})


def explained(asked: DataFrame | StreamingQuery, mode: str) -> str:
    """What `explain` prints: `formatted`, or `simple` (of a query: without `extended`)."""
    if isinstance(asked, StreamingQuery):
        return str(asked._jsq.explainInternal(mode == "extended"))
    jvm: Any = asked.sparkSession._jvm
    shown = jvm.org.apache.spark.sql.execution.ExplainMode.fromString(mode)
    return str(asked._jdf.queryExecution().explainString(shown))


class Sink:
    """A query over a stream that is run to its end, whenever that is asked, on either path."""

    def __init__(self, spark: SparkSession, location: str, folder: Path, **options: Any) -> None:
        self.spark = spark
        self.source = location if "shards" in options else f"{location}/in"
        self.folder = folder
        self.options = options
        self.mode = "append"
        self.transform: Callable[[DataFrame], DataFrame] = lambda frame: frame

    def run(self, path: str) -> StreamingQuery:
        """Read all that there is; returns the query, which has ended."""
        self.spark.conf.set(SETTING, str(path == "native").lower())
        loaded = self.spark.readStream.format("shard").options(**self.options)
        frame = self.transform(loaded.load(self.source))
        out = str(self.folder / "out")

        def write(batch: DataFrame, number: int) -> None:
            batch.write.mode("overwrite").parquet(f"{out}/batch={number}")

        writer = frame.writeStream.foreachBatch(write).outputMode(self.mode)
        checkpoint = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        query = checkpoint.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def batches(self) -> list[list[str]]:
        """The rows of each micro-batch, as text."""
        frame = self.spark.read.parquet(str(self.folder / "out"))
        found: dict[int, list[str]] = {}
        for row in frame.collect():
            values = row.asDict()
            found.setdefault(values.pop("batch"), []).append(repr(sorted(values.items())))
        return [sorted(found[number]) for number in sorted(found)]

    def offsets(self) -> list[str]:
        """The offsets of each micro-batch, as Spark has logged them, without names of holds."""
        files = (self.folder / "checkpoint" / "offsets").glob("[0-9]*")
        texts = [file.read_text().splitlines()[-1] for file in sorted(files)]
        return [re.sub(r'"(hold|epoch|reader|seqno|pin)[^,}]*', "", text) for text in texts]


def history(client: ShardClient, tiny: ShardClient) -> None:
    """Parts in files and in the state, one of many times, one with copies."""
    put(client, "in", 1, rows(*range(20)))
    put(client, "in", 2, rows(*range(20, 30)))
    put(tiny, "in", 3, rows(30, 31))
    put(client, "in", 4, stamp(rows(32), 4, 3))


def later(client: ShardClient) -> None:
    put(client, "in", 5, rows(*range(40, 45)))
    put(client, "in", 7, stamp(rows(45), 7, 2))


PART = "(?:part )?" if CHOSEN else "part "
"""Before the key in a sentence; not where only a read of an object store has found out."""

AUDITED = "left: a part that the filter leaves out is read to check its bounds"

OPTIONS: dict[str, dict[str, str]] = {
    "rows": {},
    "limited": {"maxFilesPerTrigger": "1"},
    "where": {"where": "id > 5 and t = 't1'", "columns": "id"},
    "feed": {"readChangeFeed": "true", "maxRowsPerTrigger": "7"},
    "cdf": {"changeFormat": "cdf", "snapshot": "exclude"},
    "from": {"startingTimestamp": "2", "endingTimestamp": "6"},
    "as of": {"timestampAsOf": "2", "readChangeFeed": "true"},
    "several": {"shards": "in,other", "readChangeFeed": "true"},
    "frozen": {"onMissingPart": "freeze"},
}


@pytest.mark.parametrize("kind", some_of(OPTIONS, {"where"}))
def test_micro_batches_are_the_same(
    native: NativeReads, spark: SparkSession, location: str, tmp_path: Path, kind: str
) -> None:
    """The same offsets, rows and number of rows read; each goes on where the other one ended."""
    client = client_at(location, inline_part_bytes=0)
    history(client, client_at(location, inline_part_bytes=4096))
    put(client, "other", 4, rows(100))
    sinks = {path: Sink(spark, location, tmp_path / path, **OPTIONS[kind]) for path in PATHS}
    ran = {path: [sinks[path].run(path)] for path in PATHS}
    later(client)
    put(client, "other", 7, rows(101))
    for first, second in (("native", "arrow"), ("arrow", "native")):
        ran[first].append(sinks[first].run(second))
    assert sinks["native"].batches() == sinks["arrow"].batches()
    assert sinks["native"].offsets() == sinks["arrow"].offsets()
    counted = {
        path: [p["sources"][0]["numInputRows"] for query in ran[path] for p in query.recentProgress]
        for path in PATHS
    }
    # Natively, rows are counted where files are read: before copies, and before the filter.
    for path in PATHS:
        assert len([number for number in counted[path] if number]) == len(sinks[path].batches())
    if kind == "feed":
        assert counted["native"] == counted["arrow"]
    counts = Counter(native.counts())
    # Of a hundred parts that a filter leaves out one is read all the same, by Python workers. It is
    # chosen by its name, which is another one in each run.
    audits = kind == "where" and any(map(is_audited, stored.parquet_files(location)))
    audited = counts.pop(AUDITED, 0) if audits else 0
    assert counts.keys() <= {"native", "left: turned off", "left: the range is empty"}
    ranges = 1 if kind == "cdf" else 2  # without a snapshot there is one
    assert counts["native"] + audited >= ranges


def outer_join(frame: DataFrame) -> DataFrame:
    """A stream with itself: each side has state, and rows without a partner wait for their time."""
    one = frame.selectExpr("timestamp_seconds(id) as at", "id")
    other = frame.where("id % 3 = 0").selectExpr("timestamp_seconds(id) as seen", "id + 4 as n")
    near = "id = n AND seen >= at - interval 6 seconds AND seen <= at"
    left, right = one.withWatermark("at", "2 seconds"), other.withWatermark("seen", "2 seconds")
    return left.join(right, F.expr(near), "leftOuter").select("id", "n")


def sums_in_python(frame: DataFrame) -> DataFrame:
    """The sum of the ids of each text, in a state of Python's."""

    def add(key: tuple[str], pieces: Iterator[Any], state: GroupState) -> Iterator[Any]:
        before = state.get[0] if state.exists else 0
        total = before + int(sum(piece["id"].sum() for piece in pieces))
        state.update((total,))
        import pandas as pd

        yield pd.DataFrame({"t": [key[0]], "total": [total]})

    return frame.groupBy("t").applyInPandasWithState(
        add, "t string, total bigint", "total bigint", "update", "NoTimeout"
    )


def totals(frame: DataFrame) -> DataFrame:
    """The same sums, in a state of a processor's."""

    # Here, so that it is sent to the workers, which know no module of tests.
    class Totals(StatefulProcessor):
        @override
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._total = handle.getValueState("total", "total bigint")

        @override
        def handleInputRows(
            self, key: Any, rows: Iterator[Any], timerValues: TimerValues
        ) -> Iterator[Row]:
            before = self._total.get()
            total = (before[0] if before else 0) + sum(row.id for row in rows)
            self._total.update((total,))
            yield Row(t=key[0], total=total)

        @override
        def close(self) -> None:
            pass

    return frame.groupBy("t").transformWithState(
        Totals(), "t string, total bigint", "update", "None"
    )


STATEFUL: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "sums": ("complete", lambda f: f.groupBy("t").agg(F.sum("id"), F.count("*"))),
    "distinct": ("append", lambda f: f.dropDuplicates(["t"])),
    "windows": (
        "append",
        lambda f: (
            f.selectExpr("timestamp_seconds(id) as at", "t")
            .withWatermark("at", "3 seconds")
            .groupBy(F.window("at", "2 seconds"), "t")
            .count()
            .selectExpr("cast(window.start as string) as s", "t", "count")
        ),
    ),
    "self-union": ("append", lambda f: f.union(f.where("id > 3")).select("id")),
    "join": ("append", outer_join),
    "python": ("update", sums_in_python),
    "processor": ("update", totals),
}


@pytest.fixture
def _states_in_rocksdb(spark: SparkSession) -> Iterator[None]:
    """What `transformWithState` asks for."""
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield
    spark.conf.unset(name)


@pytest.mark.disk
@pytest.mark.usefixtures("_states_in_rocksdb")
@pytest.mark.parametrize("kind", some_of(STATEFUL, {"processor"}))
def test_state_is_kept_over_both_paths(
    native: NativeReads, spark: SparkSession, location: str, tmp_path: Path, kind: str
) -> None:
    """Operators with state go on from a checkpoint of the other path, in both directions."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, rows(*range(20)))
    found = {}
    sinks = {first: Sink(spark, location, tmp_path / first) for first in PATHS}
    for sink in sinks.values():
        sink.mode, sink.transform = STATEFUL[kind]
    for number, turn in enumerate((PATHS, PATHS[::-1], PATHS)):
        for first, path in zip(PATHS, turn, strict=True):
            sinks[first].run(path)
        put(client, "in", 10 + number, rows(*range(20 + number, 30 + number)))
    found = {first: sinks[first].batches() for first in PATHS}
    assert found["native"] == found["arrow"]
    assert native.counts().keys() <= {"native", "left: turned off", "left: the range is empty"}
    assert native.counts()["native"] >= 3


def test_a_snapshot_that_needs_consolidation(
    native: NativeReads, spark: SparkSession, location: str, tmp_path: Path
) -> None:
    """It is left to Python workers, which keep no state for it; what comes after is native."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, rows(*range(20)))
    put(client, "in", 2, stamp(rows(3, 4), 2, -1))
    sinks = {path: Sink(spark, location, tmp_path / path, readChangeFeed="true") for path in PATHS}
    for path, sink in sinks.items():
        sink.run(path)
    assert native.counts()["left: parts of a snapshot need consolidation"] == 1
    put(client, "in", 3, stamp(rows(7), 3, -1))
    for path, sink in sinks.items():
        sink.run(path)
    assert sinks["native"].batches() == sinks["arrow"].batches()
    assert native.counts()["native"] == 1


@pytest.mark.disk
def test_a_retraction_fails_a_stream_of_rows_in_the_same_words(
    native: NativeReads, spark: SparkSession, location: str, tmp_path: Path
) -> None:
    """Whatever filters the query has."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, rows(*range(20)))
    sinks = {path: Sink(spark, location, tmp_path / path) for path in PATHS}
    for path, sink in sinks.items():
        sink.transform = lambda frame: frame.where("id > 100")
        sink.run(path)
    put(client, "in", 2, stamp(rows(3), 2, -1))
    said = {}
    for path, sink in sinks.items():
        with pytest.raises(PySparkException) as raised:
            sink.run(path)
        said[path] = re.findall(r"\[RETRACTION_IN[A-Z_]*\].*", str(raised.value))[0]
    assert said["native"] == said["arrow"]
    assert native.counts()["left: refused: RETRACTION_IN_APPEND_ONLY_STREAM"] == 1


@pytest.mark.parametrize(
    "gone",
    [
        *some_of(["before the plan", "before the read"], ["before the read"]),
        pytest.param("for another", marks=pytest.mark.disk),
    ],
)
def test_a_missing_part_stops_both_and_both_go_on(  # noqa: PLR0917  # fixtures
    native: NativeReads,
    spark: SparkSession,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gone: str,
) -> None:
    """Three parts, the middle one gone, or another file in its place, which has the same size.

    Nothing of the range comes out, and all of it later.
    """
    if gone != "before the plan":
        monkeypatch.setattr(load_plans, "_check_parts", lambda *_: None)
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, rows(1))
    sinks = {path: Sink(spark, location, tmp_path / path) for path in PATHS}
    for path, sink in sinks.items():
        sink.run(path)
    for number in (2, 3, 4):
        put(client, "in", number, rows(number))
    parts = [p for b in client.state("in").trace.batches for p in b.parts]
    [key] = [part.key for part in parts if part.time_bounds == (3, 3)]
    kept = stored.read(location, key)
    stored.delete(location, key)
    if gone == "for another":
        [other] = [part.key for part in parts if part.time_bounds == (4, 4)]
        stored.replace(location, key, stored.read(location, other))
    code = "CORRUPT_PART" if gone == "for another" else "BLOB_DELETED"
    said = {}
    for path, sink in sinks.items():
        with pytest.raises(PySparkException) as raised:
            sink.run(path)
        [said[path]] = set(re.findall(rf"\[{code}\] {PART}.* — hint: .*", str(raised.value)))
        said[path] = re.sub(r"lease \S+", "lease …", said[path])
    assert said["native"] == said["arrow"]
    assert [len(batch) for batch in sinks["native"].batches()] == [1]
    stored.replace(location, key, kept)
    for path, sink in sinks.items():
        sink.run(path)
    assert sinks["native"].batches() == sinks["arrow"].batches()
    assert [len(batch) for batch in sinks["native"].batches()] == [1, 3]
    counts = native.counts()
    assert counts["native"] == (2 if gone == "before the plan" else 3)
    assert counts.get("left: a part is gone or damaged", 0) == 3 - counts["native"]


@pytest.mark.disk
def test_a_small_range_is_left_to_python(
    native: NativeReads,
    spark: SparkSession,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for the first one of a run that has rows: it may be the only one."""
    client = client_at(location, inline_part_bytes=0)
    for time, count in enumerate((10, 20, 10, 11, 9), 2):
        put(client, "in", time, rows(*range(count)))
    sink = Sink(spark, location, tmp_path, startingTimestamp="1", maxRowsPerTrigger="1")
    monkeypatch.setattr(load_plans, "SMALL_ROWS", 11)
    sink.run("native")
    assert [len(batch) for batch in sink.batches()] == [10, 20, 10, 11, 9]
    small = "left: the range is small"
    counts = native.counts()
    assert (counts["native"], counts[small]) == (3, 2)
    put(client, "in", 9, rows(*range(10)))
    sink.run("native")
    assert (native.counts()["native"], native.counts()[small]) == (4, 2)


@pytest.mark.disk
def test_explain_of_a_query_says_which_path(
    native: NativeReads,
    spark: SparkSession,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of its last micro-batch: the scan of files, or that of Python workers with the reason."""
    client = client_at(location, inline_part_bytes=0)
    paths: dict[str, dict[str, str]] = {
        **{path: {} for path in ("native", "off", "small", "stateful")},
        "option": {"nativeReads": "false"},
    }
    shown = {}
    for number, (path, options) in enumerate(paths.items()):
        put(client, "in", 1 + 2 * number, rows(*range(20)))
        put(client, "in", 2 + 2 * number, rows(*range(20)))
        one_by_one = {"startingTimestamp": "1", "maxRowsPerTrigger": "1"}
        sink = Sink(spark, location, tmp_path / path, **one_by_one, **options)
        if path == "stateful":
            sink.mode, sink.transform = STATEFUL["sums"]
        monkeypatch.setattr(load_plans, "SMALL_ROWS", 10**6 if path in {"small", "stateful"} else 0)
        query = sink.run("arrow" if path == "off" else "native")
        for mode in ("simple", "extended"):
            shown[path, mode] = explained(query, mode)
        assert sum(len(batch) for batch in sink.batches())
    for mode in ("simple", "extended"):
        assert "FileScan parquet" in shown["native", mode]
        assert "not native" not in shown["native", mode]
        assert "MicroBatchScan" not in shown["native", mode].partition("Physical Plan")[2]
        for path, reason in (
            ("option", "option nativeReads"),
            ("off", "turned off"),
            ("small", "the range is small"),
            ("stateful", "the range is small"),
        ):
            assert re.search(rf"MicroBatchScan.* not native: {reason}", shown[path, mode])
    counts = native.counts()
    # The first range of a run is native, and the small ones that follow it are not.
    assert (counts["native"], counts["left: the range is small"]) == (2 + 1 + 1, 5 + 7)


@pytest.mark.disk
def test_a_retracted_row_that_the_option_leaves_out_ends_no_stream(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    """Whether other rows of its part are wanted says nothing about it."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, rows(*range(20)))
    seen = []

    def each(frame: DataFrame, number: int) -> None:
        own = datasource.micro_batch(frame, number)
        seen.append((sorted(r.id for r in own.collect()), sorted(r.id for r in frame.collect())))

    def run() -> None:
        loaded = spark.readStream.format("shard").option("where", "id < 5").load(f"{location}/in")
        writer = loaded.writeStream.foreachBatch(each).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    run()
    put(client, "in", 2, pa.concat_tables([stamp(rows(7), 2, -1), stamp(rows(4), 2, 1)]))
    run()
    assert seen == [([0, 1, 2, 3, 4],) * 2, ([4], [4])]
    put(client, "in", 3, pa.concat_tables([stamp(rows(4), 3, -1), stamp(rows(4), 3, 1)]))
    with pytest.raises(PySparkException, match="RETRACTION_IN_APPEND_ONLY_STREAM"):
        run()


def test_micro_batch_reads_the_range_of_a_native_plan(
    native: NativeReads, spark: SparkSession, location: str, tmp_path: Path
) -> None:
    """`micro_batch` in `foreachBatch` takes the stream's partitions, whoever reads the frame."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, rows(1, 2, 3))
    seen = []

    def each(frame: DataFrame, number: int) -> None:
        own = datasource.micro_batch(frame, number)
        seen.append((sorted(r.id for r in own.collect()), sorted(r.id for r in frame.collect())))

    loaded = spark.readStream.format("shard").load(f"{location}/in").where("id > 1")
    writer = loaded.writeStream.foreachBatch(each).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert seen == [([1, 2, 3], [2, 3])]
    assert native.counts()["native"] >= 1


@pytest.mark.disk
def test_planning_ends_no_iteration_in_the_jvm(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: NativeReads
) -> None:
    """PySpark asks an exception of the JVM for its kind by 70 calls, in each micro-batch."""
    location = str(tmp_path / "in")
    put(client_at(location, inline_part_bytes=0), "in", 1, rows(*range(20)))
    sent: list[str] = []
    send = JavaClient.send_command

    def note(client: JavaClient, command: str, *more: Any, **named: Any) -> Any:
        sent.append(command)
        return send(client, command, *more, **named)

    def plan(planner: Any, request: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(JavaClient, "send_command", note)
            return apply(planner, request)

    apply = plan_rule._Planner.apply
    monkeypatch.setattr(plan_rule._Planner, "apply", plan)
    Sink(spark, location, tmp_path).run("native")
    spark.read.format("shard").load(f"{location}/in").collect()
    assert native.counts() == {"native": 2}
    assert sent
    assert not [command for command in sent if "isInstanceOf" in command]


@pytest.mark.disk
def test_reads_are_counted_by_path_and_reason(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: NativeReads
) -> None:
    """As `introspection.native_reads` has them; a plan that did not fit is not a native read."""
    counts = ReadCounts(ManualClock(5))
    monkeypatch.setattr(plan_rule, "READ_COUNTS", counts)
    location = str(tmp_path / "in")
    put(client_at(location, inline_part_bytes=0), "in", 1, rows(*range(20)))
    sink = Sink(spark, location, tmp_path)
    sink.run("native")
    put(client_at(location, inline_part_bytes=0), "in", 2, rows(7))
    sink.run("arrow")
    spark.conf.unset(SETTING)
    frame = spark.read.format("shard").load(f"{location}/in")
    assert frame.count() == frame.count() == 21
    spared = spark.read.format("shard").option("nativeReads", "False").load(f"{location}/in")
    assert spared.count() == 21
    assert "BatchScan shard" in str(spared._jdf.queryExecution().executedPlan())
    monkeypatch.setattr(plan_rule, "plan_load", lambda *_: spark.range(1))
    other = spark.read.format("shard").load(f"{location}/in")
    assert other.count() == 21
    for mode in ("simple", "formatted"):
        assert "not native: the native plan has other columns" in explained(other, mode)
        assert "not native: option nativeReads" in explained(spared, mode)
        assert "not native" not in explained(frame, mode)
    native.remove()
    with monkeypatch.context() as patch:
        # Undone before the fixture offers native reads anew.
        patch.setattr(rule_loader, "_CHECKED", "4.2.9")
        assert plan_reads_natively(spark) is None

    found = [tuple(row) for row in native_reads_relation(counts).rows(Facts(), 0)]
    at = instant(5)
    assert found == [
        ("native", None, 2, at),
        ("python workers", "turned off", 1, at),
        ("python workers", "the native plan has other columns", 1, at),
        (
            "not installed",
            "this is Spark 4.3.0, and not the one that it was checked against",
            1,
            at,
        ),
    ]
