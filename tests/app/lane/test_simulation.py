"""Storms over hundreds of seeds: both controllers, pauses, failures, crashes, a second runtime."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from shardline.app.lane.commands import (
    AllowWrites,
    CreateDataflow,
    DropDataflow,
    PauseDataflow,
    RestartDataflow,
    ResumeDataflow,
    SuspendAndRestart,
)
from shardline.app.lane.settings import LaneSettings
from shardline.app.lane.state import EMPTY_STATE, apply, unfinished_replacements
from shardline.app.protocol.objects import (
    Description,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
)
from support.fakes.clock import ManualClock
from support.fakes.lane import Ledger, Order, Runtime, wanted

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = LaneSettings(hydration_concurrency=2, hydration_patience_ms=5_000)


class Storm:
    """One seed: a location, its runtimes, and everything that can happen to them."""

    def __init__(self, seed: int, *, hang: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.order = Order()
        self.ledger = Ledger()
        self.hang = hang
        self.count = 0
        self.old: list[Runtime] = []
        self.now = self.open()

    def open(self, **more: str) -> Runtime:
        self.count += 1
        return Runtime(
            self.order,
            self.ledger,
            self.clock,
            self.rng,
            f"runtime{self.count}",
            role="follower" if more else "holder",
            settings=SETTINGS,
            failing=self.rng.choice([0.0, 0.1, 0.3]),
            faults=self.rng.choice([0.0, 0.1]),
            hang=self.hang,
        )

    def description(self) -> Description:
        name = f"o{self.rng.randrange(6)}"
        match self.rng.randrange(4):
            case 0:
                return SourceDescription(name=name, format=self.rng.choice(["csv", "json"]))
            case 1:
                return SubscribeDescription(name=f"t{self.rng.randrange(3)}", on=name)
            case _:
                query = f"SELECT {self.rng.randrange(3)}"
                return ViewDescription(name=name, query=query, inputs=(), schema="a INT")

    def act(self) -> None:
        """Let any one thing happen."""
        acts: list[tuple[Callable[[Runtime], object], float]] = [
            (self.create, 4),
            (self.drop, 2),
            (self.restart, 1),
            (self.pause, 1.5),
            (self.resume, 1),
            (self.ask_for_restart, 1),
            (lambda r: r.fail(next(iter(r.runs()), "")), 1),
            (lambda r: r.hydrate(next(reversed(r.runs()), "")), 1),
            (lambda _: self.clock.advance(self.rng.choice([10, 1_000, 20_000])), 1),
            (self.crash, 0.3),
            (self.take_over, 0.3),
            (lambda r: r.pool.run_one(), 4),
            (lambda r: r.lane.step(), 5),
        ]
        runtime = self.rng.choice([self.now, self.now, self.now, *self.old])
        act = self.rng.choices([a for a, _ in acts], [weight for _, weight in acts])[0]
        act(runtime)
        self.check_commits()

    def create(self, _: Runtime) -> None:
        description = self.description()
        producer = "storage" if isinstance(description, SourceDescription) else "compute"
        self.now.lane.offer(producer, CreateDataflow(description=description, as_of=7))

    def drop(self, _: Runtime) -> None:
        replaced = self.rng.random() < 0.3
        self.now.lane.offer("compute", DropDataflow(self.any_name(), replaced))

    def any_name(self) -> str:
        return self.rng.choice([f"o{i}" for i in range(6)] + ["t0", "t1", "t2"])

    def pause(self, _: Runtime) -> None:
        self.now.lane.offer("operator", PauseDataflow(self.any_name()))

    def resume(self, _: Runtime) -> None:
        self.now.lane.offer("operator", ResumeDataflow(self.any_name()))

    def ask_for_restart(self, _: Runtime) -> None:
        self.now.lane.offer("operator", RestartDataflow(self.any_name()))

    def restart(self, _: Runtime) -> None:
        for name, life in list(self.now.lives().items())[:1]:
            command = SuspendAndRestart(name, life.epoch, "to see what happens")
            self.now.lane.offer("storage", command)

    def crash(self, _: Runtime) -> None:
        self.ledger.kill(self.now.name)
        self.now = self.open()

    def take_over(self, _: Runtime) -> None:
        """A second runtime: at once, or first as a follower that is then allowed to write."""
        self.old.append(self.now)
        if self.rng.random() < 0.5:
            self.now = self.open()
            return
        second = self.open(role="follower")
        second.settle(rounds=self.rng.randrange(6), step_ms=100)
        before = second.lives()
        second.lane.offer("compute", AllowWrites("compute"))
        second.lane.step()
        assert second.journal.role == "holder"
        assert {n: i for n, i in second.lives().items() if n in before} == before
        self.now = second

    def check_commits(self) -> None:
        """Of all runtimes only the holder's objects get past the fence."""
        for runtime in [self.now, *self.old]:
            if runtime.journal.role == "holder" and runtime is not self.now:
                with pytest.raises(Exception, match="has taken over"):
                    runtime.lane.check_fence()

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        for runtime in [self.now, *self.old]:
            runtime.failing = runtime.journal.faults = 0.0
            runtime.pool.hang = 0.0
            runtime.settle(rounds=40 if runtime is self.now else 4)
        # As controllers do that connect: of what waits for a successor they want none.
        objects = self.now.lane.state.objects
        for name in unfinished_replacements(objects, "compute") | unfinished_replacements(
            objects, "storage"
        ):
            self.now.lane.offer("compute", DropDataflow(name))
        self.now.settle(rounds=10)


def blocks(count: int) -> list[Any]:
    """Numbers of blocks of seeds; the first is fast, half of the others are for the night."""
    marks = pytest.mark.sim, pytest.mark.night
    return [0, *(pytest.param(n, marks=marks[: 1 + n % 2]) for n in range(1, count))]


@pytest.mark.parametrize("block", blocks(20))
def test_storms_end_with_what_is_wanted(block: int) -> None:
    """Whatever happens on the way: in the end exactly what is wanted runs, in one runtime."""
    for seed in range(block * 15, block * 15 + 15):
        storm = Storm(seed)
        for _ in range(160):
            storm.act()
        storm.calm()
        assert storm.now.runs() == wanted(storm.order.records), seed
        assert all(not runtime.runs() for runtime in storm.old), seed
        assert all(runtime.lane.lost for runtime in storm.old), seed
        state = storm.now.lane.state
        assert set(state.objects) - set(state.paused) == set(storm.now.runs()), seed
        # Each incarnation that runs is the one that was asked for last, or a later one.
        lives = storm.now.lives()
        assert all(lives[n].epoch >= state.objects[n].asked for n in lives), seed
        # An object of which nothing may run is reported as paused, after all that ran.
        for name in set(state.objects) & set(state.paused):
            assert [c.phase for c in storm.now.phases if c.id == name][-1] == "paused", seed


@pytest.mark.parametrize("block", blocks(10))
def test_a_hung_effect_only_costs_its_own_object(block: int) -> None:
    """A start or stop that never returns keeps its object as it is, and no other one."""
    for seed in range(block * 10, block * 10 + 10):
        storm = Storm(seed, hang=0.05)
        for _ in range(160):
            storm.act()
        storm.calm()
        running, meant = storm.now.runs(), wanted(storm.order.records)
        names = {n for n in running.keys() | meant.keys() if running.get(n) != meant.get(n)}
        assert len(names) <= storm.now.pool.hung, (seed, names)


@pytest.mark.parametrize("seed", range(20))
def test_every_replay_of_a_storm_gives_the_same_ids(seed: int) -> None:
    """The fold of any prefix, continued, equals the fold of the whole."""
    storm = Storm(seed)
    for _ in range(150):
        storm.act()
    records = storm.order.records
    states = [EMPTY_STATE]
    for record in records:
        states.append(apply(states[-1], record))
    storm.now.journal.poll()
    assert states[-1] == storm.now.lane.state
    numbers: dict[tuple[str, str, int], tuple[int, int]] = {}
    for state in states:
        for name, known in state.objects.items():
            key = (name, known.global_id, known.dataflow)
            assert numbers.setdefault(key, known.operators) == known.operators
    dataflows = [dataflow for _, _, dataflow in numbers]
    assert len(dataflows) == len(set(dataflows))
