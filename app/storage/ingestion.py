"""An ingestion: one streaming query that takes a source into its shard.

    run_ingestion(host, incarnation, description) -> Running

A thread of its own leads it: it waits until writing is allowed, makes the checkpoint agree with the
bindings (`resume`), takes the whole snapshot as one micro-batch, whatever the source's rate limits
are, and then runs the query with them. Each micro-batch is staged by Spark (`envelope`) and becomes
one commit (`commit`). While nothing arrives the uppers follow the clock (`ticker`).

What a caller relies on:
    Whether the snapshot is done follows from the bindings: it is the first of them.
    Whatever ends the query is told by one `Failed`; `stop` is told by nothing.
    `stop` does not wait for a Python function that does not return: its query is left to end, and
    the next incarnation uses another folder for its checkpoint.

Invariants:
    Nothing is written while writing is not allowed: the source's shard is followed, as it is
    written by another runtime.
    Rows are counted where they are staged, never by Spark's `numInputRows`, which counts a
    micro-batch that is read twice twice.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from shardline.app.execution.batch_errors import briefly
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.query_start import start_slot, until_initialised
from shardline.app.protocol.objects import SourceDescription, progress_shard
from shardline.app.storage.clock_ticks import ticking
from shardline.app.storage.commit import Stopped, Timeline
from shardline.app.storage.envelope import Staging
from shardline.app.storage.errors import open_errors
from shardline.app.storage.reading import Reading, inferred
from shardline.app.storage.reclock import Origin, Remap
from shardline.app.storage.reporting import Telling
from shardline.app.storage.resume import Checkpoint, resume
from shardline.datasource.errors import Determinate, Fenced, ShardError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Ingestion", "run_ingestion"]

_log = logging.getLogger(__name__)

_STOP_MS: Final = 10_000
"""How long `stop` waits for a query to end, and then for the thread that leads it."""

_ABANDONED: Final[set[Path]] = set()
"""Folders of checkpoints whose query did not end in time: it may still write into them."""

_abandoned_lock = threading.Lock()


def run_ingestion(
    host: Host, incarnation: Incarnation, description: SourceDescription
) -> Ingestion:
    """Start to take a source in; returns at once."""
    ingestion = Ingestion(host, incarnation, description)
    ingestion.start()
    return ingestion


class Ingestion:
    """One life of a source."""

    def __init__(
        self, host: Host, incarnation: Incarnation, description: SourceDescription
    ) -> None:
        """Remember what to run; `start` runs it."""
        self._host = host
        self._incarnation = incarnation
        self._description = description
        self._folder = _folder(host, incarnation)
        self._checkpoint = Checkpoint(self._folder)
        self._telling = Telling(host, incarnation, description)
        self._gate = threading.Lock()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._timeline: Timeline | None = None
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None
        self._staging: Staging | None = None
        self._last_rows = sys.maxsize  # before the first micro-batch anything may come
        self._untick: Callable[[], None] = lambda: None

    @property
    def epoch(self) -> int:
        """Which incarnation of the source it is."""
        return self._incarnation.epoch

    def start(self) -> None:
        """Start the thread that leads it."""
        name = f"ingestion {self._incarnation.query_name}"
        threading.Thread(target=self._lead, name=name, daemon=True).start()

    def stop(self) -> None:
        """End it; nothing is committed any more afterwards."""
        self._stopping.set()
        with self._gate:
            query, timeline = self._query, self._timeline
        if timeline is not None:
            timeline.stop()
        self._untick()
        if query is not None and not self._ended.is_set():
            self._end_query(query)
        if not self._host.clock.wait(self._ended, _STOP_MS):
            _log.warning(
                "a stopped ingestion has not ended yet: its checkpoint is not used again",
                extra={"context": {"source": self._description.name}},
            )
            with _abandoned_lock:
                _ABANDONED.add(self._folder)

    # -- the leading thread -----------------------------------------------------------------------

    def _lead(self) -> None:
        try:
            self._follow()
            timeline, reading = self._prepare()
            if timeline.bound.last is None:
                self._run(reading, "snapshot")
            if timeline.snapshot_is_empty and not timeline.committed:
                timeline.commit_nothing(self._checkpoint.planned_nothing())
                self._telling.progress(timeline)
            self._run(reading, "steady")
            self._telling.failed(_stopped_elsewhere())
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody must hear of it
            if not self._stopping.is_set():
                self._telling.failed(self._error or error)
        finally:
            self._untick()
            if self._timeline is not None:
                self._timeline.stop()
            self._ended.set()

    def _follow(self) -> None:
        """Until writing is allowed, tell how far another runtime is."""
        host, name = self._host, self._description.name
        while not host.clock.wait(host.writes, host.interval_ms):
            self._check()
            state = host.client.machine(name).refresh()
            if state is not None and state.upper.time:
                self._telling.upper(state.upper.time)
        self._check()

    def _prepare(self) -> tuple[Timeline, Reading]:
        """Open the shards, and make the checkpoint agree with the bindings."""
        host, source = self._host, self._description
        host.check_fence()
        client = host.client
        known = client.exists(progress_shard(source.name))
        columns = "" if known else inferred(host.spark, source)
        origin = Origin(source.format.lower(), host.clock.now_ms(), columns)
        remap = Remap.open(client, source.name, origin)
        reading = Reading.open(host, source, remap.origin)
        errors = open_errors(client, source.name)
        for shard in (progress_shard(source.name), errors):
            client.set_retention(shard, source.retain_ms)
        timeline = Timeline(host, remap, source.name, errors)
        query = _query_id(client.state(source.name).shard, self._folder)
        resume(self._folder, timeline.bound, committed=timeline.committed, query=query)
        with self._gate:
            self._check()
            self._timeline, self._staging = timeline, Staging(host, reading)
        if timeline.committed:
            self._telling.progress(timeline)
        self._untick = ticking(host.clock, host.interval_ms, self._tick)
        return timeline, reading

    def _run(self, reading: Reading, phase: Literal["snapshot", "steady"]) -> None:
        """Run the query until it ends; for the snapshot that is after one micro-batch of all.

        Raises:
            Stopped: It was stopped.
            StreamingQueryException: It failed.
        """
        clock, stopping = self._host.clock, self._stopping
        with start_slot(clock, stopping):
            query = self._start(reading, phase)
            until_initialised(query, clock, stopping)
        self._telling.started(query)
        query.awaitTermination()
        self._check()

    def _start(self, reading: Reading, phase: Literal["snapshot", "steady"]) -> StreamingQuery:
        with self._gate:
            self._check()
            context = self._host.spark.sparkContext
            context.setLocalProperty("spark.scheduler.pool", self._host.pool)
            writer = (
                reading.stream.writeStream.foreachBatch(self._each)
                .queryName(self._incarnation.query_name)
                .option("checkpointLocation", str(self._folder))
            )
            match phase:
                case "snapshot":
                    # The one trigger that disregards rate limits; `availableNow` keeps to them.
                    writer = writer.trigger(once=True)
                case "steady":
                    interval = f"{self._host.interval_ms} milliseconds"
                    writer = writer.trigger(processingTime=interval)
            query = self._query = writer.start()
        return query

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopped
        if self._error is not None:
            raise self._error

    def _end_query(self, query: StreamingQuery) -> None:
        """Let the query end, without waiting: Spark waits for a micro-batch under way."""

        def end() -> None:
            try:
                query.stop()
            except Exception:  # noqa: BLE001 - it has failed, or its JVM is gone: it has ended
                _log.info("a query that was stopped had ended", exc_info=True)

        threading.Thread(target=end, name=f"stop {query.name}", daemon=True).start()

    # -- micro-batches and ticks ------------------------------------------------------------------

    def _each(self, frame: DataFrame, number: int) -> None:
        try:
            self._take(frame, number)
        except BaseException as error:  # noqa: BLE001 - it goes on, as another class
            # What arrives at the other end of Spark is a text.
            self._error = error
            raise briefly(error, stopping=self._stopping.is_set()) from None

    def _take(self, frame: DataFrame, number: int) -> None:
        timeline, staging = self._timeline, self._staging
        assert timeline is not None, "prepared before the query"
        assert staging is not None, "as above"
        found = self._checkpoint.planned(number)
        if timeline.is_committed(number, found):
            return
        first = timeline.bound.last is None
        with staging.reading.decoded(frame) as decoded:
            live = timeline.look_at_errors() if staging.reading.decodes else 0
            staged = staging.stage(decoded, live, self._last_rows)
            timeline.commit(number, found, staged)
        self._last_rows = staged.rows.rows
        self._telling.measured(decoded.counts, staged, timeline, self._query, first=first)
        self._telling.progress(timeline)
        if self._host.pace is not None and not first:
            self._host.clock.wait(self._stopping, self._host.pace.rest_ms())

    def _tick(self) -> None:
        """Let the uppers follow the clock; whatever goes wrong is told, and tried again."""
        timeline = self._timeline
        if timeline is None or self._stopping.is_set():
            return
        try:
            moved = timeline.tick()
        except Fenced as error:
            with self._gate:
                self._error, query = error, self._query
            timeline.stop()
            if query is not None:
                self._end_query(query)
        except ShardError as error:
            self._telling.health("internal", error.detail, error.hint)
        else:
            if moved:
                self._telling.health("internal")
                self._telling.progress(timeline)


def _folder(host: Host, incarnation: Incarnation) -> Path:
    """The folder of the checkpoint; another one if a query that was given up may still use it."""
    folder = incarnation.checkpoint(host.checkpoints)
    with _abandoned_lock:
        if folder in _ABANDONED:
            return folder.with_name(f"{folder.name}-{incarnation.epoch}")
    return folder


def _query_id(shard: str, folder: Path) -> str:
    """A UUID that is the same for the same shard and the same checkpoint."""
    digest = hashlib.blake2b(f"{shard}/{folder.name}".encode(), digest_size=16).hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:]))


def _stopped_elsewhere() -> Determinate:
    return Determinate(
        "the streaming query of the source was stopped by somebody else",
        code="QUERY_STOPPED",
        hint="drop the source to stop it; it starts again by itself",
    )
