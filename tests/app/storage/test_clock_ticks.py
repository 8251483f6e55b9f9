"""Ticks of sources: when one is due, and how long nothing is."""

from __future__ import annotations

from collections.abc import Callable

from shardline.app.storage.clock_ticks import TickOutcome, _TickedSource
from support.fakes.clock import ManualClock


class Pool:
    """Keeps what is submitted until a test runs it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, run: Callable[[], None]) -> None:
        self.waiting.append(run)


class World:
    """A source that ticks once a second, and the ticker that visits it."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.outcomes: list[TickOutcome] = []
        self.pool = Pool()
        self.source = _TickedSource(self.clock, 1000, lambda: self.outcomes.pop(0), lambda: None)

    def visit(self) -> float:
        return self.source.visit(self.pool.submit)

    def run(self, outcome: TickOutcome) -> None:
        self.outcomes.append(outcome)
        self.pool.waiting.pop(0)()


def test_a_slow_tick_misses_the_next_one_and_nobody_spins() -> None:
    """While it goes on the ticker rests until the time after it."""
    world = World()
    assert world.visit() == 1000
    for _ in range(3):
        world.clock.advance(1000)
        assert world.visit() == 1000
    assert len(world.pool.waiting) == 1
    world.run("done")
    world.clock.advance(400)
    assert world.visit() == 600
    world.clock.advance(600)
    world.visit()
    assert len(world.pool.waiting) == 1


def test_a_tick_that_could_not_be_made_is_made_soon() -> None:
    """Within the interval, and not at once."""
    world = World()
    world.visit()
    world.run("again")
    assert world.visit() == 50
    assert not world.pool.waiting
    world.clock.advance(50)
    assert world.visit() == 950
    assert len(world.pool.waiting) == 1
