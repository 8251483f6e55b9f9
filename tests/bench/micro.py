"""Running streaming queries for a measurement, and what their progress says of each micro-batch."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from shardline import datasource
from shardline.datasource.clock import Clock

__all__ = [
    "Sink",
    "discard",
    "discard_natively",
    "first_micro_batches",
    "run_available",
    "running",
    "total_ms",
]

Sink: TypeAlias = Callable[[DataFrame], DataStreamWriter]
"""What a query does with its rows."""

_TOTAL = "triggerExecution"

_PATIENCE_MS = 120_000
"""How long a query may take for what is measured before the measurement is given up."""

_numbers = count()


def discard(frame: DataFrame) -> DataStreamWriter:
    """Reads every row and keeps none."""
    return frame.writeStream.format("noop")


def discard_natively(frame: DataFrame) -> DataStreamWriter:
    """The same, each micro-batch read by Spark itself."""

    def each(batch: DataFrame, number: int) -> None:
        rows = datasource.micro_batch(batch, number)
        rows.write.format("noop").mode("overwrite").save()

    return frame.writeStream.foreachBatch(each)


@contextmanager
def running(
    frame: DataFrame, sink: Sink, place: Path, trigger: Mapping[str, Any] | None = None
) -> Iterator[StreamingQuery]:
    """A query under way, with a checkpoint of its own below `place`; stopped and removed after."""
    checkpoint = place / f"checkpoint-{next(_numbers)}"
    writer = sink(frame).option("checkpointLocation", str(checkpoint))
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        yield query
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)


def run_available(frame: DataFrame, sink: Sink, place: Path) -> list[float]:
    """Milliseconds of each micro-batch of what is there now."""
    with running(frame, sink, place, {"availableNow": True}) as query:
        query.awaitTermination()
        return total_ms(query.recentProgress)


def first_micro_batches(
    query: StreamingQuery, clock: Clock, skipped: int, wanted: int
) -> Sequence[Mapping[str, Any]]:
    """The progress of `wanted` micro-batches after the first `skipped`; waits for them."""
    deadline = clock.elapsed_ms() + _PATIENCE_MS
    while True:
        last = query.lastProgress
        if last is not None and last["batchId"] >= skipped + wanted - 1:
            break
        failure = query.exception()
        if failure is not None:
            raise failure
        assert clock.elapsed_ms() < deadline, (query.status, last)
        # Rarely: every look is work for the JVM that is measured.
        clock.wait(threading.Event(), 250)
    seen = {progress["batchId"]: progress for progress in query.recentProgress}
    return [seen[number] for number in range(skipped, skipped + wanted) if number in seen]


def total_ms(progress: Sequence[Mapping[str, Any]]) -> list[float]:
    """Milliseconds of each micro-batch, by number."""
    seen = {one["batchId"]: float(one["durationMs"][_TOTAL]) for one in progress if _ran(one)}
    return [seen[number] for number in sorted(seen)]


def _ran(progress: Mapping[str, Any]) -> bool:
    """Whether the progress is of a micro-batch that ran, and not of a look for news."""
    return "addBatch" in progress["durationMs"]
