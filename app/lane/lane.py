"""The lane: one thread through which everything goes that starts, changes or ends what runs.

    lane = Lane(log, renderers, host_of, clock=clock, ids=ids)
    lane.start()
    lane.submit("compute", CreateDataflow(description=view, as_of=7))       its position
    lane.report(Failed(id="delays", epoch=3, error="…"))                    from anywhere, at once
    lane.stop()                                                             all that runs

One round of the lane: take what has arrived; fold completions and reports into the fleet; append
commands, those of producers and those that follow from the completions, in one go; fold them; hand
out the effects that are due. What takes long, rendering and stopping, runs in pools and comes back
as a completion, so that nothing but the store's answer to an append ever holds the lane up.

What a caller relies on:
    When `submit` returns, the command has its position and is durable; what it leads to is told
    to the observer.
    After a fence everything is stopped, nothing starts, and `submit` raises what happened.
    A follower runs what the holder's order says, records nothing, and becomes the holder by
    `AllowWrites`, without a stop of what runs.

Invariants:
    Effects follow from records only, and come after them.
    The fleet, and the table of what runs, belong to the thread that calls `step`.
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
from shardline.app.lane.effects import EffectPool, Pool
from shardline.app.lane.inbox import Done, Intake, Offer, Report
from shardline.app.lane.order_protocol import Journal
from shardline.app.lane.process_state import (
    Effect,
    Fleet,
    Following,
    Forget,
    PhaseChange,
    Start,
    Starts,
    Stop,
)
from shardline.app.lane.settings import LANE_KNOBS, LaneSettings
from shardline.app.lane.state import LaneObject, LaneState, would_change
from shardline.app.protocol.objects import Description
from shardline.app.settings.live import tuned
from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import Determinate, Fenced, Indeterminate, InvalidUsage, ShardError

__all__ = ["Lane", "Observer", "Renderer", "Renderers"]

_log = logging.getLogger(__name__)

Renderer: TypeAlias = Callable[[Host, Incarnation, Description], Running]
"""Makes an object run; see `shardline.app.execution.host`."""

Renderers: TypeAlias = Mapping[type, Renderer]
"""How to make each kind of description run, by its class."""


class Observer(Protocol):
    """Hears of all that the lane does. Called on the lane's thread: returns at once."""

    def on_record(self, record: Record) -> None:
        """A command has got its position, and is folded."""
        ...

    def on_phase(self, change: PhaseChange) -> None:
        """An object has entered a phase."""
        ...

    def on_end(self, error: ShardError) -> None:
        """The lane was lost: everything is being stopped."""
        ...


class Lane:
    """Orders commands, and makes objects run accordingly.

    Args:
        journal: The durable order, held or followed.
        renderers: How to make each kind of description run.
        host_of: What objects of a kind share.
        operators_of: How many operator numbers a description needs.
        observer: Hears of everything.
        forget: Removes what a dropped object has left; may take long. Called by the holder only;
            what it could not remove stays.
        starts: Where rendering runs; None for threads.
        stops: Where stopping and forgetting run; None for threads.
    """

    def __init__(
        self,
        journal: Journal,
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
        self._journal = journal
        self._renderers = renderers
        self._host_of = host_of
        self._clock = clock
        self._operators_of = operators_of
        self._observer = observer
        self._forget = forget
        self._starts = starts or EffectPool("lane-start", self._settings.start_threads)
        self._stops = stops or EffectPool("lane-stop", self._settings.stop_threads)
        following: Following = "lives" if journal.role == "holder" else "definitions"
        self._fleet = Fleet(self._settings, ids.jitter, following)
        self._intake = Intake(self._settings.queue_max)
        self._running: dict[tuple[str, int], Running] = {}
        self._own: list[LaneCommand] = []
        self._pending: list[Offer] = []
        self._told_to = journal.state.next_index
        self._tuned_by: dict[str, str] = {}
        self._lost: ShardError | None = None
        self._stopping = threading.Event()
        self._rested = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lane", daemon=True)

    # -- for everybody -----------------------------------------------------------------------

    @property
    def state(self) -> LaneState:
        """What the order amounts to."""
        return self._journal.state

    @property
    def lost(self) -> ShardError | None:
        """Why the lane has stopped everything; None while all is well."""
        return self._lost

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs and no effect is under way."""
        return self._fleet.at_rest

    def check_fence(self) -> None:
        """Make sure that no other runtime has taken over, by one look at the store.

        Raises:
            Fenced: One has.
            Determinate: The store did not answer.
            Indeterminate: The same.
        """
        self._journal.check_fence()

    def submit(self, producer: str, command: LaneCommand, sequence: int | None = None) -> int:
        """Give `command` its position and return it; waits for the store, not for effects.

        A store that does not answer delays commands, and loses and reorders none.

        Args:
            producer: Who asks; any name but "lane".
            command: What.
            sequence: Its number among those of the producer, greater than all before; a repeated
                one has no effect and gets the position of the first, or that of the newest record
                if the first is kept no more. None takes the next one.

        Raises:
            InvalidUsage: The lane was stopped; or nothing renders such an object; or this runtime
                only follows another one, and the command would change something.
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
        """As `submit`, but does not wait for the store; waits for room if told to.

        Returns:
            What will give the position, or raise what `submit` raises.

        Raises:
            Determinate: `LANE_FULL`: too many commands wait, and this one shall not.
        """
        assert producer != LANE, command
        return self._intake.offer(producer, self._sized(command), sequence, wait=wait)

    def report(self, observation: Observation) -> None:
        """Take what a running object tells; the lane only cares for its end and its hydration.

        Returns at once, in any thread, and never raises.
        """
        if isinstance(observation, Failed | Hydrated | Ended):
            self._intake.report(observation)

    def start(self) -> None:
        """Start the lane's thread, and with it all that shall run."""
        self._thread.start()

    def stop(self, timeout_ms: float = 60_000) -> bool:
        """Stop all that runs, without dropping it, and let go of the order.

        Returns:
            Whether everything has stopped; what has not by `timeout_ms` ends with the process.
        """
        self._stopping.set()
        self._intake.wake.set()
        rested = True
        if self._thread.ident is not None:
            rested = self._clock.wait(self._rested, timeout_ms)
        self._journal.close()
        self._starts.close()
        self._stops.close()
        return rested

    # -- the lane's thread -------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._is_ending() and self._fleet.at_rest):
            self._clock.wait(self._intake.wake, self._settings.tick_ms)
            try:
                self.step()
            except Exception as error:  # noqa: BLE001 - it is told to everybody
                # A lane that died in silence would leave everything running and nothing movable.
                _log.error("the lane has failed", exc_info=error)
                self._lose(_as_told(error))
        self._rested.set()

    def step(self) -> None:
        """One round. Called by the lane's own thread, or by a simulation in its place."""
        self._intake.wake.clear()
        now_ms = self._clock.now_ms()
        done, reports = self._intake.take()
        for completion in done:
            self._take_completion(completion, now_ms)
        for report in reports:
            self._take_report(report, now_ms)
        if self._stopping.is_set():
            self._refuse_all(_stopped())
        if not self._is_ending():
            self._advance_order()
        self._tune()
        self._fleet.want(self.state.objects)
        self._allow_writes()
        # A life that the order does not know of yet must not begin: its number could come twice.
        starts: Starts = "held" if self._own else "allowed"
        for effect in self._fleet.advance(now_ms, starts):
            self._hand_out(effect)
        self._tell(now_ms)

    def _tune(self) -> None:
        """Take over what the order says of the lane's own settings."""
        said = self.state.settings
        if said == self._tuned_by:
            return
        self._tuned_by = said
        try:
            self._fleet.settings = tuned(self._settings, LANE_KNOBS, said)
        except InvalidUsage as error:
            # Another version has recorded it; what was in force stays.
            _log.warning("settings not taken", extra={"context": {"error": str(error)}})

    def _is_ending(self) -> bool:
        return self._stopping.is_set() or self._lost is not None

    # completions and reports

    def _take_completion(self, done: Done, now_ms: int) -> None:
        error = f"{type(done.error).__name__}: {done.error}" if done.error is not None else ""
        match done.effect:
            case Start(incarnation) if done.running is not None:
                self._running[incarnation.id, incarnation.epoch] = done.running
                self._fleet.started(incarnation.id, incarnation.epoch, now_ms)
            case Start(incarnation):
                self._fleet.start_failed(incarnation.id, incarnation.epoch, error, now_ms)
            case Stop(incarnation) if done.error is not None:
                self._fleet.stop_failed(incarnation.id, incarnation.epoch, error, now_ms)
            case Stop(incarnation):
                self._running.pop((incarnation.id, incarnation.epoch), None)
                self._fleet.stopped(incarnation.id, incarnation.epoch, now_ms)
            case Forget(name, life):
                self._fleet.forgotten(name, life)
        if isinstance(done.error, Fenced):
            self._look_for_fence()

    def _take_report(self, report: Report, now_ms: int) -> None:
        match report:
            case Failed():
                self._fleet.failed(report.id, report.epoch, report.error, now_ms)
                if report.fenced:
                    self._look_for_fence()
            case Hydrated():
                self._fleet.hydrated(report.id, report.epoch, now_ms)
            case Ended():
                self._fleet.ended(report.id, report.epoch)

    def _look_for_fence(self) -> None:
        """Somebody was fenced: by another runtime, or only by a later life of the same object."""
        try:
            self._journal.check_fence()
        except Fenced as error:
            self._lose(error)
        except (Determinate, Indeterminate) as error:
            _log.warning("no look at the fence", extra={"context": {"error": str(error)}})

    # the order

    def _advance_order(self) -> None:
        try:
            if self._journal.role == "follower":
                self._follow()
            else:
                self._journal.keep()
                self._append()
        except Fenced as error:
            self._lose(error)
        except (Determinate, Indeterminate) as error:
            # Nothing is lost: `_pending` and `_own` go first when the store answers again.
            _log.warning("the order does not go on", extra={"context": {"error": str(error)}})

    def _append(self) -> None:
        """Put what is offered, and what the fleet has to say, in order; or keep it for later."""
        self._own += self._fleet.take_commands()
        free = max(self._settings.group_max - len(self._pending), 0)
        offers = [*self._pending, *self._intake.take_offers(free)]
        mine = [Offer(LANE, None, command, Future()) for command in self._own]
        submissions = self._numbered([*offers, *mine])
        # A number, once given, makes it harmless to try again.
        numbered = zip(offers, submissions, strict=False)
        self._pending = [replace(offer, sequence=s.sequence) for offer, s in numbered]
        self._journal.append(submissions)
        done, self._pending, self._own = self._pending, [], []
        for offer in done:
            assert offer.sequence is not None, offer
            place = self._journal.position(offer.producer, offer.sequence)
            self._intake.answer(offer, self._newest() if place is None else place)

    def _numbered(self, offers: Sequence[Offer]) -> list[Submission]:
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
        """Take in what the holder has added; become the holder if that is what is asked for."""
        # The order does not record the lives of a follower's own objects.
        self._fleet.take_commands()
        self._journal.poll()
        for offer in self._pending or self._intake.take_offers(1):
            self._pending = []
            if isinstance(offer.command, AllowWrites):
                self._pending = [offer]
                self._promote()
                self._append()
            elif would_change(self.state, offer.command):
                self._intake.refuse([offer], _read_only(offer.command))
            else:
                self._intake.answer(offer, self._newest())

    def _promote(self) -> None:
        self._journal.take_over("by-force", self._fleet.epochs())
        self._fleet.want(self.state.objects)
        self._fleet.adopt()
        _log.info("the lane was taken over", extra={"context": {"epoch": self.state.epoch}})

    # effects

    def _hand_out(self, effect: Effect) -> None:
        pool = self._starts if isinstance(effect, Start) else self._stops
        running = None
        if isinstance(effect, Stop):
            running = self._running[effect.incarnation.id, effect.incarnation.epoch]
        pool.run(lambda: self._intake.done(self._carry_out(effect, running)))

    def _carry_out(self, effect: Effect, running: Running | None) -> Done:
        """Run an effect, in a pool's thread: what became of it."""
        try:
            match effect:
                case Start() if self._is_ending():
                    return Done(effect, error=self._lost or _stopped())
                case Start(incarnation, description):
                    host = self._host_of(kind_of(description))
                    render = self._renderers[type(description)]
                    return Done(effect, render(host, incarnation, description))
                case Stop():
                    assert running is not None, effect
                    running.stop()
                case Forget(dropped=dropped):
                    # It may delete what is shared, which is the holder's to do.
                    self._journal.check_fence()
                    self._forget(dropped)
        except Exception as error:  # noqa: BLE001 - whatever it is, the object has failed by it
            context = {"effect": type(effect).__name__, "error": repr(error)}
            _log.warning("an effect failed", exc_info=error, extra={"context": context})
            return Done(effect, error=error)
        return Done(effect)

    def _allow_writes(self) -> None:
        if self._journal.role == "holder" and self._lost is None:
            for kind in self.state.writes:
                self._host_of(kind).writes.set()

    # the end

    def _lose(self, error: ShardError) -> None:
        self._refuse_all(error)
        if self._lost is None:
            self._lost = error
            _log.error("everything is stopped", extra={"context": {"error": str(error)}})
            if self._observer is not None:
                self._observer.on_end(error)

    def _refuse_all(self, error: ShardError) -> None:
        self._fleet.halt()
        self._intake.close(error)
        pending, self._pending = self._pending, []
        self._intake.refuse(pending, error)

    # telling

    def _tell(self, now_ms: int) -> None:
        for late in self._fleet.take_overdue(now_ms):
            context = {"id": late.id, "phase": late.phase}
            _log.error("a start or stop takes too long", extra={"context": context})
        first, self._told_to = self._told_to, self.state.next_index
        changes = self._fleet.take_changes()
        if self._observer is not None:
            for record in self._journal.records(first) if first < self._told_to else []:
                self._observer.on_record(record)
            for change in changes:
                self._observer.on_phase(change)

    # what is offered

    def _sized(self, command: LaneCommand) -> LaneCommand:
        """A creation with the number of operators that it needs, decided before it is recorded.

        Raises:
            InvalidUsage: Nothing renders such an object.
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


def _as_told(error: Exception) -> ShardError:
    """An error as producers get it; one of our own mistakes may have any class."""
    if isinstance(error, ShardError):
        return error
    return Indeterminate(f"the lane has failed: {error!r}", code="LANE_FAILED")


def _stopped() -> InvalidUsage:
    return InvalidUsage("the lane was stopped", code="LANE_STOPPED", hint="start the runtime anew")


def _read_only(command: LaneCommand) -> InvalidUsage:
    return InvalidUsage(
        f"this runtime follows another one and cannot record {type(command).__name__}",
        code="READ_ONLY_RUNTIME",
        hint="allow it to write first (AllowWrites), which stops the other one",
    )
