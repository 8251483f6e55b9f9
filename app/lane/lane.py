"""The lane starts, changes and ends everything that runs, on one thread, in one durable order.

If compute and storage each started their own objects, there would be no order between the two, and
a restart could number dataflows differently than the run before: their checkpoints would be lost.
Materialize's storage worker orders its own dataflows by an internal command sequencer; here both
kinds share one, and a shard keeps it.

    lane = Lane(log, renderers, host_of, clock=clock, ids=ids)
    lane.start()
    lane.submit("compute", CreateDataflow(description=view, as_of=7))       its position
    lane.report(Failed(id="delays", epoch=3, error="…"))                    from any thread
    lane.stop()                                                             stops all that runs

One round (`step`): take what has arrived; fold completions and reports into the process state;
append commands, those of producers and those that follow from the completions, in one append; fold
them; tell the observer; hand out the effects that are due. Rendering and stopping take long: they
run in pools and come back as completions, so the only thing that the lane ever waits for is the
store's answer to an append.

What a caller relies on:
    When `submit` returns, the command is durable at its position; the observer is called with what
    follows from it.
    After a fence everything is stopped, nothing starts, and `submit` raises the reason.
    A follower runs what the holder's order says, records nothing, and becomes the holder by
    `AllowWrites`, without a stop of what runs.

Invariants:
    Effects follow from records only, and come after them.
    The observer hears of a phase before the effect that the phase is about begins.
    The process state, and the table of what runs, belong to the thread that calls `step`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol, TypeAlias

import msgspec

from shardline.app.execution.host import Host, Incarnation, Running
from shardline.app.execution.observations import Ended, Failed, Hydrated, Observation
from shardline.app.execution.spark_errors import full_sentence
from shardline.app.lane.commands import (
    LANE,
    AllowWrites,
    CreateDataflow,
    Kind,
    LaneCommand,
    Record,
    Submission,
    kind_of,
)
from shardline.app.lane.effects import Pool
from shardline.app.lane.inbox import Completion, LaneInbox, PendingCommand, Report
from shardline.app.lane.order_protocol import DurableOrder
from shardline.app.lane.process_state import (
    CleanUp,
    Effect,
    PhaseChange,
    ProcessState,
    RestartOn,
    Start,
    StartPermission,
    Stop,
)
from shardline.app.lane.refusals import as_shard_error, read_only_error, stopped_error
from shardline.app.lane.settings import LANE_KNOBS, LaneSettings
from shardline.app.lane.state import LaneObject, LaneState, would_change
from shardline.app.protocol.objects import Description
from shardline.app.settings.live import with_live_values
from shardline.datasource.background import BackgroundThread, DaemonPool
from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import Determinate, Fenced, Indeterminate, InvalidUsage, ShardError

__all__ = ["Lane", "Observer", "Renderer", "Renderers"]

_log = logging.getLogger(__name__)

Renderer: TypeAlias = Callable[[Host, Incarnation, Description], Running]
"""Starts an object and returns what runs; if it raises, nothing of the object may run. See
`shardline.app.execution.host`."""

Renderers: TypeAlias = Mapping[type, Renderer]
"""The renderer of each kind of description, by its class."""


class Observer(Protocol):
    """Is notified of all that the lane does, on the lane's thread; must return at once."""

    def on_record(self, record: Record) -> None:
        """Take a command that is durable at its position and folded; in order of positions."""
        ...

    def on_phase(self, change: PhaseChange) -> None:
        """Take the phase that an object has entered."""
        ...

    def on_end(self, error: ShardError) -> None:
        """Take the reason why the lane was lost; everything is being stopped. At most once."""
        ...


class Lane:
    """Orders commands, and starts and stops objects accordingly.

    The lane is held by one process per location. Losing it (`lost`) means that another runtime owns
    the location (`Fenced`), or that the order cannot be read or the lane has failed (any other
    error): everything that runs here is stopped, and nothing starts again in this process.

    Args:
        order: The durable order, held or followed.
        renderers: The renderer of each kind of description.
        host_of: Returns what all objects of a kind share.
        operators_of: Returns how many operator numbers a description needs.
        observer: Is notified of records, phases and the end.
        forget: Removes what a dropped object has left; may take long. Called by the holder only;
            what it could not remove stays.
        starts: Runs renderers; None for threads.
        stops: Runs stops and `forget`; None for threads.
    """

    def __init__(
        self,
        order: DurableOrder,
        renderers: Renderers,
        host_of: Callable[[Kind], Host],
        *,
        clock: Clock,
        ids: IdGenerator,
        settings: LaneSettings | None = None,
        operators_of: Callable[[Description], int] = lambda _: 1,
        observer: Observer | None = None,
        forget: Callable[[LaneObject], None] = lambda _: None,
        starts: Pool | None = None,
        stops: Pool | None = None,
    ) -> None:
        self._settings = settings or LaneSettings()
        self._order = order
        self._renderers = renderers
        self._host_of = host_of
        self._clock = clock
        self._operators_of = operators_of
        self._observer = observer
        self._forget = forget
        # Two pools: in one, renderers that hang would keep back the stops, and with them the end
        # after a fence.
        self._starts = starts or DaemonPool("lane-start", self._settings.start_threads)
        self._stops = stops or DaemonPool("lane-stop", self._settings.stop_threads)
        # A follower must not restart its objects whenever the holder's own objects fail.
        following: RestartOn = "lives" if order.role == "holder" else "definitions"
        self._process_state = ProcessState(self._settings, ids.jitter, following)
        self._inbox = LaneInbox(self._settings.queue_max)
        self._running: dict[tuple[str, int], Running] = {}
        self._own_commands: list[LaneCommand] = []
        self._pending: list[PendingCommand] = []
        self._notified_to = order.state.next_index
        self._applied_settings: dict[str, str] = {}
        self._lost: ShardError | None = None
        self._rested = threading.Event()
        # A loop of its own: after `stop` it goes on until all that runs has stopped.
        self._thread = BackgroundThread("lane", self._run, wake=self._inbox.wake)
        self._stopping = self._thread.stopping

    # -- for everybody -----------------------------------------------------------------------

    @property
    def state(self) -> LaneState:
        """The fold of all records of the order that are known here."""
        return self._order.state

    @property
    def lost(self) -> ShardError | None:
        """The reason why the lane has stopped everything; None while it is held or followed."""
        return self._lost

    @property
    def queued(self) -> int:
        """The number of commands that wait for their place in the order."""
        return len(self._inbox) + len(self._pending)

    @property
    def at_rest(self) -> bool:
        """True if nothing runs and no effect is under way."""
        return self._process_state.at_rest

    def check_fence(self) -> None:
        """Raise if another runtime has taken over, by one look at the store; from any thread.

        Raises:
            Fenced: Another runtime has taken over.
            Determinate: The store did not answer.
            Indeterminate: The same.
        """
        self._order.check_fence()

    def submit(self, producer: str, command: LaneCommand, sequence: int | None = None) -> int:
        """Give `command` its position and return it; waits for the store, not for effects.

        A store that does not answer delays commands; none is lost or reordered.

        Args:
            producer: Name of the caller; any but "lane".
            command: The command.
            sequence: Its number among those of the producer, greater than all before; a repeated
                one has no effect and gets the position of the first, or that of the newest record
                if the first is kept no more. None takes the next one.

        Raises:
            InvalidUsage: The lane was stopped; no renderer takes such an object; the command could
                not be read again; or this runtime follows another one, and it changes something.
            Fenced: Another runtime has taken over.
            Indeterminate: The lane has failed; the command may have a position.
        """
        return self.offer(producer, command, sequence).result()

    def offer(
        self,
        producer: str,
        command: LaneCommand,
        sequence: int | None = None,
        *,
        wait: bool = True,
    ) -> Future[int]:
        """Submit without waiting for the store; waits for room in the inbox if `wait` is set.

        Returns:
            A future of the position, which raises what `submit` raises.

        Raises:
            InvalidUsage: No renderer takes such an object, or the command could not be read again.
            Determinate: `LANE_FULL`: too many commands wait, and `wait` is not set.
        """
        assert producer != LANE, command
        return self._inbox.offer(producer, self._with_operator_count(command), sequence, wait=wait)

    def report(self, observation: Observation) -> None:
        """Take an observation of a running object; all but its end and hydration are ignored.

        Returns at once, in any thread, and never raises.
        """
        if isinstance(observation, Failed | Hydrated | Ended):
            self._inbox.report(observation)

    def start(self) -> None:
        """Start the lane's thread, and with it all objects of the order."""
        self._thread.start()

    def stop(self, timeout_ms: float = 60_000) -> bool:
        """Stop all that runs, without dropping it, and release the order.

        Returns:
            True if everything has stopped; what has not by `timeout_ms` ends with the process.
        """
        self._thread.cancel()
        rested = True
        try:
            if self._thread.was_started:
                rested = self._clock.wait(self._rested, timeout_ms)
            else:
                self._inbox.close(stopped_error())
        finally:
            # Not before the rest: it gives up the holder's lease, and the next runtime would start
            # the same objects while ours still work. (The fence would hold; the work would be
            # wasted.) But also if an interrupt ends the wait: the lease would be renewed for as
            # long as the process lives, and nobody else could run the location.
            self._order.close()
        # Not after an interrupt: what runs is still being stopped, in threads of these.
        self._starts.close()
        self._stops.close()
        return rested

    # -- the lane's thread -------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._is_ending() and self._process_state.at_rest):
            self._clock.wait(self._inbox.wake, self._settings.tick_ms)
            try:
                self.step()
            except Exception as error:  # noqa: BLE001 - every producer gets it
                # If the thread just ended, everything would run on and nothing could stop it. The
                # loop goes on until all has stopped: stops need rounds, too.
                _log.error("the lane has failed", exc_info=error)
                self._lose(as_shard_error(error))
        # Again: a stop that comes right behind the last round has had none.
        self._refuse_all(self._lost or stopped_error())
        self._rested.set()

    def step(self) -> None:
        """Do one round. Called by the lane's own thread, or by a simulation in its place."""
        # Before the inbox is emptied: what arrives between the two then costs a round for nothing;
        # the other way round it would lie there until the next tick.
        self._inbox.wake.clear()
        # Timers by the clock that never goes back: set back by an hour, the other one would let
        # nothing start again for an hour. Observers are told the time of day.
        now_ms = int(self._clock.elapsed_ms())
        ahead_ms = self._clock.now_ms() - now_ms
        done, reports = self._inbox.take()
        for completion in done:
            self._take_completion(completion, now_ms)
        for report in reports:
            self._take_report(report, now_ms)
        if self._stopping.is_set():
            self._refuse_all(stopped_error())
        # Completions and reports are folded above, so that the restarts and drops that they lead to
        # share this append; effects are decided below, so that none comes before its record.
        if not self._is_ending():
            self._advance_order()
        # After the append and before the starts: a record of this round is in force for them.
        self._apply_recorded_settings()
        # Read once: between two reads another thread's look at the fence may resolve an append,
        # and an object that is dropped would no longer be paused, and start.
        state = self.state
        self._process_state.want(state.objects, state.paused)
        self._allow_writes()
        # `_own_commands` is not empty if the append failed: a restart is not recorded yet. If the
        # next incarnation began now and this process died, the next holder would give the same
        # epoch to another one: reports, statistics and query names of the two could not be told
        # apart. Stops need no record and go on.
        starts: StartPermission = "held" if self._own_commands else "allowed"
        effects = self._process_state.advance(now_ms, starts)
        try:
            # Before anything starts: an observer throws away what an incarnation reports that it
            # has not heard of, and one that reports its hydration does so once.
            self._notify_observer(now_ms, ahead_ms)
        finally:
            # Each is decided once: one that is not handed out would be waited for, for ever.
            for effect in effects:
                self._hand_out(effect)

    def _apply_recorded_settings(self) -> None:
        """Apply the settings that the order has recorded for the lane itself."""
        recorded = self.state.settings
        if recorded == self._applied_settings:
            return
        # Before they are parsed: settings that cannot be applied are logged once, not every round.
        self._applied_settings = recorded
        try:
            self._process_state.settings = with_live_values(self._settings, LANE_KNOBS, recorded)
        except InvalidUsage as error:
            # Ours are checked before they are recorded; another version has recorded these. To fail
            # here would stop every runtime of the location for good. What was in force stays.
            _log.warning("settings not taken", extra={"context": {"error": str(error)}})

    def _is_ending(self) -> bool:
        return self._stopping.is_set() or self._lost is not None

    # completions and reports

    def _take_completion(self, done: Completion, now_ms: int) -> None:
        error = full_sentence(done.error) if done.error is not None else ""
        match done.effect:
            case Start(incarnation) if done.running is not None:
                self._running[incarnation.id, incarnation.epoch] = done.running
                self._process_state.started(incarnation.id, incarnation.epoch, now_ms)
            case Start(incarnation):
                self._process_state.on_start_failed(
                    incarnation.id, incarnation.epoch, error, now_ms
                )
            case Stop(incarnation) if done.error is not None:
                # It stays in `_running`: the stop is repeated, and needs it.
                self._process_state.on_stop_failed(incarnation.id, incarnation.epoch, error, now_ms)
            case Stop(incarnation):
                self._running.pop((incarnation.id, incarnation.epoch), None)
                self._process_state.on_stopped(incarnation.id, incarnation.epoch, now_ms)
            case CleanUp(name) if isinstance(done.error, Determinate | Indeterminate):
                _log.warning("not cleaned up yet", extra={"context": {"id": name, "error": error}})
                self._process_state.on_cleanup_failed(name, now_ms)
            case CleanUp(name, life):
                # Also after any other error: what can never be deleted must not keep the name.
                self._process_state.forgotten(name, life)
        if isinstance(done.error, Fenced):
            self._stop_if_fenced()

    def _take_report(self, report: Report, now_ms: int) -> None:
        match report:
            case Failed():
                self._process_state.failed(report.id, report.epoch, report.error, now_ms)
                if report.fenced:
                    self._stop_if_fenced()
            case Hydrated():
                self._process_state.hydrated(report.id, report.epoch, now_ms)
            case Ended():
                self._process_state.ended(report.id, report.epoch)

    def _stop_if_fenced(self) -> None:
        """Stop everything if an object was fenced by another runtime.

        A `Fenced` of an object may also come from a later incarnation of the same object in this
        process; then nothing is to be stopped.
        """
        try:
            self._order.check_fence()
        except Fenced as error:
            self._lose(error)
        except (Determinate, Indeterminate) as error:
            _log.warning("no look at the fence", extra={"context": {"error": str(error)}})

    # the order

    def _advance_order(self) -> None:
        """Append, or follow; a store that does not answer leaves all for the next round."""
        try:
            if self._order.role == "follower":
                self._follow()
            else:
                # Before the lease is renewed, which may fail: commands that were not taken hold no
                # start back (`step`), and a restart would begin that nobody has recorded.
                self._own_commands += self._process_state.take_commands()
                self._order.renew_lease()
                self._append()
        except Fenced as error:
            self._lose(error)
        except (Determinate, Indeterminate) as error:
            # Nobody is refused: `_pending` and `_own_commands` go first when the store answers
            # again. To answer an unresolved append with an error would invite the producer to
            # repeat it.
            _log.warning("the order does not go on", extra={"context": {"error": str(error)}})

    def _append(self) -> None:
        """Append what producers offer and what the process state has to record; or keep both."""
        # Added to, never replaced: the process state hands each command out once.
        self._own_commands += self._process_state.take_commands()
        free = max(self._settings.group_max - len(self._pending), 0)
        offers = [*self._pending, *self._inbox.take_offers(free)]
        mine = [PendingCommand(LANE, None, command, Future()) for command in self._own_commands]
        submissions = self._numbered([*offers, *mine])
        # Before the append, which may raise with its outcome unknown: the next try has the same
        # numbers, and the order leaves out what it has already. `_own_commands` is numbered anew
        # each time; each of those commands names an epoch, and has no effect when that is over.
        numbered = zip(offers, submissions, strict=False)
        self._pending = [replace(offer, sequence=s.sequence) for offer, s in numbered]
        self._order.append(submissions)
        # Only now: an offer is answered when its record is durable.
        done, self._pending, self._own_commands = self._pending, [], []
        for offer in done:
            assert offer.sequence is not None, offer
            place = self._order.position(offer.producer, offer.sequence)
            self._inbox.answer(offer, self._newest() if place is None else place)

    def _numbered(self, offers: Sequence[PendingCommand]) -> list[Submission]:
        """The offers with a number each, greater than all before of the same producer."""
        following: dict[str, int] = {}
        submissions = []
        for offer in offers:
            free = following.get(offer.producer, self.state.next_sequence(offer.producer))
            number = free if offer.sequence is None else offer.sequence
            following[offer.producer] = max(free, number + 1)
            submissions.append(Submission(offer.producer, number, offer.command))
        return submissions

    def _newest(self) -> int:
        return self.state.next_index - 1

    def _follow(self) -> None:
        """Fold what the holder has added; become the holder if a command allows writes."""
        # Thrown away: a follower records nothing, so its restarts are known to nobody but itself.
        # `_promote` takes their epochs over.
        self._process_state.take_commands()
        self._order.poll()
        # One at a time: what follows an `AllowWrites` is a holder's to append, in the next round.
        for offer in self._pending or self._inbox.take_offers(1):
            self._pending = []
            if isinstance(offer.command, AllowWrites):
                # Pending first: a take-over that fails for now is tried again in the next round.
                self._pending = [offer]
                self._promote()
                self._append()
            elif would_change(self.state, offer.command):
                self._inbox.refuse([offer], read_only_error(offer.command))
            else:
                self._inbox.answer(offer, self._newest())

    def _promote(self) -> None:
        """Take the order over, and keep running what runs.

        The take-over records the epochs that our objects have reached, so that the order's next
        ones are greater.
        """
        self._order.take_over("by-force", self._process_state.epochs())
        # In this order: `adopt` takes what runs for the epochs in the new state. Before `want` it
        # would take the former ones, and every object would be stopped and started anew.
        self._process_state.want(self.state.objects, self.state.paused)
        self._process_state.adopt()
        _log.info("the lane was taken over", extra={"context": {"epoch": self.state.epoch}})

    # effects

    def _hand_out(self, effect: Effect) -> None:
        pool = self._starts if isinstance(effect, Start) else self._stops
        running = None
        if isinstance(effect, Stop):
            # Looked up here, not in the pool's thread: `_running` belongs to this one.
            running = self._running[effect.incarnation.id, effect.incarnation.epoch]
        try:
            pool.run(lambda: self._inbox.done(self._carry_out(effect, running)))
        except RuntimeError as error:
            # Its completion would be waited for, for ever, and so would those behind it.
            none = Determinate(str(error), code="NO_THREAD", hint="it is tried again by itself")
            self._inbox.done(Completion(effect, error=none))

    def _carry_out(self, effect: Effect, running: Running | None) -> Completion:
        """Run an effect, in a pool's thread, and return its outcome; never raises."""
        try:
            match effect:
                # It may have waited in the pool for long. One that begins just before the end is
                # harmless: its completion finds the process halted, and it is stopped again.
                case Start() if self._is_ending():
                    return Completion(effect, error=self._lost or stopped_error())
                case Start(incarnation, description):
                    host = self._host_of(kind_of(description))
                    render = self._renderers[type(description)]
                    return Completion(effect, render(host, incarnation, description))
                case Stop():
                    assert running is not None, effect
                    running.stop()
                case CleanUp(dropped=dropped):
                    # It gives up holds in shards, and an object of that name may run elsewhere by
                    # now. Here only for what is local: `forget` looks again between what it reads
                    # and each write, which is refused if what it has read has changed.
                    self._order.check_fence()
                    self._forget(dropped)
        except Exception as error:  # noqa: BLE001 - any error of an effect is the object's failure
            context = {"effect": type(effect).__name__, "error": repr(error)}
            _log.warning("an effect failed", exc_info=error, extra={"context": context})
            return Completion(effect, error=error)
        return Completion(effect)

    def _allow_writes(self) -> None:
        # A follower's state says what the holder's objects may do; its own may not write.
        if self._order.role == "holder" and self._lost is None:
            for kind in self.state.writes:
                self._host_of(kind).writes.set()

    # the end

    def _lose(self, error: ShardError) -> None:
        """Stop everything for good; the first reason stays."""
        self._refuse_all(error)
        if self._lost is None:
            self._lost = error
            _log.error("everything is stopped", extra={"context": {"error": str(error)}})
            if self._observer is not None:
                self._observer.on_end(error)

    def _refuse_all(self, error: ShardError) -> None:
        """Start nothing any more, and refuse all commands, those to come too; harmless again."""
        self._process_state.halt()
        self._inbox.close(error)
        pending, self._pending = self._pending, []
        self._inbox.refuse(pending, error)

    # what observers see

    def _notify_observer(self, now_ms: int, ahead_ms: int) -> None:
        """Pass records and phases to the observer, and log what takes too long.

        Args:
            now_ms: By the clock of the process state.
            ahead_ms: How far the time of day is ahead of that.
        """
        for late in self._process_state.take_overdue(now_ms):
            context = {"id": late.id, "phase": late.phase}
            _log.error("a start or stop takes too long", extra={"context": context})
        first, self._notified_to = self._notified_to, self.state.next_index
        changes = self._process_state.take_changes()
        if self._observer is not None:
            # Records first: an observer knows an object before it hears that it starts.
            for record in self._order.records(first) if first < self._notified_to else []:
                # What another thread's look at the fence has resolved since is for the next round.
                if record.index < self._notified_to:
                    self._observer.on_record(record)
            for change in changes:
                self._observer.on_phase(change.moved_by(ahead_ms))

    # what is offered

    def _with_operator_count(self, command: LaneCommand) -> LaneCommand:
        """The command, a creation with the number of operators that its description needs.

        Decided before it is recorded, not in the fold: another version may count differently, and
        a replay has to give the same ids.

        Raises:
            InvalidUsage: `NO_RENDERER`: no renderer takes such an object.
        """
        if not isinstance(command, CreateDataflow):
            return command
        if type(command.description) not in self._renderers:
            raise InvalidUsage(
                f"nothing renders '{command.id}', a {type(command.description).__name__}",
                code="NO_RENDERER",
                hint="give the lane a renderer for it",
            )
        count = max(self._operators_of(command.description), 1)
        return msgspec.structs.replace(command, operators=count)
