"""Controllers against a connection whose other end is the test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.controller.compute import ComputeController, Hold
from app.controller.storage import StorageController
from app.protocol.compute import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    CreateDataflow,
    CreateInstance,
    Frontiers,
    InitializationComplete,
    Peek,
    PeekResponse,
    Schedule,
    SubscribeDropped,
    SubscribeResponse,
    UpdateConfiguration,
)
from app.protocol.objects import Dataflow, SinkDescription, SourceDescription, ViewDescription
from app.protocol.storage import DroppedId, FrontierUpper, RunIngestion, RunSink, StatusUpdate
from datasource.clock import SystemClock, SystemIds
from datasource.errors import Determinate
from support.checkout import wait_until
from support.connection import FakeConnection

VIEW = ViewDescription(name="v", query="SELECT * FROM a", inputs=("a",), schema="x INT")
SOURCE = SourceDescription(name="a", format="rate")
SINK = SinkDescription(name="out", on="v", format="parquet", options={"path": "p"})


class Connections:
    """Makes a new connection each time; the test gets them one after the other."""

    def __init__(self) -> None:
        self.made: queue.Queue[FakeConnection] = queue.Queue()

    def __call__(self) -> FakeConnection:
        connection = FakeConnection()
        self.made.put(connection)
        return connection

    def next(self) -> FakeConnection:
        return self.made.get(timeout=10)


class FakeHold:
    """A hold that knows whether it was given up."""

    def __init__(self) -> None:
        self.expired = threading.Event()

    def expire(self) -> bool:
        self.expired.set()
        return True


@contextmanager
def compute(
    *, writes: bool = True
) -> Iterator[tuple[ComputeController, Connections, list[FakeHold]]]:
    """A compute controller that is connected."""
    made, holds = Connections(), list[FakeHold]()

    def hold(dataflow: Dataflow, as_of: int) -> list[Hold]:
        del dataflow, as_of
        holds.append(FakeHold())
        return [holds[-1]]

    controller = ComputeController(made, SystemClock(), SystemIds(), hold=hold, writes=writes)
    controller.start()
    try:
        yield controller, made, holds
    finally:
        controller.stop()


@contextmanager
def storage(*, writes: bool = True) -> Iterator[tuple[StorageController, Connections]]:
    """A storage controller that is connected."""
    made = Connections()
    controller = StorageController(made, SystemClock(), as_of=lambda _: 5, writes=writes)
    controller.start()
    try:
        yield controller, made
    finally:
        controller.stop()


CREATED = [CreateDataflow(dataflow=VIEW, as_of=3), Schedule("v")]


def test_a_connection_begins_with_all_that_should_be_there() -> None:
    """Also the second one, after the first was lost; nothing comes before or between."""
    with compute() as (controller, made, _):
        first = made.next()
        assert first.many(3) == [CreateInstance(), InitializationComplete(), AllowWrites()]
        controller.run(VIEW, 3)
        assert first.many(2) == CREATED
        first.break_off()
        second = made.next()
        expected = [CreateInstance(), *CREATED, InitializationComplete(), AllowWrites()]
        assert second.many(5) == expected
        assert controller.wanted() == {"v": VIEW}


def test_what_is_the_same_already_is_not_sent() -> None:
    """A second run of the same description is none; a changed one replaces."""
    with compute() as (controller, made, holds):
        connection = made.next()
        connection.many(3)
        controller.run(VIEW, 3)
        controller.run(VIEW, 9)
        controller.drop(["v", "unknown"])
        assert connection.many(3) == [*CREATED, AllowCompaction("v", None)]
        assert len(holds) == 1
        assert holds[0].expired.is_set()


def test_holds_on_inputs_end_when_the_dataflow_has_read_beyond_its_as_of() -> None:
    """Not when it has only begun."""
    with compute() as (controller, made, holds):
        connection = made.next()
        controller.run(VIEW, 3)
        connection.responses.put(Frontiers(id="v", input=3, write=4))
        connection.responses.put(Frontiers(id="v", write=8))
        controller.run(VIEW, 3)
        assert not holds[0].expired.is_set()
        connection.responses.put(Frontiers(id="v", input=4))
        assert holds[0].expired.wait(10)


def test_settings_are_said_to_the_runtime_and_to_each_new_one() -> None:
    """At once, and by a later connection before anything else, all of them as one."""
    one, both = UpdateConfiguration({"a": "2"}), UpdateConfiguration({"a": "2", "b": "1"})
    with compute() as (controller, made, _):
        first = made.next()
        first.many(3)
        controller.configure({"a": "1", "b": "1"})
        controller.configure({"a": "2"})
        assert first.many(2) == [UpdateConfiguration({"a": "1", "b": "1"}), one]
        first.break_off()
        expected = [CreateInstance(), both, InitializationComplete(), AllowWrites()]
        assert made.next().many(4) == expected
    with storage() as (keeper, made):
        first = made.next()
        first.many(2)
        keeper.configure({"a": "1", "b": "1"})
        keeper.configure({"a": "2"})
        assert first.many(2) == [UpdateConfiguration({"a": "1", "b": "1"}), one]
        first.break_off()
        assert made.next().many(3) == [both, InitializationComplete(), AllowWrites()]


def test_settings_wait_until_writes_are_allowed() -> None:
    """A runtime that follows another one has that one's; its own come with the permission."""
    said = UpdateConfiguration({"a": "1"})
    with compute(writes=False) as (controller, made, _):
        connection = made.next()
        connection.many(2)
        controller.configure({"a": "1"})
        controller.allow_writes()
        assert connection.many(2) == [AllowWrites(), said]
    with storage(writes=False) as (keeper, made):
        connection = made.next()
        connection.many(1)
        keeper.configure({"a": "1"})
        keeper.allow_writes()
        assert connection.many(2) == [AllowWrites(), said]


def test_read_only_until_writes_are_allowed() -> None:
    """And from then on in every connection."""
    with compute(writes=False) as (controller, made, _):
        connection = made.next()
        assert connection.many(2) == [CreateInstance(), InitializationComplete()]
        controller.allow_writes()
        controller.allow_writes()
        controller.run(VIEW, 3)
        assert connection.many(3) == [AllowWrites(), *CREATED]
        connection.break_off()
        assert AllowWrites() in made.next().many(5)


def test_a_controller_that_was_replaced_stays_away() -> None:
    """Two of them would otherwise push each other out for ever."""
    with compute() as (controller, made, _):
        made.next().break_off(replaced=True)
        controller.stop()
        assert made.made.empty()


def test_a_peek_is_answered_once_and_survives_a_lost_connection() -> None:
    """It is asked again on the next one."""
    with compute() as (controller, made, _):
        connection = made.next()
        answers: list[PeekResponse] = []

        def ask() -> None:
            answers.append(
                controller.peek("SELECT 1", ("a",), 7, limit_bytes=10, timeout_ms=10_000)
            )

        thread = threading.Thread(target=ask)
        thread.start()
        peek = connection.many(4)[-1]
        assert isinstance(peek, Peek)
        connection.break_off()
        again = made.next()
        assert peek in again.many(4)
        again.responses.put(PeekResponse(uuid=peek.uuid, rows=b"rows"))
        thread.join(10)
        assert answers == [PeekResponse(uuid=peek.uuid, rows=b"rows")]


def test_a_peek_without_an_answer_is_cancelled() -> None:
    """The runtime is told, and whoever asked gets an error that says what to do."""
    with compute() as (controller, made, _):
        connection = made.next()
        connection.many(3)
        with pytest.raises(Determinate, match="PEEK_TIMEOUT"):
            controller.peek("SELECT 1", (), 0, limit_bytes=1, timeout_ms=1)
        peek, cancel = connection.many(2)
        assert cancel == CancelPeek(peek.uuid)


def test_a_peek_that_nobody_waits_for_any_more_is_cancelled() -> None:
    """The runtime is told soon after, long before its time is over."""
    with compute() as (controller, made, _):
        connection = made.next()
        connection.many(3)
        gone, failed = threading.Event(), list[Determinate]()

        def ask() -> None:
            try:
                controller.peek("q", (), 0, limit_bytes=1, timeout_ms=600_000, cancelled=gone)
            except Determinate as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        peek = connection.next()
        gone.set()
        assert connection.next() == CancelPeek(peek.uuid)
        thread.join(10)
        assert "given up" in str(failed[0])


def test_a_subscription_gives_its_batches_until_the_last() -> None:
    """And is dropped when it is closed."""
    with compute() as (controller, made, _):
        connection = made.next()
        connection.many(3)
        subscription = controller.subscribe("v", 4, snapshot=False, up_to=9)
        created, _ = connection.many(2)
        name = created.id
        batches = [
            SubscribeResponse(id=name, lower=4, upper=7, updates=b"x"),
            SubscribeResponse(id=name, lower=7, upper=None, updates=b"y"),
        ]
        for batch in batches:
            connection.responses.put(batch)
        assert list(subscription) == batches
        subscription.close()
        assert connection.next() == AllowCompaction(name, None)
        assert controller.wanted() == {}


def test_a_subscription_that_nobody_reads_is_dropped() -> None:
    """The controller keeps a bounded number of batches."""
    with compute() as (controller, made, _):
        connection = made.next()
        connection.many(3)
        subscription = controller.subscribe("v", 0)
        name = connection.many(2)[0].id
        for number in range(300):
            connection.responses.put(SubscribeResponse(id=name, lower=number, upper=number + 1))
        assert connection.next() == AllowCompaction(name, None)
        first = subscription.take(1000)
        assert not isinstance(first, SubscribeDropped)
        assert first is not None
        assert first.lower == 0


def test_sources_and_sinks_are_run_changed_and_dropped() -> None:
    """One command each; a sink begins where the controller says."""
    with storage() as (controller, made):
        connection = made.next()
        assert connection.many(2) == [InitializationComplete(), AllowWrites()]
        controller.run(SOURCE)
        controller.run(SOURCE)
        changed = SourceDescription(name="a", format="rate", options={"rowsPerSecond": "5"})
        controller.run(changed)
        controller.run(SINK)
        controller.drop(["a"])
        sink = RunSink(sink=SINK, as_of=5)
        assert connection.many(4) == [
            RunIngestion(SOURCE), RunIngestion(changed), sink, AllowCompaction("a", None)
        ]  # fmt: skip
        connection.break_off()
        assert made.next().many(3) == [sink, InitializationComplete(), AllowWrites()]


def test_what_is_heard_of_storage_is_kept() -> None:
    """The newest status and upper of each object; a dropped one has no upper."""
    with storage() as (controller, made):
        connection = made.next()
        running = StatusUpdate(id="a", status="running", at_ms=1)
        stalled = StatusUpdate(id="a", status="stalled", at_ms=2, error="e", hints=("h",))
        for response in (
            running, FrontierUpper("a", 5), FrontierUpper("a", 6), FrontierUpper("b", 1),
            DroppedId("b"), stalled,
        ):  # fmt: skip
            connection.responses.put(response)
        wait_until("the status is heard", lambda: controller.statuses.get("a") == stalled, 10)
        assert controller.statuses == {"a": stalled}
        assert controller.uppers == {"a": 6}
