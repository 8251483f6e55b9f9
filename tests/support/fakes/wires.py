"""Both transports of a connection for tests: in process, and a real server on loopback."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn
from starlette.applications import Starlette

from shardline.app.protocol.codec import COMPUTE, STORAGE
from shardline.app.transport.endpoint import Endpoint
from shardline.app.transport.in_process import InProcessClient
from shardline.app.transport.session import Limits, Received, Reconcile
from shardline.app.transport.websocket_client import connect
from shardline.app.transport.websocket_server import server_options, websocket_route
from shardline.datasource.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardline.app.transport.client import Client

__all__ = ["PATIENCE_S", "Relay", "Runtime", "Wire", "inprocess", "websocket"]

PATIENCE_S = 20.0
"""A test that waits for so long has failed."""

TOKEN = "let me in"  # noqa: S105 - of a server that lives for a test


class Runtime:
    """A runtime's side: one endpoint, and a loop that looks when it is woken."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.woken = threading.Event()
        self.endpoint: Endpoint[Any, Any] = Endpoint(self.woken.set, limits)

    def take(self) -> Reconcile[Any] | Received[Any]:
        """The next thing to do, once there is one."""
        while True:
            self.woken.clear()
            step = self.endpoint.take()
            if step is not None:
                return step
            assert self.woken.wait(PATIENCE_S), "nothing came"

    def ended(self) -> Any:
        """How the current session has ended, once it has."""
        session = self.endpoint._current
        assert session is not None
        while session.closed is None:
            assert session._readable.wait(PATIENCE_S), "it does not end"
        return session.closed


class Wire(Protocol):
    """A runtime with one endpoint for each protocol, and a way to them."""

    compute: Runtime
    storage: Runtime

    def connect(self, nonce: str, protocol: str = "compute") -> Client[Any, Any]:
        """Connect a controller."""
        ...


class _InProcess:
    def __init__(self, limits: Limits) -> None:
        self.compute, self.storage = Runtime(limits), Runtime(limits)

    def connect(self, nonce: str, protocol: str = "compute") -> Client[Any, Any]:
        runtime = self.compute if protocol == "compute" else self.storage
        return InProcessClient(runtime.endpoint, nonce, SystemClock())


class _WebSocket:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.compute, self.storage = Runtime(limits), Runtime(limits)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        compute, storage = self.compute.endpoint, self.storage.endpoint
        routes = [
            websocket_route("/v1/compute", compute, COMPUTE, TOKEN.__eq__),
            websocket_route("/v1/storage", storage, STORAGE, TOKEN.__eq__),
        ]
        self.server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=routes),
                log_level="error",
                lifespan="off",
                timeout_graceful_shutdown=2,
                **server_options(limits),
            )
        )
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.listener]}, name="test-server"
        )

    def url(self, protocol: str = "compute", port: int | None = None) -> str:
        return f"ws://127.0.0.1:{port or self.port}/v1/{protocol}"

    def connect(
        self, nonce: str, protocol: str = "compute", port: int | None = None
    ) -> Client[Any, Any]:
        codec: Any = COMPUTE if protocol == "compute" else STORAGE
        url = self.url(protocol, port)
        return connect(url, codec, nonce, token=TOKEN, limits=self.limits)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE_S)
        self.listener.close()


@contextmanager
def inprocess(limits: Limits | None = None) -> Iterator[Wire]:
    """A wire without a wire."""
    yield _InProcess(limits or Limits())


@contextmanager
def websocket(limits: Limits | None = None) -> Iterator[_WebSocket]:
    """A server on loopback, in a thread."""
    wire = _WebSocket(limits or Limits())
    wire.thread.start()
    try:
        yield wire
    finally:
        wire.compute.endpoint.shut()
        wire.storage.endpoint.shut()
        wire.stop()


class Relay:
    """A network between two ends: it can go silent, or break."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._target = port
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        """From here on nothing arrives, and nobody is told."""
        self._open.clear()

    def stop(self) -> None:
        """Break everything off."""
        self._listener.close()
        for each in self._sockets:
            with suppress(OSError):  # the other end was first
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._target))
        self._sockets += [near, far]
        for a, b in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=(a, b), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                if not self._open.is_set():
                    continue
                target.sendall(data)
        except OSError:
            pass  # it was broken off
