"""`format("shard")` as Spark runs it: freezing, pieces, several shards, other forms of a change."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.settings import ShardSettings
from shardline.datasource.types.schema import ShardSchema
from support.profiles import one_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from support.spark.native import Reads

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("s", pa.string())])


@pytest.fixture
def client(location: str) -> ShardClient:
    """A writer's process; every part is a blob."""
    return ShardClient.open(
        location, settings=ShardSettings(validate=True, inline_part_bytes=0), create=True
    )


def put(client: ShardClient, name: str, lower: int, upper: int | None, *ids: int) -> None:
    """Append rows at time `lower`, and make the shard first if need be."""
    client.create(name, ShardSchema.from_arrow(SCHEMA))
    rows = pa.table({"id": pa.array(ids, pa.int64()), "s": pa.array([f"at {lower}"] * len(ids))})
    stamped = rows.append_column("_ts", pa.array([lower] * len(ids), pa.int64()))
    client.writer(name).compare_and_append(
        stamped if ids else None, Frontier(lower), Frontier(upper)
    )


def blob_at(client: ShardClient, location: str, time: int) -> Path:
    batches = client.state("in").trace.batches
    (key,) = [p.key for b in batches for p in b.parts if p.time_bounds == (time, time)]
    return Path(location, key)


def stream(spark: SparkSession, location: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("shard").option("holdInterval", "0ms")
    reader = reader.option("readChangeFeed", "true")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(location if "shards" in options else f"{location}/in")


class Sink:
    """What each micro-batch had, kept by number, as an idempotent sink keeps it."""

    def __init__(self) -> None:
        self.batches: dict[int, list[dict[str, Any]]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = [row.asDict(recursive=True) for row in frame.collect()]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for rows in self.batches.values() for row in rows]

    def times(self) -> list[int]:
        return sorted({row["_ts"] for row in self.rows})


@pytest.fixture
def start(checkpoint: str) -> Iterator[Any]:
    """Start a query into a sink; all are stopped at the end."""
    queries: list[StreamingQuery] = []

    def begin(frame: DataFrame, sink: Sink, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        query = (writer.trigger(**trigger) if trigger else writer).start()
        queries.append(query)
        return query

    yield begin
    for query in queries:
        query.stop()


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(120), "the query did not end"


def last_offset(checkpoint: str) -> dict[str, Any]:
    files = [p for p in Path(checkpoint, "offsets").iterdir() if p.name.isdigit()]
    newest = max(files, key=lambda p: int(p.name))
    found: dict[str, Any] = json.loads(newest.read_text().splitlines()[2])
    return found


# --- freezing -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize(("batches", "missing"), one_of(2, [(3, 1), (12, 5)]))
def test_a_frozen_query_lives_and_never_passes(  # noqa: PLR0917  # fixtures
    spark: SparkSession,
    location: str,
    checkpoint: str,
    client: ShardClient,
    start: Any,
    batches: int,
    missing: int,
) -> None:
    """It reads what is before the missing part, stays there alive, and goes on with the blob."""
    for time in range(batches):
        put(client, "in", time, time + 1, time)
    gone = blob_at(client, location, missing)
    data = gone.read_bytes()
    gone.unlink()
    sink = Sink()
    options = {"onMissingPart": "freeze", "startingTimestamp": 0, "partitionBytes": "300k"}

    query = start(stream(spark, location, **options), sink)
    query.processAllAvailable()
    put(client, "in", batches, batches + 1, batches)
    query.processAllAvailable()
    frozen = (query.isActive, sink.times(), last_offset(checkpoint)["frontier"])
    gone.write_bytes(data)
    wait_until(lambda: len(sink.times()) == batches + 1, query)

    assert frozen == (True, list(range(missing)), missing)
    assert sink.times() == list(range(batches + 1))


def wait_until(done: Any, query: StreamingQuery) -> None:
    """Let the query go on until `done`; its triggers come by themselves."""
    patience = threading.Event()
    for _ in range(600):
        if done():
            return
        assert query.exception() is None
        patience.wait(0.1)
    raise AssertionError(f"not done: {query.lastProgress}")


def test_a_missing_part_fails_the_query_until_it_is_back(
    spark: SparkSession, location: str, client: ShardClient, start: Any, reads: Reads
) -> None:
    """By default: an error with the part, its times and the lease; a restart succeeds after."""
    reads.expect("a part is gone or damaged")
    for time in range(3):
        put(client, "in", time, time + 1, time)
    gone = blob_at(client, location, 1)
    data = gone.read_bytes()
    gone.unlink()
    sink = Sink()
    options = {"startingTimestamp": 0, "maxFilesPerTrigger": 1}

    query = start(stream(spark, location, **options), sink, availableNow=True)
    with pytest.raises(Exception, match="BLOB_DELETED") as caught:
        query.awaitTermination(120)
    reached = sink.times()
    gone.write_bytes(data)
    finish(start(stream(spark, location, **options), sink, availableNow=True))

    assert gone.name in str(caught.value)
    assert "times 1 to 1" in str(caught.value)
    assert reached == [0]
    assert sink.times() == [0, 1, 2]


# --- pieces, limits -------------------------------------------------------------------------------


@pytest.mark.usefixtures("reads")
def test_a_snapshot_in_pieces_is_stopped_and_continued(
    spark: SparkSession, location: str, checkpoint: str, client: ShardClient, start: Any
) -> None:
    """Stopped between two pieces, and everything compacted and collected before the next."""
    for time in range(9):
        put(client, "in", time, time + 1, time, time + 100)
    sink = Sink()
    options = {"maxFilesPerTrigger": 2}

    class Enough(Exception):
        pass

    def two(frame: DataFrame, batch: int) -> None:
        if batch == 2:
            raise Enough
        sink(frame, batch)

    query = start(stream(spark, location, **options), two, availableNow=True)
    with pytest.raises(Exception, match="Enough"):
        query.awaitTermination(120)
    middle = last_offset(checkpoint)
    put(client, "in", 9, 10, 9)
    client.compact("in", force=True)
    client.collect_garbage("in")
    finish(start(stream(spark, location, **options), sink, availableNow=True))

    assert middle["frontier"] == middle["as_of"] == 8
    assert middle["snapshot"]["done"] == 6
    assert [len(sink.batches[n]) for n in range(6)] == [4, 4, 4, 4, 2, 1]
    ids = Counter(row["id"] for row in sink.rows)
    assert ids == Counter([*range(9), *range(100, 109), 9])


@pytest.mark.usefixtures("reads")
def test_available_now_is_restarted_in_the_middle(
    spark: SparkSession, location: str, client: ShardClient, start: Any
) -> None:
    """Under a limit of rows, killed by its sink on the way: everything once."""
    for time in range(8):
        put(client, "in", time, time + 1, time, time + 100)
    sink = Sink()
    failed: list[int] = []

    def fragile(frame: DataFrame, batch: int) -> None:
        sink(frame, batch)
        if batch == 2 and not failed:
            failed.append(batch)
            raise RuntimeError("the sink is full")

    options = {"maxRowsPerTrigger": 4, "startingTimestamp": 0}
    with pytest.raises(Exception, match="the sink is full"):
        start(stream(spark, location, **options), fragile, availableNow=True).awaitTermination(120)
    finish(start(stream(spark, location, **options), fragile, availableNow=True))

    assert Counter(row["id"] for row in sink.rows) == Counter([*range(8), *range(100, 108)])
    assert max(map(len, sink.batches.values())) == 4
    assert len([rows for rows in sink.batches.values() if rows]) == 4


def test_an_idle_query_makes_no_micro_batch(
    spark: SparkSession, location: str, checkpoint: str, client: ShardClient, start: Any
) -> None:
    """As long as Spark finds it idle, nothing is written to the checkpoint."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    idle = threading.Semaphore(0)

    class Listener(StreamingQueryListener):
        @override
        def onQueryStarted(self, event: Any) -> None: ...
        @override
        def onQueryProgress(self, event: Any) -> None: ...
        @override
        def onQueryTerminated(self, event: Any) -> None: ...
        @override
        def onQueryIdle(self, event: Any) -> None:
            del event
            idle.release()

    put(client, "in", 0, 1, 1)
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(interval, "500ms")
    listener = Listener()
    spark.streams.addListener(listener)
    try:
        query = start(stream(spark, location, progressInterval="1s"), Sink())
        query.processAllAvailable()
        for _ in range(12):
            assert idle.acquire(timeout=60)
        planned = len([p for p in Path(checkpoint, "offsets").iterdir() if p.name.isdigit()])
    finally:
        spark.streams.removeListener(listener)
        spark.conf.unset(interval)

    assert planned == 1


# --- several shards -------------------------------------------------------------------------------


@pytest.mark.usefixtures("reads")
def test_several_shards_in_one_stream(
    spark: SparkSession, location: str, checkpoint: str, client: ShardClient, start: Any
) -> None:
    """One frontier: what is settled in all of them, each row as that of its shard."""
    put(client, "left", 0, 10, 1)
    put(client, "right", 0, 5, 2)
    sink = Sink()
    query = start(stream(spark, location, shards="left,right"), sink)
    query.processAllAvailable()
    put(client, "left", 10, 20, 3)
    put(client, "right", 5, 12, 4)
    query.processAllAvailable()

    found = {(r["_input"], r["_ts"], (r["left"] or r["right"])["id"]) for r in sink.rows}
    assert found == {("left", 4, 1), ("right", 4, 2), ("left", 10, 3), ("right", 5, 4)}
    assert all((row["left"] is None) == (row["_input"] == "right") for row in sink.rows)
    assert last_offset(checkpoint)["frontier"] == 12


@pytest.mark.usefixtures("reads")
def test_several_shards_at_one_time(
    spark: SparkSession, location: str, client: ShardClient
) -> None:
    """A batch read of several shards is of one time, the latest that all of them know."""
    put(client, "left", 0, 10, 1)
    put(client, "left", 10, 20, 3)
    put(client, "right", 0, 5, 2)
    put(client, "right", 5, 11, 4)
    frame = spark.read.format("shard").option("shards", "left,right")

    rows = frame.load(location).selectExpr("_input", "coalesce(left.id, right.id) AS id").collect()
    before = frame.option("timestampAsOf", "4").load(location).select("_input").collect()

    assert sorted(map(tuple, rows)) == [("left", 1), ("left", 3), ("right", 2), ("right", 4)]
    assert sorted(map(tuple, before)) == [("left",), ("right",)]


# --- other forms of a change ----------------------------------------------------------------------


@pytest.mark.usefixtures("reads")
def test_changes_in_deltas_words(spark: SparkSession, location: str, client: ShardClient) -> None:
    """`changeFormat=cdf` in batch reads, with a timestamp that Spark understands."""
    client.create("in", ShardSchema.from_arrow(SCHEMA))
    table = pa.table({"id": [1, 1], "s": ["a", "a"], "_ts": [1000, 61_000], "_diff": [2, -1]})
    client.writer("in").compare_and_append(table, Frontier(0), Frontier(100_000))
    frame = spark.read.format("shard").option("changeFormat", "cdf").load(f"{location}/in")

    rows = frame.selectExpr(
        "id", "s", "_change_type", "unix_millis(_commit_timestamp)", "_commit_version"
    ).collect()

    assert Counter(map(tuple, rows)) == Counter(
        {(1, "a", "insert", 1000, 1000): 2, (1, "a", "delete", 61_000, 61_000): 1}
    )
    assert frame.columns == ["id", "s", "_change_type", "_commit_timestamp", "_commit_version"]


def test_an_append_only_stream_has_the_shards_columns(
    spark: SparkSession, location: str, client: ShardClient, start: Any, reads: Reads
) -> None:
    """`appendOnly=true` leaves the extra columns out, and fails loudly at the first retraction."""
    reads.expect("refused: RETRACTION_IN_APPEND_ONLY_STREAM")
    put(client, "in", 0, 1, 1, 2)
    sink = Sink()
    options = {"readChangeFeed": "false", "appendOnly": "true"}
    finish(start(stream(spark, location, **options), sink, availableNow=True))
    gone = pa.table({"id": [1], "s": ["at 0"], "_ts": [1], "_diff": [-1]})
    client.writer("in").compare_and_append(gone, Frontier(1), Frontier(2))

    query = start(stream(spark, location, **options), sink, availableNow=True)
    with pytest.raises(Exception, match="RETRACTION_IN_APPEND_ONLY_STREAM"):
        query.awaitTermination(120)

    assert sorted(row["id"] for row in sink.rows) == [1, 2]
    assert set(sink.rows[0]) == {"id", "s"}


def test_a_schema_given_by_the_user_may_leave_out_what_is_never_null(
    spark: SparkSession, location: str, client: ShardClient, reads: Reads
) -> None:
    """As a table's columns are: nullable, all of them, times and diffs too."""
    reads.expect("refused: SCHEMA_MISMATCH")
    put(client, "in", 0, 6, 1)
    given = "id bigint, _ts bigint, _diff bigint"
    reader = spark.read.format("shard").option("readChangeFeed", "true")

    rows = reader.schema(given).load(f"{location}/in").collect()
    with pytest.raises(Exception, match=r"SCHEMA_MISMATCH.*_ts bigint not null"):
        reader.schema("id bigint, _ts int, _diff bigint").load(f"{location}/in").collect()

    assert list(map(tuple, rows)) == [(1, 0, 1)]
