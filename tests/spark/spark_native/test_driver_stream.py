"""Spark runs queries over driver streams: intervals, restarts, errors, and no process for any."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from bench.processes import belonging, find, processes
from shardline.app.execution.checkpoint_log import logged_numbers
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.spark_native.driver_stream import DriverStream, open_driver_stream
from shardline.datasource.spark_native.time_interval import Interval, interval_of
from shardline.datasource.types.schema import ShardSchema
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

_PLANNER = "shardline.plan"
_SCHEMA = pa.schema([pa.field("id", pa.int64())])


@pytest.fixture
def client(location: str) -> ShardClient:
    return ShardClient.open(location, create=True)


def put(client: ShardClient, name: str, lower: int, upper: int | None) -> None:
    """Append a row at time `lower`, and make the shard first if need be."""
    client.create(name, ShardSchema.from_arrow(_SCHEMA))
    row = pa.table({"id": pa.array([lower], pa.int64()), "_ts": pa.array([lower], pa.int64())})
    client.writer(name).compare_and_append(row, Frontier(lower), Frontier(upper))


def put_both(client: ShardClient, lower: int, upper: int) -> None:
    """Append a row to each of the two shards that are followed."""
    for name in ("a", "b"):
        put(client, name, lower, upper)


def options_of(location: str) -> dict[str, str]:
    return {
        "location": location,
        "shards": "a,b",
        "readChangeFeed": "true",
        "snapshot": "exclude",
        "timestampAsOf": "0",
        "hold": "view:test",
        "holdInterval": "0ms",
    }


class Followed:
    """A query over a driver stream, and the ends of its micro-batches by their numbers."""

    def __init__(
        self,
        spark: SparkSession,
        client: ShardClient,
        checkpoint: Path,
        run: Callable[[], None] = lambda: None,
    ) -> None:
        self.ends: dict[int, str] = {}
        self._run, self._checkpoint = run, checkpoint
        self.stream: DriverStream
        self.stream, frame = open_driver_stream(
            spark, client, options_of(client.location.url), gap_ms=0, poll_ms=50
        )
        self.query: StreamingQuery = (
            frame.writeStream.foreachBatch(self._each)
            .queryName("follows a and b")
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="0 milliseconds")
            .start()
        )
        self.stream.start()

    def _each(self, frame: DataFrame, number: int) -> None:
        self.stream.micro_batch_began()
        try:
            assert frame.columns == ["_ts"]
            self._run()
            offsets = (self._checkpoint / "offsets" / str(number)).read_text().splitlines()
            self.ends[number] = offsets[-1]
        finally:
            self.stream.micro_batch_ended()

    def stop(self) -> None:
        self.stream.stop()
        self.query.stop()

    def wait_for(self, number: int) -> None:
        """Wait until micro-batch `number` is committed."""
        commits = self._checkpoint / "commits"
        wait_until(f"micro-batch {number}", lambda: number in logged_numbers(commits), 60)

    def frontiers(self) -> list[int]:
        """The frontier at the end of each micro-batch."""
        return [json.loads(end)["frontier"] for end in self.ends.values()]


@pytest.fixture
def started(
    spark: SparkSession, client: ShardClient, tmp_path: Path
) -> Iterator[Callable[..., Followed]]:
    """Starts queries over one checkpoint, and ends them."""
    made: list[Followed] = []

    def start(run: Callable[[], None] = lambda: None) -> Followed:
        made.append(Followed(spark, client, tmp_path / "checkpoint", run))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def _planners() -> set[int]:
    """The processes that plan streams of `format("shard")`."""
    return set(find(_PLANNER, belonging(os.getpid(), processes())))


def test_micro_batches_follow_the_slowest_input_without_a_process(
    client: ShardClient, started: Callable[..., Followed]
) -> None:
    put(client, "a", 0, 5)
    put(client, "b", 0, 3)
    before = _planners()

    followed = started()
    followed.wait_for(0)
    put(client, "b", 3, 8)
    followed.wait_for(1)
    put(client, "a", 5, 20)
    put(client, "b", 8, 30)
    followed.wait_for(2)

    assert followed.frontiers() == [1, 5, 20]
    assert not _planners() - before
    progress = followed.query.lastProgress
    assert progress is not None
    assert progress["sources"][0]["description"] == f"shards a, b of {client.location.url}"
    assert progress["numInputRows"] == 0


def test_a_checkpoint_goes_on_after_one_of_format_shard_and_before_it(
    spark: SparkSession,
    client: ShardClient,
    started: Callable[..., Followed],
    tmp_path: Path,
) -> None:
    """Both have one log of offsets, so that an older Shardline reads a newer checkpoint."""
    put_both(client, 0, 5)
    seen: list[Interval | None] = []
    planners: set[int] = set()

    def each(frame: DataFrame, number: int) -> None:
        seen.append(interval_of(frame, number))
        planners.update(_planners())

    def by_format() -> None:
        reader = spark.readStream.format("shard").options(**options_of(client.location.url))
        query = (
            reader.load()
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    by_format()
    put_both(client, 5, 10)
    followed = started()
    followed.wait_for(1)
    followed.stop()
    put_both(client, 10, 15)
    by_format()

    assert planners, "or the test before this one proves nothing"
    assert followed.frontiers() == [10]
    assert [interval and (interval.lower, interval.upper) for interval in seen] == [
        (0, 1),
        (10, 15),
    ]


def test_a_micro_batch_that_was_killed_comes_again_and_keeps_its_history(
    client: ShardClient, started: Callable[..., Followed]
) -> None:
    put_both(client, 0, 5)
    first = started()
    first.wait_for(0)
    first.stop()
    fails = threading.Event()
    fails.set()

    def fail() -> None:
        if fails.is_set():
            raise RuntimeError("killed")

    put_both(client, 5, 10)
    killed = started(fail)
    wait_until("the end of the query", lambda: not killed.query.isActive, 60)
    assert client.state("a").critical["view:test"].since == 0
    fails.clear()
    again = started()
    again.wait_for(1)

    assert again.frontiers() == [10]


def test_an_error_of_the_source_ends_the_query_with_its_words(
    client: ShardClient, started: Callable[..., Followed]
) -> None:
    put_both(client, 0, 5)
    followed = started()
    followed.wait_for(0)

    client.drop("a", despite_holders=["view:test"])
    client.create("a", ShardSchema.from_arrow(_SCHEMA))

    wait_until("the end of the query", lambda: not followed.query.isActive, 60)
    assert followed.stream.error is not None
    assert str(followed.stream.error) in str(followed.query.exception())


def test_a_query_that_is_stopped_by_hand_ends_its_stream(
    client: ShardClient, started: Callable[..., Followed]
) -> None:
    """Nobody else would: it would look at its shards for as long as the application runs."""
    put_both(client, 0, 5)
    followed = started()
    followed.wait_for(0)

    followed.query.stop()

    # As its turns look: now and then, as Spark's last question may still be open.
    wait_until("the end of the stream", lambda: followed.stream.look() is None, 60)
    assert followed.stream.error is None
