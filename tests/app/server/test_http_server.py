"""The HTTP server is found again where it was, and is somewhere else rather than nowhere.

Clients that send nothing do not keep it from serving others.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.sync.client import connect as open_socket

from shardline.app.server import http_server
from shardline.app.server.http_server import RunningServer, listen, serve
from shardline.app.transport.session import Limits
from shardline.app.transport.websocket_server import server_options
from shardline.datasource.errors import InvalidUsage
from support.waiting import wait_until

pytestmark = pytest.mark.server

HOST = "127.0.0.1"


def test_any_port_is_the_preferred_one_if_that_is_free() -> None:
    """Connections of clients that the one before has ended do not keep it."""
    with serve(Starlette()) as before:
        port = before.port
        client = socket.create_connection(("127.0.0.1", port))
    with client, RunningServer(Starlette(), listen(HOST, preferred=port), {}) as after:
        assert after.port == port


def test_a_preferred_port_that_is_taken_is_no_error() -> None:
    """A port that was asked for is."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with RunningServer(Starlette(), listen(HOST, preferred=taken), {}) as served:
            assert served.port not in {0, taken}
        with pytest.raises(InvalidUsage, match="ADDRESS_TAKEN"):
            serve(Starlette(), port=taken)


def test_an_address_of_another_machine_is_told_apart() -> None:
    """No other port would help. 192.0.2.0/24 is of documents alone."""
    with pytest.raises(InvalidUsage, match=r"INVALID_ADDRESS.*address of this machine"):
        listen("192.0.2.1")


def test_a_port_that_is_asked_for_comes_before_the_preferred_one() -> None:
    """What was set is so."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        asked = probe.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        preferred = probe.getsockname()[1]
    with RunningServer(Starlette(), listen(HOST, asked, preferred=preferred), {}) as served:
        assert served.port == asked


class Site:
    """Answers at once, or when a test says so; sends back what it receives, by a WebSocket, too."""

    def __init__(self) -> None:
        self.released = threading.Event()
        routes = [
            Route("/", self.fast),
            Route("/slow", self.slow, methods=["GET", "POST"]),
            Route("/back", self.back, methods=["POST"]),
            WebSocketRoute("/e", self.echo),
        ]
        self.app = Starlette(routes=routes)

    async def fast(self, _: Request) -> Response:
        return Response("fine")

    def slow(self, _: Request) -> Response:
        self.released.wait(60)
        return Response("fine")

    async def back(self, request: Request) -> Response:
        return Response(await request.body())

    async def echo(self, opened: WebSocket) -> None:
        await opened.accept()
        await opened.send_text(await opened.receive_text())


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.released.set()


def connected(served: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), 60)


def is_answered(served: RunningServer) -> bool:
    asked = HTTPConnection("127.0.0.1", served.port, timeout=60)
    with contextlib.closing(asked):
        try:
            asked.request("GET", "/")
            return asked.getresponse().status == 200
        except OSError:
            return False


def is_closed(one: socket.socket) -> bool:
    """Wait for the end of a connection; a rest that it has not read resets it."""
    with contextlib.suppress(ConnectionResetError):
        return one.recv(1) == b""
    return True


def test_who_sends_no_request_is_not_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither from the start, nor in the middle of a request, be it the first or the second."""
    half = b"GET / HTTP/1.1\r\nHost: 127"
    with serve(site.app) as served, contextlib.ExitStack() as open_:
        second = open_.enter_context(connected(served))
        second.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b""
        while not answer.endswith(b"fine"):
            answer += second.recv(1 << 16)
        monkeypatch.setattr(http_server, "_HEAD_S", 0.05)
        silent, first = (open_.enter_context(connected(served)) for _ in range(2))
        for one in (first, second):
            with contextlib.suppress(OSError):  # it may be closed by now
                one.sendall(half)
        assert [is_closed(one) for one in (silent, first, second)] == [True] * 3


HALF = b"POST /back HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\nhalf"


def rest_of(one: socket.socket) -> bytes:
    """All that a connection says until it is closed."""
    said = b""
    with contextlib.suppress(ConnectionResetError):  # it has not read all that was sent
        while heard := one.recv(1 << 16):
            said += heard
    return said


@pytest.mark.parametrize("drips", [False, True])
def test_a_body_that_does_not_come_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, *, drips: bool
) -> None:
    """Its time is that of the whole body, and not of the pauses within it."""
    monkeypatch.setattr(http_server, "_BODY_S", 0.3)
    with serve(site.app) as served, connected(served) as one:
        one.sendall(HALF)
        for _ in range(6000):
            if select.select([one], [], [], 0.01 if drips else 60)[0]:
                break
            with contextlib.suppress(OSError):  # it may be closed by now
                one.sendall(b"x")
        answer = rest_of(one)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "BODY_LATE"


def test_a_body_of_the_second_request_is_limited_like_that_of_the_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head was sent before the first one was answered; none of it comes later."""
    monkeypatch.setattr(http_server, "_BODY_S", 0.05)
    with serve(site.app) as served, connected(served) as one:
        one.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + HALF)
        answers = rest_of(one)
    assert [answers.count(status) for status in (b" 200 OK", b" 408 Request")] == [1, 1]


def test_who_waits_for_an_answer_is_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, once its request is whole; a WebSocket is kept, too."""
    monkeypatch.setattr(http_server, "_HEAD_S", 1.0)
    monkeypatch.setattr(http_server, "_BODY_S", 1.0)
    with serve(site.app, sockets=server_options(Limits())) as served:
        slow = HTTPConnection("127.0.0.1", served.port, timeout=60)
        slow.request("POST", "/slow", b"whole")
        with open_socket(f"ws://127.0.0.1:{served.port}/e", proxy=None) as opened:
            with connected(served) as silent:  # its time begins when that of the others has
                assert is_closed(silent)
            opened.send("there")
            assert opened.recv() == "there"
        site.released.set()
        assert slow.getresponse().read() == b"fine"
        slow.close()


def test_connections_above_a_number_are_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take all descriptors of the process."""
    monkeypatch.setattr(http_server, "_CONNECTIONS_MAX", 2)
    with serve(site.app) as served, connected(served), connected(served) as second:
        with connected(served) as third:
            assert is_closed(third)
        assert not is_answered(served)
        second.close()
        wait_until("an answer", lambda: is_answered(served), 60)
