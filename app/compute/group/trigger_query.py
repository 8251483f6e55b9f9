"""A trigger query says, as micro-batches, how far all of some shards are; nobody reads its rows.

    driver stream over a and b  ->  micro-batch [t0, t1)  ->  run(session, [t0, t1))

It follows its shards up to one common frontier, under its own holds, and so is seen, paced and
restarted by Spark's own means. A view's own query is one, and so is that of a group of views.

Its ends are chosen in the driver (`spark_native.driver_stream`): a hundred queries need no hundred
processes, and hear at once of what the driver itself has written. Under another Spark than the one
that this was checked against the same query runs over `format("shard")`.

Invariants:
    Only one query runs over a checkpoint at a time: that is the caller's to see to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from shardline.app.execution.checkpoint_log import read_planned_offset
from shardline.app.execution.host import Host
from shardline.app.execution.query_start import (
    end_in_background,
    start_slot,
    wait_until_initialised,
)
from shardline.datasource.frames import (
    DriverStream,
    Interval,
    interval_of,
    interval_of_offsets,
    is_checked,
    make_active,
    open_driver_stream,
)
from shardline.datasource.offsets import START

__all__ = ["TriggerQuery"]

_IDLE_MS: Final = 600_000
"""Pause between micro-batches of an idle query, which only bring its holds forward: the advancer
moves the output, and an idle input has little history that they could keep back."""

_POLLS: Final = 5.0
"""Intervals between two looks of the query's own. The advancer looks at the inputs of all views in
each of its rounds, and wakes it; with hundreds of views on an object store these take longer."""

_TRIGGERS: Final = 4
"""Micro-batches in each interval, at most. With one, each view of a chain would be an interval
late."""

_TRIGGER_MS_MIN: Final = 100
"""Shortest pause between micro-batches, however short the interval is."""

_KNOWN: Final = 2.5
"""Intervals for which a query that ran is taken to run: an error of its steps is told by itself."""

_PARTS: Final = "256"
"""Most parts of changes that one micro-batch takes: a view that comes back after an hour commits,
and brings its holds forward, several times on the way. A tick of a source is one part or a few."""


@dataclass(slots=True)
class TriggerQuery:
    """A streaming query that is started once.

    Attributes:
        host: Whose session it runs in.
        name: Its name, unique among those that run at once.
        shards: Shards that it reads, sorted.
        as_of: The time after which changes are read, where there is no checkpoint.
        hold: Name of its hold on these shards.
        checkpoint: Folder of its checkpoint.
        with_time: True if a micro-batch shall come each interval, though nothing but time goes on.
    """

    host: Host
    name: str
    shards: Sequence[str]
    as_of: int
    hold: str
    checkpoint: Path
    with_time: bool = False
    _query: StreamingQuery | None = field(default=None, init=False)
    _stream: DriverStream | None = field(default=None, init=False)
    _runs_until_ms: float = field(default=float("-inf"), init=False)

    def error(self) -> BaseException | None:
        """The error that has ended it; None if none has, or it is not known."""
        if self._stream is not None and self._stream.error is not None:
            # Spark knows its text only.
            return self._stream.error
        if self._query is not None:
            with suppress(Py4JError, OSError):
                return self._query.exception()
        return None

    def is_active(self) -> bool:
        """True while it runs, and hears of news; it may have ended two intervals ago."""
        if self._query is None or (self._stream is not None and self._stream.error is not None):
            return False
        # All members of a group ask in each round of the advancer, and are told the same.
        now_ms = self.host.clock.elapsed_ms()
        if now_ms < self._runs_until_ms:
            return True
        try:
            runs = bool(self._query.isActive)
        except (Py4JError, OSError):
            return False
        if runs:
            self._runs_until_ms = now_ms + self.host.interval_ms * _KNOWN
        return runs

    def start(
        self, run: Callable[[DataFrame, int], None], stopping: threading.Event
    ) -> StreamingQuery:
        """Start it, and wait until its sources are there, or `stopping` is set.

        Where this raises, the query is ended soon.

        Args:
            run: Spark's `foreachBatch` function; called in a thread of the callback server, also
                before this returns.
            stopping: Ends the wait.
        """
        context = self.host.spark.sparkContext
        # The query's thread inherits the local properties of this one at its start, and never looks
        # at them again: so the pool is set before, and what this thread had is put back after.
        pool = context.getLocalProperty("spark.scheduler.pool")
        context.setLocalProperty("spark.scheduler.pool", self.host.pool)
        clock = self.host.clock
        try:
            with start_slot(clock, stopping):
                query = self._query = self._start(run)
                try:
                    if self._stream is not None:
                        self._stream.start()
                    wait_until_initialised(query, clock, stopping)
                except BaseException:
                    # Nobody else knows it: it would run for ever. By another thread, as Spark waits
                    # for a micro-batch under way, which may wait for the return of this.
                    self._stop_choosing()
                    end_in_background(query)
                    raise
        finally:
            context.setLocalProperty("spark.scheduler.pool", pool)  # type: ignore[arg-type]
        return query

    def stop(self) -> None:
        """End it; may be repeated.

        Raises:
            Py4JError: A micro-batch that is under way has not ended for long, or the JVM is gone.
        """
        self._runs_until_ms = float("-inf")
        self._stop_choosing()
        if self._query is not None:
            self._query.stop()

    def _stop_choosing(self) -> None:
        if self._stream is not None:
            self._stream.stop()

    def _start(self, run: Callable[[DataFrame, int], None]) -> StreamingQuery:
        host = self.host
        make_active(host.spark)
        options = {
            **host.storage,
            "location": host.client.location.url,
            "shards": ",".join(self.shards),
            "readChangeFeed": "true",
            "snapshot": "exclude",  # its rows are not read here, and need not be cut into pieces
            "timestampAsOf": str(self.as_of),
            "hold": self.hold,
            "maxFilesPerTrigger": _PARTS,
            "progressInterval": f"{self.host.interval_ms if self.with_time else _IDLE_MS}ms",
        }
        gap_ms = _trigger_ms(host.interval_ms)
        if is_checked(host.spark):
            stream, frame = open_driver_stream(
                host.spark,
                host.client,
                options,
                gap_ms=gap_ms,
                poll_ms=host.interval_ms * (1.0 if self.with_time else _POLLS),
            )
            self._stream, gap_ms = stream, 0  # it makes the pauses
            each = _report_ends(run, stream)
        else:
            options["nativeReads"] = "false"  # its frames are not executed: a plan would be waste
            frame, each = host.spark.readStream.format("shard").options(**options).load(), run
        return (
            frame.writeStream.queryName(self.name)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(processingTime=f"{gap_ms} milliseconds")
            .foreachBatch(each)
            .start()
        )

    def interval(self, frame: DataFrame, number: int) -> Interval | None:
        """The interval of micro-batch `number`, as Spark has planned it; None if it is empty."""
        ended = read_planned_offset(self.checkpoint, number)
        begun = read_planned_offset(self.checkpoint, number - 1) if number else None
        if ended is None or (number and begun is None):
            # A log of another form. Spark knows as well, but it takes two dozen calls to the JVM.
            return interval_of(frame, number)
        return interval_of_offsets(
            START.json() if begun is None else msgspec.json.decode(begun),
            msgspec.json.decode(ended),
        )


def _report_ends(
    run: Callable[[DataFrame, int], None], stream: DriverStream
) -> Callable[[DataFrame, int], None]:
    """`run`, whose ends the stream hears of."""

    def each(frame: DataFrame, number: int) -> None:
        stream.micro_batch_began()
        try:
            run(frame, number)
        finally:
            stream.micro_batch_ended()

    return each


def _trigger_ms(interval_ms: int) -> int:
    """Pause between micro-batches of a query, in ms, at least."""
    return max(interval_ms // _TRIGGERS, _TRIGGER_MS_MIN)
