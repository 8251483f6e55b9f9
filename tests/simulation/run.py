"""One run: a cast drawn from a seed, the run itself, and its end."""

from __future__ import annotations

import contextlib
import logging
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from shardline.datasource.background import BackgroundThread
from shardline.datasource.shard.state import is_tombstone
from shardline.datasource.shard_source import freeze, stream_inputs
from shardline.datasource.transactions import protocol
from simulation import actors, maintenance, readers, transactions, writers
from simulation.invariants import Observer
from simulation.knobs import LEASE_MS, STAGE_LIFE_MS, Plan
from simulation.scheduler import Violation
from simulation.streams import Streamer
from simulation.world import Process, World
from support.models.shards import Crash, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Outcome", "simulate"]


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        plan: Which run it was.
        failure: What went wrong; None if nothing did.
        faults: Ids of what was injected, in order.
        cast: Names of the actors, and how often each acted.
        events: Steps of the scheduler.
        trace: What happened, if that was asked for.
    """

    plan: Plan
    failure: BaseException | None
    faults: tuple[str, ...]
    cast: tuple[tuple[str, int], ...]
    events: int
    elapsed_ms: float
    trace: tuple[tuple[float, str, str], ...]

    @property
    def kind(self) -> str:
        """What kind of failure it is: a shrunk run must have the same."""
        failure = self.failure
        return failure.kind if isinstance(failure, Violation) else type(failure).__name__


_CAST: dict[str, tuple[Callable[[World, str, str], actors.Actor], float, int]] = {
    "now": (lambda w, n, s: writers.NowWriter(w, n, s, identity=n), 0.7, 2),
    "cas": (lambda w, n, s: writers.CasWriter(w, n, s, identity=n), 0.6, 2),
    "anonymous": (writers.NowWriter, 0.3, 2),
    "guest": (writers.CasWriter, 0.3, 1),
    "twin": (lambda w, n, s: writers.NowWriter(w, n, s, identity="twin"), 0.0, 2),
    "overwrite": (lambda w, n, s: writers.Overwriter(w, n, s, identity=n), 0.15, 1),
    "upsert": (lambda w, n, s: writers.Upserter(w, n, s, identity=n), 0.2, 1),
    "snapshot": (readers.SnapshotReader, 0.5, 1),
    "listen": (readers.Listener, 0.5, 1),
    "hold": (readers.Holder, 0.3, 2),
    "stream": (Streamer, 0.6, 2),
    "compact": (maintenance.Compactor, 0.6, 2),
    "gc": (maintenance.Collector, 0.6, 2),
    "evolve": (maintenance.Evolver, 0.15, 1),
    "drop": (maintenance.Dropper, 0.05, 1),
    "vandal": (maintenance.Vandal, 0.0, 1),
    "identical": (writers.IdenticalWriter, 0.0, 2),
    "sweep": (maintenance.Sweeper, 0.3, 1),
    "txn": (transactions.Transactor, 0.0, 3),
    "audit": (transactions.Auditor, 0.0, 1),
    "registrar": (transactions.Registrar, 0.0, 1),
    "tally": (transactions.Tally, 0.0, 2),
}


_ONLY: dict[str, set[str]] = {
    # Others are right to complain of a part that is not there.
    "losses": {"now", "cas", "gc"},
    "transactions": set(),
    # What others append would not be the same data.
    "identical": {"snapshot", "listen", "hold", "stream", "compact", "gc", "sweep"},
}

_NEEDED: dict[str, list[tuple[str, str]]] = {
    "any": [],
    "stalls": [("now", "now-1"), ("now", "now-2"), ("gc", "gc-1"), ("gc", "gc-2")],
    "outages": [("cas", "cas-1"), ("compact", "compact-1"), ("gc", "gc-1")],
    "pieces": [
        ("now", "now-1"),
        ("stream", "stream-1"),
        ("compact", "compact-1"),
        ("gc", "gc-1"),
        ("gc", "gc-2"),
    ],
    "transactions": [
        ("txn", "txn-1"),
        ("txn", "txn-2"),
        ("audit", "audit-1"),
        ("registrar", "registrar-1"),
        ("tally", "tally-1"),
        ("tally", "tally-2"),
        ("compact", "compact-1"),
        ("gc", "gc-1"),
    ],
    "identical": [("identical", "identical-1"), ("identical", "identical-2")],
    "losses": [("cas", "cas-1"), ("stream", "stream-1"), ("vandal", "vandal-1")],
}


def simulate(plan: Plan, *, traced: bool = False) -> Outcome:
    """Do one run to its end or to its first failure."""
    world = World(plan, traced=traced)
    observer = Observer(world.objects)
    world.observer = observer
    chance = random.Random(plan.seed + 1)
    cast = list(dict.fromkeys([*_drawn(chance, world.theme), *_NEEDED[world.theme]]))
    world.replacing = any(kind in {"overwrite", "upsert"} for kind, _ in cast)
    for kind, name in cast:
        world.add(_CAST[kind][0](world, name, "b" if world.theme == "transactions" else "a"))
    with _as_fibers(world):
        first = Process(world, actors.Actor(world, "first", "a"))
        first.fork("first", lambda: _begin(world, first))
        world.scheduler.run()
        if world.scheduler.failure is None:
            _end(world)
    return Outcome(
        plan,
        world.scheduler.failure,
        tuple(world.injected),
        tuple((p.name, p.actor.acted) for p in world.processes),
        world.scheduler.events,
        world.scheduler.now_ms,
        tuple(world.trace or ()),
    )


def _drawn(chance: random.Random, theme: str) -> Iterable[tuple[str, str]]:
    """Who takes part."""
    for kind, (_, likely, most) in _CAST.items():
        if kind not in _ONLY.get(theme, _CAST):
            continue
        for number in range(most):
            if chance.random() < likely / (1 + number):
                yield kind, f"{kind}-{number + 1}"


def _begin(world: World, first: Process) -> None:
    world.calm = True
    for name in transactions.PAIR if world.theme == "transactions" else ("a",):
        first.client.create(name, schema_of(), key=["id"])
    world.calm = False
    for process in world.processes:
        process.start()


def _end(world: World) -> None:
    """Nothing fails any more: everybody finishes, and what is left over is looked at."""
    world.calm = True
    for process in world.processes:
        process.fibers.clear()
        process.forget_client()
        process.clock.skew_ms = 0
        process.fork(f"{process.name}.end", partial(process.actor.finish, process))
    world.scheduler.run()
    if world.scheduler.failure is None and not world.damaged:
        last = Process(world, actors.Actor(world, "last", "a"))
        last.fork("last", lambda: _settle(world, last))
        world.scheduler.run()


def _settle(world: World, last: Process) -> None:
    """When all leases are over and all that was staged is old, nothing unneeded is left."""
    world.scheduler.sleep(3 * STAGE_LIFE_MS)
    assert world.observer is not None
    for name, seen in world.observer.shards.items():
        assert seen.state is not None
        if name.startswith("%") or is_tombstone(seen.state):
            continue
        last.client.collect_garbage(name)
        last.client.sweep(name)
        stored = {key for key in world.objects if key.startswith(f"{name}/part/")}
        left = stored - seen.live - seen.held()
        if left:
            world.violate("leak", f"nobody needs {sorted(left)}")
        dangling = seen.live - stored
        if dangling and world.theme != "losses":
            world.violate("blobs", f"{sorted(dangling)} are not there")


@contextlib.contextmanager
def _as_fibers(world: World) -> Iterator[None]:
    """Threads that the code under test starts are fibers; a day is two minutes."""

    def start(thread: BackgroundThread) -> None:
        fiber = world.scheduler.current
        assert fiber is not None
        process = fiber.process
        assert isinstance(process, Process)
        run = process.fork(f"{process.name}.{process.starts} heart", thread._main)
        thread.__dict__["fiber"] = run

    def stop(thread: BackgroundThread, _: float | None = None) -> bool:
        if world.scheduler.failure is not None or world.scheduler.current is None:
            raise Crash("the run is over")
        thread.stopping.set()
        world.scheduler.set_signal(thread.wake)
        world.scheduler.join(thread.__dict__["fiber"])
        return True

    changes: list[tuple[Any, str, Any]] = [
        (BackgroundThread, "start", start),
        (BackgroundThread, "stop", stop),
        (freeze, "ThreadPoolExecutor", _InTurn),
        (stream_inputs, "ThreadPoolExecutor", _InTurn),
        (protocol, "ThreadPoolExecutor", _InTurn),
        *_scaled("STAGE_LIFE_MS", STAGE_LIFE_MS),
        *_scaled("SWEEP_AGE_MS", 2 * STAGE_LIFE_MS),
        *_scaled("CLAIM_LEASE_MS", LEASE_MS),
        *_scaled("_CLAIM_BYTES", 3000),
        *_scaled("_HISTORY_MS", LEASE_MS // 5),
        *_scaled("_UPKEEP_EVERY", 4),
    ]
    log = logging.getLogger("shardline.datasource")
    level = log.level
    log.setLevel(logging.CRITICAL)
    before = [getattr(where, name) for where, name, _ in changes]
    for where, name, value in changes:
        setattr(where, name, value)
    try:
        yield
    finally:
        log.setLevel(level)
        for (where, name, _), value in zip(changes, before, strict=True):
            setattr(where, name, value)


def _scaled(name: str, value: int) -> list[tuple[Any, str, Any]]:
    """A constant, wherever it was imported."""
    return [
        (module, name, value)
        for key, module in list(sys.modules.items())
        if key.startswith("shardline.datasource") and hasattr(module, name)
    ]


class _InTurn:
    """A pool that does one thing after the other, in the fiber that asks."""

    def __init__(self, *_: object) -> None:
        """As a pool of any size."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[[], object]) -> Future[object]:
        """It is done when this returns."""
        done = Future[object]()
        done.set_result(work())
        return done

    def shutdown(self, *, wait: bool) -> None:
        """Nothing is under way."""

    map = staticmethod(map)
