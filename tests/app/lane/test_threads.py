"""The lane with its own threads: what is slow does not stall it, and it ends when it must."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from shardline.app.lane.commands import CreateDataflow, DropDataflow, UpdateConfiguration
from shardline.app.lane.inbox import LaneInbox
from shardline.app.lane.lane import Lane
from shardline.app.lane.settings import LaneSettings
from shardline.app.protocol.objects import SourceDescription, ViewDescription
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Determinate, InvalidUsage
from support.fakes.clock import ManualClock, SeededIds
from support.fakes.lane import Order, SimJournal, host

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.app.execution.host import Host, Incarnation
    from shardline.app.lane.process_state import PhaseChange
    from shardline.app.protocol.objects import Description


def view(name: str) -> ViewDescription:
    return ViewDescription(name=name, query="SELECT 1", inputs=(), schema="a INT")


def source(name: str) -> SourceDescription:
    return SourceDescription(name=name, format="csv")


class Threads:
    """A lane with its own threads; each object runs until it is let go.

    `hold` makes the start or the stop of an object wait for the test.
    """

    def __init__(self, *, starts: bool = True, **settings: int) -> None:
        self.order, self.clock = Order(), ManualClock()
        journal = SimJournal(self.order, "a", self.clock, random.Random(0))
        journal.take_over("by-force", {})
        self.held: dict[tuple[str, str], threading.Event] = {}
        self.changed = threading.Condition()
        self.phases: dict[str, str] = {}
        self.host = host(SystemClock())
        kinds: dict[type, Callable[[Host, Incarnation, Description], Threads.Thing]] = {
            ViewDescription: self.render,
            SourceDescription: self.render,
        }
        self.lane = Lane(
            journal,
            kinds,
            lambda _: self.host,
            clock=SystemClock(),
            ids=SeededIds(),
            settings=LaneSettings(**settings),
            observer=self,
        )
        if starts:
            self.lane.start()

    class Thing:
        def __init__(self, stop: Callable[[], None]) -> None:
            self.stop = stop

    def hold(self, name: str, what: str) -> threading.Event:
        return self.held.setdefault((name, what), threading.Event())

    def render(self, _: Host, incarnation: Incarnation, description: Description) -> Thing:
        del description
        self.wait(incarnation.id, "start")
        return Threads.Thing(lambda: self.wait(incarnation.id, "stop"))

    def wait(self, name: str, what: str) -> None:
        if (name, what) in self.held:
            assert self.held[name, what].wait(60)

    def on_record(self, record: object) -> None:
        pass

    def on_phase(self, change: PhaseChange) -> None:
        with self.changed:
            self.phases[change.id] = change.phase
            self.changed.notify_all()

    def on_end(self, error: object) -> None:
        pass

    def until(self, name: str, phase: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.phases.get(name) == phase, 60), self.phases


def test_slow_starts_and_stops_do_not_stall_the_lane() -> None:
    """While one object does not start, and one does not stop, others come and go."""
    threads = Threads()
    start, stop = threads.hold("slow", "start"), threads.hold("stuck", "stop")
    submit = threads.lane.submit
    submit("storage", CreateDataflow(description=source("stuck")))
    threads.until("stuck", "running")
    submit("storage", DropDataflow("stuck"))
    submit("storage", CreateDataflow(description=source("slow")))
    for number in range(20):
        submit("compute", CreateDataflow(description=view(f"v{number}")))
        threads.until(f"v{number}", "running")
        submit("compute", DropDataflow(f"v{number}"))
        threads.until(f"v{number}", "dropped")
    assert (threads.phases["slow"], threads.phases["stuck"]) == ("starting", "stopping")
    start.set()
    stop.set()
    threads.until("slow", "running")
    threads.until("stuck", "dropped")
    assert threads.lane.stop()
    assert threads.phases["slow"] == "stopped"
    assert "slow" in threads.lane.state.objects


def test_who_cannot_wait_for_room_is_told_that_there_is_none() -> None:
    """A caller that does other things as well is never held up by a lane that is full."""
    intake = LaneInbox(2)
    tickets = [intake.offer("a", DropDataflow("v"), None, wait=False) for _ in range(2)]
    with pytest.raises(Determinate, match="LANE_FULL"):
        intake.offer("a", DropDataflow("v"), None, wait=False)
    intake.answer(intake.take_offers(1)[0], 7)
    intake.offer("a", DropDataflow("v"), None, wait=False)
    assert tickets[0].result() == 7


def test_stopping_the_lane_does_not_wait_for_ever() -> None:
    """What does not stop in time ends with the process, and `stop` says so."""
    threads = Threads()
    stop = threads.hold("stuck", "stop")
    threads.lane.submit("storage", CreateDataflow(description=source("stuck")))
    threads.until("stuck", "running")
    assert not threads.lane.stop(timeout_ms=50)
    with pytest.raises(InvalidUsage, match="LANE_STOPPED"):
        threads.lane.submit("storage", DropDataflow("stuck"))
    stop.set()


def test_an_interrupt_of_the_wait_for_the_end_gives_up_the_location() -> None:
    """The lease would be renewed for as long as the process lives; what runs is stopped still."""
    threads, closed = Threads(), threading.Event()
    threads.lane._order.close = closed.set  # type: ignore[method-assign]
    stop = threads.hold("slow", "stop")
    threads.lane.submit("storage", CreateDataflow(description=source("slow")))
    threads.until("slow", "running")

    class Interrupted(threading.Event):
        @override
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    threads.lane._rested = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        threads.lane.stop()
    assert closed.is_set()
    stop.set()
    threads.until("slow", "stopped")


@pytest.mark.parametrize("starts", [True, False])
def test_a_lane_that_ends_without_a_round_leaves_nobody_waiting(starts: bool) -> None:
    """It is stopped before its first round, or right behind its last one, and nothing runs."""
    threads = Threads(starts=False)
    before = threads.lane.offer("storage", DropDataflow("s"))
    threads.lane._thread.cancel()
    if starts:
        threads.lane.start()
    assert threads.lane.stop()
    for position in (before, threads.lane.offer("storage", DropDataflow("s"))):
        with pytest.raises(InvalidUsage, match="LANE_STOPPED"):
            position.result(60)


def test_many_threads_submit_at_once() -> None:
    """Each command of each producer gets its own position, in the producer's order."""
    threads = Threads()
    places: dict[str, list[int]] = {}

    def produce(name: str) -> None:
        places[name] = [
            threads.lane.submit(name, UpdateConfiguration({name: str(i)})) for i in range(50)
        ]

    producers = [threading.Thread(target=produce, args=(f"p{i}",)) for i in range(8)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    assert all(found == sorted(found) for found in places.values())
    assert sorted(p for found in places.values() for p in found) == list(range(1, 401))
    assert threads.lane.stop()


def test_a_lane_that_fails_stops_everything() -> None:
    """Our own mistake inside the lane's thread is told to everybody, and nothing goes on."""
    threads = Threads()
    threads.lane.submit("storage", CreateDataflow(description=source("s")))
    threads.until("s", "running")

    def broken(_: object) -> None:
        raise ZeroDivisionError

    threads.lane._order.append = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(Exception, match="the lane has failed"):
        threads.lane.submit("storage", DropDataflow("s"))
    threads.until("s", "stopped")
    assert threads.lane.stop()
