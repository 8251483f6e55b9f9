"""Pending repairs: which of them are carried out, and what the one who waits is told."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from shardline.app.coordinator.error_repairs import ErrorRepairs
from shardline.app.coordinator.wakes import Wakes
from shardline.app.lane.commands import Repaired, RepairErrors
from shardline.app.protocol.objects import SourceDescription
from shardline.datasource.background import BackgroundThread
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Determinate, Indeterminate
from support.waiting import wait_until

WHOLE_TEST_MS = 60_000.0


class Order:
    """What is pending in the order; counts how often somebody looks."""

    def __init__(self) -> None:
        self.paused = ()
        self.looks = 0
        self._repairs: dict[int, RepairErrors] = {}

    @property
    def repairs(self) -> dict[int, RepairErrors]:
        self.looks += 1
        return self._repairs

    @repairs.setter
    def repairs(self, repairs: dict[int, RepairErrors]) -> None:
        self._repairs = repairs


class Lane:
    """The order, which takes what it is offered, or keeps it waiting."""

    def __init__(self) -> None:
        self.state = Order()
        self.lost = None
        self.answers = True
        self.offered: list[RepairErrors] = []

    def check_fence(self) -> None:
        pass

    def offer(
        self, _producer: str, command: RepairErrors | Repaired, *, wait: bool = True
    ) -> Future[int]:
        del wait
        ticket: Future[int] = Future()
        if isinstance(command, Repaired):
            if self.answers:
                del self.state.repairs[command.index]
                ticket.set_result(0)
            return ticket
        self.offered.append(command)
        if self.answers:
            ticket.set_result(self.add(command))
        return ticket

    def add(self, command: RepairErrors) -> int:
        index = len(self.offered) + len(self.state.repairs)
        self.state.repairs[index] = command
        return index


class World:
    """Repairs of the sources `a` and `b`; those of `stuck` sources are not possible yet."""

    error: Exception = Determinate("a micro-batch is in the way", code="CONTENTION")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timeout_ms: float) -> None:
        self.lane = Lane()
        self.stuck: set[str] = set()
        self.done: list[tuple[str, int]] = []
        monkeypatch.setattr("shardline.app.coordinator.error_repairs.repair_errors", self._repair)
        sources = {name: SourceDescription(name=name, format="csv") for name in "ab"}
        objects: Any = SimpleNamespace(
            follows=False, running=lambda: sources, check_in_charge=lambda: None
        )
        runtime: Any = SimpleNamespace(lane=self.lane)
        client: Any = SimpleNamespace(clock=SystemClock())
        self.wake = threading.Event()
        self.repairs = ErrorRepairs(client, runtime, objects, timeout_ms, self.wake)

    def _repair(self, _client: object, source: str, *_: object, number: int, **_named: Any) -> int:
        if source in self.stuck:
            raise self.error
        self.done.append((source, number))
        return 1


def repair(source: str) -> RepairErrors:
    return RepairErrors(id=source, act="retract", as_of=1)


@pytest.mark.parametrize("error", [World.error, OSError("no space"), KeyError("file")])
def test_a_repair_that_is_stuck_keeps_back_only_those_of_its_source(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A source that is paused over a micro-batch stays so for days; its own are done in order."""
    world = World(monkeypatch, WHOLE_TEST_MS)
    world.error = error
    world.lane.state.repairs = {1: repair("a"), 2: repair("a"), 3: repair("b"), 4: repair("b")}
    world.stuck = {"a"}
    world.repairs._carry_out_pending()
    assert world.done == [("b", 4), ("b", 5)]
    assert list(world.lane.state.repairs) == [1, 2]
    world.stuck.clear()
    world.repairs._carry_out_pending()
    assert world.done[2:] == [("a", 2), ("a", 3)]


def test_who_repairs_is_woken_by_the_order_and_rests_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is looked at each second, for ever, for a repair that is asked for once a year."""
    world = World(monkeypatch, WHOLE_TEST_MS)
    wakes = Wakes()
    assert world.repairs._carry_out_pending() == 60_000
    world.lane.state.repairs = {1: repair("a")}
    world.stuck = {"a"}
    assert world.repairs._carry_out_pending() == 1_000
    assert not wakes.repairs.is_set()
    wakes.on_lane()
    assert wakes.repairs.is_set()


def test_a_repair_of_another_process_is_carried_out_when_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record that this process has not written wakes as well."""
    world = World(monkeypatch, WHOLE_TEST_MS)
    world.repairs.start()
    try:
        wait_until("the first look", lambda: world.lane.state.looks > 0, 30)
        world.lane.state.repairs = {1: repair("b")}
        world.wake.set()
        wait_until("the repair", lambda: world.done == [("b", 2)], 30)
    finally:
        world.repairs.stop()


def test_what_the_order_has_not_taken_is_not_called_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its outcome is unknown: it may get its place later, or never."""
    world = World(monkeypatch, 1.0)
    world.lane.answers = False
    with pytest.raises(Indeterminate, match=r"NOT_RECORDED.*of 'a'"):
        world.repairs.repair("a", "skip", 1, ())


def test_a_stop_ends_the_wait_for_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is answered at once: what is pending is carried out by the next start."""
    world = World(monkeypatch, WHOLE_TEST_MS)
    world.stuck = {"a"}
    caught: list[BaseException] = []

    def asks() -> None:
        world.repairs.repair("a", "skip", 1, ())

    thread = BackgroundThread("asks", asks, on_error=caught.append)
    world.repairs.start()
    thread.start()
    wait_until("it is recorded", lambda: bool(world.lane.state.repairs), 30)
    world.repairs.stop()
    assert thread.join(WHOLE_TEST_MS / 4), "it waits out its time"
    with pytest.raises(Indeterminate, match="REPAIR_PENDING"):
        raise caught[0]


def test_a_stop_ends_the_wait_for_the_record_of_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store takes nothing: the next start finds the repair done by its number."""
    world = World(monkeypatch, WHOLE_TEST_MS)
    world.lane.state.repairs = {1: repair("a")}
    world.lane.answers = False
    world.repairs.start()
    wait_until("it is done", lambda: bool(world.done), 30)
    stopping = BackgroundThread("stops", world.repairs.stop)
    stopping.start()
    assert stopping.join(WHOLE_TEST_MS), "it waits for the store"
    assert list(world.lane.state.repairs) == [1]
