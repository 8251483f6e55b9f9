"""Streaming sinks of `format("shard")`: the same by Spark's own writer and by Python workers."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Indeterminate, ShardError
from shardline.datasource.spark_native import stream_write
from shardline.datasource.spark_native.save import NativeWrite
from shardline.datasource.write import WriteHandle
from support.profiles import one_of, some_of
from support.spark import stored
from support.spark.native import client_at, put
from support.spark.s3a import new_location
from support.spark.stored import makers, parquet_files
from support.tree import ROOT
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.s3a]

MANY = 1_000
"""Rows of a micro-batch that are too many to be staged again by the driver."""

BOTH = pytest.mark.parametrize("native", [True, False], ids=["native", "workers"])


class Feed:
    """JSON files in `folder`, that a stream reads one per micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path, columns: str = "id bigint") -> None:
        self._spark = spark
        self.folder = folder
        self._columns = columns
        folder.mkdir()

    def put(self, *rows: dict[str, Any]) -> None:
        number = len(list(self.folder.iterdir()))
        file = self.folder / f"{number:03}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark reads files in the order of these times, and several are written in one millisecond.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))

    def put_ids(self, start: int, end: int) -> None:
        self.put(*({"id": n} for n in range(start, end)))

    def load(self) -> DataFrame:
        reader = self._spark.readStream.schema(self._columns).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder))


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    """A feed of ids."""
    return Feed(spark, tmp_path / "feed")


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return new_location(tmp_path)


def start(
    frame: DataFrame,
    lake: str,
    name: str = "out",
    *,
    native: bool | None = True,
    trigger: dict[str, Any] | None = None,
    mode: str = "append",
    **options: str,
) -> StreamingQuery:
    writer = frame.writeStream.format("shard").outputMode(mode).options(**options)
    if native is not None:  # also where it does not pay
        writer = writer.option("NATIVEwrites", str(native))
    writer = writer.option("checkpointLocation", f"{lake}/checkpoint-{name}")
    return writer.trigger(**(trigger or {"availableNow": True})).start(f"{lake}/{name}")


def write(frame: DataFrame, lake: str, name: str = "out", **given: Any) -> StreamingQuery:
    """Stream all that is there."""
    query = start(frame, lake, name, **given)
    assert query.awaitTermination(120), "the query did not end"
    return query


def written_rows(query: StreamingQuery) -> list[int]:
    """What the query's progress says of each micro-batch."""
    return [progress.sink.numOutputRows for progress in query.recentProgress]


def contents(lake: str, name: str = "out") -> Counter[tuple[Any, ...]]:
    with ShardClient.open(lake).reader(name) as reader:
        return Counter(tuple(row.values()) for row in reader.snapshot().to_pylist())


def ids(*ranges: range) -> Counter[tuple[int]]:
    return Counter((n,) for some in ranges for n in some)


def forget_last_commit(lake: str, name: str = "out") -> None:
    """Make Spark believe that the last micro-batch was planned and not committed."""
    commits = Path(lake, f"checkpoint-{name}", "commits")
    max((p for p in commits.iterdir() if p.name.isdigit()), key=lambda p: int(p.name)).unlink()


def refusal(frame: DataFrame, lake: str, name: str = "out", **given: Any) -> str:
    """The words in which a query ends, without the names of this query."""
    with pytest.raises(PySparkException) as raised:
        write(frame, lake, name, **given)
    said = str(raised.value).partition("\n=== Streaming Query")[0]
    return re.sub(r"(id|runId) = [-0-9a-f]+", r"\1", said).partition("JVM stacktrace")[0]


@pytest.mark.parametrize("how", some_of(["now", "once", "time"], {"now", "time"}))
def test_both_ways_write_the_same(feed: Feed, lake: str, how: str) -> None:
    """Rows, numbers of rows, records: of large micro-batches, of few rows and of none."""
    trigger = {"now": {"availableNow": True}, "once": {"once": True}}.get(how)
    ends = [0, MANY, MANY + 3, MANY + 3, 3 * MANY]
    said = {}
    for first, last in pairwise(ends):
        feed.put_ids(first, last)
    for name in ("native", "workers"):
        given: dict[str, Any] = {"native": name == "native"}
        given["trigger"] = trigger or {"processingTime": "10 milliseconds"}
        if how == "time":
            query = start(feed.load(), lake, name, **given)
            query.processAllAvailable()
            query.stop()
        else:
            query = write(feed.load(), lake, name, **given)
        said[name] = written_rows(query)
    rows = [last - first for first, last in pairwise(ends)]
    if how == "once":
        rows = [sum(rows)]
    assert [n for n in said["native"] if n >= 0] == [n for n in said["workers"] if n >= 0]
    assert said["native"][: len(rows)] == rows
    assert contents(lake, "native") == contents(lake, "workers") == ids(range(3 * MANY))
    (one,), (other,) = (client_at(lake).state(n).writers.values() for n in ("native", "workers"))
    assert one.last == other.last == len(rows) - 1
    assert "native" in makers(lake, "native")
    assert "native" not in makers(lake, "workers")


def test_few_rows_need_no_file(feed: Feed, lake: str) -> None:
    """As the tasks of Python workers leave them: a record has them."""
    feed.put_ids(0, 3)
    for name in ("native", "workers"):
        write(feed.load().repartition(3), lake, name, native=name == "native")
        assert set(makers(lake, name)) == {"state"}
    assert contents(lake, "native") == contents(lake, "workers") == ids(range(3))
    assert not parquet_files(lake)


@BOTH
def test_rows_carry_their_times_and_diffs(
    spark: SparkSession, lake: str, tmp_path: Path, native: bool
) -> None:
    """By `_ts` and `_diff`: a diff of 0 is no row, whichever way."""
    feed = Feed(spark, tmp_path / "timed", "id bigint, _ts bigint, _diff bigint")
    for time in (100, 200):
        feed.put(*({"id": n, "_ts": time + n % 3, "_diff": n % 3 - 1} for n in range(MANY)))
        feed.put()
    query = write(feed.load(), lake, native=native, envelope="diff")
    rows = MANY - len(range(1, MANY, 3)) if native else MANY
    assert [n for n in written_rows(query) if n > 0] == [rows] * 2
    changes = spark.read.format("shard").options(readChangeFeed="true", startingTimestamp="0")
    found = changes.load(f"{lake}/out").collect()
    expected = [
        (n, time + n % 3, n % 3 - 1) for n in range(MANY) for time in (100, 200) if n % 3 != 1
    ]
    assert sorted((r["id"], r["_ts"], r["_diff"]) for r in found) == sorted(expected)
    assert set(makers(lake)) == {"native" if native else "workers"}


@pytest.mark.disk
def test_a_checkpoint_goes_on_by_either_way(feed: Feed, lake: str) -> None:
    """One writer, whose numbers go on; what was committed by one way is known to the other."""
    for number, native in enumerate([True, False, True, True, False, False]):
        feed.put_ids(number * MANY, (number + 1) * MANY)
        write(feed.load(), lake, native=native)
        before = client_at(lake).state("out")
        for repeated in (True, False):
            forget_last_commit(lake)
            write(feed.load(), lake, native=repeated)
            after = client_at(lake).state("out")
            assert after.upper == before.upper, "it was appended again"
            assert after.writers.keys() == before.writers.keys()
        assert contents(lake) == ids(range((number + 1) * MANY))
    (writer,) = client_at(lake).state("out").writers.values()
    assert writer.last == 5


@pytest.mark.disk
@BOTH
def test_a_number_of_another_range_is_refused(feed: Feed, lake: str, native: bool) -> None:
    """A checkpoint that was rolled back: its number stands for other rows now."""
    feed.put_ids(0, MANY)
    write(feed.load(), lake, native=not native)
    checkpoint = Path(lake, "checkpoint-out")
    for folder in ("commits", "offsets", "sources/0"):
        for file in (checkpoint / folder).iterdir():
            file.unlink()
    feed.put_ids(MANY, 2 * MANY)
    # Both files are in its first micro-batch.
    spark = feed.load().sparkSession
    both = spark.readStream.schema("id bigint").json(str(feed.folder))
    assert "[OTHER_RANGE]" in refusal(both, lake, native=native)
    assert contents(lake) == ids(range(MANY))


KILLED = """
import os, signal, sys
import shardline
from shardline.app.spark_session import open_session
from shardline.datasource.spark_native import stream_write
folder, lake = sys.argv[1:]
spark = open_session("killed", {"spark.ui.enabled": "false", "spark.master": "local[2]"})
commit = stream_write._Attempt._commit
def commit_and_die(attempt, number):
    commit(attempt, number)
    if number == 1:
        os.killpg(0, signal.SIGKILL)
stream_write._Attempt._commit = commit_and_die
frame = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).json(folder)
writer = frame.writeStream.format("shard").trigger(availableNow=True)
writer = writer.option("checkpointLocation", f"{lake}/checkpoint-out").option("nativeWrites", True)
writer.start(f"{lake}/out").awaitTermination()
"""


@pytest.mark.disk
@pytest.mark.process
@pytest.mark.parametrize("native", one_of(2, [True, False]), ids=["native", "workers"])
def test_killed_between_both_commits(feed: Feed, lake: str, native: bool) -> None:
    """The shard has the micro-batch, Spark's log has not: it is not appended again.

    That workers know it, too, is shown without a kill (`test_a_checkpoint_goes_on_by_either_way`).
    """
    for number in range(3):
        feed.put_ids(number * MANY, (number + 1) * MANY)
    words = [sys.executable, "-c", KILLED, str(feed.folder), lake]
    path = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run(
        words, env=path, start_new_session=True, capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr[-3000:]
    commits = Path(lake, "checkpoint-out", "commits")
    assert {p.name for p in commits.iterdir() if p.name.isdigit()} == {"0"}
    assert contents(lake) == ids(range(2 * MANY))
    write(feed.load(), lake, native=native)
    assert contents(lake) == ids(range(3 * MANY))
    assert makers(lake).count("native") >= 2


@pytest.mark.disk
@BOTH
def test_an_error_at_a_row_appends_nothing(feed: Feed, lake: str, native: bool) -> None:
    """It is Spark's own, no file stays, and the same micro-batch is written when it is mended."""
    feed.put_ids(0, MANY)
    divided = f"id + cast(0 / (id - {MANY - 1}) AS bigint) AS id"
    assert "DIVIDE_BY_ZERO" in refusal(feed.load().selectExpr(divided), lake, native=native)
    assert client_at(lake).state("out").writers == {}
    assert not parquet_files(lake)
    assert not list(Path(lake).rglob("part/*")), "an attempt has left something"
    write(feed.load(), lake, native=native)
    assert contents(lake) == ids(range(MANY))


@pytest.mark.disk
def test_a_null_that_may_not_be_is_refused(feed: Feed, lake: str) -> None:
    """In the words of the Python workers."""
    spark = feed.load().sparkSession
    feed.put_ids(0, MANY)
    frame = feed.load().selectExpr(f"nullif(id, {MANY - 1}) AS id")
    for name in ("native", "workers"):
        spark.range(0).write.format("shard").mode("append").save(f"{lake}/{name}")
        said = refusal(frame, lake, name, native=name == "native")
        assert re.search(r"\[NULL_VALUE\] column 'id' has (\d+ )?nulls", said), said
        assert contents(lake, name) == Counter()


def touching(frame: DataFrame, mark: str) -> DataFrame:
    """The same rows; there is a file `mark` once one was read."""

    def touch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            Path(mark).touch()
            yield batch

    return frame.mapInArrow(touch, frame.schema)


@pytest.mark.disk
@pytest.mark.parametrize(
    ("select", "options"),
    [
        ("id, 1 AS more", {}),
        ("string(id) AS id", {}),
        ("id", {"key": "id"}),
        ("id, id AS ID", {}),
        ("id", {"txnAppId": "me", "txnVersion": "1"}),
        ("id", {"saveMode": "overwrite"}),
        ("id", {"noSuchOption": "1"}),
    ],
)
def test_refusals_are_the_same(feed: Feed, lake: str, select: str, options: dict[str, str]) -> None:
    """Class and words, and before a row is read."""
    spark = feed.load().sparkSession
    spark.range(MANY).write.format("shard").mode("append").save(f"{lake}/out")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        feed.put_ids(0, MANY)
        mark = f"{feed.folder.parent}/read"
        frame = touching(feed.load(), mark).selectExpr(*select.split(", "))
        one, other = (refusal(frame, lake, native=native, **options) for native in (True, False))
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert "shardline.datasource.errors.InvalidUsage: [" in one
    assert one == other
    assert not Path(mark).exists()
    assert contents(lake) == ids(range(MANY))


def model_of_counts(seen: list[list[int]], late_by: int) -> Counter[tuple[int, int]]:
    """Counts by second that a query in append mode has given out: those up to the watermark."""
    counts: Counter[int] = Counter()
    watermark = 0
    for batch in seen:
        counts.update(n for n in batch if n > watermark)
        watermark = max(watermark, max(batch) - late_by)
    return Counter({(n, counts[n]): 1 for n in counts if n <= watermark})


@pytest.mark.disk
@pytest.mark.parametrize("ways", one_of(3, ["nwn", "wnw", "nnn"]))
def test_queries_that_keep_state(spark: SparkSession, lake: str, tmp_path: Path, ways: str) -> None:
    """An aggregate under a watermark and `dropDuplicates`: natively (n), or by workers (w)."""
    feed = Feed(spark, tmp_path / "state", "s bigint")
    seen = []
    for number, way in enumerate(ways):
        native = way == "n"
        batch = [1 + number * 50 + n % 80 for n in range(3 * 80)]
        seen.append(batch)
        feed.put(*({"s": n} for n in batch))
        timed = feed.load().selectExpr("s", "timestamp_seconds(s) AS t")
        counts = timed.withWatermark("t", "10 seconds").groupBy("t").count()
        counts = counts.selectExpr("unix_seconds(t) AS s", "count")
        for _ in range(2):  # once more, as after a crash, from the same state
            write(counts, lake, "counts", native=native)
            write(feed.load().dropDuplicates(["s"]), lake, "distinct", native=native)
            forget_last_commit(lake, "distinct")
        write(feed.load().dropDuplicates(["s"]), lake, "distinct", native=native)
    assert contents(lake, "distinct") == Counter({(n,): 1 for batch in seen for n in batch})
    assert contents(lake, "counts") == model_of_counts(seen, 10)


@pytest.mark.disk
@pytest.mark.parametrize("way", ["upsert", "complete", "session", "calendar"])
def test_what_must_have_python_workers_has_them(feed: Feed, lake: str, way: str) -> None:
    """The rows are there, and Spark's writer was not asked."""
    feed.put_ids(0, MANY)
    frame, given, settings = feed.load(), {}, {}
    match way:
        case "upsert":
            given = {"envelope": "upsert", "key": "id"}
        case "complete":
            frame, given = frame.groupBy("id").agg(F.max("id").alias("v")), {"mode": "complete"}
        case "session":
            settings = {"spark.shardline.nativeWrites": "false"}
        case "calendar":
            # Each task would read it from the query's own settings.
            settings = {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}
    conf = frame.sparkSession.conf
    for name, value in settings.items():
        conf.set(name, value)
    try:
        write(frame, lake, **given)
    finally:
        for name in settings:
            conf.unset(name)
    assert Counter(row[:1] for row in contents(lake).elements()) == ids(range(MANY))
    assert "native" not in makers(lake)


@pytest.mark.disk
def test_an_observed_query_tells_what_it_saw(feed: Feed, lake: str) -> None:
    """It runs in the stream's own plan: by either way its metrics are in the progress."""
    for name in ("native", "workers"):
        if name == "native":
            feed.put_ids(0, MANY)
        frame = feed.load().observe("seen", F.sum("id").alias("total"))
        query = write(frame, lake, name, native=name == "native")
        first = query.recentProgress[0]
        assert first.observedMetrics["seen"]["total"] == sum(range(MANY))
        assert makers(lake, name) == [name]


@pytest.mark.disk
def test_settings_of_the_session_change_no_part(feed: Feed, lake: str) -> None:
    """The format of parts is fixed: times in microseconds, not as the session writes elsewhere."""
    conf = feed.load().sparkSession.conf
    feed.put_ids(0, MANY)
    name = "spark.sql.parquet.outputTimestampType"
    conf.set(name, "INT96")
    try:
        write(feed.load().selectExpr("timestamp_seconds(id) AS t"), lake)
    finally:
        conf.unset(name)
    (key,) = parquet_files(lake)
    assert str(pq.read_schema(io.BytesIO(stored.read(lake, key))).field("t").type).startswith(
        "timestamp[us"
    )
    assert makers(lake) == ["native"]


def test_an_unknown_outcome_is_settled(
    feed: Feed, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that may still land is given up before Spark hears of it."""
    late: list[Callable[[], object]] = []
    commit = WriteHandle.commit

    def be_late(handle: WriteHandle, *given: Any, **named: Any) -> None:
        late.append(lambda: commit(handle, *given, **named))
        raise Indeterminate("no answer", code="TIMEOUT", hint="…")

    feed.put_ids(0, MANY)
    with monkeypatch.context() as patched:
        patched.setattr(WriteHandle, "commit", be_late)
        said = refusal(feed.load(), lake)
    assert "shardline.datasource.errors.Indeterminate: [TIMEOUT] no answer" in said
    assert not parquet_files(lake)
    with pytest.raises(ShardError):
        late[0]()
    write(feed.load(), lake)
    assert contents(lake) == ids(range(MANY))


@BOTH
def test_what_took_effect_is_not_undone(
    feed: Feed, lake: str, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    """An append whose answer is lost: its files stay, and it is not made again."""
    append = NativeWrite.append_written

    def take_effect_and_fail(write: NativeWrite, *given: Any, **named: Any) -> None:
        append(write, *given, **named)
        raise OSError("the answer is lost")

    feed.put_ids(0, MANY)
    with monkeypatch.context() as patched:
        patched.setattr(NativeWrite, "append_written", take_effect_and_fail)
        assert "the answer is lost" in refusal(feed.load(), lake)
    assert contents(lake) == ids(range(MANY))
    write(feed.load(), lake, native=native)
    assert contents(lake) == ids(range(MANY))


@pytest.mark.disk
def test_a_plan_that_fails_leaves_the_micro_batch(
    feed: Feed, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No query fails because of the rule."""
    monkeypatch.setattr(stream_write, "plan_native_write", None)
    feed.put_ids(0, MANY)
    write(feed.load(), lake)
    assert makers(lake) == ["workers"]
    assert contents(lake) == ids(range(MANY))


def test_a_micro_batch_is_native_where_that_pays(
    spark: SparkSession, feed: Feed, lake: str
) -> None:
    """By the size of what it reads, of files and of shards; else only if an option asks for it."""
    feed.put_ids(0, MANY)
    write(feed.load(), lake, native=None)
    assert makers(lake) == ["workers"]
    feed.put(*({"id": n, "more": "x" * 9_000} for n in range(MANY, 2 * MANY)))
    write(feed.load(), lake, native=None)
    assert set(makers(lake)) == {"workers", "native"}
    assert contents(lake) == ids(range(2 * MANY))
    table = spark.read.schema("id bigint").json(str(feed.folder))
    small = Feed(spark, feed.folder.parent / "small")
    small.put_ids(0, MANY)
    write(small.load().join(table, "id"), lake, "joined", native=None)
    assert makers(lake, "joined") == ["workers"], "the table is read, and the stream is small"
    draw = random.Random(7)
    noise = pa.table({"id": range(6_000), "s": [draw.randbytes(2_000).hex() for _ in range(6_000)]})
    put(client_at(lake, inline_part_bytes=0), "in", 1, noise)
    write(spark.readStream.format("shard").load(f"{lake}/in"), lake, "large", native=None)
    assert set(makers(lake, "large")) == {"native"}
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", MANY).load()
    query = start(rate, lake, "rate", native=None, trigger={"processingTime": "10 milliseconds"})
    wait_until("a micro-batch is written", lambda: query.lastProgress is not None, 60)
    query.stop()
    assert "native" not in makers(lake, "rate"), "nobody knows its size"
