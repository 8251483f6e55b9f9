"""A sink is a streaming query that takes an object's updates to something outside.

    run_sink(host, incarnation, description) -> Running

A target, the sink's accounts of it and Spark's checkpoint cannot be written in one step. So they
are written in this order, and the first of them that remembers decides. A crash right after each
step of a micro-batch leaves:

    the stream plans times [lower, upper)       they are planned again
    the target takes their rows                 a target that remembers is asked at the next start;
                                                another one is given them again
    progress of the sink is at upper            the micro-batch comes again, and is left out
    the stream commits, its hold moves on       nothing

How far a sink is follows from its target and from `<sink>_progress`. The checkpoint only saves
time: one that is lost, that is ahead of the accounts, or so far behind them that the input has
forgotten what it would repeat, is made anew and starts where they are.

What a caller relies on:
    Reports: Started, Hydrated, Progress (write: how far the target is), Measured, Health of the
    namespace `sink`, and Failed or Ended as the last one.
    A sink whose input was replaced, or whose target has lost rows, is stalled, and stays so until
    it is stopped or the target is back: it does not fail, since it would be started again after
    each pause, for ever, and nothing would be different.
    A sink waits for the right to write before it touches anything: hold, progress or target.

Invariants:
    The since hold `sink:<name>` on the input stands at or before what the target has, while the
    sink runs, while it is stopped, and until it is dropped. Of a sink without snapshot it stands
    before the target is opened: contents of a later time do not make up for changes.
    The fence is asked right before each write to a target.
    When `stop` has returned nothing of the incarnation is committed any more.
    A target gets the changes of one input: an input that was dropped and made again is refused.
    Nothing at or after the time of a part that cannot be read is given to the target.
    Nothing of an input that has got columns is given to the target without them: the sink fails,
        and its next incarnation reads them.
    A target is asked for what it was given right before it is given more: the next rows would hide
        that earlier ones are missing.
    Nothing is given to the target that a query of that time would not show (`readable_times`).
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from pyspark import InheritableThread
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.streaming import StreamingQuery

from shardline.app.execution.batch_errors import micro_batch_error
from shardline.app.execution.checkpoint_log import remove_unfinished_plan
from shardline.app.execution.host import Host, Incarnation, Running
from shardline.app.execution.live_errors import EMPTY_CATALOG, Catalog
from shardline.app.execution.query_start import start_slot, wait_until_initialised
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sink_holds import hold_name, release_former
from shardline.app.storage.sinks.input_hold import hold_input, keep_changes, unchanged_until
from shardline.app.storage.sinks.interval import Interval, end_of, may_continue
from shardline.app.storage.sinks.open_target import open_target
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.app.storage.sinks.readable_times import ReadableSpan, ReadableTimes
from shardline.app.storage.sinks.readable_wait import ReadableWait
from shardline.app.storage.sinks.reports import SinkReports
from shardline.app.storage.sinks.rows import check_columns, delay_updates, shape_rows
from shardline.app.storage.sinks.stalls import (
    TARGET_WENT_BACK,
    SinkStalled,
    input_replaced,
    input_went_back,
    target_came_back,
    target_went_back,
)
from shardline.app.storage.sinks.target import (
    Target,
    Written,
    check_package,
    check_sink,
    interval_ms,
)
from shardline.datasource.background import BackgroundThread
from shardline.datasource.errors import Determinate, Fenced, Indeterminate, ShardError
from shardline.datasource.frames import micro_batch, micro_batch_sources
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.read import latest_readable
from shardline.datasource.schema import TS
from shardline.datasource.since_hold import SinceHandle

__all__ = ["check_sink", "run_sink"]

_log = logging.getLogger(__name__)

_LOOK_MS: Final = 100
"""Pause between two looks at whether the sink may begin."""

_REPLACED_MS: Final = 5_000
"""For so long a sink that fails looks for another input of the same name, if its own is gone."""

_BACK_MS: Final = 2_000
"""Pause between two looks at whether a target is back."""

_IDLE_MS: Final = 10_000
"""How often a sink moves past times without changes. It is a record in its accounts, and no
micro-batch, which would take Spark ten times as long. Also where micro-batches are further apart:
rows that come right before it would be waited for with all of the time before them."""

_IN_STEPS: Final[Mapping[str, str]] = {"maxFilesPerTrigger": "256"}
"""Parts of the change that one micro-batch takes at most: a sink that comes back after a week
commits several times on the way. The contents that it begins with have one time, and come at
once."""


def run_sink(
    host: Host,
    incarnation: Incarnation,
    description: SinkDescription,
    catalog: Catalog = EMPTY_CATALOG,
) -> Running:
    """Start a sink; returns at once, later errors are reported.

    Args:
        host: What all objects share.
        incarnation: `as_of` is where it begins if its target has nothing yet; None for the newest
            contents there are.
        description: Of the sink.
        catalog: The inputs of its input, whose errors the sink waits for.

    Raises:
        InvalidUsage: The description cannot work; says why.
    """
    check_sink(description)
    check_package(host.spark, description.format)
    run = _SinkRun(host, incarnation, description, catalog)
    run.start()
    return run


class _SinkRun:
    """One incarnation of a sink.

    `_commit_lock` is held while a micro-batch is committed: `stop` takes it to wait for one under
    way.
    """

    def __init__(
        self, host: Host, incarnation: Incarnation, sink: SinkDescription, catalog: Catalog
    ) -> None:
        self._host = host
        self._incarnation = incarnation
        self._sink = sink
        self._times = ReadableTimes(host.client, sink.on, catalog, hold_name(sink.name))
        self._first_time = 0
        self._checkpoint: Path = incarnation.checkpoint(host.checkpoints)
        # Spark finds Python sources by the session of the thread, and the pool by its properties.
        self._thread = BackgroundThread(
            f"sink-{sink.name}", self._run, make=partial(InheritableThread, session=host.spark)
        )
        self._stopping = self._thread.stopping
        self._commit_lock = threading.Lock()
        self._reports = SinkReports(host, incarnation, sink)
        self._readable = ReadableWait(host, self._times, self._reports, self._stopping, self._check)
        self._query: StreamingQuery | None = None
        self._progress: SinkProgress | None = None
        self._target: Target | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait until nothing of it commits any more; idempotent."""
        self._stopping.set()
        query = self._query
        if query is not None:
            with suppress(Exception):
                query.stop()
        self._thread.join()
        # Spark does not wait for a Python function that it has interrupted.
        with self._commit_lock:
            pass

    # -- the life of an incarnation ----------------------------------------------------------

    def _run(self) -> None:
        """Lead the incarnation, in a thread of its own, and report how it ends."""
        try:
            with self._times:
                query = self._begin()
                if query is not None:
                    self._follow(query)
                    self._refuse_foreign_stop()
        except SinkStalled as error:
            self._stall(error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the sink
            if self._stopping.is_set():
                return
            if isinstance(self._error, SinkStalled):
                self._stall(self._error)
            elif self._is_input_replaced():
                # While it ran: told at once, and not as what its stream says of it.
                self._stall(input_replaced(self._sink))
            else:
                self._reports.failed(self._error or error, fenced=self._is_fenced())

    def _follow(self, query: StreamingQuery) -> None:
        """Wait for the end of the query; meanwhile move past times without changes.

        Raises:
            StreamingQueryException: It has failed.
            ShardError: It was stopped, as the accounts, the target or the input had an error.
        """
        while not query.awaitTermination(_IDLE_MS // 1000):
            try:
                self._pass_time_if_idle()
            except BaseException:
                # Not under the lock: Spark waits for a micro-batch that waits for it.
                with suppress(Exception):
                    query.stop()
                raise

    def _refuse_foreign_stop(self) -> None:
        """Raise if the query has ended without an error, and neither by `stop` nor at the end.

        Raises:
            Determinate: `QUERY_STOPPED`: it was stopped through Spark.
        """
        assert self._progress is not None
        if not self._stopping.is_set() and self._progress.committed != EMPTY:
            raise Determinate(
                "the streaming query of the sink was stopped by somebody else",
                code="QUERY_STOPPED",
                hint="drop the sink to stop it; it starts again by itself",
            )

    def _stall(self, error: SinkStalled) -> None:
        """Say once why nothing is written any more, and wait to be stopped, or for the target."""
        self._reports.stalled(error)
        while not self._host.clock.wait(self._stopping, _BACK_MS):
            if error.code == TARGET_WENT_BACK and self._is_target_back():
                self._reports.failed(target_came_back(self._sink), fenced=self._is_fenced())
                return

    def _is_target_back(self) -> bool:
        """True if a target that had lost what it was given has it again: it was away."""
        given = None if self._progress is None else self._progress.given
        with suppress(Exception):  # whatever it is, it is asked again
            return given is not None and self._target is not None and self._target.has_taken(given)
        return False

    def _begin(self) -> StreamingQuery | None:
        """Start the query; None if the sink was stopped before, or has nothing more to do."""
        host, sink = self._host, self._sink
        if not self._wait(host.writes.is_set) or not self._wait(self._is_readable):
            return None
        # Before anything is opened: opening a target of files deletes what is being staged there,
        # and that must not be what a newer runtime is staging.
        host.check_fence()
        self._progress = SinkProgress.open(host.client, sink)
        if not sink.snapshot and self._progress.committed is None:
            keep_changes(host.client, sink, self._progress, self._next_time(self._progress))
        self._target = open_target(host, sink, self._progress)
        # Before the accounts are brought up to the target: times of another input mean nothing.
        self._check_input(self._progress, self._target)
        # After what can refuse this definition: a user who goes back to the one before, since the
        # target is taken, finds its history. Before the accounts change: nothing else has the name.
        previous = self._progress.previous_input
        release_former(host.client, sink, previous, self._times.objects(), host.check_fence)
        self._progress.note_input()
        self._catch_up(self._progress, self._target)
        if self._progress.committed == EMPTY:
            self._reports.finished()
            return None
        wanted = self._next_time(self._progress)
        committed = self._progress.committed
        # The hold stands before anything is waited for, noted or read: without it the input's
        # history could be merged away between here and the stream's first plan.
        held = hold_input(host.client, sink, wanted, committed)
        if committed is None:
            # An incarnation that waited here before has moved the hold on past times with errors;
            # or the history that was wanted is gone.
            kept = max(wanted, held.since.time or 0)
            first = self._readable.first_time(kept, held)
        else:
            first = self._readable.first_time(wanted, None)
        if first is None:
            return None
        self._pass_idle_time(self._progress, self._target, held)
        committed = self._progress.committed
        as_of = first if committed is None else max((committed.time or 0) - 1, 0)
        self._first_time = as_of
        if committed is None and not sink.snapshot:
            # A sink of changes only: noted now, as a restart would choose a later beginning and
            # leave out what has changed in between.
            self._progress.record(Interval(0, Frontier(as_of + 1)), 0)
            committed = self._progress.committed
        # What was planned before times that nobody may read ends among them, maybe for good: a
        # micro-batch has to reach to the first readable one.
        passes_errors = first > wanted
        if passes_errors or not may_continue(self._checkpoint, committed, held.since):
            _log.info(
                "the checkpoint of a sink fits its target or its hold no more: it is made anew",
                extra={"context": {"sink": sink.name, "committed": str(committed)}},
            )
            # Safe: everything that counts is in `committed`, and the new query starts from there.
            shutil.rmtree(self._checkpoint, ignore_errors=True)
        remove_unfinished_plan(self._checkpoint)
        return self._query_from(as_of, committed, {} if passes_errors else _IN_STEPS)

    def _query_from(
        self, as_of: int, committed: Frontier | None, steps: Mapping[str, str]
    ) -> StreamingQuery | None:
        """Start the query behind `committed`; from the contents at `as_of` if there is none.

        Args:
            as_of: The last time that the target has, or that of the contents.
            committed: How far the target is.
            steps: Options that bound its micro-batches.

        Returns:
            The query; None if the sink was stopped meanwhile.
        """
        host, sink = self._host, self._sink
        begin = (
            {"timestampAsOf": str(as_of)}
            if committed is None
            else {"startingTimestamp": str(as_of + 1), **steps}
        )
        reader = host.spark.readStream.format("shard").options(
            **dict(host.storage),
            location=host.client.location.url,
            shard=sink.on,
            readChangeFeed="true",
            hold=hold_name(sink.name),
            progressInterval="5 min",  # for the hold and the checkpoint; see `_IDLE_MS`
            nativeReads="false",  # `micro_batch` makes the frame that is executed
            **begin,
        )
        host.spark.sparkContext.setLocalProperty("spark.scheduler.pool", host.pool)
        pause_ms = interval_ms(sink) or host.interval_ms
        writer = (
            reader.load()
            .writeStream.queryName(self._incarnation.query_name)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{pause_ms} milliseconds")
            .foreachBatch(self._on_micro_batch)
        )
        with start_slot(host.clock, self._stopping):
            query = self._query = writer.start()
            wait_until_initialised(query, host.clock, self._stopping)
        # `stop` may have looked for a query before there was one.
        if self._stopping.is_set():
            query.stop()
            return None
        self._reports.started(str(query.id), str(query.runId))
        if committed is not None:
            self._reports.hydrated()
            self._reports.progress(committed)
            # Else a micro-batch comes, and reports.
            assert self._progress is not None
            if unchanged_until(self._progress) is not None:
                self._reports.running()
        return query

    def _wait(self, ready: Callable[[], bool]) -> bool:
        """Wait until `ready`; False if the sink is stopped before."""
        while not ready():
            if self._host.clock.wait(self._stopping, _LOOK_MS):
                return False
        return not self._stopping.is_set()

    def _is_readable(self) -> bool:
        """True if the input exists and has contents."""
        client = self._host.client
        return client.exists(self._sink.on) and client.readable(self._sink.on)[0].upper != Frontier(
            0
        )

    # -- where to begin ----------------------------------------------------------------------

    def _check_input(self, progress: SinkProgress, target: Target) -> None:
        """Refuse to go on with another input than the one whose changes the target has.

        Raises:
            SinkStalled: The input was dropped and made again.
        """
        noted = "" if progress.committed is None else progress.previous_shard
        if {noted, target.input} - {"", progress.shard_id}:
            raise input_replaced(self._sink)

    def _is_input_replaced(self) -> bool:
        """True if the input is another one than that whose changes this incarnation has written."""
        progress, client, on = self._progress, self._host.client, self._sink.on
        if progress is None or progress.committed is None:
            return False
        with suppress(ShardError):  # a store that does not answer: the next start sees
            # One that is being replaced is gone for a moment.
            until_ms = self._host.clock.elapsed_ms() + _REPLACED_MS
            while not client.exists(on) and self._host.clock.elapsed_ms() < until_ms:
                if self._host.clock.wait(self._stopping, _LOOK_MS):
                    return False
            return client.state(on).shard != progress.shard_id
        return False

    def _catch_up(self, progress: SinkProgress, target: Target) -> None:
        """Bring the target and the accounts up to what the target has of either.

        A crash may have come between the two, and between the steps of a target.

        Raises:
            SinkStalled: The target is beyond its input, or has lost what it was given.
        """
        # Nothing else finds that out: the sink would go on behind rows that are not there.
        self._check_target(progress, target)
        there, committed = target.committed(), progress.committed
        if there is None:
            return
        # Looked at after the target: an upper that is read later can only be further.
        (state,) = self._host.client.readable(self._sink.on)
        if there > state.upper:
            raise input_went_back(self._sink, there, state.upper)
        if committed is not None and there < committed:
            return
        interval = Interval(0 if committed is None else committed.time or 0, there)
        # Rows may be there without their times having passed, of what progress has as well. Nothing
        # else makes up for that where no change comes any more: readers would wait for ever.
        self._check()
        target.skip(interval)
        if there != committed:
            progress.record(interval, 0, given=there)

    def _pass_idle_time(self, progress: SinkProgress, target: Target, held: SinceHandle) -> None:
        """Move past times without changes while the sink was away: they cause no micro-batch."""
        committed = progress.committed
        if committed is None or committed == EMPTY:
            return
        until = unchanged_until(progress, held)
        if until is not None and until > committed:
            span = self._readable.span(committed, until, self._first_time)
            interval = Interval(committed.time or 0, span.upper)
            self._skipped(target, interval)
            progress.record(interval, 0)

    def _next_time(self, progress: SinkProgress) -> int:
        """The first time that the target lacks; or, if it has none, the time to begin with."""
        if progress.committed is not None:
            assert progress.committed.time is not None
            return progress.committed.time
        wanted = self._incarnation.as_of
        if wanted is None:
            (state,) = self._host.client.readable(self._sink.on)
            wanted = latest_readable(state)
        return max(wanted, progress.earliest)

    # -- micro-batches -----------------------------------------------------------------------

    def _on_micro_batch(self, frame: DataFrame, number: int) -> None:
        """Commit a micro-batch; called by Spark, in a thread of its own."""
        try:
            with self._commit_lock:
                self._commit(frame, number)
        except BaseException as error:  # noqa: BLE001 - it goes on, as another class
            self._error = error
            raise micro_batch_error(error, stopping=self._stopping.is_set()) from None

    def _commit(self, frame: DataFrame, number: int) -> None:
        """Give the rows of a micro-batch to the target, and note it; nothing if it has them."""
        assert self._progress is not None
        start, upper = (end_of(self._checkpoint, n) for n in (number - 1, number))
        committed = self._progress.committed
        if upper is None or (committed is not None and upper <= committed):
            return
        # Nothing is left out: a checkpoint that is ahead of the target was deleted at the start.
        assert start is None or (committed is not None and start <= committed), (start, committed)
        self._commit_until(upper, partial(self._written, frame, number))

    def _pass_time_if_idle(self) -> None:
        """Commit times without changes; a micro-batch that is under way moves on by itself."""
        if not self._commit_lock.acquire(blocking=False):
            return
        try:
            if self._error is None:
                self._commit_idle_time()
        except BaseException as error:
            # Under the lock: a micro-batch may wait for it, and must not go on when it is not
            # known where the accounts are.
            self._error = error
            raise
        finally:
            self._commit_lock.release()

    def _commit_idle_time(self) -> None:
        """Note times without changes that the target lacks, as a micro-batch without rows would."""
        progress, target = self._progress, self._target
        assert progress is not None
        assert target is not None
        committed, until = progress.committed, None
        if committed is None or committed == EMPTY:
            return
        with suppress(Determinate, Indeterminate):  # of a store: the next look may be answered
            # Before the next rows, which may come in days: it would be called healthy until then.
            self._check_target(progress, target)
            until = unchanged_until(progress)
        if until is not None and until > committed:
            self._commit_until(until, lambda target, times, _: self._skipped(target, times))

    def _commit_until(
        self, upper: Frontier, write: Callable[[Target, Interval, ReadableSpan], Written]
    ) -> None:
        """Let `write` give the target what it lacks before `upper`, and note it.

        Raises:
            ShardError: The input has errors before `upper`; all before these is written and noted.
        """
        progress, target = self._progress, self._target
        assert progress is not None
        assert target is not None
        committed = progress.committed
        # From what is committed, not from Spark's own start: a micro-batch that overlaps what the
        # target has gives it the rest only.
        lower = 0 if committed is None else committed.time or 0
        span = self._readable.span(committed, upper, self._first_time)
        interval = Interval(lower, span.upper)
        written = write(target, interval, span)
        # Not `_check`: a sink that is being stopped still notes what its target has just taken, or
        # a target that does not remember would be given it again. `stop` waits for this.
        self._host.check_fence()
        progress.record(interval, written.rows)
        self._reports.written(written, interval)
        if interval.upper.time is not None:
            self._times.release(interval.upper.time - 1)
        if span.upper < upper:
            # The rest of the micro-batch comes again, once its errors have gone.
            raise self._times.error(span)

    def _written(
        self, frame: DataFrame, number: int, target: Target, interval: Interval, span: ReadableSpan
    ) -> Written:
        """Give a micro-batch to the target, up to the end of `span`; return what it has taken."""
        sources = micro_batch_sources(frame, number)
        planned = [one for source in sources for one in source.partitions()]
        # Nothing to read: only the time moves on, and no Spark job is worth that.
        if not planned:
            return self._skipped(target, interval)
        check_columns(self._sink, planned)
        updates = micro_batch(frame, number).where(F.col(TS) >= interval.lower)
        if interval.upper.time is not None:
            updates = updates.where(F.col(TS) < interval.upper.time)
        if interval.lower and span.first is not None and span.first > interval.lower:
            updates = delay_updates(updates, span.first)
        rows = shape_rows(updates, self._sink)
        assert self._progress is not None
        self._check_target(self._progress, target)
        # As late as can be: what comes next is what a runtime that was replaced must not do.
        self._check()
        return target.write(rows, interval)

    def _skipped(self, target: Target, interval: Interval) -> Written:
        """Tell the target that an interval has no rows."""
        self._check()
        target.skip(interval)
        return Written(0)

    def _check_target(self, progress: SinkProgress, target: Target) -> None:
        """Refuse to add to a target that has lost what it was given.

        Raises:
            SinkStalled: It has.
        """
        if progress.given is not None and not target.has_taken(progress.given):
            raise target_went_back(self._sink, progress.given)

    def _check(self) -> None:
        """Refuse to commit for a sink that has failed or is being stopped, or a fenced runtime.

        Raises:
            BaseException: It has failed: it may not be known where its accounts are.
            Determinate: The sink is being stopped.
            Fenced: Another runtime has taken over.
        """
        if self._stopping.is_set():
            raise Determinate(f"sink '{self._sink.name}' is being stopped", code="STOPPED")
        if self._error is not None:
            raise self._error
        self._host.check_fence()

    def _is_fenced(self) -> bool:
        """True if another runtime has taken over; False, too, if the store does not answer."""
        try:
            self._host.check_fence()
        except ShardError as error:
            return isinstance(error, Fenced)
        return False
