"""What runs in this process, and what is to be started, stopped or forgotten next; no I/O.

    fleet.want(state.objects)          what the order says there shall be
    fleet.started(id, epoch, now_ms)   what has become of an effect, or is reported by what runs
    fleet.advance(now_ms)              the effects that are due now

The order says what is wanted, not what to do: each `advance` compares that with what runs. So a
storm of creations and drops costs what its end is worth, and a start is decided by what is wanted
at that moment: a restart that a drop has overtaken never happens.

Phases of an object, in this process:

    idle --> starting --> running --> stopping --> idle        a life; `idle` also waits for the end
    idle --> forgetting --> gone                               of a pause, or for its turn
                          running --> stopping --> ended       its work is done, for ever

Invariants:
    At most one effect of an object is under way; so at most one life of it runs.
    A life is started only when the one before has stopped: a stop that fails is repeated.
    Epochs of one object grow with each start, also where the order does not record restarts.
    Completions and reports of another epoch than the present one have no effect.
    At most `hydration_concurrency` compute objects catch up at a time, first come, first served;
    one that stops, or has had its patience's worth, gives its turn back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from shardline.app.execution.host import Incarnation
from shardline.app.lane.commands import Dropped, Kind, LaneCommand, SuspendAndRestart, is_transient
from shardline.app.lane.settings import LaneSettings
from shardline.app.lane.state import LaneObject
from shardline.app.protocol.objects import Description

__all__ = [
    "Effect",
    "Fleet",
    "Following",
    "Forget",
    "Phase",
    "PhaseChange",
    "Start",
    "Starts",
    "Stop",
]

Phase: TypeAlias = Literal[
    "waiting",
    "suspended",
    "starting",
    "running",
    "hydrated",
    "stopping",
    "stopped",
    "ended",
    "dropped",
]
"""What is told of an object: `waiting` for its turn, `suspended` for the pause after a failure."""

Following: TypeAlias = Literal["lives", "definitions"]
"""What of the order makes an object start anew: each new life in it, or only a new definition; the
lives of a runtime that another one only follows are not its own."""

Starts: TypeAlias = Literal["allowed", "held"]
"""Whether objects may be started at the moment; all else goes on."""

_Step: TypeAlias = Literal["idle", "starting", "running", "stopping", "ended", "forgetting", "gone"]


@dataclass(frozen=True, slots=True)
class Start:
    """Render an object."""

    incarnation: Incarnation
    description: Description


@dataclass(frozen=True, slots=True)
class Stop:
    """End what was rendered."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove what a dropped object has left on this machine. `life` is the one that was dropped."""

    id: str
    life: int
    dropped: LaneObject


Effect: TypeAlias = Start | Stop | Forget


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """An object has entered a phase.

    Attributes:
        id: Its name.
        kind: Whose it is.
        phase: Which.
        incarnation: The life that is meant; None if it had none in this process yet.
        description: What it is in that life; None as well.
        at_ms: When, ms since the epoch.
        error: Why, if something is wrong; "" otherwise.
    """

    id: str
    kind: Kind
    phase: Phase
    incarnation: Incarnation | None
    description: Description | None
    at_ms: int
    error: str = ""


@dataclass(slots=True)
class _Slot:
    """One object in this process.

    Attributes:
        life: Epoch in the order that the present life satisfies.
        last_epoch: Of the last life here.
        failing: Whether the present life has failed, and is to end.
        finished: Whether the present life has nothing more to do.
        hydrated: Whether the present life has caught up.
        failures: In a row; decides how long the next pause is.
        running_since_ms: When the present life had started.
        entered_ms: When it came to its step.
        overdue: Whether it has been told that the step takes too long.
        due_ms: The next life starts no earlier.
        stop_again_ms: When a stop that has failed is repeated.
        ticket: Its place in the queue for a turn; None while it does not wait for one.
        turn_until_ms: Until when it takes a turn, at most; None if it takes none.
        told: The last phase that was told.
    """

    kind: Kind
    step: _Step = "idle"
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
    ticket: int | None = None
    turn_until_ms: int | None = None
    told: Phase | None = None


@dataclass(slots=True)
class Fleet:
    """All objects of this process.

    Attributes:
        jitter: Numbers in [0, 1), for pauses.
        following: What makes an object start anew.
    """

    settings: LaneSettings
    jitter: Callable[[], float]
    following: Following = "lives"
    _wanted: Mapping[str, LaneObject] = field(default_factory=dict)
    _slots: dict[str, _Slot] = field(default_factory=dict)
    _halted: bool = False
    _tickets: Iterator[int] = field(default_factory=itertools.count)
    _changes: list[PhaseChange] = field(default_factory=list)
    _commands: list[LaneCommand] = field(default_factory=list)

    # -- what is wanted ----------------------------------------------------------------------

    def want(self, objects: Mapping[str, LaneObject]) -> None:
        """Say what there shall be, whole."""
        self._wanted = objects

    def halt(self) -> None:
        """Stop all that runs, and start nothing any more. It is not dropped."""
        self._halted = True

    def adopt(self) -> None:
        """Take what runs for the present lives of the order, and follow each new one from here."""
        self.following = "lives"
        for name, slot in self._slots.items():
            known = self._wanted.get(name)
            if known is not None:
                slot.life = known.epoch

    # -- what is known -----------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs and no effect is under way."""
        return all(slot.step in {"idle", "ended", "gone"} for slot in self._slots.values())

    def epochs(self) -> dict[str, int]:
        """The last epoch of each object that has had one here."""
        return {name: slot.last_epoch for name, slot in self._slots.items() if slot.last_epoch}

    def take_changes(self) -> list[PhaseChange]:
        """Phases entered since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def take_commands(self) -> list[LaneCommand]:
        """What is to be recorded of what has happened here since the last call, in order."""
        commands, self._commands = self._commands, []
        return commands

    def take_overdue(self, now_ms: int) -> list[PhaseChange]:
        """Starts and stops that have taken too long by now; each one is given once."""
        found = []
        for name, slot in self._slots.items():
            late = now_ms - slot.entered_ms > self.settings.stuck_ms
            if late and not slot.overdue and slot.step in {"starting", "stopping"}:
                slot.overdue = True
                phase: Phase = "starting" if slot.step == "starting" else "stopping"
                found.append(_change(name, slot, phase, now_ms))
        return found

    # -- what has happened -------------------------------------------------------------------

    def started(self, name: str, epoch: int, now_ms: int) -> None:
        """A start has succeeded."""
        slot = self._current(name, epoch, "starting")
        if slot is not None:
            slot.running_since_ms = now_ms
            self._enter(slot, "running", now_ms)
            self._tell(name, slot, "running", now_ms)
            if slot.hydrated:
                self._tell(name, slot, "hydrated", now_ms)

    def start_failed(self, name: str, epoch: int, error: str, now_ms: int) -> None:
        """A start has failed: nothing of it runs."""
        slot = self._current(name, epoch, "starting")
        if slot is not None:
            if not slot.failing:  # it may have told of the same failure itself
                self._note_failure(name, slot, error, now_ms)
            self._rest(name, slot, now_ms, error)

    def stopped(self, name: str, epoch: int, now_ms: int) -> None:
        """A stop has succeeded: nothing of this life commits any more."""
        slot = self._current(name, epoch, "stopping")
        if slot is not None:
            self._rest(name, slot, now_ms, "")

    def stop_failed(self, name: str, epoch: int, error: str, now_ms: int) -> None:
        """A stop has raised: nobody knows what still runs, so it is repeated."""
        slot = self._current(name, epoch, "stopping")
        if slot is not None:
            slot.failures += 1
            slot.stop_again_ms = now_ms + self._pause_ms(slot)
            self._tell(name, slot, "stopping", now_ms, error)

    def forgotten(self, name: str, life: int) -> None:
        """What a dropped object has left is gone."""
        slot = self._slots.get(name)
        if slot is not None and slot.step == "forgetting":
            slot.step = "gone"
            slot.life = life
            self._commands.append(Dropped(name, life))

    def failed(self, name: str, epoch: int, error: str, now_ms: int) -> None:
        """What runs has reported that it ended by an error."""
        slot = self._current(name, epoch, "starting", "running")
        if slot is None or slot.failing:
            return
        if slot.step == "running" and now_ms - slot.running_since_ms >= self.settings.healthy_ms:
            slot.failures = 0
        slot.failing = True
        self._note_failure(name, slot, error, now_ms)

    def hydrated(self, name: str, epoch: int, now_ms: int) -> None:
        """What runs has caught up."""
        slot = self._current(name, epoch, "starting", "running")
        if slot is not None:
            slot.turn_until_ms, slot.hydrated = None, True
            if slot.step == "running":
                self._tell(name, slot, "hydrated", now_ms)

    def ended(self, name: str, epoch: int) -> None:
        """What runs has nothing more to do, ever."""
        slot = self._current(name, epoch, "starting", "running")
        if slot is not None:
            slot.finished = True

    # -- what is due -------------------------------------------------------------------------

    def advance(self, now_ms: int, starts: Starts = "allowed") -> list[Effect]:
        """The effects that are due, stops first; each must be answered once it is done."""
        for name, known in self._wanted.items():
            if name not in self._slots:
                self._slots[name] = _Slot(known.kind, entered_ms=now_ms)
        stops = [e for name in list(self._slots) for e in self._ending(name, now_ms)]
        ready = [e for name in list(self._slots) for e in self._settled(name, now_ms)]
        return [*stops, *ready, *(self._starts(now_ms) if starts == "allowed" else [])]

    def _ending(self, name: str, now_ms: int) -> Iterator[Effect]:
        """The stop of an object whose life is to end."""
        slot, known = self._slots[name], self._wanted.get(name)
        again_ms = slot.stop_again_ms if slot.step == "stopping" else None
        if again_ms is not None and again_ms <= now_ms:
            assert slot.incarnation is not None, slot
            slot.stop_again_ms = None
            yield Stop(slot.incarnation)
        over = self._halted or slot.failing or slot.finished or not self._is_present(slot, known)
        if slot.step == "running" and over:
            assert slot.incarnation is not None, slot
            slot.turn_until_ms = None
            self._enter(slot, "stopping", now_ms)
            self._tell(name, slot, "stopping", now_ms)
            yield Stop(slot.incarnation)

    def _is_present(self, slot: _Slot, known: LaneObject | None) -> bool:
        """Whether what runs is what is wanted."""
        if known is None or known.life != "live" or slot.incarnation is None:
            return False
        same = slot.incarnation.dataflow == known.dataflow
        same = same and slot.incarnation.global_id == known.global_id
        return same and (self.following == "definitions" or known.epoch <= slot.life)

    def _settled(self, name: str, now_ms: int) -> Iterator[Effect]:
        """What becomes of an object of which nothing runs, other than a start."""
        slot, known = self._slots[name], self._wanted.get(name)
        if slot.step == "ended" and not self._is_present(slot, known):
            slot.step, slot.finished = "idle", False
        if slot.step == "gone" and known is not None and slot.life != known.epoch:
            slot.step = "idle"
        if slot.step not in {"idle", "gone"}:
            return
        if known is None:
            self._tell(name, slot, "dropped", now_ms)
            del self._slots[name]
        elif known.life == "dropping" and slot.step == "idle" and self._may_forget:
            slot.ticket = None
            self._enter(slot, "forgetting", now_ms)
            yield Forget(name, known.epoch, known)

    @property
    def _may_forget(self) -> bool:
        """Whether this process may remove what dropped objects leave: it must hold the order."""
        return self.following == "lives" and not self._halted

    def _starts(self, now_ms: int) -> Iterator[Effect]:
        """Starts, in the order in which the objects became ready."""
        if self._halted:
            return
        ready: list[tuple[int, str, _Slot]] = []
        for name, slot in self._slots.items():
            if slot.step != "idle" or self._wanted[name].life != "live":
                continue
            if slot.incarnation and slot.incarnation.dataflow != self._wanted[name].dataflow:
                # Another definition has not failed yet.
                slot.due_ms, slot.failures = 0, 0
            if now_ms < slot.due_ms:
                self._tell(name, slot, "suspended", now_ms)
                continue
            slot.ticket = next(self._tickets) if slot.ticket is None else slot.ticket
            ready.append((slot.ticket, name, slot))
        turns = self.settings.hydration_concurrency - self._turns_taken(now_ms)
        for _, name, slot in sorted(ready, key=lambda r: r[0]):
            if self._needs_turn(self._wanted[name]):
                if turns <= 0:
                    self._tell(name, slot, "waiting", now_ms)
                    continue
                turns -= 1
                slot.turn_until_ms = now_ms + self.settings.hydration_patience_ms
            yield self._start(name, slot, now_ms)

    def _start(self, name: str, slot: _Slot, now_ms: int) -> Start:
        known = self._wanted[name]
        epoch = max(known.epoch, slot.last_epoch + 1)
        incarnation = Incarnation(
            name, known.global_id, known.dataflow, epoch, known.operators, known.as_of
        )
        slot.incarnation, slot.life, slot.last_epoch = incarnation, known.epoch, epoch
        slot.kind, slot.ticket, slot.stop_again_ms = known.kind, None, None
        slot.description = known.description
        slot.failing = slot.finished = slot.hydrated = False
        self._enter(slot, "starting", now_ms)
        self._tell(name, slot, "starting", now_ms)
        return Start(incarnation, known.description)

    @staticmethod
    def _needs_turn(known: LaneObject) -> bool:
        return known.kind == "compute" and not is_transient(known.description)

    def _turns_taken(self, now_ms: int) -> int:
        return sum(
            slot.turn_until_ms is not None and now_ms < slot.turn_until_ms
            for slot in self._slots.values()
        )

    # -- bookkeeping -------------------------------------------------------------------------

    def _current(self, name: str, epoch: int, *steps: _Step) -> _Slot | None:
        slot = self._slots.get(name)
        if slot is None or slot.incarnation is None or slot.incarnation.epoch != epoch:
            return None
        return slot if slot.step in steps else None

    def _note_failure(self, name: str, slot: _Slot, error: str, now_ms: int) -> None:
        slot.failures += 1
        slot.due_ms = now_ms + self._pause_ms(slot)
        self._commands.append(
            SuspendAndRestart(name, max(slot.last_epoch, slot.life), error or "it has failed")
        )

    def _rest(self, name: str, slot: _Slot, now_ms: int, error: str) -> None:
        """Nothing of the object runs any more."""
        slot.turn_until_ms, slot.failing = None, False
        ended = slot.finished and self._is_present(slot, self._wanted.get(name))
        self._enter(slot, "ended" if ended else "idle", now_ms)
        self._tell(name, slot, "ended" if ended else "stopped", now_ms, error)

    def _pause_ms(self, slot: _Slot) -> int:
        grown = self.settings.restart_base_ms << min(slot.failures - 1, 30)
        return round(min(grown, self.settings.restart_max_ms) * (0.5 + self.jitter()))

    @staticmethod
    def _enter(slot: _Slot, step: _Step, now_ms: int) -> None:
        slot.step, slot.entered_ms, slot.overdue = step, now_ms, False

    def _tell(self, name: str, slot: _Slot, phase: Phase, now_ms: int, error: str = "") -> None:
        """Tell of a phase, once: a wait that goes on is no news."""
        if slot.told != phase or error:
            slot.told = phase
            self._changes.append(_change(name, slot, phase, now_ms, error))


def _change(name: str, slot: _Slot, phase: Phase, now_ms: int, error: str = "") -> PhaseChange:
    return PhaseChange(name, slot.kind, phase, slot.incarnation, slot.description, now_ms, error)
