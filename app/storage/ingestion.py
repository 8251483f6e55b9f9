"""An ingestion is the streaming query that takes a source into its shard, exactly once.

    run_ingestion(host, incarnation, description) -> Running

Spark's checkpoint alone cannot give that: it is on a local disk, may be lost, and knows nothing of
the shard. So the bindings in `<source>_progress` decide (`reclock`), the checkpoint is made to
agree with them at each start (`reconcile_checkpoint`), and each micro-batch is one commit that can
be repeated (`commit`).

A thread of its own leads the incarnation:

    1  wait until writing is allowed; meanwhile report how far another runtime is
    2  open the shards, make the checkpoint agree with the bindings
    3  if nothing is bound: take the whole snapshot as one micro-batch, whatever the rate limits of
       the source are, so that nobody ever sees half of it
    4  run the query with the rate limits; while nothing arrives the uppers follow the clock
       (`clock_ticks`), as long as Spark really asks the source (`source_look`), and not far
       beyond the time at which a micro-batch was begun that is not committed yet (`commit`); less
       often while nothing happens in the whole application (`rest_pace`)

What a caller relies on:
    The first binding is the snapshot: the snapshot is done exactly if something is bound.
    An error that ends the query is reported by one `Failed`; after `stop` nothing is reported.
    `stop` does not wait for a Python function that does not return: its query is left to end, and
    the next incarnation uses another folder for its checkpoint.

Invariants:
    An upper follows the clock only up to a time before which Spark was seen to have the source's
        answer, and only while what it reads is there.
    Nothing is written while writing is not allowed: the source's shard is only followed, since
    another runtime may be writing it.
    Rows are counted where they are staged, never by Spark's `numInputRows`, which counts a
    micro-batch that is read twice twice.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from shardline.app.execution.batch_errors import micro_batch_error
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.query_start import (
    end_in_background,
    start_slot,
    wait_until_initialised,
)
from shardline.app.execution.stopped import Stopped
from shardline.app.protocol.objects import SourceDescription, progress_shard
from shardline.app.storage.bad_rows import stopped_error
from shardline.app.storage.clock_ticks import TickOutcome, ticking
from shardline.app.storage.commit import Timeline
from shardline.app.storage.envelope import Staging
from shardline.app.storage.errors import open_errors, open_skipped
from shardline.app.storage.reading import Reading, UnusablePlan, infer_columns
from shardline.app.storage.reclock import Origin, Remap
from shardline.app.storage.reporting import SourceReports
from shardline.app.storage.resume import Checkpoint, forget_unbound_plan, reconcile_checkpoint
from shardline.app.storage.source_holds import end_former
from shardline.app.storage.source_look import SourceLook
from shardline.datasource.background import BackgroundThread
from shardline.datasource.errors import Determinate, Fenced, ShardError
from shardline.datasource.frames import status_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Ingestion", "run_ingestion"]

_log = logging.getLogger(__name__)

_STOP_MS: Final = 10_000
"""How long `stop` waits for the thread that leads the query to end."""

_ABANDONED: Final[set[Path]] = set()
"""Folders of checkpoints whose query did not end in time, until it has."""

_abandoned_lock = threading.Lock()


def run_ingestion(
    host: Host, incarnation: Incarnation, description: SourceDescription
) -> Ingestion:
    """Start the ingestion of a source; returns at once, errors are reported.

    Args:
        host: What all objects share.
        incarnation: The number of this start; it names the query and the checkpoint.
        description: Of the source.
    """
    ingestion = Ingestion(host, incarnation, description)
    ingestion.start()
    return ingestion


class Ingestion:
    """One incarnation of a source."""

    def __init__(
        self, host: Host, incarnation: Incarnation, description: SourceDescription
    ) -> None:
        """Prepare nothing yet, and do no I/O; `start` runs it."""
        self._host = host
        self._incarnation = incarnation
        self._description = description
        self._folder = _folder(host, incarnation)
        self._checkpoint = Checkpoint(self._folder)
        self._reports = SourceReports(host, incarnation, description)
        self._look = SourceLook(host.spark, description, host.clock, status_reader(host.spark))
        self._gate = threading.Lock()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._timeline: Timeline | None = None
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None
        self._staging: Staging | None = None
        # Before the first micro-batch any number of rows may come: not collected on the driver.
        self._last_rows = sys.maxsize
        self._stop_ticks: Callable[[], None] = lambda: None
        self._moment_ms = -1

    @property
    def epoch(self) -> int:
        """Number of this incarnation of the source."""
        return self._incarnation.epoch

    def start(self) -> None:
        """Start the thread that leads it."""
        name = f"ingestion {self._incarnation.query_name}"
        BackgroundThread(name, self._run_incarnation).start()

    def stop(self) -> None:
        """End it; when this returns nothing of it is committed any more."""
        # Set before the gate: `_start` and `_prepare` check it under the gate, so a query or a
        # timeline either is seen here or is never made.
        self._stopping.set()
        with self._gate:
            query, timeline = self._query, self._timeline
        # The timeline before the query: it is what nothing can be committed without, whereas the
        # query may take long to end, or never does.
        if timeline is not None:
            timeline.stop()
        self._stop_ticks()
        if query is not None and not self._ended.is_set():
            end_in_background(query)
        if not self._host.clock.wait(self._ended, _STOP_MS):
            _log.warning(
                "a stopped ingestion has not ended yet: its checkpoint is not used again",
                extra={"context": {"source": self._description.name}},
            )
            with _abandoned_lock:
                if not self._ended.is_set():
                    _ABANDONED.add(self._folder)

    # -- the leading thread -----------------------------------------------------------------------

    def _run_incarnation(self) -> None:
        try:
            self._follow()
            timeline, reading = self._prepare()
            begins = timeline.bound.last is None
            if begins:
                self._run(reading, "snapshot")
            # Spark runs no micro-batch for a source that has nothing. The second half is for a
            # crash between the empty snapshot's binding and its appends.
            if timeline.snapshot_is_empty and not timeline.committed:
                timeline.commit_nothing(self._checkpoint.planned_files())
                self._reports.progress(timeline)
            if begins:
                self._end_former_holds(timeline)
            self._run(reading, "steady")
            # A query that ends without an error, and not by `stop`, was stopped through Spark.
            self._reports.failed(_stopped_elsewhere())
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is reported
            if isinstance(self._error, UnusablePlan) and self._timeline is not None:
                # Planned again without them: they count as new if they come back. What is bound
                # needs them.
                forget_unbound_plan(self._folder, self._timeline.bound)
            # A query that is stopped fails, too, and in many ways: none of them is news.
            if not self._stopping.is_set():
                # The error of the micro-batch first: `error` is Spark's text about it.
                self._reports.failed(self._error or error)
        finally:
            # Also here, and not only in `stop`: the ticks of an ingestion that has failed would
            # move the uppers as if all were well.
            self._stop_ticks()
            if self._timeline is not None:
                self._timeline.stop()
            with _abandoned_lock:
                # Both at once, or a `stop` that has waited in vain would abandon it behind this.
                _ABANDONED.discard(self._folder)
                self._ended.set()

    def _follow(self) -> None:
        """Report the upper that another runtime writes, until writing is allowed.

        Raises:
            Stopped: It was stopped meanwhile.
        """
        host, name = self._host, self._description.name
        while not host.clock.wait(host.writes, host.interval_ms):
            self._check()
            state = host.client.machine(name).refresh()
            if state is not None and state.upper.time:
                self._reports.upper(state.upper.time)
        self._check()

    def _prepare(self) -> tuple[Timeline, Reading]:
        """Open the shards, and make the checkpoint agree with the bindings.

        Raises:
            Stopped: It was stopped meanwhile.
            Fenced: Another runtime has taken over.
            InvalidUsage: An option is wrong, or the description does not fit the source's shards.
        """
        host, source = self._host, self._description
        host.check_fence()
        # A source that begins moves its upper as it comes: others must not wait at their rest.
        host.note_news()
        client = host.client
        # Columns are inferred once, when the source is made, and kept with its bindings: later
        # files may look different, and the bound offsets would mean other columns.
        known = client.exists(progress_shard(source.name))
        columns = "" if known else infer_columns(host.spark, source)
        origin = Origin(source.format.lower(), host.clock.now_ms(), columns)
        remap = Remap.open(client, source.name, origin)
        # `remap.origin`, not `origin`: the shard keeps that of the source's first start.
        reading = Reading.open(host, source, remap.origin)
        errors = open_errors(client, source.name)
        for shard in (progress_shard(source.name), errors):
            client.set_retention(shard, source.retain_ms)
        skipped = open_skipped(client, source.name) if reading.bad_rows == "skip" else None
        timeline = Timeline(host, remap, source.name, errors, skipped)
        # Derived, not random: a checkpoint that is made again, however often, is the same query.
        query = _query_id(client.state(source.name).shard, self._folder)
        _remove_stand_ins(self._incarnation.checkpoint(host.checkpoints), self._folder)
        reconcile_checkpoint(
            self._folder, timeline.bound, committed=timeline.committed, query=query
        )
        with self._gate:
            self._check()
            self._timeline, self._staging = timeline, Staging(host, reading)
        # Not before everything bound is committed: the source is hydrated by the first report.
        if timeline.committed:
            self._reports.progress(timeline)
        self._stop_ticks = ticking(host.clock, host.interval_ms, self._tick)
        return timeline, reading

    def _run(self, reading: Reading, phase: Literal["snapshot", "steady"]) -> None:
        """Run the query until it ends; for the snapshot after one micro-batch that holds it all.

        Raises:
            Stopped: It was stopped.
            StreamingQueryException: It failed.
        """
        clock, stopping = self._host.clock, self._stopping
        # The slot is held until the query has initialised, and `start()` returns before that.
        with start_slot(clock, stopping):
            query = self._start(reading, phase)
            wait_until_initialised(query, clock, stopping)
        self._reports.started(query)
        query.awaitTermination()
        self._check()

    def _start(self, reading: Reading, phase: Literal["snapshot", "steady"]) -> StreamingQuery:
        # Check and start under one gate: were `stop` to come in between, it would see no query to
        # end, and this one would run for ever.
        with self._gate:
            self._check()
            context = self._host.spark.sparkContext
            context.setLocalProperty("spark.scheduler.pool", self._host.pool)
            writer = (
                reading.stream.writeStream.foreachBatch(self._on_micro_batch)
                .queryName(self._incarnation.query_name)
                .option("checkpointLocation", str(self._folder))
            )
            match phase:
                case "snapshot":
                    # Deprecated in Spark, and the one trigger that disregards rate limits:
                    # `availableNow` would cut the snapshot into micro-batches of several times.
                    writer = writer.trigger(once=True)
                case "steady":
                    interval = f"{self._host.interval_ms} milliseconds"
                    writer = writer.trigger(processingTime=interval)
            query = self._query = writer.start()
        return query

    def _end_former_holds(self, timeline: Timeline) -> None:
        """End the holds of definitions before this one, none of which has bound anything."""
        former, host = self._incarnation.former_sources, self._host
        end_former(host.client, self._description, former, timeline.bound, host.check_fence)

    def _check(self) -> None:
        """Raise `Stopped` or the first error if this incarnation must not go on."""
        if self._stopping.is_set():
            raise Stopped
        if self._error is not None:
            raise self._error

    # -- micro-batches and ticks ------------------------------------------------------------------

    def _on_micro_batch(self, frame: DataFrame, number: int) -> None:
        try:
            self._commit_micro_batch(frame, number)
        except BaseException as error:  # noqa: BLE001 - it goes on, as another class
            # Kept here as well: `awaitTermination` raises Spark's text about it, which has lost the
            # class, and with it whether this was a fence.
            self._error = error
            raise micro_batch_error(error, stopping=self._stopping.is_set()) from None

    def _commit_micro_batch(self, frame: DataFrame, number: int) -> None:
        """Commit one micro-batch; called by Spark, again for the last one after a restart."""
        timeline, staging = self._timeline, self._staging
        assert timeline is not None, "prepared before the query"
        assert staging is not None, "as above"
        found = self._checkpoint.planned(number)
        # After a crash between our last append and Spark's own commit the same micro-batch comes
        # again. Found out before anything is read: staging it would cost as much as the first time.
        if timeline.is_committed(number, found):
            return
        # Before anything is read: staging may take hours, and Spark is not asking meanwhile.
        timeline.begin()
        first = timeline.bound.last is None  # the commit changes it
        with staging.reading.decoded(frame, number, found.paths()) as decoded:
            if staging.reading.bad_rows == "stop" and decoded.counts.errors:
                # Before anything is staged or bound: the corrected file is read as this very
                # micro-batch.
                raw, file = staging.reading.first_bad_row(decoded)
                count = decoded.counts.errors
                raise stopped_error(self._description.name, count, raw, file)
            # Before errors are staged, so that `commit` notices a retraction by hand in between.
            live = timeline.refresh_live_errors() if staging.reading.marks_errors else 0
            staged = staging.stage(decoded, live, self._last_rows)
            # Before they can be seen: what reads them and a source that rests waits for that. None
            # without rows, as sources of shards have them while nothing happens there.
            if staged.rows.rows or decoded.counts.errors:
                self._host.note_news()
            binding = timeline.commit(number, found, staged)
        self._host.note_time(binding.time)
        self._last_rows = staged.rows.rows
        self._reports.measured(decoded.counts, staged, timeline, self._query, first=first)
        self._reports.progress(timeline)
        # Resting in Spark's own thread is what delays the next micro-batch, and makes it larger.
        # After all reports: the rows are visible by now. Not after the snapshot: it took its time.
        if self._host.pacing is not None and not first:
            self._host.clock.wait(self._stopping, self._host.pacing.commit_pause_ms())

    def _tick(self) -> TickOutcome:
        """Move the uppers with the clock; errors but `Fenced` are reported and tried again."""
        timeline, query = self._timeline, self._query
        if timeline is None or query is None or self._stopping.is_set():
            return "done"
        # The time before the look: the look may wait for a JVM that stands still, and what it then
        # finds says nothing of the time that passed meanwhile.
        now_ms = self._host.clock.now_ms()
        moment_ms = self._host.moment(now_ms)
        if moment_ms == self._moment_ms:
            return "done"
        seen = self._look.look(query)
        self._reports.seen(seen)
        if seen.state != "asked":
            return "again" if seen.state == "asking" else "done"
        try:
            moved = timeline.tick(moment_ms)
        except Fenced as error:
            # Under the gate: the query is seen here, or `_start` finds the error and starts none.
            with self._gate:
                self._error, query = error, self._query
            timeline.stop()
            if query is not None:
                # Not waited for: all sources share the few threads of ticks.
                end_in_background(query)
        except ShardError as error:
            # A store that does not answer for a while is no reason to end the query: its own
            # commits fail by themselves if it lasts.
            self._reports.health("internal", error.detail, error.hint)
        else:
            if moved:
                self._moment_ms = moment_ms
                self._reports.health("internal")
                self._reports.progress(timeline)
        return "done"


def _folder(host: Host, incarnation: Incarnation) -> Path:
    """The folder of the checkpoint; another one if an abandoned query may still write into it."""
    folder = incarnation.checkpoint(host.checkpoints)
    with _abandoned_lock:
        if folder in _ABANDONED:
            return folder.with_name(f"{folder.name}-{incarnation.epoch}")
    return folder


def _remove_stand_ins(folder: Path, used: Path) -> None:
    """Remove the folders that `_folder` has given in the place of `folder`, if nobody uses them.

    Args:
        folder: Of the checkpoint.
        used: The one that is used now: `folder`, or one in its place.
    """
    for other in folder.parent.glob(f"{folder.name}-*"):
        with _abandoned_lock:
            in_use = other == used or other in _ABANDONED
        if not in_use:
            shutil.rmtree(other, ignore_errors=True)


def _query_id(shard: str, folder: Path) -> str:
    """A UUID that depends on the shard and the name of the checkpoint only."""
    digest = hashlib.blake2b(f"{shard}/{folder.name}".encode(), digest_size=16).hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:]))


def _stopped_elsewhere() -> Determinate:
    return Determinate(
        "the streaming query of the source was stopped by somebody else",
        code="QUERY_STOPPED",
        hint="drop the source to stop it; it starts again by itself",
    )
