"""A connection keeps its promises over every transport; one test for each bug that is known."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any

import pytest

from shardline.app.protocol.compute import (
    AllowWrites,
    CreateInstance,
    Frontiers,
    Hello,
    InitializationComplete,
    PeekResponse,
    Schedule,
)
from shardline.app.protocol.storage import DroppedId, RunIngestion
from shardline.app.transport.session import CloseCode, Limits, Received, Reconcile
from support.fakes.replicas import source
from support.fakes.wires import PATIENCE_S, Wire, inprocess, websocket

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.app.transport.client import Client

WIRES = [inprocess, pytest.param(websocket, marks=pytest.mark.server)]


def said(count: int, word: str = "c") -> list[Schedule]:
    return [Schedule(f"{word}{n}") for n in range(count)]


def initialize(client: Client[Any, Any], *commands: Any) -> None:
    for command in (*commands, InitializationComplete()):
        assert client.send(command)


def answer(client: Client[Any, Any]) -> Any:
    return client.receive(PATIENCE_S * 1000)


def end(client: Client[Any, Any]) -> Any:
    """How a connection has ended, once the client has read all that it was told."""
    while answer(client) is not None:
        pass
    return client.closed


# --- the bugs of those who went before ----------------------------------------------------------


def test_regression_hello_never_reaches_a_worker(wire: Wire) -> None:
    """`Hello` makes a connection; whoever says it again is disconnected."""
    with closing(wire.connect("n1")) as client:
        initialize(client, CreateInstance())
        assert wire.compute.take() == Reconcile("n1", (CreateInstance(),))
        client.send(Hello("n2"))
        assert end(client).code is CloseCode.PROTOCOL_ERROR
        assert wire.compute.endpoint.take() is None


def test_regression_nothing_blocks_while_a_controller_is_away(wire: Wire) -> None:
    """Taking and responding return at once: without a controller, with half of one, after it."""
    endpoint = wire.compute.endpoint
    for _ in range(2):
        assert (endpoint.take(), endpoint.respond(DroppedId("a"))) == (None, False)
        client = wire.connect("half")
        client.send(Schedule("a"))
        assert (endpoint.take(), endpoint.respond(DroppedId("a"))) == (None, False)
        client.close()
        wire.compute.ended()
    assert endpoint.session is None


def test_regression_stale_commands_are_never_executed(wire: Wire) -> None:
    """What the old controller said last is gone as soon as there is a new one."""
    with closing(wire.connect("old")) as old, closing(wire.connect("other", "storage")) as other:
        initialize(old, CreateInstance())
        assert wire.compute.take() == Reconcile("old", (CreateInstance(),))
        for command in said(50, "stale"):
            old.send(command)
        with closing(wire.connect("new")) as new:
            old.send(Schedule("later"))
            assert wire.compute.endpoint.take() is None
            initialize(new, AllowWrites())
            assert wire.compute.take() == Reconcile("new", (AllowWrites(),))
            assert wire.compute.endpoint.take() is None
            assert end(old).code is CloseCode.REPLACED
        assert other.closed is None  # the other protocol has its own controller


def test_regression_commands_right_behind_the_initialization(wire: Wire) -> None:
    """Nothing is lost between what a controller wants first and what it says next."""
    with closing(wire.connect("n")) as client:
        initialize(client, *said(20, "first"))
        for command in said(20, "next"):
            client.send(command)
        assert wire.compute.take() == Reconcile("n", tuple(said(20, "first")))
        assert [wire.compute.take() for _ in range(20)] == [Received(c) for c in said(20, "next")]


def test_regression_stale_responses_never_reach_a_new_client(wire: Wire) -> None:
    """A controller hears nothing that was said before what it wants has been taken."""
    endpoint = wire.compute.endpoint
    with closing(wire.connect("old")) as old:
        initialize(old)
        wire.compute.take()
        assert endpoint.respond(Frontiers(id="old", write=1))
        with closing(wire.connect("new")) as new:
            assert not endpoint.respond(Frontiers(id="between", write=2))
            initialize(new)
            while not wire.compute.woken.wait(PATIENCE_S):
                pass
            assert not endpoint.respond(Frontiers(id="waiting", write=3))
            wire.compute.take()
            assert endpoint.respond(Frontiers(id="new", write=4))
            assert answer(new) == Frontiers(id="new", write=4)


def test_regression_storage_is_served_before_compute_has_connected(wire: Wire) -> None:
    """The protocols wait for nothing of one another: not for a peer, nor for half of one."""
    with closing(wire.connect("s", "storage")) as storage:
        initialize(storage, RunIngestion(source("a")))
        assert wire.storage.take() == Reconcile("s", (RunIngestion(source("a")),))
        with closing(wire.connect("c")) as compute:
            compute.send(CreateInstance())
            storage.send(RunIngestion(source("b")))
            assert wire.storage.take() == Received(RunIngestion(source("b")))
            assert wire.storage.endpoint.respond(DroppedId("a"))
            assert answer(storage) == DroppedId("a")
        assert wire.compute.endpoint.take() is None


# --- coming and going --------------------------------------------------------------------------


def test_a_disconnect_before_the_end_of_the_initialization(wire: Wire) -> None:
    """Half of what a controller wants is nothing: it would look as if the rest were unwanted."""
    with closing(wire.connect("half")) as client:
        for command in said(10):
            client.send(command)
    wire.compute.ended()
    assert wire.compute.endpoint.take() is None
    with closing(wire.connect("whole")) as client:
        initialize(client, AllowWrites())
        assert wire.compute.take() == Reconcile("whole", (AllowWrites(),))


def test_what_a_controller_said_before_it_left_is_done(wire: Wire) -> None:
    """A controller may say its last word and go."""
    with closing(wire.connect("n")) as client:
        initialize(client)
        client.send(Schedule("last"))
    wire.compute.ended()
    assert wire.compute.take() == Reconcile("n", ())
    assert wire.compute.take() == Received(Schedule("last"))
    assert not wire.compute.endpoint.respond(DroppedId("a"))


def test_many_connections_at_once_leave_one(wire: Wire) -> None:
    """However many connect at the same time: one is served, the others are told that it is."""
    clients: list[Client[Any, Any]] = []

    def come(n: int) -> None:
        client = wire.connect(f"n{n}")
        clients.append(client)
        for command in (Schedule(f"c{n}"), InitializationComplete(), Schedule(f"d{n}")):
            client.send(command)

    threads = [threading.Thread(target=come, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    steps = [wire.compute.take(), wire.compute.take()]
    last = clients[0]
    for client in clients:
        if wire.compute.endpoint._current is not None:
            last = client if client.nonce == wire.compute.endpoint._current.nonce else last
    n = last.nonce[1:]
    assert steps == [Reconcile(last.nonce, (Schedule(f"c{n}"),)), Received(Schedule(f"d{n}"))]
    assert wire.compute.endpoint.take() is None
    for client in clients:
        if client is not last:
            assert end(client).code is CloseCode.REPLACED
    assert last.closed is None
    last.close()


def test_what_cannot_be_done_is_refused(wire: Wire) -> None:
    """A controller whose wishes make no sense is told why, and has no more of them taken."""
    with closing(wire.connect("n")) as client:
        initialize(client)
        client.send(Schedule("next"))
        wire.compute.take()
        wire.compute.endpoint.refuse("nothing called 'x' has been created")
        closed = end(client)
        assert closed.code is CloseCode.REFUSED
        assert closed.detail == "nothing called 'x' has been created"
        assert wire.compute.endpoint.take() is None
        assert not client.send(Schedule("more"))


def test_a_refusal_is_for_who_said_it(wire: Wire) -> None:
    """A controller that connects meanwhile is not refused for the one before."""
    with closing(wire.connect("old")) as old:
        initialize(old)
        wire.compute.take()
        with closing(wire.connect("new")) as new:
            wire.compute.endpoint.refuse("nonsense")
            initialize(new)
            assert wire.compute.take() == Reconcile("new", ())


def test_a_runtime_that_ends_says_so(wire: Wire) -> None:
    """Controllers hear that the runtime is ending."""
    with closing(wire.connect("n")) as client:
        initialize(client)
        wire.compute.take()
        wire.compute.endpoint.shut()
        assert end(client).code is CloseCode.SHUTDOWN
        assert wire.compute.endpoint.take() is None


# --- bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", WIRES)
def test_too_many_commands_before_the_end_of_the_initialization(
    make: Callable[[Limits], AbstractContextManager[Wire]],
) -> None:
    """A list without end is an error, and not the runtime's memory."""
    with make(Limits(commands=5)) as wire, closing(wire.connect("n")) as client:
        for command in said(6):
            client.send(command)
        assert end(client).code is CloseCode.OVERRUN
        assert wire.compute.endpoint.take() is None


@pytest.mark.parametrize("make", WIRES)
def test_too_many_commands_that_the_runtime_has_not_taken(
    make: Callable[[Limits], AbstractContextManager[Wire]],
) -> None:
    """A runtime that is busy for too long loses its controller, which can say all of it again."""
    with make(Limits(commands=5)) as wire, closing(wire.connect("n")) as client:
        initialize(client)
        for command in said(6):
            client.send(command)
        closed = end(client)
        assert closed.code is CloseCode.OVERRUN
        assert closed.detail == "5 commands are waiting to be taken, which is the limit"
        assert wire.compute.take() == Reconcile("n", ())
        assert [wire.compute.take() for _ in range(5)] == [Received(c) for c in said(5)]


@pytest.mark.parametrize("make", WIRES)
def test_a_slow_reader_is_disconnected(
    make: Callable[[Limits], AbstractContextManager[Wire]],
) -> None:
    """A controller that reads nothing costs the runtime a bounded queue, and never its time."""
    limits = Limits(response_bytes=4 << 20, heartbeat_ms=60_000, silence_ms=60_000)
    big = PeekResponse(uuid="p", rows=bytes(1 << 20))
    with make(limits) as wire, closing(wire.connect("slow")) as client:
        initialize(client)
        wire.compute.take()
        told = 0
        while wire.compute.endpoint.respond(big):
            told += 1
            assert told < 500, "it is never disconnected"
        assert wire.compute.ended().code is CloseCode.SLOW_READER
        with closing(wire.connect("next")) as following:
            initialize(following)
            assert wire.compute.take() == Reconcile("next", ())
            assert wire.compute.endpoint.respond(big)
            assert answer(following) == big


def test_many_small_responses_have_a_bound_too() -> None:
    """The queue of responses is bounded by their number, whatever their size."""
    with inprocess(Limits(responses=3)) as wire, closing(wire.connect("n")) as client:
        initialize(client)
        wire.compute.take()
        told = [wire.compute.endpoint.respond(DroppedId(f"{n}")) for n in range(5)]
        assert told == [True, True, True, False, False]
        assert [client.receive() for _ in range(4)] == [*map(DroppedId, "012"), None]
        assert client.closed is not None
        assert client.closed.code is CloseCode.SLOW_READER
