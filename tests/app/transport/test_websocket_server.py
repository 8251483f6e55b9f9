"""Sockets: who is let in, what is no message, and peers that are gone without a word."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as open_socket

from shardline.app.protocol.codec import COMPUTE, PROTOCOL_VERSION, STORAGE
from shardline.app.protocol.compute import Hello, InitializationComplete, PeekResponse, Schedule
from shardline.app.protocol.storage import RunIngestion
from shardline.app.transport.session import CloseCode, Limits, Received, Reconcile
from shardline.app.transport.websocket_client import WebSocketClient, connect
from shardline.datasource.errors import Determinate, InvalidUsage
from support.fakes.replicas import source
from support.fakes.wires import PATIENCE_S, TOKEN, Relay, websocket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from websockets.sync.client import ClientConnection

pytestmark = pytest.mark.server

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def wire() -> Iterator[Any]:
    """A server on loopback."""
    with websocket() as made:
        yield made


def opened(wire: Any) -> ClientConnection:
    """A socket that has said its opening, and been welcomed."""
    raw = open_socket(wire.url(), additional_headers=BEARER, proxy=None).__enter__()
    raw.send(COMPUTE.encode_opening(Hello("raw")).decode())
    COMPUTE.check_welcome(str(raw.recv(PATIENCE_S)).encode())
    return raw


def farewell(raw: ClientConnection) -> tuple[int, str]:
    """Code and reason of the close frame."""
    with pytest.raises(ConnectionClosed) as closed:
        raw.recv(PATIENCE_S)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


# --- who is let in -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {**BEARER, "Origin": "http://127.0.0.1"},
    ],
)
def test_strangers_are_not_let_in(wire: Any, headers: dict[str, str]) -> None:
    """Without the token nobody comes in; with it no page of a browser does."""
    with (
        pytest.raises(InvalidStatus, match="403"),
        open_socket(wire.url(), additional_headers=headers, proxy=None),
    ):
        pass
    assert wire.compute.endpoint._current is None


def test_why_a_connection_fails(wire: Any) -> None:
    """What is to be corrected is `InvalidUsage`; what may work later is `Determinate`."""
    with pytest.raises(InvalidUsage, match=r"\[UNAUTHORIZED\].*check the token"):
        connect(wire.url(), COMPUTE, "n", token="wrong")  # noqa: S106 - it is wrong
    with pytest.raises(InvalidUsage, match=r"\[UNAUTHORIZED\]"):
        connect(wire.url("nothing"), COMPUTE, "n", token=TOKEN)
    with pytest.raises(InvalidUsage, match="no address of a socket"):
        connect("127.0.0.1", COMPUTE, "n")
    with pytest.raises(InvalidUsage, match=r"PROTOCOL_ERROR.*WRONG_PROTOCOL"):
        connect(wire.url("storage"), COMPUTE, "n", token=TOKEN)
    wire.compute.endpoint.shut()
    with pytest.raises(Determinate, match=r"\[RUNTIME_UNAVAILABLE\].*ending"):
        connect(wire.url(), COMPUTE, "n", token=TOKEN)
    wire.stop()
    with pytest.raises(Determinate, match=r"\[RUNTIME_UNAVAILABLE\] no runtime answers"):
        connect(wire.url(), COMPUTE, "n", token=TOKEN)


# --- what is said ------------------------------------------------------------------------------


def test_values_of_any_size_cross(wire: Any) -> None:
    """A large result arrives as it was, and so does what has characters of all kinds."""
    with closing(wire.connect("n")) as client:
        client.send(Schedule("ü\n\x00🙂"))
        client.send(InitializationComplete())
        assert wire.compute.take() == Reconcile("n", (Schedule("ü\n\x00🙂"),))
        large = PeekResponse(uuid="p", rows=bytes(range(256)) * 40_000)
        assert wire.compute.endpoint.respond(large)
        assert client.receive(PATIENCE_S * 1000) == large


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        ("", CloseCode.PROTOCOL_ERROR, "[MALFORMED_MESSAGE] this is no command"),
        ("[1, 2", CloseCode.PROTOCOL_ERROR, "[MALFORMED_MESSAGE] this is no command"),
        (b"\x00\xff", CloseCode.PROTOCOL_ERROR, "[MALFORMED_MESSAGE] this is no command"),
        (
            STORAGE.encode_command(RunIngestion(source("a"))).decode(),
            CloseCode.PROTOCOL_ERROR,
            "[MALFORMED_MESSAGE] this is no command of the compute protocol",
        ),
        ('{"type":"hello","nonce":"n"}', CloseCode.PROTOCOL_ERROR, "Hello came a second time"),
    ],
)
def test_nonsense_ends_the_connection(
    wire: Any, message: str | bytes, code: CloseCode, reason: str
) -> None:
    """What is no message of this protocol is told, and nothing is guessed."""
    with closing(opened(wire)) as raw:
        raw.send(message)
        told = farewell(raw)
        assert told[0] == code
        assert told[1].startswith(reason)
    assert wire.compute.endpoint.take() is None


def test_messages_have_a_limit() -> None:
    """A message that is too large ends the connection before it is held in memory."""
    with websocket(Limits(message_bytes=1000)) as wire, closing(opened(wire)) as raw:
        raw.send(COMPUTE.encode_command(Schedule("a" * 900)).decode())
        raw.send(COMPUTE.encode_command(Schedule("a" * 1000)).decode())
        assert farewell(raw)[0] == CloseCode.TOO_LARGE
        assert wire.compute.ended().code is CloseCode.TOO_LARGE


def test_the_route_has_the_limit_without_the_server() -> None:
    """Where the server was not given its options, the limit is kept all the same."""
    with websocket(Limits(message_bytes=1000)) as wire:
        wire.server.config.ws_max_size = 1 << 20
        with closing(opened(wire)) as raw:
            raw.send("x" * 1001)
            code, reason = farewell(raw)
        assert code == CloseCode.TOO_LARGE
        assert "a message of 1001 bytes, the limit is 1000" in reason


@pytest.mark.parametrize(
    ("opening", "reason"),
    [
        ("nonsense", "[MALFORMED_MESSAGE] this is no opening of the compute protocol"),
        (COMPUTE.encode_command(Schedule("a")).decode(), "[MALFORMED_MESSAGE]"),
        (STORAGE.encode_opening(Hello("n")).decode(), "[WRONG_PROTOCOL]"),
    ],
)
def test_a_connection_begins_with_an_opening(wire: Any, opening: str, reason: str) -> None:
    """Who begins with anything else replaces nobody."""
    with (
        closing(wire.connect("there")) as there,
        open_socket(wire.url(), additional_headers=BEARER, proxy=None) as raw,
    ):
        raw.send(opening)
        code, told = farewell(raw)
        assert code == CloseCode.PROTOCOL_ERROR
        assert told.startswith(reason)
        assert there.closed is None


def test_a_newer_controller_is_told_what_to_update(wire: Any) -> None:
    """The versions of both are in the reason, which fits into a close frame."""
    newer = {"protocol": "compute", "version": PROTOCOL_VERSION + 1, "hello": {"type": "hi"}}
    with open_socket(wire.url(), additional_headers=BEARER, proxy=None) as raw:
        raw.send(json.dumps(newer))
        code, reason = farewell(raw)
    assert code == CloseCode.PROTOCOL_VERSION
    assert reason == (
        f"[PROTOCOL_VERSION] the controller speaks version {PROTOCOL_VERSION + 1}, "
        f"the runtime {PROTOCOL_VERSION} — hint: update the runtime"
    )


def test_a_socket_that_says_nothing_is_closed() -> None:
    """Who does not say what he wants does not keep a socket, and has replaced nobody."""
    with (
        websocket(Limits(opening_ms=50)) as wire,
        open_socket(wire.url(), additional_headers=BEARER, proxy=None) as raw,
    ):
        assert farewell(raw) == (CloseCode.PROTOCOL_ERROR, "no opening within 50 ms")
        assert wire.compute.endpoint._current is None


# --- who is gone -------------------------------------------------------------------------------


def broken(client: Any) -> None:
    """Let a connection end as that of a killed process does: by a reset."""
    assert isinstance(client, WebSocketClient)
    underneath = client._socket.socket
    underneath.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    underneath.shutdown(socket.SHUT_RD)
    underneath.close()


def test_a_controller_that_was_killed(wire: Any) -> None:
    """Its connection ends; what it had not finished saying is forgotten, and another one comes."""
    client = wire.connect("killed")
    client.send(Schedule("half"))
    broken(client)
    assert wire.compute.ended().code is CloseCode.LOST
    assert wire.compute.endpoint.take() is None
    with closing(wire.connect("next")) as following:
        following.send(InitializationComplete())
        assert wire.compute.take() == Reconcile("next", ())


def test_a_peer_that_falls_silent_is_gone() -> None:
    """Without an answer to a heartbeat both sides know that they are alone."""
    with websocket(Limits(heartbeat_ms=50, silence_ms=200)) as wire:
        relay = Relay(wire.port)
        client = wire.connect("n", port=relay.port)
        client.send(InitializationComplete())
        assert wire.compute.take() == Reconcile("n", ())
        relay.fall_silent()
        assert wire.compute.ended().code is CloseCode.LOST
        assert client.receive(PATIENCE_S * 1000) is None
        assert client.closed is not None
        assert client.closed.code is CloseCode.LOST
        assert not client.send(Schedule("a"))
        relay.stop()


def test_a_runtime_that_was_killed() -> None:
    """The controller learns that nobody is there, and that it cannot know what was done."""
    with websocket() as wire:
        relay = Relay(wire.port)
        client = wire.connect("n", port=relay.port)
        relay.stop()
        assert client.receive(PATIENCE_S * 1000) is None
        assert client.closed is not None
        assert client.closed.code is CloseCode.LOST


def test_a_server_that_ends_says_so(wire: Any) -> None:
    """When the application stops, both sides know the reason."""
    client = wire.connect("n")
    client.send(InitializationComplete())
    wire.compute.take()
    wire.stop()
    assert client.receive(PATIENCE_S * 1000) is None
    assert client.closed is not None
    assert client.closed.code is CloseCode.SHUTDOWN
    assert wire.compute.ended().code is CloseCode.SHUTDOWN


def test_a_client_that_is_idle_stays(wire: Any) -> None:
    """Waiting for a response that does not come is no end, and costs no more than its time."""
    with closing(wire.connect("n")) as client:
        assert client.receive(1) is None
        assert client.closed is None
        client.send(InitializationComplete())
        client.send(Schedule("a"))
        assert [wire.compute.take(), wire.compute.take()] == [
            Reconcile("n", ()),
            Received(Schedule("a")),
        ]
