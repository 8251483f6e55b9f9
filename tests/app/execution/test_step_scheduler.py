"""Steps take turns, and nothing blocked blocks them."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial

import pytest
from typing_extensions import override

from shardline.app.execution.step_scheduler import StepScheduler
from shardline.datasource.clock import Clock
from support.fakes.clock import ManualClock
from support.waiting import wait_until

PATIENCE_S = 20


class Stopped(ManualClock):
    """Time stands still, and whoever waits waits for as long as it takes."""

    @override
    def wait(self, event: threading.Event, timeout_ms: float) -> bool:
        return event.wait(PATIENCE_S)


class Step:
    """A step in a thread of its own, which ends when it is told to."""

    def __init__(
        self, turns: StepScheduler, clock: Clock, begun: list[str], name: str, expected_ms: int
    ) -> None:
        self.clock, self.expected_ms = clock, expected_ms
        self.end = threading.Event()
        self.begun, self.name = begun, name
        self.thread = threading.Thread(target=self.run, args=(turns,), daemon=True)
        self.thread.start()

    def run(self, turns: StepScheduler) -> None:
        with turns.turn(self.clock, threading.Event(), self.expected_ms):
            self.begun.append(self.name)
            self.end.wait(PATIENCE_S)

    def finish(self) -> None:
        self.end.set()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.mark.parametrize(("expected_ms", "following"), [((0, 0), "c"), ((50, 20), "d")])
def test_the_shortest_come_first(expected_ms: tuple[int, int], following: str) -> None:
    """As many at once as may be; of those that take as long, the longest waiting goes first."""
    turns, begun = StepScheduler(2), list[str]()
    clock = Stopped(0)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(turns.turn(clock, threading.Event()))
        second.enter_context(turns.turn(clock, threading.Event()))
        steps = []
        for place, name in enumerate("cd"):
            steps.append(Step(turns, clock, begun, name, expected_ms[place]))
            wait_until("it has asked", partial(waits, turns, place + 1), PATIENCE_S)
        first.close()
        wait_until("one goes ahead", lambda: bool(begun), PATIENCE_S)
        assert begun[0] == following
        for step in sorted(steps, key=lambda step: step.name != following):
            step.finish()
    assert sorted(begun) == ["c", "d"]
    assert not turns._since
    assert not turns._waiting


def waits(turns: StepScheduler, number: int) -> bool:
    return len(turns._waiting) == number


def test_what_is_blocked_is_not_counted() -> None:
    """After a while it takes nobody's place."""
    turns, clock = StepScheduler(1), ManualClock(0)
    with turns.turn(clock, threading.Event()):
        clock.advance(1000)
        before_ms = clock.elapsed_ms()
        with turns.turn(clock, threading.Event()):
            assert clock.elapsed_ms() == before_ms


def test_nobody_waits_for_ever() -> None:
    """A holder that does not end costs those behind it no more than their patience."""
    turns, clock = StepScheduler(1), ManualClock(0)
    with turns.turn(clock, threading.Event()):
        before_ms = clock.elapsed_ms()
        with turns.turn(clock, threading.Event()):
            assert clock.elapsed_ms() == before_ms + 1000
    assert not turns._since


def test_an_error_gives_the_turn_back() -> None:
    """Whatever ends a step."""
    turns = StepScheduler(1)
    with pytest.raises(ZeroDivisionError), turns.turn(ManualClock(0), threading.Event()):
        raise ZeroDivisionError
    assert not turns._since


def test_whoever_is_stopped_waits_no_longer() -> None:
    """Its flag ends the waiting, and nothing of it is left."""
    turns, clock = StepScheduler(1), ManualClock(0)
    stopped = threading.Event()
    stopped.set()
    with turns.turn(clock, threading.Event()):
        before_ms = clock.elapsed_ms()
        with turns.turn(clock, stopped):
            assert clock.elapsed_ms() == before_ms
    assert not turns._since
    assert not turns._waiting


def test_how_busy_steps_are_is_known() -> None:
    """As a time of all cores; a step that may be blocked counts for its first second alone."""
    turns, clock = StepScheduler(2), ManualClock(0)
    with turns.turn(clock, threading.Event()):
        clock.advance(300)
        assert turns.busy_ms(clock.elapsed_ms()) == 150
        with turns.turn(clock, threading.Event()):
            clock.advance(100)
        assert turns.busy_ms(clock.elapsed_ms()) == 250
        clock.advance(60_000)
        assert turns.busy_ms(clock.elapsed_ms()) == 550
    assert turns.busy_ms(clock.elapsed_ms()) == 550
