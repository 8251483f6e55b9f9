"""A view as a streaming query: the query tells when, and which interval; the view does the rest.

    format("shard"), shards=a,b  ->  micro-batch [t0, t1)  ->  View.advance

The query reads all inputs up to one common frontier, under its own holds. Its rows are not read:
`foreachBatch` takes the interval, and reads natively what the next step needs. The checkpoint says
how far the inputs have been read, the output how far the view is: a checkpoint that is lost, or
that belongs to other shards, is begun anew at the as_of, or later where the inputs' history begins
later by now or the output is further; what the output has is not done again.

While writing is not allowed a micro-batch stays open: the query is run once, so that everything is
warm, and the inputs are held where they are. It ends when whoever may write has written that far,
or when writing is allowed, and goes on from there without a gap.

Invariants:
    When `stop` has returned nothing is appended any more.
    A micro-batch is done only when the output has reached its end.
    Every end of the query that was not asked for is reported once.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from shardline.app.compute.errors import failure
from shardline.app.compute.holds import (
    end_hold,
    end_other_holds,
    first_time,
    hold_name,
)
from shardline.app.compute.view.idle_advancer import Advancer, advancer_of
from shardline.app.compute.view.maintained_view import View
from shardline.app.execution.batch_errors import briefly
from shardline.app.execution.checkpoint_log import planned_offset
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import Ended, Health, Started
from shardline.app.execution.query_start import start_slot, until_initialised
from shardline.app.execution.spark_errors import UNREADABLE_HINT, unreadable_part
from shardline.app.execution.step_scheduler import TURNS
from shardline.app.protocol.objects import ViewDescription
from shardline.datasource.errors import Fenced, ShardError
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard_source.offsets import START
from shardline.datasource.spark_native.time_interval import Interval, interval_between, interval_of

__all__ = ["ViewRun", "run_view"]

_log = logging.getLogger(__name__)

_PROGRESS: Final = "10min"
"""How often an idle query runs a micro-batch, so that its holds follow: the advancer moves the
output, and what an idle input keeps back is little."""

_LOOKS: Final = 4
"""Looks for news in each interval. Sources commit soon after its multiples, which is when Spark
looks too: with one look, each view on the way would be an interval late."""

_LOOK_MS_MIN: Final = 100
"""Not more often than this, however short the interval is: each look is a call of the planner."""

_PARTS: Final = "256"
"""Parts of the change that one micro-batch takes: a view that comes back after an hour commits, and
lets its inputs go, several times on the way. A tick of a source is one part or a few."""

_UNUSABLE: Final = (
    "[FOREIGN_OFFSET]",
    "[NEWER_OFFSET]",
    "[OFFSET_WENT_BACK]",
    "[HOLD_EXPIRED]",
    "[HISTORY_GONE]",
)
"""Errors after which the checkpoint can never be continued."""


class _StoppedError(Exception):
    """The view was stopped in the middle of a micro-batch: nothing may be appended any more."""


def run_view(host: Host, incarnation: Incarnation, description: ViewDescription) -> ViewRun:
    """Keep a view up to date until it is stopped.

    Raises:
        InvalidUsage: An input is not there, or the view cannot be kept.
    """
    run = ViewRun(host, incarnation, description)
    run.start()
    return run


class ViewRun:
    """One incarnation of a view."""

    def __init__(self, host: Host, incarnation: Incarnation, description: ViewDescription) -> None:
        """Prepare; `run_view` is the way to one that runs."""
        self._host = host
        self._description = description
        self._hold = hold_name(incarnation, host.checkpoints)
        self._checkpoint = incarnation.checkpoint(host.checkpoints)
        self._beginning = f"{self._hold}:begin"
        self._anew = not (self._checkpoint / "offsets").is_dir()
        if self._anew:
            assert incarnation.as_of is not None, incarnation
            name, inputs = description.name, description.inputs
            as_of = first_time(host.client, incarnation.as_of, inputs, name)
            incarnation = dataclasses.replace(incarnation, as_of=as_of)
        self._incarnation = incarnation
        self._view = View(host, incarnation, description, self._gate)
        self._advancer: Advancer = advancer_of(host.client, host.clock, host.interval_ms)
        self._stopping = threading.Event()
        self._turn = threading.Lock()
        self._ahead = threading.Event()
        self._step_ms = 0.0
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None
        self._told = self._alone = False

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the shards that it follows."""
        return self._description.inputs

    def start(self) -> None:
        """Start the streaming query."""
        if self._anew:
            # Before what an earlier checkpoint held is given up; until the query has its own.
            for name in self.inputs:
                self._host.client.hold(name, self._beginning, since=self._incarnation.as_of)
            self._begin_anew()
        context = self._host.spark.sparkContext
        pool = context.getLocalProperty("spark.scheduler.pool")
        context.setLocalProperty("spark.scheduler.pool", self._host.pool)
        clock = self._host.clock
        try:
            with start_slot(clock, self._stopping):
                self._query = self._started()
                until_initialised(self._query, clock, self._stopping)
        finally:
            context.setLocalProperty("spark.scheduler.pool", pool)  # type: ignore[arg-type]
        me = self._incarnation
        self._host.report(
            Started(id=me.id, epoch=me.epoch, query=self._query.id, run=self._query.runId)
        )
        self._advancer.add(self)

    def _started(self) -> StreamingQuery:
        host = self._host
        spark: Any = host.spark
        # Spark finds Python sources through the active session of the thread.
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(  # noqa: SLF001
            spark._jsparkSession  # noqa: SLF001
        )
        options = {
            **host.storage,
            "location": host.client.location.url,
            "shards": ",".join(self.inputs),
            "readChangeFeed": "true",
            "snapshot": "exclude",  # its rows are not read here, and need not be cut into pieces
            "timestampAsOf": str(self._incarnation.as_of),
            "hold": self._hold,
            "maxFilesPerTrigger": _PARTS,
            "progressInterval": _PROGRESS,
        }
        stream = host.spark.readStream.format("shard").options(**options).load()
        return (
            stream.writeStream.queryName(self._incarnation.query_name)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{_looking_ms(host.interval_ms)} milliseconds")
            .foreachBatch(self._each)
            .start()
        )

    def stop(self) -> None:
        """End it, and wait until nothing of it commits any more; again does nothing."""
        self._stopping.set()
        self._ahead.set()
        self._advancer.remove(self)
        if self._host.pace is not None:
            self._host.pace.forget(self._incarnation.id)
        if self._query is not None:
            with suppress(Py4JError, OSError):
                self._query.stop()
        with self._turn:
            # Whatever was in the middle of a step has come to its end.
            pass

    # -- the micro-batch ---------------------------------------------------------------------

    def _each(self, frame: DataFrame, batch_id: int) -> None:
        """One micro-batch; runs in a thread of the callback server."""
        with self._turn:
            try:
                self._gate_stop()
                if self._anew:
                    end_hold(self._host.client, self._beginning, self.inputs)
                    self._anew = False
                interval = self._interval(frame, batch_id)
                if interval is None:
                    return
                if not self._host.writes.is_set():
                    self._view.rehearse(frame.sparkSession, interval)
                    if self._covered(interval.upper):
                        return
                if not self._alone:
                    self._gate()
                    end_other_holds(self._host.client, self._hold, self.inputs)
                    self._alone = True
                self._step(frame.sparkSession, interval)
                if interval.upper is None:
                    self._tell_end()
            except BaseException as error:  # noqa: BLE001 - it is kept and goes on, as another class
                self._error = error
                raise briefly(error, stopping=self._stopping.is_set()) from None

    def _interval(self, frame: DataFrame, number: int) -> Interval | None:
        """What micro-batch `number` covers, as Spark has planned it."""
        ended = planned_offset(self._checkpoint, number)
        begun = planned_offset(self._checkpoint, number - 1) if number else None
        if ended is None or (number and begun is None):
            # A log of another form: Spark can be asked as well, by two dozen calls.
            return interval_of(frame, number)
        return interval_between(
            START.json() if begun is None else msgspec.json.decode(begun),
            msgspec.json.decode(ended),
        )

    def _step(self, session: SparkSession, interval: Interval) -> None:
        """Take the steps of a micro-batch, when it is this view's turn."""
        ahead = self._ahead = threading.Event()
        # Whoever stops it sets the flag first, and then ends the waiting.
        self._gate_stop()
        clock = self._host.clock
        with TURNS.turn(clock, ahead, self._step_ms):
            self._gate_stop()
            began_ms = clock.elapsed_ms()
            self._view.advance(session, interval)
            self._step_ms = clock.elapsed_ms() - began_ms

    def _covered(self, upper: int | None) -> bool:
        """Wait until writing is allowed, or somebody else has written up to `upper`: then True."""
        host = self._host
        while not host.writes.is_set():
            if self._view.reached(upper):
                return True
            self._gate_stop()
            host.clock.wait(host.writes, host.interval_ms)
        return False

    def _gate(self) -> None:
        """Let an append pass, if there may be one."""
        self._gate_stop()
        assert self._host.writes.is_set(), "nothing is written before writing is allowed"
        self._host.check_fence()

    def _gate_stop(self) -> None:
        if self._stopping.is_set():
            raise _StoppedError

    # -- between micro-batches ---------------------------------------------------------------

    def tick(self, states: Sequence[ShardState]) -> None:
        """Follow inputs that rest, and notice that the query has died."""
        if self._stopping.is_set():
            return
        if not self._lives():
            self._tell_failure()
            return
        if self._host.pace is not None and (behind_ms := self._view.behind_ms(states)) is not None:
            self._host.pace.behind(self._incarnation.id, behind_ms)
        if not states or not self._host.writes.is_set() or not self._turn.acquire(blocking=False):
            return
        try:
            self._gate_stop()
            if self._view.follow(states) and states and _all_finished(states):
                self._tell_end()
        except _StoppedError:
            pass
        except Fenced as error:
            self._error = error
            self._tell_failure()
        except ShardError as error:
            _log.info(
                "an idle view could not follow its inputs",
                extra={"context": {"view": self._incarnation.id, "error": str(error)}},
            )
        finally:
            self._turn.release()

    def _lives(self) -> bool:
        assert self._query is not None
        try:
            return bool(self._query.isActive)
        except (Py4JError, OSError):
            return False

    def _tell_end(self) -> None:
        if not self._told:
            self._told = True
            self._host.report(Ended(id=self._incarnation.id, epoch=self._incarnation.epoch))

    def _tell_failure(self) -> None:
        """Report why the query has ended, once; a checkpoint that is of no use is thrown away."""
        if self._told or self._stopping.is_set():
            return
        self._told = True
        error = self._error
        if error is None and self._query is not None:
            with suppress(Py4JError, OSError):
                error = self._query.exception()
        failed = failure(self._incarnation, error)
        if failed.error.startswith(_UNUSABLE):
            self._begin_anew()
        lost = None if error is None else unreadable_part(error)
        if lost is not None:
            failed = msgspec.structs.replace(failed, error=lost, hint=UNREADABLE_HINT)
            self._tell_frozen(lost)
        self._host.report(failed)

    def _tell_frozen(self, lost: str) -> None:
        me = self._incarnation
        self._host.report(
            Health(
                id=me.id,
                epoch=me.epoch,
                namespace="compute",
                status="frozen",
                error=lost,
                hint=UNREADABLE_HINT,
            )
        )

    def _begin_anew(self) -> None:
        """Throw the checkpoint away, and the hold that belongs to it."""
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        end_hold(self._host.client, self._hold, self.inputs)


def _looking_ms(interval_ms: int) -> int:
    """How often a view looks for news."""
    return max(interval_ms // _LOOKS, _LOOK_MS_MIN)


def _all_finished(states: Sequence[ShardState]) -> bool:
    return all(state.upper.is_empty for state in states)
