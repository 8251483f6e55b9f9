"""A view runs as a streaming query, its group's or its own, which triggers its steps.

    driver stream over a and b  ->  micro-batch [t0, t1)  ->  View.advance

Views over little data begin in a group of views of the same inputs (`compute.group`), and the
others join theirs when they follow easily. In a group a view has no checkpoint: its output says how
far it is, and its holds follow behind (`membership`). What follows is about a query of its own.

The query reads all inputs up to one common frontier, under its own holds, and so is seen, paced and
restarted by Spark's own means. Its rows are not read: `foreachBatch` takes the interval only, and
`View` reads natively what the next step needs, which may be contents and not changes.

The output, not the checkpoint, decides how far the view is: appending there is the commit. The
checkpoint decides only from where on the inputs are held and read:

    checkpoint behind the output    a crash after the append: the step finds `Done`
    checkpoint lost, or unusable    a new one begins at the as_of, or later where the inputs'
                                    history begins later by now or the output is further
    output of another definition    the same
    output made anew                it is recomputed within the next micro-batch

While writing is not allowed a micro-batch stays open: the query is run once, so that everything is
warm, and the inputs are held where they are. It ends when the runtime that may write has written
that far, or when writing is allowed, and goes on from there without a gap.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from shardline.app.compute.errors import BEGINS_ANEW_HINT, UNUSABLE_CHECKPOINT, failure_report
from shardline.app.compute.group.group_registry import GroupRegistry, get_groups
from shardline.app.compute.group.trigger_query import TriggerQuery
from shardline.app.compute.group.view_group import GroupStep, ViewGroup
from shardline.app.compute.holds import (
    end_hold,
    end_other_holds,
    find_first_time,
    hold_name,
)
from shardline.app.compute.view.idle_advancer import IdleAdvancer, get_advancer
from shardline.app.compute.view.idle_failures import IdleFailures
from shardline.app.compute.view.idle_news import end_rest_for
from shardline.app.compute.view.input_changes import volume_of_shards
from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.membership import Membership
from shardline.app.compute.view.view_inputs import InputChanged
from shardline.app.execution.batch_errors import micro_batch_error
from shardline.app.execution.checkpoint_log import can_be_resumed, remove_unfinished_plan
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import Ended, Started
from shardline.app.execution.spark_errors import UNREADABLE_HINT, find_unreadable_part
from shardline.app.execution.step_scheduler import STEP_SCHEDULER
from shardline.app.execution.stopped import Stopped
from shardline.app.protocol.objects import ViewDescription
from shardline.datasource.errors import Fenced, ShardError
from shardline.datasource.frames import Interval
from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.state import ShardState

__all__ = ["RunningView", "run_view"]

_log = logging.getLogger(__name__)

_CALM_MS: Final = 1_000.0
"""A step of so long keeps no group waiting, however short the interval is."""

_LITTLE: Final = 200_000
"""Rows that a query reads anew in well under a second, once it has been compiled."""


def run_view(host: Host, incarnation: Incarnation, description: ViewDescription) -> RunningView:
    """Keep a view up to date until it is stopped.

    Raises:
        InvalidUsage: An input is not there, or the view cannot be kept.
    """
    run = RunningView(host, incarnation, description)
    try:
        run.start()
    except RuntimeError:
        run.stop()  # for want of a thread: its query may run, with nobody to follow or end it
        raise
    return run


class RunningView:
    """One incarnation of a view.

    Its hold on the inputs is a capability: it keeps them readable from the checkpoint's offset on,
    through restarts. When it is lost (`HOLD_EXPIRED`, `HISTORY_GONE`) the checkpoint is worthless:
    the view is reported as failed, and its next incarnation hydrates anew.
    """

    def __init__(self, host: Host, incarnation: Incarnation, description: ViewDescription) -> None:
        """Prepare it; `run_view` starts it, too."""
        self._host = host
        self._description = description
        self._hold = hold_name(incarnation, host.checkpoints)
        self._checkpoint = incarnation.checkpoint(host.checkpoints)
        self._start_hold = f"{self._hold}:begin"
        remove_unfinished_plan(self._checkpoint)
        # Of the offsets, not of the folder: Spark makes the folder, with its metadata, before the
        # first micro-batch is planned, and until then there is nothing to go on from. Nor is there
        # where a power cut has left a file empty or cut: Spark would fail at it at each start.
        view: View | None = None
        if (self._checkpoint / "offsets").is_dir() and can_be_resumed(self._checkpoint):
            view = View(host, incarnation, description, self._check_may_append)
        # Contents of another definition (other settings, an input made anew) are replaced by the
        # first micro-batch. One that goes on from a checkpoint comes with the next news of an
        # input, or after the idle interval: until then the output would stand still.
        self._starts_anew = view is None or view.is_replacing()
        if view is None or self._starts_anew:
            assert incarnation.as_of is not None, incarnation
            name, inputs = description.name, description.inputs
            as_of = find_first_time(host.client, incarnation.as_of, inputs, name)
            incarnation = dataclasses.replace(incarnation, as_of=as_of)
            view = View(host, incarnation, description, self._check_may_append)
        self._incarnation = incarnation
        self._view = view
        self._advancer: IdleAdvancer = get_advancer(host.client, host.clock, host.interval_ms)
        self._idle_failures = IdleFailures(incarnation.id, host.clock)
        self._groups: GroupRegistry = get_groups(host)
        self._membership = Membership(host, incarnation, self._hold, self.inputs)
        self._stopping = threading.Event()
        self._step_lock = threading.Lock()
        self._turn_given = threading.Event()
        self._step_ms = 0.0
        self._trigger: TriggerQuery | None = None
        self._query: StreamingQuery | None = None
        self._group: ViewGroup | None = None
        self._moving = self._asked = False
        self._move_lock = threading.Lock()
        self._error: BaseException | None = None
        self._end_reported = self._others_ended = False

    @property
    def inputs(self) -> Sequence[str]:
        """Names of its input shards."""
        return self._description.inputs

    def start(self) -> None:
        """Start the streaming query and wait until its sources are there."""
        assert self._incarnation.as_of is not None, self._incarnation
        if self._begin_in_group():
            return
        if self._starts_anew:
            # The new hold is taken before the one of an earlier checkpoint is given up. In the
            # other order a compaction in between could take the as_of away.
            for name in self.inputs:
                self._host.client.hold(name, self._start_hold, since=self._incarnation.as_of)
            self._begin_anew()
        self._start_query(self._incarnation.as_of)
        # Last: a tick needs the query, and a failure may be reported after `Started` only.
        self._advancer.add(self)

    def _begin_in_group(self) -> bool:
        """Begin without a streaming query of its own, if nobody can be delayed; else False."""
        host = self._host
        if not host.writes.is_set() or not self._is_for_groups(host.client.readable(*self.inputs)):
            return False
        # The checkpoint first: without it the hold only holds, and is brought forward from now on.
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        me = self._incarnation
        assert me.as_of is not None, me
        as_of = find_first_time(host.client, me.as_of, self.inputs, me.id)
        for name in self.inputs:
            host.client.hold(name, self._hold, since=as_of)
        self._starts_anew, self._asked = False, True
        self._advancer.add(self)
        self._groups.ask_to_join(self)
        return True

    def _is_for_groups(self, states: Sequence[ShardState]) -> bool:
        """True if no step of it is long, as far as that can be known before one was taken."""
        return volume_of_shards(states).rows <= _LITTLE and not self._view.calls_user_functions

    def _start_query(self, as_of: int) -> None:
        self._trigger = TriggerQuery(
            self._host,
            self._incarnation.query_name,
            self.inputs,
            as_of,
            self._hold,
            self._checkpoint,
            with_time=self._view.is_temporal,
        )
        self._query = self._trigger.start(self._run_micro_batch, self._stopping)
        self._report_started(self._query.id, self._query.runId)

    def _report_started(self, query: str, run: str, group: str = "") -> None:
        me = self._incarnation
        self._host.report(Started(id=me.id, epoch=me.epoch, query=query, run=run, group=group))

    def stop(self) -> None:
        """End it, and wait until nothing of it commits any more; may be repeated."""
        # The flag first: a step that `_turn_given` wakes asks for it, and would go on without it.
        # Also a tick that finds the query ended must know that this was asked for.
        self._stopping.set()
        self._turn_given.set()
        self._advancer.remove(self)
        if self._host.pacing is not None:
            self._host.pacing.forget(self._incarnation.id)
        self._membership.cancel()
        self._groups.remove_stopped(self)
        with self._move_lock:
            # Behind a move that is under way: it would start a query that nobody ends.
            if self._trigger is not None:
                with suppress(Py4JError, OSError):
                    self._trigger.stop()
        with self._step_lock:
            # The call above may fail or time out while a Python callback is in the middle of a
            # step, and a removed follower may still be in its tick. Both hold the lock, and after
            # them nobody passes the gate. Without this an append could follow the return.
            pass

    # -- the micro-batch ---------------------------------------------------------------------

    def _run_micro_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Run one micro-batch; called in a thread of the callback server."""
        with self._step_lock:
            try:
                self._check_triggers()
                if self._starts_anew:
                    # Not before: the query takes its own hold when it plans its first micro-batch,
                    # and until then this one alone keeps the as_of readable.
                    host = self._host
                    end_hold(host.client, self._start_hold, self.inputs, host.check_fence)
                    self._starts_anew = False
                assert self._trigger is not None
                interval = self._trigger.interval(frame, batch_id)
                if interval is None:
                    return
                if not self._host.writes.is_set():
                    self._view.rehearse(frame.sparkSession, interval)
                    if self._wait_for_writer(interval.upper):
                        # The writer of now has done this one. No hold of its is touched: it may
                        # still need them.
                        return
                self._end_other_holds()
                self._step(frame.sparkSession, interval)
                if interval.upper is None:
                    self._report_end()
            except BaseException as error:  # noqa: BLE001 - it is kept and goes on, as another class
                # Kept here: what comes back from the JVM as the query's exception is text only, by
                # which `Fenced` could not be told from a failed query.
                self._error = error
                is_stop = self._stopping.is_set() or self._moving
                raise micro_batch_error(error, stopping=is_stop) from None

    def _step(self, session: SparkSession, interval: Interval) -> None:
        """Take the steps of a micro-batch, when it is this view's turn."""
        ahead = self._turn_given = threading.Event()
        # After the event is in place: `stop` sets its flag first and then the event that it finds.
        # So it either finds this one, or its flag is seen here; no stop waits out another's turn.
        self._check_not_stopped()
        clock = self._host.clock
        with STEP_SCHEDULER.turn(clock, ahead, self._step_ms):
            # Again: the wait may have been long, and may have been ended by `stop`.
            self._check_not_stopped()
            began_ms, taken = clock.elapsed_ms(), self._view.reports.steps
            self._view.advance(session, interval)
            self._step_ms = clock.elapsed_ms() - began_ms
            if self._view.reports.steps > taken:
                self._host.note_news()

    def _end_other_holds(self) -> None:
        """End the holds of other runtimes and definitions, once."""
        if self._others_ended:
            return
        # Those that were there before a look at the fence: only of them is it certain that they are
        # of runtimes that can never write again.
        end_other_holds(self._host.client, self._hold, self.inputs, self._check_may_append)
        self._others_ended = True

    def _wait_for_writer(self, upper: int | None) -> bool:
        """Wait; True once another runtime has written up to `upper`, False once writing is allowed.

        Raises:
            Stopped: The view was stopped during the wait.
        """
        host = self._host
        while not host.writes.is_set():
            if self._view.reached(upper):
                return True
            self._check_not_stopped()
            host.clock.wait(host.writes, host.interval_ms)
        return False

    def _check_may_append(self) -> None:
        """Raise if nothing may be appended any more; called right before every append.

        Raises:
            Stopped: The view was stopped.
            Fenced: Another runtime has taken over.
        """
        self._check_not_stopped()
        assert self._host.writes.is_set(), "nothing is written before writing is allowed"
        self._host.check_fence()

    def _check_triggers(self) -> None:
        """Raise if its own query may not trigger a step any more."""
        if self._stopping.is_set() or self._moving:
            raise Stopped

    def _check_not_stopped(self) -> None:
        if self._stopping.is_set():
            raise Stopped

    # -- in a group --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The view's name."""
        return self._description.name

    @property
    def expected_ms(self) -> float:
        """Milliseconds that its last step took."""
        return self._step_ms

    def take_step(self, step: GroupStep) -> None:
        """Follow its inputs, as far as they are and the group's step goes."""
        with self._step_lock:
            if self._stopping.is_set() or self._group is None:
                return
            try:
                self._step_in_group(step)
            except Stopped:
                return
            except BaseException as error:  # noqa: BLE001 - it is kept, and told as any other
                self._error = error
            else:
                return
        self._groups.remove(self)
        self._report_failure()

    def _step_in_group(self, step: GroupStep) -> None:
        self._end_other_holds()
        states = self._host.client.readable(*self.inputs)
        end = min(meet(state.upper for state in states), step.end)
        output = self._view.reports.output
        if output is not None and end <= Frontier(output.upper):
            return
        if not self._view.follow(states):
            assert self._incarnation.as_of is not None, self._incarnation
            taken = self._view.reports.steps
            # It starts, unless the output is further than the as_of: the view knows.
            interval = Interval(self._incarnation.as_of, end.time, starts=True)
            self._membership.steps += 1
            with self._membership.session_of(step) as session:
                self._step(session, interval)
            if self._view.reports.steps > taken:
                self._host.report(self._membership.stepped(step, self._step_ms))
                if self._membership.is_too_slow(self._step_ms, step.typical_ms):
                    self.let_go("its steps take long")
        if end.is_empty:
            self._report_end()

    def let_go(self, reason: str) -> None:
        """Go on without the group; a step of it may be under way."""
        _log.info(
            "a view has left its group",
            extra={"context": {"view": self._description.name, "reason": reason}},
        )
        self._group = None
        self._membership.end()
        # A query of its own is started by its next tick that finds no step under way: whoever
        # calls this must not wait for one.
        self._groups.remove(self)

    @property
    def is_stopped(self) -> bool:
        """True if no step of it will be taken any more."""
        return self._stopping.is_set()

    def stay(self) -> None:
        """Go on by its own streaming query: the group cannot take it in."""
        self._membership.end()
        self._asked = False
        if self._query is None:
            self.start_own_query()

    def leave_own_query(self, group: ViewGroup) -> bool:
        """End its own streaming query to step in `group`; False if it cannot."""
        with self._move_lock, self._answered():
            if self._stopping.is_set():
                return False
            if not self._step_lock.acquire(blocking=False):
                return False  # at work: the next tick asks again
            self._moving = True  # micro-batches that begin from here on do nothing
            self._step_lock.release()
            try:
                if self._trigger is not None:
                    self._trigger.stop()
                with self._step_lock:
                    self._check_not_stopped()
                    # The holds first, and the checkpoint before they move: continued behind them
                    # it would ask for history that is gone.
                    self._membership.enter()
                    shutil.rmtree(self._checkpoint, ignore_errors=True)
                    self._query, self._trigger, self._error = None, None, None
                    self._step_in(group)
                    self._moving = False
            except Exception as error:  # noqa: BLE001 - the view is started again, by the lane
                self._moving = False
                self._error = error
                self._report_failure()
                return False
            return True

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Let ticks watch and ask again when the block, which does what was asked for, is done.

        Not before: it takes seconds, and a tick in the middle would ask for what is being done.
        """
        try:
            yield
        finally:
            self._asked = False

    def moved_to(self, group: ViewGroup) -> None:
        """Step in another group from now on."""
        self._step_in(group)

    def _step_in(self, group: ViewGroup) -> None:
        query, self._group = group.query, group
        self._report_started(query.id, self._membership.run(query.runId), group.name)

    def start_own_query(self) -> None:
        """Go on by a streaming query of its own, from where the output is."""
        with self._move_lock, self._answered():
            if self._stopping.is_set() or self._query is not None:
                return
            try:
                client, me = self._host.client, self._incarnation
                assert me.as_of is not None, me
                as_of = find_first_time(client, me.as_of, self.inputs, me.id)
                for name in self.inputs:
                    client.hold(name, self._start_hold, since=as_of)
                self._begin_anew()
                self._starts_anew, self._group = True, None
                self._start_query(as_of)
            except Exception as error:  # noqa: BLE001 - the view is started again, by the lane
                self._error = error
                self._report_failure()

    def _join_if_calm(self, behind_ms: int | None, states: Sequence[ShardState]) -> None:
        if self._group is None and not self._asked and self._is_calm(behind_ms, states):
            self._asked = True
            self._groups.ask_to_join(self)

    def _keep_place(self) -> None:
        """Do what a streaming query of its own would do between micro-batches."""
        if self._group is None:
            return
        output = self._view.reports.output
        self._membership.bring_holds_forward(None if output is None else output.upper)
        is_misplaced = self._groups.is_misplaced(self)
        if self._membership.is_misplaced_for_long(is_misplaced=is_misplaced):
            self._groups.ask_to_move(self)

    def _is_calm(self, behind_ms: int | None, states: Sequence[ShardState]) -> bool:
        """True if it follows its inputs so easily that others would not wait for it."""
        interval_ms = self._host.interval_ms
        return (
            self._others_ended
            and not self._starts_anew
            and behind_ms is not None
            and behind_ms <= 2 * interval_ms
            and (self._step_ms <= max(interval_ms, _CALM_MS) or self._may_be_short(states))
            and self._membership.may_join()
            and not self._view.calls_user_functions
        )

    def _may_be_short(self, states: Sequence[ShardState]) -> bool:
        """True if its next step may well be shorter than the last: that may have been its first."""
        little = volume_of_shards(states).rows <= _LITTLE
        return little or self._description.strategy != "recompute"

    # -- between micro-batches ---------------------------------------------------------------

    def tick(self, states: Sequence[ShardState]) -> None:
        """Follow inputs that rest, and report a query that has died."""
        if self._stopping.is_set():
            return
        # Before `states` is looked at: it is empty while an input cannot be read, which is when
        # queries die.
        if not self._is_active():
            return
        behind_ms = self._view.behind_ms(states)
        if self._host.pacing is not None and behind_ms is not None:
            self._host.pacing.report_lag(self._incarnation.id, behind_ms)
        self._join_if_calm(behind_ms, states)
        # Never waits for the lock: a few threads serve all views, and a micro-batch that is under
        # way moves the output itself.
        if (
            not states
            or not self._host.writes.is_set()
            or not self._step_lock.acquire(blocking=False)
        ):
            return
        try:
            # Again, now under the lock: `stop` may have come in between, and waits for it.
            self._check_not_stopped()
            if self._view.follow(states) and all(state.upper.is_empty for state in states):
                self._report_end()
            self._idle_failures.end()
            if self._view.is_due:
                self._groups.ask_to_step(self)  # in none, its own query sees to it
            end_rest_for(self._view, states, self._host.rest)
            self._keep_place()
        except Stopped:
            pass
        except ShardError as error:
            # These two are not left to the next micro-batch, which may be minutes away: an object
            # that reports progress and can never write again looks healthy. In a group none may
            # come at all: it reads the inputs of its members' inputs, and these may be the same as
            # before. Any other may be of the moment: the next tick tries again.
            if isinstance(error, Fenced | InputChanged) or self._idle_failures.lasts(error):
                self._error = error
                self._report_failure()
        finally:
            self._step_lock.release()

    def _is_active(self) -> bool:
        """True if something triggers its steps; what has to be done where nothing does, is done."""
        if self._moving or self._asked:
            return not self._moving
        group, query, trigger = self._group, self._query, self._trigger
        if group is not None:
            if not group.is_active():
                # Each tick again, and without `_asked`: another member's tick may have taken this
                # view out, so that nobody would answer, and a query of its own that dies later
                # would go unseen for as long as an answer is waited for.
                self._groups.dissolve(group)
            return True
        if query is None or trigger is None:
            # It was let go. Only when what it was at has ended: the next one may take as long.
            if self._step_lock.acquire(blocking=False):
                self._step_lock.release()
                self._asked = True
                self._groups.part(self)
            return False
        if trigger.is_active():
            return True
        self._report_failure()
        return False

    def _report_end(self) -> None:
        if not self._end_reported:
            self._end_reported = True
            self._host.report(Ended(id=self._incarnation.id, epoch=self._incarnation.epoch))

    def _report_failure(self) -> None:
        """Report why the query has ended, once; an unusable checkpoint is thrown away before."""
        if self._end_reported or self._stopping.is_set():
            return
        self._end_reported = True
        error = self._error
        if error is None and self._trigger is not None:
            error = self._trigger.error()
        failed = failure_report(self._incarnation, error)
        # Before the report: the lane restarts the view as soon as it hears of the failure, and
        # would find the same checkpoint and fail by it, for ever.
        if failed.error.startswith(UNUSABLE_CHECKPOINT):
            # Whatever comes of it: a failure that is not told would never be restarted. A hold that
            # is left behind is ended by the next start of the application.
            with suppress(ShardError, OSError):
                self._begin_anew()
            failed = msgspec.structs.replace(failed, hint=BEGINS_ANEW_HINT)
        lost = None if error is None else find_unreadable_part(error)
        if lost is not None:
            failed = msgspec.structs.replace(failed, error=lost, hint=UNREADABLE_HINT)
            self._view.reports.report_frozen(lost)
        self._host.report(failed)

    def _begin_anew(self) -> None:
        """Throw the checkpoint away, and then the hold that belongs to it."""
        # In this order: a checkpoint without its hold could be continued into history that is gone.
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        end_hold(self._host.client, self._hold, self.inputs, self._host.check_fence)
