"""The process state compares the objects that should run with those that do, and picks effects.

    here.want(state.objects, paused)   the desired objects, and which of them are not to run
    here.started(id, epoch, now_ms)    the outcome of an effect, or a report of what runs
    here.advance(now_ms)               the effects that are due now

Commands come faster than Spark starts and stops queries. If each were carried out as it comes, a
storm of creations and drops would queue up, and a restart could bring back what a drop has removed
meanwhile. So nothing is carried out by command: each `advance` compares the desired objects with
what runs now, and the commands in between cost nothing. No I/O, no threads, no clock: a simulation
calls it as the lane does.

Steps of an object in this process:

    idle --> starting --> running --> stopping --> idle     one incarnation, then perhaps the next
    idle --> forgetting --> gone                            dropped, and not for a successor: what
                                                            it has left is removed
             forgetting --> idle                            the store did not answer: after a pause
                          running --> stopping --> ended    finished: there is nothing more to do

An idle object that should run waits for the end of its pause after a failure, or for a free
hydration slot. One that a person has paused is stopped and stays idle until it is resumed. A start
that a person has asked for (`LaneObject.asked`) does not wait out the pause after a failure.

Invariants:
    At most one effect of an object is under way; so at most one incarnation of it runs.
    An incarnation starts only when the one before has stopped: a stop that fails is repeated.
    Epochs of one object grow with each start, also where the order does not record restarts.
    Completions and reports of another epoch than the present one have no effect.
    At most `hydration_concurrency` compute objects hydrate at a time, first come, first served;
    one that stops, or has taken longer than `hydration_patience_ms`, frees its slot.
    While an object is paused nothing of it starts; what ran is stopped, and nothing of it is
    removed.
    A follower starts no transient object: those are of the holder's connections.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from shardline.app.execution.host import Incarnation
from shardline.app.lane.commands import Dropped, Kind, LaneCommand, SuspendAndRestart, is_transient
from shardline.app.lane.settings import LaneSettings
from shardline.app.lane.state import LaneObject
from shardline.app.protocol.object_state import Phase, Step
from shardline.app.protocol.objects import Description
from shardline.datasource.waiting import RetryPolicy

__all__ = [
    "CleanUp",
    "Effect",
    "PhaseChange",
    "ProcessState",
    "RestartOn",
    "Start",
    "StartPermission",
    "Stop",
]

RestartOn: TypeAlias = Literal["lives", "definitions"]
"""What makes a running object start anew: each new epoch in the order ("lives", for the holder), or
only a new definition ("definitions", for a follower: the order's epochs are the holder's)."""

StartPermission: TypeAlias = Literal["allowed", "held"]
"""Held: no object is started for now; stops and clean-ups go on."""


@dataclass(frozen=True, slots=True)
class Start:
    """The effect of starting an object."""

    incarnation: Incarnation
    description: Description


@dataclass(frozen=True, slots=True)
class Stop:
    """The effect of stopping an incarnation."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class CleanUp:
    """The effect of removing what a dropped object has left; `life` is the epoch of the drop."""

    id: str
    life: int
    dropped: LaneObject


Effect: TypeAlias = Start | Stop | CleanUp


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """An object has entered a phase.

    Attributes:
        id: The object's name.
        kind: The controller that it belongs to.
        phase: The phase.
        incarnation: The present or last incarnation; None if it had none in this process yet.
        description: The description of that incarnation; None as well.
        at_ms: Time of the change; for observers, ms since the epoch.
        error: The reason, if something is wrong; "" otherwise.
        failures: Failures in a row.
        retry_at_ms: When a suspended object is started again; None for any other.
        global_id: The object's. A name may have been taken again when its former object's `dropped`
            is heard of.
    """

    id: str
    kind: Kind
    phase: Phase
    incarnation: Incarnation | None
    description: Description | None
    at_ms: int
    error: str = ""
    failures: int = 0
    retry_at_ms: int | None = None
    global_id: str = ""

    def moved_by(self, ms: int) -> PhaseChange:
        """The same change by another clock."""
        retry = None if self.retry_at_ms is None else self.retry_at_ms + ms
        return replace(self, at_ms=self.at_ms + ms, retry_at_ms=retry)


@dataclass(slots=True)
class _Slot:
    """One object in this process.

    Attributes:
        global_id: Its id by the order, the last one that was seen there.
        step: Its step; see the module.
        incarnation: The present or last incarnation.
        description: The description of that incarnation.
        life: Epoch of the order that the present incarnation satisfies. Not always the
            incarnation's own: a follower counts restarts that the order does not know of.
        last_epoch: Epoch of the last incarnation here.
        failing: True if the present incarnation has failed, and is to end.
        finished: True if the present incarnation has nothing more to do.
        hydrated: True if the present incarnation has hydrated.
        failures: Failures in a row; decides how long the next pause is.
        running_since_ms: When the start of the present incarnation had succeeded.
        entered_ms: When it entered its step.
        overdue: True if it was logged that the step takes too long.
        due_ms: The next incarnation starts no earlier.
        stop_again_ms: When a stop that has failed is repeated; None while a stop is under way.
        clean_up_again_ms: When a clean-up that has failed is repeated; None if none has.
        cleaned_up: Global id and epoch of the object whose clean-up was handed out last.
        ticket: Its place in the queue of starts; None while it is not in it.
        turn_until_ms: Until when it counts as hydrating, at most; None if it does not count.
        reported_phase: The phase that was reported last.
        paused_as: Number of the dataflow that was reported as paused; None if none was.
    """

    kind: Kind
    global_id: str = ""
    step: Step = "idle"
    incarnation: Incarnation | None = None
    description: Description | None = None
    life: int = 0
    last_epoch: int = 0
    failing: bool = False
    finished: bool = False
    hydrated: bool = False
    failures: int = 0
    running_since_ms: int = 0
    entered_ms: int = 0
    overdue: bool = False
    due_ms: int = 0
    stop_again_ms: int | None = None
    clean_up_again_ms: int | None = None
    cleaned_up: tuple[str, int] = "", 0
    ticket: int | None = None
    turn_until_ms: int | None = None
    reported_phase: Phase | None = None
    paused_as: int | None = None


@dataclass(slots=True)
class ProcessState:
    """All objects of this process; used by one thread.

    Attributes:
        settings: Of the lane; may be replaced at any time.
        jitter: Returns a random number in [0, 1), for pauses.
        restart_on: What makes a running object start anew.
    """

    settings: LaneSettings
    jitter: Callable[[], float]
    restart_on: RestartOn = "lives"
    _desired: Mapping[str, LaneObject] = field(default_factory=dict)
    _paused: Collection[str] = ()
    _slots: dict[str, _Slot] = field(default_factory=dict)
    _halted: bool = False
    _tickets: Iterator[int] = field(default_factory=itertools.count)
    _changes: list[PhaseChange] = field(default_factory=list)
    _commands: list[LaneCommand] = field(default_factory=list)

    # -- the desired objects -----------------------------------------------------------------

    def want(self, objects: Mapping[str, LaneObject], paused: Collection[str] = ()) -> None:
        """Set the desired objects, all of them; `advance` acts on it.

        Args:
            objects: By name.
            paused: Names of those that are not to run until they are resumed.
        """
        self._desired, self._paused = objects, paused

    def halt(self) -> None:
        """Stop all that runs, and start nothing any more; nothing is dropped. There is no way back.

        The lane has stopped or was fenced: another runtime may run these objects already.
        """
        self._halted = True

    def adopt(self) -> None:
        """Count what runs as the order's present epochs, and follow each new epoch from here.

        A follower becomes the holder by this, without a stop. `want` must have been called with
        the state after the take-over: an epoch that is adopted before would be an old one, and
        everything would restart.
        """
        self.restart_on = "lives"
        for name, slot in self._slots.items():
            known = self._desired.get(name)
            if known is not None:
                # `incarnation` and `last_epoch` stay: reports come with the epoch that runs.
                slot.life = known.epoch

    # -- questions ---------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """True if nothing runs and no effect is under way."""
        return all(slot.step in {"idle", "ended", "gone"} for slot in self._slots.values())

    def epochs(self) -> dict[str, int]:
        """The last epoch of each object that has had an incarnation in this process."""
        return {name: slot.last_epoch for name, slot in self._slots.items() if slot.last_epoch}

    def take_changes(self) -> list[PhaseChange]:
        """Take the phases entered since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def take_commands(self) -> list[LaneCommand]:
        """Take the commands that what happened here leads to, since the last call, in order."""
        commands, self._commands = self._commands, []
        return commands

    def take_overdue(self, now_ms: int) -> list[PhaseChange]:
        """Take the starts and stops that have taken too long by now; each is returned once."""
        found = []
        for name, slot in self._slots.items():
            late = now_ms - slot.entered_ms > self.settings.stuck_ms
            if late and not slot.overdue and slot.step in {"starting", "stopping"}:
                slot.overdue = True
                phase: Phase = "starting" if slot.step == "starting" else "stopping"
                found.append(_change(name, slot, phase, now_ms))
        return found

    # -- completions and reports -------------------------------------------------------------

    # What runs reports from threads of its own, so its reports may overtake the completion of its
    # start: a failure or hydration counts while the object is still `starting`.

    def started(self, name: str, epoch: int, now_ms: int) -> None:
        """Take the completion of a start that has succeeded."""
        slot = self._current_slot(name, epoch, "starting")
        if slot is not None:
            slot.running_since_ms = now_ms
            self._enter(slot, "running", now_ms)
            self._report_phase(name, slot, "running", now_ms)
            if slot.hydrated:
                # Reported earlier, and kept back: observers see `running` first.
                self._report_phase(name, slot, "hydrated", now_ms)

    def on_start_failed(self, name: str, epoch: int, error: str, now_ms: int) -> None:
        """Take the completion of a start that has failed: nothing of it runs."""
        slot = self._current_slot(name, epoch, "starting")
        if slot is not None:
            if not slot.failing:
                # Otherwise it has reported the same failure itself; noted twice, it would be
                # restarted twice, and its pause would grow twice.
                self._note_failure(name, slot, error, now_ms)
            self._end_incarnation(name, slot, now_ms, error)

    def on_stopped(self, name: str, epoch: int, now_ms: int) -> None:
        """Take the completion of a stop: nothing of this incarnation commits any more."""
        slot = self._current_slot(name, epoch, "stopping")
        if slot is not None:
            self._end_incarnation(name, slot, now_ms, "")

    def on_stop_failed(self, name: str, epoch: int, error: str, now_ms: int) -> None:
        """Take the completion of a stop that has raised: it is repeated after a pause."""
        slot = self._current_slot(name, epoch, "stopping")
        if slot is not None:
            # It stays in `stopping`, however often: something of it may still commit, and a next
            # incarnation beside it would be two writers of one object.
            slot.failures += 1
            slot.stop_again_ms = now_ms + self._pause_ms(slot)
            self._report_phase(name, slot, "stopping", now_ms, error)

    def forgotten(self, name: str, life: int) -> None:
        """Take the completion of the removal of what a dropped object has left."""
        slot = self._slots.get(name)
        if slot is not None and slot.step == "forgetting":
            # Not `idle`: until `Dropped` is recorded the object is still `dropping` in the order,
            # and would be forgotten again, and `Dropped` recorded again, in each round.
            slot.step = "gone"
            self._commands.append(Dropped(name, life, slot.cleaned_up[0]))

    def on_cleanup_failed(self, name: str, now_ms: int) -> None:
        """Take the completion of a clean-up that the store did not answer: it is repeated."""
        slot = self._slots.get(name)
        if slot is not None and slot.step == "forgetting":
            # Not `Dropped` yet: nobody would look for the object's holds again, and one that is
            # left behind keeps the history of an input for ever. `idle`, since a process that ends
            # need not wait for the repetition: the next holder of the order does it.
            slot.step = "idle"
            slot.failures += 1
            slot.clean_up_again_ms = now_ms + self._pause_ms(slot)

    def failed(self, name: str, epoch: int, error: str, now_ms: int) -> None:
        """Take the report that an incarnation has ended by an error."""
        slot = self._current_slot(name, epoch, "starting", "running")
        if slot is None or slot.failing:
            return
        # Before the failure is counted, or the first one after a long run would get a long pause.
        if slot.step == "running" and now_ms - slot.running_since_ms >= self.settings.healthy_ms:
            slot.failures = 0
        slot.failing = True
        self._note_failure(name, slot, error, now_ms)

    def hydrated(self, name: str, epoch: int, now_ms: int) -> None:
        """Take the report that an incarnation has hydrated: its hydration slot is free."""
        slot = self._current_slot(name, epoch, "starting", "running")
        if slot is not None:
            slot.turn_until_ms, slot.hydrated = None, True
            if slot.step == "running":
                self._report_phase(name, slot, "hydrated", now_ms)

    def ended(self, name: str, epoch: int) -> None:
        """Take the report that an incarnation has nothing more to do, ever."""
        slot = self._current_slot(name, epoch, "starting", "running")
        if slot is not None:
            # Not stopped here: all ends go through `stopping`, the one way out of `running`.
            slot.finished = True

    # -- effects -----------------------------------------------------------------------------

    def advance(self, now_ms: int, starts: StartPermission = "allowed") -> list[Effect]:
        """Decide which effects are due, stops first; each must be answered by its completion."""
        for name, known in self._desired.items():
            if name not in self._slots:
                self._slots[name] = _Slot(known.kind, entered_ms=now_ms)
            self._slots[name].global_id = known.global_id
        # The three passes are lists, not one lazy chain, and in this order. Stops free hydration
        # slots, which starts take in the same round. Last of all starts: a name that the clean-ups
        # have made free is not to be looked at again.
        stops = [e for name in list(self._slots) for e in self._due_stops(name, now_ms)]
        ready = [e for name in list(self._slots) for e in self._due_cleanups(name, now_ms)]
        return [*stops, *ready, *(self._due_starts(now_ms) if starts == "allowed" else [])]

    def _due_stops(self, name: str, now_ms: int) -> Iterator[Effect]:
        """The stop of an object whose incarnation is to end, or whose stop is to be repeated."""
        slot, known = self._slots[name], self._desired.get(name)
        again_ms = slot.stop_again_ms if slot.step == "stopping" else None
        if again_ms is not None and again_ms <= now_ms:
            assert slot.incarnation is not None, slot
            # None while the stop is under way, or the next round would hand out a second one.
            slot.stop_again_ms = None
            yield Stop(slot.incarnation)
        over = self._halted or slot.failing or slot.finished or name in self._paused
        over = over or not self._is_present(slot, known)
        # An object that is `starting` is not stopped: there is nothing to call `stop` on yet. When
        # its start is done, this is looked at again.
        if slot.step == "running" and over:
            assert slot.incarnation is not None, slot
            slot.turn_until_ms = None
            self._enter(slot, "stopping", now_ms)
            self._report_phase(name, slot, "stopping", now_ms)
            yield Stop(slot.incarnation)

    def _is_present(self, slot: _Slot, known: LaneObject | None) -> bool:
        """True if the present incarnation is the one that should run."""
        if known is None or known.life != "live" or slot.incarnation is None:
            return False
        # Numbers, not descriptions: an object that was dropped and created again with the same
        # description is another one, with a checkpoint of its own.
        same = slot.incarnation.dataflow == known.dataflow
        same = same and slot.incarnation.global_id == known.global_id
        return same and (self.restart_on == "definitions" or known.epoch <= slot.life)

    def _due_cleanups(self, name: str, now_ms: int) -> Iterator[Effect]:
        """The clean-up of an object of which nothing runs; leads it back to `idle` if it may."""
        slot, known = self._slots[name], self._desired.get(name)
        if slot.step == "ended" and (name in self._paused or not self._is_present(slot, known)):
            slot.step, slot.finished = "idle", False
        # Created again, which nothing else would lead out of `gone`: before its `Dropped` was
        # recorded, which then has no effect, or in the round that has found it recorded, so that
        # the order was never seen without the name. In the one case the epoch is another, in the
        # other the global id: epochs of the new object begin at 1 again.
        if slot.step == "gone" and known is not None and slot.cleaned_up != _life_of(known):
            slot.step = "idle"
        if slot.step not in {"idle", "gone"}:
            return
        if known is None:
            self._report_phase(name, slot, "dropped", now_ms)
            del self._slots[name]
        # Nothing of one that is replaced is removed: its successor has taken holds by that name
        # already, and whether one comes after all is for controllers to say.
        elif known.life == "dropping" and not known.replaced and self._may_remove(slot):
            if slot.clean_up_again_ms is not None and now_ms < slot.clean_up_again_ms:
                return
            slot.ticket = slot.clean_up_again_ms = None
            slot.cleaned_up = _life_of(known)
            self._enter(slot, "forgetting", now_ms)
            yield CleanUp(name, known.epoch, known)

    def _may_remove(self, slot: _Slot) -> bool:
        """True if what an object has left may be removed here: this process must hold the order."""
        return slot.step == "idle" and self.restart_on == "lives" and not self._halted

    def _due_starts(self, now_ms: int) -> Iterator[Effect]:
        """Starts, in the order in which the objects became ready."""
        if self._halted:
            return
        ready: list[tuple[int, str, _Slot]] = []
        for name, slot in self._slots.items():
            # None of one that still stops here when its drop is done elsewhere: a follower's.
            known = self._desired.get(name)
            if slot.step != "idle" or known is None or not self._is_to_run(known):
                continue
            if name in self._paused:
                self._rest(name, slot, now_ms)
                continue
            if self._is_fresh_start(slot, known):
                slot.due_ms, slot.failures = 0, 0
            if now_ms < slot.due_ms:
                self._report_phase(name, slot, "suspended", now_ms)
                continue
            # Once only: with a new ticket in each round, late ones could overtake it for ever.
            slot.ticket = next(self._tickets) if slot.ticket is None else slot.ticket
            ready.append((slot.ticket, name, slot))
        turns = self.settings.hydration_concurrency - self._hydration_slots_taken(now_ms)
        for _, name, slot in sorted(ready, key=lambda r: r[0]):
            if self._needs_hydration_slot(self._desired[name]):
                if turns <= 0:
                    self._report_phase(name, slot, "waiting", now_ms)
                    # Not `break`: sources and subscriptions behind it need no slot, and a source
                    # may be what those wait for that have one.
                    continue
                turns -= 1
                # With a limit in time: its input may be a view that waits for a slot itself.
                slot.turn_until_ms = now_ms + self.settings.hydration_patience_ms
            yield self._start(name, slot, now_ms)

    def _is_to_run(self, known: LaneObject) -> bool:
        """True if the object is wanted, and not of a connection of another runtime.

        Its client is not here, and it is dropped when another runtime takes the order over: started
        here it would keep leases and rows for nobody. A holder removes what it has left; a follower
        would keep one for each subscription that there ever was.
        """
        of_another = self.restart_on == "definitions" and is_transient(known.description)
        return known.life == "live" and not of_another

    def _rest(self, name: str, slot: _Slot, now_ms: int) -> None:
        """Keep a paused object idle, and report once that it is paused."""
        # Without its ticket: when it is resumed, those that waited meanwhile go first.
        slot.ticket = None
        dataflow = self._desired[name].dataflow
        if slot.reported_phase == "paused" and slot.paused_as == dataflow:
            return
        # Again for another definition: to observers it is another object, which begins as created.
        slot.reported_phase, slot.paused_as = "paused", dataflow
        # Without the last incarnation: it may be of an older definition, or of another process.
        self._changes.append(
            PhaseChange(name, slot.kind, "paused", None, None, now_ms, global_id=slot.global_id)
        )

    @staticmethod
    def _is_fresh_start(slot: _Slot, known: LaneObject) -> bool:
        """True if the next incarnation need not wait out the pause of the last one."""
        # Another definition has not failed yet: who corrects a view need not wait. Nor need who
        # asks for a start. Only for that one start, though: `life` is then the epoch asked for.
        other = slot.incarnation is not None and slot.incarnation.dataflow != known.dataflow
        return other or slot.life < known.asked

    def _start(self, name: str, slot: _Slot, now_ms: int) -> Start:
        """The start of the next incarnation; resets all that the slot knows of the last one."""
        known = self._desired[name]
        # The order's epoch alone would do for a holder. A follower's restarts are not recorded,
        # and two incarnations with one epoch could not tell their reports apart.
        epoch = max(known.epoch, slot.last_epoch + 1)
        numbers = known.dataflow, epoch, known.operators
        incarnation = Incarnation(
            name, known.global_id, *numbers, known.as_of, known.former_sources
        )
        slot.incarnation, slot.life, slot.last_epoch = incarnation, known.epoch, epoch
        slot.kind, slot.ticket, slot.stop_again_ms = known.kind, None, None
        slot.description = known.description
        # `failures` stays: only a run of `healthy_ms` or another definition ends the row.
        slot.failing = slot.finished = slot.hydrated = False
        self._enter(slot, "starting", now_ms)
        self._report_phase(name, slot, "starting", now_ms)
        return Start(incarnation, known.description)

    @staticmethod
    def _needs_hydration_slot(known: LaneObject) -> bool:
        """True if it counts as hydrating: views and indexes; a subscription's client waits."""
        return known.kind == "compute" and not is_transient(known.description)

    def _hydration_slots_taken(self, now_ms: int) -> int:
        return sum(
            slot.turn_until_ms is not None and now_ms < slot.turn_until_ms
            for slot in self._slots.values()
        )

    # -- bookkeeping -------------------------------------------------------------------------

    def _current_slot(self, name: str, epoch: int, *steps: Step) -> _Slot | None:
        """The object's slot, if `epoch` is that of its incarnation and it is in one of `steps`.

        Everything from outside passes through here: a late report of an incarnation that has ended
        must not fail or hydrate the next one.
        """
        slot = self._slots.get(name)
        if slot is None or slot.incarnation is None or slot.incarnation.epoch != epoch:
            return None
        return slot if slot.step in steps else None

    def _note_failure(self, name: str, slot: _Slot, error: str, now_ms: int) -> None:
        """Count a failure, set the pause after it, and have the restart recorded."""
        slot.failures += 1
        slot.due_ms = now_ms + self._pause_ms(slot)
        # The greater of the two: after a take-over what runs has an epoch below the order's, and
        # the order ignores a restart of an epoch that is over.
        assert slot.incarnation is not None, slot
        epoch, global_id = max(slot.last_epoch, slot.life), slot.incarnation.global_id
        self._commands.append(SuspendAndRestart(name, epoch, error or "it has failed", global_id))

    def _end_incarnation(self, name: str, slot: _Slot, now_ms: int, error: str) -> None:
        """Note that nothing of the object runs any more."""
        slot.turn_until_ms, slot.failing = None, False
        # An object that has finished an older definition is to start with the new one.
        ended = slot.finished and self._is_present(slot, self._desired.get(name))
        self._enter(slot, "ended" if ended else "idle", now_ms)
        self._report_phase(name, slot, "ended" if ended else "stopped", now_ms, error)

    def _pause_ms(self, slot: _Slot) -> int:
        """The pause after a failure: doubles with each in a row, times 0.5 to 1.5 at random."""
        # With jitter: objects that fail together, by one broken input, must not come back together.
        chosen = self.settings
        policy = RetryPolicy(first_ms=chosen.restart_base_ms, longest_ms=chosen.restart_max_ms)
        return round(policy.pause_ms(slot.failures, self.jitter()))

    @staticmethod
    def _enter(slot: _Slot, step: Step, now_ms: int) -> None:
        slot.step, slot.entered_ms, slot.overdue = step, now_ms, False

    def _report_phase(
        self, name: str, slot: _Slot, phase: Phase, now_ms: int, error: str = ""
    ) -> None:
        """Report a phase, once: `advance` finds the same `waiting` in every round."""
        if slot.reported_phase != phase or error:
            slot.reported_phase = phase
            self._changes.append(_change(name, slot, phase, now_ms, error))


def _life_of(known: LaneObject) -> tuple[str, int]:
    """The identity of an object's life by the order: no two lives share both."""
    return known.global_id, known.epoch


def _change(name: str, slot: _Slot, phase: Phase, now_ms: int, error: str = "") -> PhaseChange:
    return PhaseChange(
        name,
        slot.kind,
        phase,
        slot.incarnation,
        slot.description,
        now_ms,
        error,
        slot.failures,
        slot.due_ms if phase == "suspended" else None,
        slot.global_id,
    )
