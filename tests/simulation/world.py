"""The world of a run: one store, processes with clocks of their own, and all that goes wrong.

    World      the store, the processes, and the time
    Process    what can crash: a client, its fibers, its clock; restarts with what its actor keeps

Invariants:
    Each process draws from dice of its own: leaving one out changes nothing for the others but
    what they see of it.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import TYPE_CHECKING

from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.settings import ShardSettings
from shardline.datasource.stores.memory import MemoryObjects
from shardline.datasource.stores.objects import CREATED, EXISTS, CreateOutcome
from shardline.datasource.stores.open import compose_location
from simulation.knobs import (
    BASE_MS,
    DAMAGE_ODDS,
    DAMAGE_OF,
    FAULTS_OF,
    GRACE_MS,
    LEASE_MS,
    STALLS_MS,
    THEMES,
    Dice,
    Knobs,
    Plan,
)
from simulation.network import SimObjects
from simulation.scheduler import Fiber, Scheduler, SimLock, Violation
from support.fakes.clock import ManualClock, SeededIds
from support.models.shards import TINY, Crash

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from shardline.datasource.shard.machine import Machine
    from simulation.actors import Actor
    from simulation.invariants import Observer

__all__ = ["Process", "World"]


@functools.cache
def _marker() -> bytes:
    """The marker of a location: what the probe leaves behind, once for all worlds."""
    clock, ids = ManualClock(), SeededIds()
    objects = MemoryObjects("simulated", clock)
    compose_location(objects, clock=clock, ids=ids, if_missing="create", grace_ms=GRACE_MS)
    return objects.get("_shardline") or b""


class SimClock:
    """The clocks of one process: one is wrong and corrected now and then, the other one drifts."""

    def __init__(self, scheduler: Scheduler, skew_ms: int, rate: float) -> None:
        self._scheduler = scheduler
        self._rate = rate
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return BASE_MS + self.skew_ms + int(self._scheduler.now_ms)

    def elapsed_ms(self) -> float:
        return self._scheduler.now_ms * self._rate

    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        return self._scheduler.wait(signal, timeout_ms / self._rate)


class SimClient(ShardClient):
    """A client whose threads are fibers."""

    scheduler: Scheduler

    @override
    def machine(self, name: str) -> Machine:
        machine = super().machine(name)
        if not isinstance(machine._commit_lock, SimLock):
            machine._commit_lock = SimLock(self.scheduler)  # type: ignore[assignment]
        return machine


class Process:
    """A process: an actor's code, a client, a clock. It crashes and is started again."""

    def __init__(self, world: World, actor: Actor) -> None:
        self.world = world
        self.actor = actor
        self.name = actor.name
        self.dice = Dice(world.plan.seed, actor.name)
        self.ops = 0
        self.starts = 0
        self.dark_until_ms = 0.0
        self.unread: dict[str, str] = {}
        self.damages = 0
        self.fibers: list[Fiber] = []
        roll = self.dice.roll
        skewed, drifts = world.knobs.skew, world.knobs.drift
        self.clock = SimClock(
            world.scheduler,
            int((roll(0, 1) - 0.5) * skewed),
            1.0 + (roll(0, 2) - 0.5) * drifts,
        )
        self._client: SimClient | None = None
        self.ids = SeededIds(0)

    def start(self, delay_ms: float = 0.0) -> None:
        """Start the process, for the first time or after a crash."""
        self.starts += 1
        self._client = None
        self.unread.clear()
        self.ids = SeededIds(int(self.dice.roll(self.starts, 10) * (1 << 53)))
        self.fork(f"{self.name}.{self.starts}", self._main, delay_ms)

    def fork(self, name: str, program: Callable[[], None], delay_ms: float = 0.0) -> Fiber:
        """Another thread of this process."""
        self.fibers = [fiber for fiber in self.fibers if not fiber.done]
        fiber = self.world.scheduler.spawn(name, program, self, delay_ms)
        self.fibers.append(fiber)
        return fiber

    def _main(self) -> None:
        self.actor.run(self)

    @property
    def client(self) -> SimClient:
        """This process's client; opened at the first use."""
        if self._client is None:
            location = compose_location(
                SimObjects(self), clock=self.clock, ids=self.ids, grace_ms=GRACE_MS
            )
            self._client = SimClient(location, self.world.settings(self), self.clock, self.ids)
            self._client.scheduler = self.world.scheduler
        return self._client

    def forget_client(self) -> None:
        """Open a new client from now on, with nothing remembered."""
        self._client = None

    def pause(self, duration_ms: float) -> None:
        """Stand still: all threads of the process."""
        until = self.world.scheduler.now_ms + duration_ms
        for fiber in self.fibers:
            fiber.paused_until_ms = max(fiber.paused_until_ms, until)

    def crash(self) -> None:
        """Die, and be started again after a while."""
        fibers, self.fibers = self.fibers, []
        for fiber in fibers:
            self.world.scheduler.kill(fiber)
        down = self.dice.roll(self.ops, 9)
        downtime_ms = STALLS_MS[int(down * 100) % len(STALLS_MS)] if down < 0.3 else down * 500
        self.start(downtime_ms)

    def think(self, duration_ms: float) -> None:
        """Let time pass between two actions."""
        self.world.scheduler.sleep(duration_ms * self.world.knobs.pace)


class World:
    """One run's world."""

    def __init__(self, plan: Plan, *, traced: bool = False) -> None:
        self.plan = plan
        self.chance = random.Random(plan.seed)
        themes = [*THEMES, *["any"] * 6]
        drawn = self.chance.choice(themes)
        self.theme = plan.theme or drawn
        self.knobs = Knobs.draw(self.chance, self.theme)
        self.scheduler = Scheduler()
        self.objects: dict[str, tuple[bytes, int]] = {"_shardline": (_marker(), 0)}
        self.processes: list[Process] = []
        self.trace: list[tuple[float, str, str]] | None = [] if traced else None
        self.injected: list[str] = []
        self.calm = False
        self.observer: Observer | None = None
        self.replacing = False
        self.damaged = False
        self.committed: set[str] = set()
        self.asked = self.counted = 0

    def add(self, actor: Actor) -> None:
        """An actor takes part, unless the plan leaves it out."""
        if actor.name not in self.plan.without:
            actor.left = self.plan.limit(actor.name, actor.left)
            self.processes.append(Process(self, actor))

    def settings(self, process: Process) -> ShardSettings:
        """Of a process's client: small in every way, and not the same for all."""
        return dataclasses.replace(
            TINY,
            validate=False,  # the observer checks every state
            lease_ms=LEASE_MS,
            writer_lease_ms=4 * LEASE_MS,
            commit_timeout_ms=GRACE_MS,
            inline_part_bytes=self.knobs.inline_bytes,
            compact_factor=self.knobs.compact_factor,
            rollup_every=self.knobs.rollup_every,
            part_buffer_bytes=self._buffer_bytes(process),
            compact_memory_bytes=1 if process.dice.roll(0, 4) < 0.2 else 1 << 20,
            wait_poll_ms=200,
        )

    def _buffer_bytes(self, process: Process) -> int:
        """How much a part holds: a row or two where parts get lost, or now and then a few."""
        if self.theme == "losses":
            return 60
        return 200 if process.dice.roll(0, 3) < 0.25 else 5000

    def note(self, text: str) -> None:
        """Write a line of the trace."""
        if self.trace is not None:
            fiber = self.scheduler.current
            self.trace.append((self.scheduler.now_ms, fiber.name if fiber else "-", text))

    def violate(self, kind: str, detail: str) -> None:
        """End the run: something happened that must not."""
        self.note(f"VIOLATION {kind}: {detail}")
        self.scheduler.fail(Violation(kind, detail))
        raise Crash(kind)

    # -- the store, when a request arrives -------------------------------------------------------

    def created(self, key: str, value: bytes) -> CreateOutcome:
        if key in self.objects:
            return EXISTS
        self.objects[key] = (value, BASE_MS + int(self.scheduler.now_ms))
        self._observe("created", key, value)
        return CREATED

    def stored(self, key: str, value: bytes) -> None:
        self.objects[key] = (value, BASE_MS + int(self.scheduler.now_ms))

    def deleted(self, key: str) -> bool:
        if key not in self.objects:
            return False
        self._observe("deleted", key, b"")
        del self.objects[key]
        return True

    def _observe(self, what: str, key: str, value: bytes) -> None:
        if self.observer is not None:
            try:
                getattr(self.observer, what)(key, value)
            except Violation as error:
                self.violate(error.kind, error.detail)

    def fault_of(self, process: Process, operation: str, number: int) -> str:
        """What happens to this request; empty for nothing."""
        if self.calm:
            return ""
        roll = process.dice.roll
        fault = self._drawn_fault(process, operation, number)
        if fault == "outage":
            process.dark_until_ms = self.scheduler.now_ms + 14_000 * roll(number, 11)
        if self.scheduler.now_ms < process.dark_until_ms:
            return "after" if operation == "create" and roll(number, 12) < 0.6 else "before"
        return fault

    def _drawn_fault(self, process: Process, operation: str, number: int) -> str:
        roll = process.dice.roll
        known = [f for f in FAULTS_OF[operation] if f in self.knobs.faults]
        if known and roll(number, 0) < self.knobs.fault_rate:
            return self._injected(process, number, known[int(roll(number, 1) * len(known))])
        known = [f for f in DAMAGE_OF.get(operation, ()) if f in self.knobs.faults]
        if known and roll(number, 13) < self.knobs.damage_rate * DAMAGE_ODDS[operation]:
            return self._injected(process, number, known[int(roll(number, 14) * len(known))])
        return ""

    def _injected(self, process: Process, number: int, fault: str) -> str:
        """`fault`, unless the plan leaves it out."""
        name = f"{process.name}#{number}:{fault}"
        if fault in self.plan.without or name in self.plan.without:
            return ""
        self.injected.append(name)
        self.note(f"FAULT {name}")
        return fault

    def latency_ms(self, process: Process, number: int) -> float:
        """How long this request takes when nothing is wrong."""
        u = process.dice.roll(number, 2)
        if self.calm:
            return 1.0 + u
        return 1.0 + 20.0 * u if u < 0.97 else 400.0 * u

    def stall_ms(self, process: Process, number: int) -> float:
        """How long something stands still."""
        u = process.dice.roll(number, 3)
        if process.dice.roll(number, 4) < self.knobs.stall_rate:
            return STALLS_MS[int(u * len(STALLS_MS))]
        return 3000.0 * u * u
