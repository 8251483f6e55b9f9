"""`format("shard")` as a streaming source and sink: exactly once, through restarts and replays."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.shard.commands.readers import expire_critical, expire_leased
from shardline.datasource.types.schema import ShardSchema
from support.profiles import one_of
from support.spark.native import client_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from support.spark.native import Reads

pytestmark = pytest.mark.spark


def put(location: str, *ids: int, diff: int = 1, **chosen: int) -> None:
    """Append rows to the input shard, without a job of Spark."""
    client = client_at(location, **chosen)
    rows = pa.table({"id": pa.array(ids, pa.int64()), "s": [f"row {n}" for n in ids]})
    client.create("in", ShardSchema.from_arrow(rows.schema))
    diffs = pa.array([diff] * len(ids), pa.int64())
    client.writer("in").append_now(rows.append_column("_diff", diffs))


def stream(spark: SparkSession, location: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("shard").option("holdInterval", "0ms")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(f"{location}/in")


def copy_to(frame: DataFrame, location: str, checkpoint: str, **options: object) -> StreamingQuery:
    """Start copying a stream of the input shard into the output shard."""
    writer = frame.writeStream.format("shard").option("checkpointLocation", checkpoint)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    return writer.trigger(availableNow=True).start(f"{location}/out")


def contents(spark: SparkSession, location: str, shard: str = "out") -> Counter[int]:
    frame = spark.read.format("shard").load(f"{location}/{shard}")
    return Counter(row.id for row in frame.collect())


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(120), "the query did not end"


def offsets(checkpoint: str) -> list[dict[str, Any]]:
    """The source's offsets in the checkpoint's offset log, in order."""
    files = sorted(
        (p for p in Path(checkpoint, "offsets").iterdir() if p.name.isdigit()),
        key=lambda p: int(p.name),
    )
    return [json.loads(p.read_text().splitlines()[2]) for p in files]


def forget_last_commit(checkpoint: str) -> None:
    """Make Spark believe that the last micro-batch was planned and not committed."""
    commits = [p for p in Path(checkpoint, "commits").iterdir() if p.name.isdigit()]
    max(commits, key=lambda p: int(p.name)).unlink()


@pytest.mark.usefixtures("reads")
def test_snapshot_then_changes(spark: SparkSession, location: str, checkpoint: str) -> None:
    """A stream starts with the contents and goes on with what is added, once each."""
    put(location, 1, 2)
    finish(copy_to(stream(spark, location), location, checkpoint))
    put(location, 3)
    put(location, 4)
    finish(copy_to(stream(spark, location), location, checkpoint))

    assert contents(spark, location) == Counter([1, 2, 3, 4])


def test_updates_carry_times_and_diffs(
    spark: SparkSession, location: str, checkpoint: str, reads: Reads
) -> None:
    """With a change feed, retractions flow through and the copy stays equal to the original."""
    reads.expect("parts of a snapshot need consolidation")
    put(location, 1, 2, 3)
    put(location, 2, diff=-1)
    feed = stream(spark, location, readChangeFeed="true")
    finish(copy_to(feed.drop("_ts"), location, checkpoint))
    put(location, 1, diff=-1)
    put(location, 5, 5)
    finish(copy_to(feed.drop("_ts"), location, checkpoint))

    assert contents(spark, location) == Counter({3: 1, 5: 2})


def test_a_retraction_fails_a_stream_of_rows(
    spark: SparkSession, location: str, checkpoint: str, reads: Reads
) -> None:
    """A stream without the change feed never drops a retraction silently."""
    reads.expect("refused: RETRACTION_IN_APPEND_ONLY_STREAM")
    put(location, 1, 2)
    finish(copy_to(stream(spark, location), location, checkpoint))
    put(location, 1, diff=-1)

    with pytest.raises(Exception, match=r"\[RETRACTION_IN_APPEND_ONLY_STREAM\].*readChangeFeed"):
        finish(copy_to(stream(spark, location), location, checkpoint))


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("inline_bytes", [0, 4096])
def test_a_replayed_micro_batch_changes_nothing(
    spark: SparkSession, location: str, checkpoint: str, inline_bytes: int
) -> None:
    """Replaying a micro-batch that the shard has committed adds nothing and leaves no parts."""
    put(location, 1, 2)
    options = {"inlinePartBytes": inline_bytes}
    finish(copy_to(stream(spark, location), location, checkpoint, **options))
    put(location, 3)
    finish(copy_to(stream(spark, location), location, checkpoint, **options))
    before = set(Path(location, "out").rglob("*.parquet"))
    forget_last_commit(checkpoint)
    finish(copy_to(stream(spark, location), location, checkpoint, **options))

    assert contents(spark, location) == Counter([1, 2, 3])
    assert set(Path(location, "out").rglob("*.parquet")) == before


@pytest.mark.usefixtures("reads")
def test_the_first_micro_batch_is_replayed_as_planned(
    spark: SparkSession, location: str, checkpoint: str
) -> None:
    """A replay of the snapshot reads it at the same time, whatever was appended meanwhile."""
    put(location, 1, 2)
    finish(copy_to(stream(spark, location), location, checkpoint))
    first = offsets(checkpoint)[0]
    shutil.rmtree(Path(checkpoint, "commits"))
    Path(checkpoint, "commits").mkdir()
    put(location, 3)
    finish(copy_to(stream(spark, location), location, checkpoint))

    assert offsets(checkpoint)[0] == first
    assert contents(spark, location) == Counter([1, 2, 3])


def test_two_drivers_of_one_checkpoint(
    spark: SparkSession, location: str, checkpoint: str, tmp_path: Path
) -> None:
    """A copy of a checkpoint, run again, commits nothing twice: the query's id is the identity."""
    put(location, 1, 2)
    finish(copy_to(stream(spark, location), location, checkpoint))
    twin = str(tmp_path / "twin")
    shutil.copytree(checkpoint, twin)
    put(location, 3)
    finish(copy_to(stream(spark, location), location, checkpoint))
    finish(copy_to(stream(spark, location), location, twin))

    assert contents(spark, location) == Counter([1, 2, 3])


def test_no_micro_batch_without_news(spark: SparkSession, location: str, checkpoint: str) -> None:
    """An idle stream makes no micro-batch; news make one each."""
    put(location, 1)
    query = (
        stream(spark, location)
        .writeStream.format("shard")
        .option("checkpointLocation", checkpoint)
        .start(f"{location}/out")
    )
    query.processAllAvailable()
    put(location, 2)
    query.processAllAvailable()
    # Idle progress events carry no micro-batch: wait for one, which Spark sends every 10 s.
    query.processAllAvailable()
    query.stop()

    assert len(offsets(checkpoint)) == 2
    assert contents(spark, location) == Counter([1, 2])


def test_progress_without_data(spark: SparkSession, location: str, checkpoint: str) -> None:
    """When the upper moves without updates, the stream and its hold move too."""
    put(location, 1)
    client = ShardClient.open(location)
    query = (
        stream(spark, location, progressInterval="1ms")
        .writeStream.format("shard")
        .option("checkpointLocation", checkpoint)
        .start(f"{location}/out")
    )
    query.processAllAvailable()
    (name, before), *_ = client.state("in").critical.items()
    for _ in range(2):
        # `commit` of a micro-batch comes while the next one is made.
        client.writer("in").append_now(None)
        query.processAllAvailable()
    query.stop()
    upper = client.state("in").upper.time
    after = client.state("in").critical[name]

    assert upper is not None
    assert before.since is not None
    assert after.since is not None
    assert before.since < after.since < upper - 1
    assert offsets(checkpoint)[-1]["frontier"] == upper


def test_the_hold_keeps_history_while_the_query_is_down(
    spark: SparkSession, location: str, checkpoint: str
) -> None:
    """A stopped query's hold keeps the shard's since; after any downtime it reads on."""
    put(location, 1)
    finish(copy_to(stream(spark, location, hold="copy"), location, checkpoint))
    client = ShardClient.open(location)
    frontier = offsets(checkpoint)[-1]["frontier"]
    other = client.hold("in", "other")
    put(location, 2)
    other.downgrade(client.state("in").upper)

    since = client.state("in").since.time
    assert since is not None
    assert since <= frontier - 1
    finish(copy_to(stream(spark, location, hold="copy"), location, checkpoint))
    assert contents(spark, location) == Counter([1, 2])


def test_an_expired_hold_is_a_clear_error(
    spark: SparkSession, location: str, checkpoint: str
) -> None:
    """When an admin expired the hold and history went on, the query says what can be read."""
    put(location, 1)
    finish(copy_to(stream(spark, location, hold="copy"), location, checkpoint))
    client = ShardClient.open(location)
    machine = client.machine("in")
    machine.apply(partial(expire_critical, reader="copy"))
    for reader in client.state("in").leased:
        machine.apply(partial(expire_leased, reader=reader))
    put(location, 2)
    put(location, 3)
    client.hold("in", "other").downgrade(client.state("in").upper)

    with pytest.raises(Exception, match=r"\[HOLD_EXPIRED\].*'copy'"):
        finish(copy_to(stream(spark, location, hold="copy"), location, checkpoint))
    assert contents(spark, location) == Counter([1])


def test_a_zombie_is_fenced(spark: SparkSession, location: str, checkpoint: str) -> None:
    """Once another run of the query owns the hold, the old run stops at its next commit."""
    put(location, 1)
    query = (
        stream(spark, location, hold="copy")
        .writeStream.format("shard")
        .option("checkpointLocation", checkpoint)
        .start(f"{location}/out")
    )
    query.processAllAvailable()
    ShardClient.open(location).hold("in", "copy")
    put(location, 2)

    with pytest.raises(Exception, match=r"\[FENCED\].*'copy'"):
        put_until_failure(location, query)


def put_until_failure(location: str, query: StreamingQuery) -> None:
    for n in range(10, 15):
        query.processAllAvailable()
        put(location, n)


@pytest.mark.parametrize(
    "limit",
    one_of(3, [{"maxBytesPerTrigger": "1k"}, {"maxFilesPerTrigger": 1}, {"maxRowsPerTrigger": 2}]),
)
@pytest.mark.usefixtures("reads")
def test_limits_cut_a_backlog(
    spark: SparkSession, location: str, checkpoint: str, limit: dict[str, object]
) -> None:
    """A backlog is read in several micro-batches under a limit, and all of it."""
    put(location, 0)
    finish(copy_to(stream(spark, location, **limit), location, checkpoint))
    for n in range(1, 6):
        put(location, n, n + 100, inline_part_bytes=0)
    finish(copy_to(stream(spark, location, **limit), location, checkpoint))

    assert contents(spark, location) == Counter([0, *range(1, 6), *range(101, 106)])
    assert len(offsets(checkpoint)) == 6


def test_available_now_has_a_fixed_end(spark: SparkSession, location: str, checkpoint: str) -> None:
    """`availableNow` reads what was there at its start, in limited steps, and stops."""
    for n in range(4):
        put(location, n)
    finish(copy_to(stream(spark, location, maxFilesPerTrigger=1), location, checkpoint))

    assert contents(spark, location) == Counter(range(4))


@pytest.mark.usefixtures("reads")
def test_a_stream_ends_at_ending_timestamp(
    spark: SparkSession, location: str, checkpoint: str
) -> None:
    """Nothing at or after `endingTimestamp` is delivered."""
    put(location, 1)
    until = ShardClient.open(location).state("in").upper.time
    put(location, 2)
    feed = stream(spark, location, startingTimestamp=0, endingTimestamp=until)
    finish(copy_to(feed, location, checkpoint))

    assert contents(spark, location) == Counter([1])


@pytest.mark.usefixtures("reads")
def test_snapshot_can_be_left_out(spark: SparkSession, location: str, checkpoint: str) -> None:
    """With `snapshot=exclude` a stream delivers only what comes after its start."""
    put(location, 1)
    finish(copy_to(stream(spark, location, snapshot="exclude"), location, checkpoint))
    put(location, 2)
    finish(copy_to(stream(spark, location, snapshot="exclude"), location, checkpoint))

    assert contents(spark, location) == Counter([2])


def test_a_checkpoint_of_another_shard_is_refused(
    spark: SparkSession, location: str, checkpoint: str
) -> None:
    """A shard that was dropped and made again is another shard: the query says so."""
    put(location, 1)
    finish(copy_to(stream(spark, location, hold="copy"), location, checkpoint))
    client = ShardClient.open(location)
    client.drop("in", despite_holders=[*client.state("in").critical, *client.state("in").leased])
    put(location, 2)

    with pytest.raises(Exception, match=r"\[FOREIGN_OFFSET\]"):
        finish(copy_to(stream(spark, location, hold="copy"), location, checkpoint))


def test_a_foreign_checkpoint_is_refused(
    spark: SparkSession, location: str, checkpoint: str
) -> None:
    """A checkpoint of another source is refused, not misread."""
    put(location, 1)
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = rate.selectExpr("value as id", "'x' as s").writeStream.format("noop")
    finish(query.option("checkpointLocation", checkpoint).trigger(once=True).start())

    with pytest.raises(Exception, match=r"\[FOREIGN_OFFSET\]"):
        finish(copy_to(stream(spark, location), location, checkpoint))


@pytest.mark.usefixtures("reads")
def test_complete_mode_writes_differences(
    spark: SparkSession, location: str, checkpoint: str
) -> None:
    """Output mode complete replaces contents atomically; unchanged rows cost nothing."""
    put(location, 1, 2, 3, 11)
    counts = stream(spark, location).selectExpr("id % 10 as k").groupBy("k").count()

    def run() -> None:
        writer = counts.writeStream.format("shard").outputMode("complete")
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        finish(writer.start(f"{location}/out"))

    run()
    put(location, 12)
    run()
    feed = spark.read.format("shard").option("readChangeFeed", "true").load(f"{location}/out")

    assert Counter((r.k, r["count"], r._diff) for r in feed.collect()) == Counter(
        [(1, 2, 1), (2, 1, 1), (3, 1, 1), (2, 1, -1), (2, 2, 1)]
    )


@pytest.mark.usefixtures("reads")
def test_foreach_batch_writes_once(spark: SparkSession, location: str, checkpoint: str) -> None:
    """From `foreachBatch`, `txnAppId` and `txnVersion` make a replayed write harmless."""
    put(location, 1, 2)

    def write(frame: DataFrame, number: int) -> None:
        writer = frame.write.format("shard").mode("append").option("txnAppId", "copy")
        writer.option("txnVersion", number).save(f"{location}/out")

    def run() -> None:
        writer = stream(spark, location).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        finish(writer.start())

    run()
    forget_last_commit(checkpoint)
    run()

    assert contents(spark, location) == Counter([1, 2])


def test_two_queries_into_one_shard(spark: SparkSession, location: str, checkpoint: str) -> None:
    """Two queries append to one shard, each exactly once."""
    put(location, 1, 2)
    queries = [
        copy_to(stream(spark, location), location, f"{checkpoint}-{number}") for number in range(2)
    ]
    for query in queries:
        finish(query)

    assert contents(spark, location) == Counter({1: 2, 2: 2})


def test_a_missing_part_stops_the_stream(
    spark: SparkSession, location: str, checkpoint: str, reads: Reads
) -> None:
    """The stream fails at a missing part and goes on once it is back; it never passes it."""
    reads.expect("a part is gone or damaged")
    put(location, 0)
    finish(copy_to(stream(spark, location), location, checkpoint))
    for n in (1, 2, 3):
        put(location, n, inline_part_bytes=0)
    state = ShardClient.open(location).state("in")
    victim = Path(location, [p.key for b in state.trace.batches for p in b.parts][2])
    kept = victim.rename(victim.with_suffix(".away"))

    limited = stream(spark, location, maxFilesPerTrigger=1)
    with pytest.raises(Exception, match=rf"\[BLOB_DELETED\].*{victim.name}"):
        finish(copy_to(limited, location, checkpoint))
    assert contents(spark, location) == Counter([0, 1])
    kept.rename(victim)
    finish(copy_to(limited, location, checkpoint))
    assert contents(spark, location) == Counter([0, 1, 2, 3])
