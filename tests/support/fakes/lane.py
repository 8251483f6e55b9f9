"""A lane without threads, store or Spark: an order in memory, effects that run when told to.

An `Order` is what is durable. Each `Runtime` is a process with a lane of its own over it; killing
one is forgetting it. A `Ledger` notes what runs, and refuses what must never happen.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import Failed, Hydrated
from shardline.app.lane.commands import (
    LANE,
    CreateDataflow,
    DropDataflow,
    Holder,
    Kind,
    Opened,
    PauseDataflow,
    Record,
    ResumeDataflow,
    Submission,
)
from shardline.app.lane.lane import Lane
from shardline.app.lane.settings import LaneSettings
from shardline.app.lane.state import EMPTY_STATE, LaneState, apply, check_state, without_repeated
from shardline.app.protocol.objects import (
    Description,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
)
from shardline.datasource.errors import Determinate, Fenced, Indeterminate
from support.fakes.clock import ManualClock, SeededIds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardline.app.lane.order_protocol import Role, Takeover
    from shardline.app.lane.process_state import PhaseChange
    from shardline.datasource.client import ShardClient
    from shardline.datasource.errors import ShardError

__all__ = [
    "Ledger",
    "Order",
    "Patient",
    "Runtime",
    "SimJournal",
    "Violation",
    "host",
    "wanted",
]


def host(clock: Any, check_fence: Callable[[], None] = lambda: None) -> Host:
    """A host without Spark; with a `writes` of its own."""
    return Host(
        spark=cast("Any", None),
        client=cast("ShardClient", None),
        storage={},
        report=lambda _: None,
        clock=clock,
        ids=SeededIds(),
        checkpoints=Path("checkpoints"),
        writes=threading.Event(),
        check_fence=check_fence,
    )


@dataclass
class Order:
    """The durable order, shared by all runtimes of a location."""

    records: list[Record] = field(default_factory=list)
    holder: str = ""


def wanted(records: Sequence[Record]) -> dict[str, Description]:
    """What shall run at the end of an order: the plainest reading of it, without any state."""
    found: dict[str, Description] = {}
    paused: set[str] = set()
    for record in records:
        match record.command:
            case CreateDataflow(description=description):
                found[record.command.id] = description
            case DropDataflow(name, replaced):
                found.pop(name, None)
                if not replaced:
                    paused.discard(name)
            case PauseDataflow(name) if not isinstance(
                found.get(name), SubscribeDescription | None
            ):
                paused.add(name)
            case ResumeDataflow(name):
                paused.discard(name)
            case Opened():
                found = {
                    name: description
                    for name, description in found.items()
                    if not isinstance(description, SubscribeDescription)
                }
            case _:
                pass
    return {name: description for name, description in found.items() if name not in paused}


class SimJournal:
    """One runtime's view of an `Order`; `faults` says how often an append goes wrong."""

    def __init__(
        self, order: Order, name: str, clock: ManualClock, rng: random.Random, faults: float = 0.0
    ) -> None:
        self.faults = faults
        self.keep_fails = False
        self.role: Role = "follower"
        self.state: LaneState = EMPTY_STATE
        self.followed: dict[str, int] = {}
        self._order = order
        self._name = name
        self._clock = clock
        self._rng = rng
        self.poll()

    @property
    def holds(self) -> bool:
        """Whether this runtime is the holder, in truth."""
        return self._order.holder == self._name

    def records(self, start: int = 0) -> list[Record]:
        return self._order.records[start:]

    def position(self, producer: str, sequence: int) -> int | None:
        found = (r for r in self._order.records if (r.producer, r.sequence) == (producer, sequence))
        return next((r.index for r in found), None)

    def append(self, submissions: Sequence[Submission]) -> None:
        self.check_fence()
        self.poll()
        fresh = without_repeated(self.state, submissions)
        if not fresh:
            return
        fault = self._rng.random()
        if fault < self.faults / 2:
            raise Determinate("no answer, and nothing happened")
        self._add(fresh, self.state.epoch)
        if fault < self.faults:
            raise Indeterminate("no answer")
        self.poll()

    def poll(self) -> None:
        for record in self._order.records[self.state.next_index :]:
            self.state = apply(self.state, record)
        check_state(self.state)

    def take_over(self, how: Takeover, epochs: Mapping[str, int]) -> None:
        del how
        self.poll()
        self.followed = dict(epochs)
        holder = Holder(
            token=self._name, host="h", boot="b", pid=1, started=1, application="a", since_ms=0
        )
        opened = Submission(LANE, self.state.next_sequence(LANE), Opened(holder, dict(epochs)))
        self._order.holder = self._name
        self.role = "holder"
        self._add([opened], self.state.epoch + 1)
        self.poll()

    def renew_lease(self) -> None:
        if self.keep_fails:
            raise Determinate("no answer, and nothing happened")

    def check_fence(self) -> None:
        if self.role == "holder" and self._order.holder != self._name:
            raise Fenced(f"{self._order.holder} has taken over from {self._name}")

    def close(self) -> None:
        pass

    def _add(self, submissions: Sequence[Submission], epoch: int) -> None:
        for s in submissions:
            self._order.records.append(
                Record(
                    index=len(self._order.records),
                    producer=s.producer,
                    sequence=s.sequence,
                    epoch=epoch,
                    at_ms=self._clock.now_ms(),
                    command=s.command,
                )
            )


class Violation(BaseException):
    """Something happened that never must; the lane, which survives errors, does not survive it."""


def _hold(condition: bool, *what: object) -> None:
    if not condition:
        raise Violation(*what)


class Ledger:
    """What runs, in any runtime; refuses at once what must never happen."""

    def __init__(self) -> None:
        self.running: dict[str, dict[str, tuple[Incarnation, Description]]] = {}
        self.last: dict[tuple[str, str], tuple[int, int]] = {}
        self.names: dict[str, str] = {}
        self.started = 0

    def start(self, runtime: Runtime, incarnation: Incarnation, description: Description) -> None:
        """Something begins to run."""
        here = self.running.setdefault(runtime.name, {})
        _hold(incarnation.id not in here, "two lives at once", incarnation)
        _hold(runtime.lane.lost is None, "started after a fence", incarnation)
        own = runtime.journal.holds and incarnation.epoch > runtime.journal.followed.get(
            incarnation.id, 0
        )
        if own:
            # A follower's lives, and one of a holder that has been fenced, have numbers of others.
            key = (incarnation.id, incarnation.global_id)
            before = self.last.get(key, (0, 0))
            now = (incarnation.dataflow, incarnation.epoch)
            _hold(now[0] >= before[0], "an older definition", incarnation, before)
            _hold(now[1] > before[1], "a life twice", incarnation, before)
            self.last[key] = now
        known = self.names.setdefault(incarnation.global_id, incarnation.id)
        _hold(known == incarnation.id, "an id of two objects", incarnation, known)
        here[incarnation.id] = (incarnation, description)
        self.started += 1

    def stop(self, runtime: str, incarnation: Incarnation) -> None:
        """Something runs no longer; again does nothing."""
        here = self.running.get(runtime, {})
        if here.get(incarnation.id, (None, None))[0] == incarnation:
            del here[incarnation.id]

    def kill(self, runtime: str) -> None:
        """A process dies, and all that it runs."""
        self.running.pop(runtime, None)


class Patient:
    """A pool whose effects run when `run_one` is called, in any order; some never do."""

    def __init__(self, rng: random.Random, hang: float = 0.0) -> None:
        self.hang = hang
        self.hung = 0
        self._rng = rng
        self._effects: list[Callable[[], None]] = []

    def run(self, effect: Callable[[], None]) -> None:
        self._effects.append(effect)

    def close(self) -> None:
        pass

    def run_one(self) -> bool:
        """Run any one of the effects that wait; False if there is none."""
        if not self._effects:
            return False
        effect = self._effects.pop(self._rng.randrange(len(self._effects)))
        if self._rng.random() < self.hang:
            self.hung += 1
        else:
            effect()
        return True


@dataclass
class _Fake:
    """What runs for an object: it stops, unless it does not feel like it."""

    runtime: Runtime
    incarnation: Incarnation

    def stop(self) -> None:
        if self.runtime.rng.random() < self.runtime.failing:
            raise RuntimeError("does not stop")
        self.runtime.ledger.stop(self.runtime.name, self.incarnation)


class Runtime:
    """A process: a lane over an order, with effects under the test's control.

    Attributes:
        failing: How often a start or a stop fails.
    """

    def __init__(
        self,
        order: Order,
        ledger: Ledger,
        clock: ManualClock,
        rng: random.Random,
        name: str,
        *,
        role: Role = "holder",
        settings: LaneSettings | None = None,
        failing: float = 0.0,
        faults: float = 0.0,
        hang: float = 0.0,
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.rng = rng
        self.failing = failing
        self.clock = clock
        self.phases: list[PhaseChange] = []
        self.told: list[Record] = []
        self.forgotten: list[str] = []
        self.end: ShardError | None = None
        self.journal = SimJournal(order, name, clock, rng, faults)
        if role == "holder":
            self.journal.take_over("by-force", {})
        self.pool = Patient(rng, hang)
        self.hosts: dict[Kind, Host] = {"compute": host(clock), "storage": host(clock)}
        kinds = (
            SourceDescription,
            SinkDescription,
            ViewDescription,
            IndexDescription,
            SubscribeDescription,
        )
        self.lane = Lane(
            self.journal,
            dict.fromkeys(kinds, self.render),
            self.hosts.__getitem__,
            clock=clock,
            ids=SeededIds(rng.randrange(1 << 30)),
            settings=settings,
            operators_of=lambda d: 1 + len(d.name),
            observer=self,
            forget=lambda dropped: self.forgotten.append(dropped.description.name),
            starts=self.pool,
            stops=self.pool,
        )

    def render(self, host: Host, incarnation: Incarnation, description: Description) -> _Fake:
        del host
        if self.rng.random() < self.failing:
            raise RuntimeError("does not start")
        self.ledger.start(self, incarnation, description)
        return _Fake(self, incarnation)

    def on_record(self, record: Record) -> None:
        self.told.append(record)

    def on_phase(self, change: PhaseChange) -> None:
        self.phases.append(change)

    def on_end(self, error: ShardError) -> None:
        self.end = error

    def runs(self) -> dict[str, Description]:
        """What runs here, by name."""
        return {name: d for name, (_, d) in self.ledger.running.get(self.name, {}).items()}

    def lives(self) -> dict[str, Incarnation]:
        """What runs here, by name."""
        return {name: i for name, (i, _) in self.ledger.running.get(self.name, {}).items()}

    def fail(self, name: str) -> None:
        """What runs for an object, if anything does, ends by an error."""
        life = self.lives().get(name)
        if life is not None:
            self.lane.report(Failed(id=name, epoch=life.epoch, error="it broke"))

    def hydrate(self, name: str) -> None:
        """What runs for an object, if anything does, has caught up."""
        life = self.lives().get(name)
        if life is not None:
            self.lane.report(Hydrated(id=name, epoch=life.epoch, took_ms=1))

    def settle(self, rounds: int = 60, step_ms: float = 3_000) -> None:
        """Let everything that is under way, or due some time, happen."""
        for _ in range(rounds):
            self.lane.step()
            while self.pool.run_one():
                self.lane.step()
            for name in list(self.runs()):
                self.hydrate(name)
            self.clock.advance(step_ms)
        self.lane.step()
