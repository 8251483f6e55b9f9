"""Controllers against a connection whose other end is the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
from typing_extensions import override

from shardline.app.controller.compute import ComputeController, Hold
from shardline.app.controller.link import Link
from shardline.app.controller.storage import StorageController
from shardline.app.controller.subscription import Subscription
from shardline.app.protocol.compute import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    CreateDataflow,
    CreateInstance,
    Frontiers,
    Hydration,
    InitializationComplete,
    Peek,
    PeekResponse,
    Schedule,
    SubscribeDropped,
    SubscribeResponse,
    UpdateConfiguration,
)
from shardline.app.protocol.objects import (
    Dataflow,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
)
from shardline.app.protocol.storage import (
    DroppedId,
    FrontierUpper,
    RunIngestion,
    RunSink,
    StatusUpdate,
)
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import Corrupt, Determinate, Fenced, ShardError
from support.fakes.connection import Connections, FakeConnection, FakeHold
from support.waiting import wait_until

VIEW = ViewDescription(name="v", query="SELECT * FROM a", inputs=("a",), schema="x INT")
SOURCE = SourceDescription(name="a", format="rate")
SINK = SinkDescription(name="out", on="v", format="parquet", options={"path": "p"})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that was lost connects again soon: nothing here is about how long it waits."""
    monkeypatch.setattr("shardline.app.controller.link._RECONNECT_MS", 5.0)


@contextmanager
def compute(
    *,
    writes: bool = True,
    clock: SystemClock | None = None,
    vacant: Callable[[], bool] | None = None,
    ended: Callable[[], ShardError | None] = lambda: None,
) -> Iterator[tuple[ComputeController, Connections, list[FakeHold]]]:
    """A compute controller that is connected."""
    made, holds = Connections(), list[FakeHold]()

    def hold(dataflow: Dataflow, as_of: int) -> list[Hold]:
        del dataflow, as_of
        holds.append(FakeHold())
        return [holds[-1]]

    controller = ComputeController(
        made,
        clock or SystemClock(),
        SystemIds(),
        hold=hold,
        writes=writes,
        vacant=vacant,
        ended=ended,
    )
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


CREATED = [CreateDataflow(dataflow=VIEW, as_of=3, creation=1), Schedule("v")]


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
        assert controller.desired() == {"v": VIEW}


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
        connection.responses.put(Frontiers(id="v", input=3, write=4, creation=1))
        connection.responses.put(Frontiers(id="v", write=8, creation=1))
        controller.run(VIEW, 3)
        assert not holds[0].expired.is_set()
        connection.responses.put(Frontiers(id="v", input=4, creation=1))
        assert holds[0].expired.wait(10)


@pytest.mark.parametrize("dropped", [False, True])
def test_what_is_said_of_a_former_dataflow_ends_no_hold_of_the_present_one(
    *, dropped: bool
) -> None:
    """It was sent before the runtime had heard of the change, or when the drop was done."""
    former = msgspec.structs.replace(VIEW, query="SELECT 1 AS x FROM a")
    with compute() as (controller, made, holds):
        connection = made.next()
        controller.run(former, 3)
        if dropped:
            controller.drop(["v"])
        controller.run(VIEW, 5)
        connection.responses.put(Frontiers(id="v", write=8, input=8, output=8, creation=1))
        connection.responses.put(Frontiers(id="v", write=None, input=None, creation=1))
        connection.responses.put(Hydration("v", hydrated=True, creation=1))
        present = Frontiers(id="v", write=5, input=5, creation=2)
        connection.responses.put(present)
        wait_until("taken", lambda: controller.frontiers == {"v": present}, timeout_s=10)
        assert controller.hydrated == {}
        assert [hold.expired.is_set() for hold in holds] == [True, False]
        connection.responses.put(Frontiers(id="v", input=6, creation=2))
        assert holds[1].expired.wait(10)


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


class Hasty(SystemClock):
    """A clock whose pauses are short."""

    @override
    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        return super().wait(signal, timeout_ms / 100)


def ask_in_vain(controller: ComputeController, failed: list[ShardError]) -> None:
    with pytest.raises(ShardError) as raised:
        controller.peek("q", (), 0, limit_bytes=1, timeout_ms=600_000)
    failed.append(raised.value)


def follow_and_ask(
    controller: ComputeController, connection: FakeConnection
) -> tuple[Subscription, threading.Thread, list[ShardError]]:
    """A subscription, and a thread that waits for an answer until it notes an error."""
    connection.many(3)
    subscription, _name = follow(controller, connection, 4)
    failed: list[ShardError] = []
    thread = threading.Thread(target=ask_in_vain, args=(controller, failed))
    thread.start()
    connection.next()
    return subscription, thread, failed


def test_who_asks_a_replaced_controller_is_told_at_once() -> None:
    """Whoever waits, whoever comes later and whoever follows; the newer one is not pushed out."""
    newer = threading.Event()
    newer.set()
    with compute(clock=Hasty(), vacant=lambda: not newer.is_set()) as (controller, made, _):
        connection = made.next()
        subscription, thread, failed = follow_and_ask(controller, connection)
        connection.break_off(replaced=True)
        thread.join(60)
        assert failed[0].code == "CONTROLLER_REPLACED"
        ask_in_vain(controller, failed)
        assert failed[1].code == "CONTROLLER_REPLACED"
        (last,) = subscription
        assert isinstance(last, SubscribeResponse)
        assert "CONTROLLER_REPLACED" in last.error
        with pytest.raises(Determinate, match="CONTROLLER_REPLACED"):
            controller.check_in_charge()
        assert made.made.empty()
        newer.clear()
        assert made.next().many(3) == [CreateInstance(), InitializationComplete(), AllowWrites()]
        controller.check_in_charge()


def test_who_waits_for_a_runtime_that_has_ended_is_told_why() -> None:
    """Whoever waits, follows or comes later; nobody connects to it again."""
    over: list[ShardError] = []
    with compute(ended=lambda: over[0] if over else None) as (controller, made, holds):
        made.next().break_off()
        connection = made.next()
        subscription, thread, failed = follow_and_ask(controller, connection)
        over.append(Fenced("another runtime has taken over"))
        connection.break_off()
        thread.join(60)
        ask_in_vain(controller, failed)
        assert failed == [over[0], over[0]]
        (last,) = subscription
        assert isinstance(last, SubscribeResponse)
        assert last.error == str(over[0])
        assert holds[0].expired.is_set()
        with pytest.raises(Fenced):
            controller.subscribe("v", 4)
        assert made.made.empty()
        over.clear()


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


def follow(
    controller: ComputeController, connection: FakeConnection, as_of: int
) -> tuple[Subscription, str]:
    """A subscription of a connected controller, and its name."""
    subscription = controller.subscribe("v", as_of)
    created, scheduled = connection.many(2)
    assert scheduled == Schedule(created.id)
    return subscription, created.id


def batch(name: str, lower: int, upper: int | None, updates: bytes = b"") -> SubscribeResponse:
    return SubscribeResponse(id=name, lower=lower, upper=upper, updates=updates, shard="s0f")


def test_a_subscription_gives_its_batches_until_the_last() -> None:
    """Each is acknowledged when it is taken, and the subscription dropped after the last."""
    with compute() as (controller, made, _):
        connection = made.next()
        connection.many(3)
        subscription, name = follow(controller, connection, 4)
        batches = [batch(name, 4, 7, b"x"), batch(name, 7, None, b"y")]
        connection.responses.put(batches[0])
        taken = iter(subscription)
        assert next(taken) == batches[0]
        assert connection.next() == AllowCompaction(name, 7)
        connection.responses.put(batches[1])
        assert list(taken) == batches[1:]
        assert connection.next() == AllowCompaction(name, None)
        subscription.close()
        assert controller.desired() == {}
        assert connection.sent.empty()


def test_nothing_is_acknowledged_before_it_is_taken() -> None:
    """So a reader that does not read is sent no more than the runtime's window."""
    with compute() as (controller, made, _):
        connection = made.next()
        connection.many(3)
        subscription, name = follow(controller, connection, 0)
        for time in range(3):
            connection.responses.put(batch(name, time, time + 1))
        wait_until("all have come", connection.responses.empty, 10)
        assert connection.sent.empty()
        assert subscription.take(10_000) == batch(name, 0, 1)
        assert connection.next() == AllowCompaction(name, 1)


def test_a_reader_that_is_too_slow_for_a_runtime_that_does_not_wait_is_told() -> None:
    """The number of batches is bounded; the reader gets those, then an error, and never hangs."""
    with compute() as (controller, made, _):
        connection = made.next()
        connection.many(3)
        subscription, name = follow(controller, connection, 0)
        for number in range(300):
            connection.responses.put(batch(name, number, number + 1))
        assert connection.next() == AllowCompaction(name, None)
        *rows, last = subscription
        assert rows == [batch(name, number, number + 1) for number in range(256)]
        assert isinstance(last, SubscribeResponse)
        assert last.lower == 256
        assert "SUBSCRIBER_TOO_SLOW" in last.error


def test_the_hold_of_a_subscription_ends_with_its_first_batch() -> None:
    """It has read under a hold of its own by then; nothing of it stays in the controller."""
    with compute() as (controller, made, holds):
        connection = made.next()
        connection.many(3)
        subscription, name = follow(controller, connection, 4)
        assert not holds[0].expired.is_set()
        connection.responses.put(Hydration(name, hydrated=True))
        connection.responses.put(batch(name, 4, 6))
        assert holds[0].expired.wait(10)
        subscription.close()
        assert controller.hydrated == {}


def test_a_subscription_goes_on_behind_its_last_batch() -> None:
    """Over a lost connection nothing comes twice and nothing is lost.

    It is said anew without snapshot, under a hold and a name of its own: what is still said about
    the former one is not heard.
    """
    with compute() as (controller, made, holds):
        connection = made.next()
        connection.many(3)
        subscription, name = follow(controller, connection, 4)
        connection.responses.put(batch(name, 4, 7, b"snapshot"))
        connection.responses.put(batch(name, 7, 9, b"c"))
        assert [subscription.take(10_000) for _ in range(2)] == [
            batch(name, 4, 7, b"snapshot"), batch(name, 7, 9, b"c")
        ]  # fmt: skip
        connection.break_off()
        again = made.next()
        created = again.many(5)[1]
        described = SubscribeDescription(name=created.id, on="v", snapshot=False, shard="s0f")
        assert created == CreateDataflow(dataflow=described, as_of=8, creation=2)
        assert created.id != name
        assert len(holds) == 2
        assert not holds[1].expired.is_set()
        for said in (
            batch(name, 4, 9, b"snapshot again"),
            batch(created.id, 8, 9),
            batch(created.id, 9, 12, b"d"),
        ):
            again.responses.put(said)
        assert subscription.take(10_000) == batch(created.id, 9, 12, b"d")
        assert holds[1].expired.wait(10)


def test_nothing_is_held_for_a_runtime_that_refuses_each_connection() -> None:
    """One that was fenced lives on for a while: each attempt would take a hold of another name."""
    with compute() as (controller, made, holds):
        connection = made.next()
        connection.many(3)
        subscription, _ = follow(controller, connection, 4)
        made.refused = True
        connection.break_off()
        assert all(made.next().sent.empty() for _ in range(5))
        assert len(holds) == 1
        subscription.close()


def test_a_subscription_that_cannot_go_on_keeps_no_other_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it reads is damaged, and stays that; who reads something else is served."""
    with compute() as (controller, made, _):
        connection = made.next()
        connection.many(3)
        damaged, name = follow(controller, connection, 4)
        connection.responses.put(batch(name, 4, 7))
        assert damaged.take(10_000) is not None
        assert connection.next() == AllowCompaction(name, 7)
        other, _ = follow(controller, connection, 4)
        hold = controller._hold

        def fail(dataflow: Dataflow, as_of: int) -> list[Hold]:
            if as_of == 6:
                raise Corrupt("a record is damaged")
            return hold(dataflow, as_of)

        monkeypatch.setattr(controller, "_hold", fail)
        connection.break_off()
        (created,) = (one for one in made.next().many(5) if isinstance(one, CreateDataflow))
        assert created.as_of == 4
        assert "a record is damaged" in str(damaged.take(10_000))
        assert damaged.ended
        other.close()


def test_a_first_batch_after_a_lost_connection_begins_where_the_last_has_ended() -> None:
    """The runtime's own begins one before, with nothing of that time."""
    with compute() as (controller, made, _):
        connection = made.next()
        connection.many(3)
        subscription, name = follow(controller, connection, 4)
        connection.responses.put(batch(name, 4, 7))
        assert subscription.take(10_000) is not None
        connection.break_off()
        again = made.next()
        created = again.many(5)[1]
        again.responses.put(batch(created.id, 6, 12, b"d"))
        assert subscription.take(10_000) == batch(created.id, 7, 12, b"d")


def test_a_subscription_ends_with_its_controller() -> None:
    """Who reads is told where the last batch has ended, and does not wait for ever."""
    with compute() as (controller, made, holds):
        connection = made.next()
        connection.many(3)
        subscription, name = follow(controller, connection, 4)
        connection.responses.put(batch(name, 4, 7))
        assert holds[0].expired.wait(10)
        controller.stop()
        assert list(subscription)[-1] == SubscribeDropped(name, 7)


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
    """The newest status and upper of each object; a dropped one has neither."""
    with storage() as (controller, made):
        connection = made.next()
        running = StatusUpdate(id="a", status="running", at_ms=1)
        stalled = StatusUpdate(id="a", status="stalled", at_ms=2, error="e", hints=("h",))
        for response in (
            running, FrontierUpper("a", 5), FrontierUpper("a", 6), FrontierUpper("b", 1),
            StatusUpdate(id="b", status="dropped", at_ms=2), DroppedId("b"), stalled,
        ):  # fmt: skip
            connection.responses.put(response)
        wait_until("the status is heard", lambda: controller.statuses.get("a") == stalled, 10)
        assert controller.statuses == {"a": stalled}
        assert controller.uppers == {"a": 6}


def test_a_connection_that_cannot_be_made_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the reason: without its link a controller would be cut off for ever."""
    made, errors = Connections(), [RuntimeError("a bug"), ConnectionError("nobody there")]

    def connect() -> FakeConnection:
        if errors:
            raise errors.pop()
        return made()

    link = Link(connect, list, lambda _: None, Hasty(), "a")
    link.start()
    made.next()
    link.stop()
    found = [r.__dict__["context"] for r in caplog.records if r.levelname == "ERROR"]
    assert found == [{"thread": "a-link"}]
