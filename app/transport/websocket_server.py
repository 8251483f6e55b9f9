"""The WebSocket server lets controllers connect over HTTP: one route for each protocol.

    routes = [websocket_route("/v1/compute", compute, COMPUTE, token_check),
              websocket_route("/v1/storage", storage, STORAGE, token_check)]
    uvicorn.Config(Starlette(routes=routes), **server_options(compute.limits))

A controller sends an opening, is answered with a welcome, and then both send one message per value
(`shardline.app.protocol.codec`), as text. The close frame carries the reason of the end: a code of
`CloseCode`, and the detail as far as it fits.

Invariants:
    The socket never waits for the runtime, and the runtime never waits for a socket.
    No connection is accepted without the token, and none from a page in a browser at all.
    When a session has ended its socket is closed, and the other way round, whichever side began.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from starlette.datastructures import Headers
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from typing_extensions import override
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from shardline.app.protocol.codec import Codec
from shardline.app.transport.endpoint import Endpoint
from shardline.app.transport.session import CloseCode, Closed, Limits, Session
from shardline.datasource.errors import InvalidUsage

__all__ = ["server_options", "websocket_route"]

Command = TypeVar("Command")
Response = TypeVar("Response")

_REASON_BYTES_MAX = 123
"""Longest reason in a close frame (RFC 6455, section 5.5)."""

_CLOSING_S = 1.0
"""How long the close handshake may take: the peer may not read."""

_TOO_LARGE = "MESSAGE_TOO_LARGE"
_NORMAL_CLOSURES = (1000, 1001)
_SERVER_RESTARTS = 1012


def websocket_route(
    path: str,
    endpoint: Endpoint[Command, Response],
    codec: Codec[Command, Response],
    token_check: Callable[[str], bool] | None = None,
) -> WebSocketRoute:
    """Make the route by which controllers connect to `endpoint`.

    Args:
        path: Path of the address, `/v1/compute`.
        endpoint: The runtime's side.
        codec: Codec of the endpoint's protocol.
        token_check: Returns True for the right token of `Authorization: Bearer …` ("" if there is
            none); None to accept all connections that reach the server.
    """
    door = _ControllerRoute(endpoint, codec, token_check)
    return WebSocketRoute(path, door.serve)


def server_options(limits: Limits) -> dict[str, Any]:
    """Return the options of `uvicorn.Config` that sockets need: heartbeats and message size."""
    return {
        "ws": _Sockets,
        "ws_ping_interval": limits.heartbeat_ms / 1000,
        "ws_ping_timeout": limits.silence_ms / 1000,
        "ws_max_size": limits.message_bytes,
        "ws_per_message_deflate": False,  # peers are near, and rows are compressed already
    }


class _Sockets(WebSocketsSansIOProtocol):
    """uvicorn's WebSockets; one that was refused by an answer is not an error of the server."""

    @override
    async def send(self, message: Any) -> None:
        await super().send(message)
        # A close before the handshake ends it, an answer in its place does not: uvicorn would log
        # at the route's end that the handshake was never completed.
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True


class _ControllerRoute(Generic[Command, Response]):
    def __init__(
        self,
        endpoint: Endpoint[Command, Response],
        codec: Codec[Command, Response],
        token_check: Callable[[str], bool] | None,
    ) -> None:
        self._endpoint = endpoint
        self._codec = codec
        self._token_check = token_check

    async def serve(self, socket: WebSocket) -> None:
        """Serve one connection, from its first byte to its last."""
        if not self._is_welcome(socket.headers):
            await socket.close()  # before it is accepted: the answer is HTTP's 403
            return
        await socket.accept()
        closed = await self._open(socket)
        if closed.code in (CloseCode.LOST, CloseCode.DONE):
            return
        # The peer may be gone, or not read: then the close frame is lost.
        with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
            async with asyncio.timeout(_CLOSING_S):
                await socket.close(int(closed.code), _reason(closed.detail))

    def _is_welcome(self, headers: Headers) -> bool:
        # Any page in a browser can connect to loopback, whatever its origin: the same-origin policy
        # does not hold for WebSockets. But a browser always sends the origin.
        if "origin" in headers:
            return False
        if self._token_check is None:
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Blanks and tabs only: a byte of a letter in UTF-8 may be white space of Latin-1.
        return self._token_check(token.strip(" \t") if scheme.lower() == "bearer" else "")

    async def _open(self, socket: WebSocket) -> Closed:
        limit_ms = self._endpoint.limits.opening_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                hello = self._codec.decode_opening(await self._message(socket))
        except TimeoutError:
            return Closed(CloseCode.PROTOCOL_ERROR, f"no opening within {limit_ms} ms")
        except InvalidUsage as error:
            return _closed_by_error(error)
        except WebSocketDisconnect as error:
            return _closed_by_peer(error)
        return await self._converse(socket, hello.nonce)

    async def _converse(self, socket: WebSocket, nonce: str) -> Closed:
        signals = _Signals(asyncio.get_running_loop())
        session = self._endpoint.connect(nonce, signals.notify)
        signals.watch(session)
        if session.closed:  # the runtime is ending: no welcome
            return session.closed
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read(socket, session))
                writer = tasks.create_task(self._write(socket, session, signals.readable))
                await signals.ended.wait()
                # Either may be waiting for a peer that says nothing, or does not read.
                reader.cancel()
                writer.cancel()
        finally:
            session.close(Closed(CloseCode.SHUTDOWN, "the server has given the connection up"))
        assert session.closed is not None, nonce
        return session.closed

    async def _read(self, socket: WebSocket, session: Session[Command, Response]) -> None:
        try:
            while session.push(self._codec.decode_command(await self._message(socket))):
                pass
        except InvalidUsage as error:
            session.close(_closed_by_error(error))
        except WebSocketDisconnect as error:
            session.close(_closed_by_peer(error))

    async def _write(
        self, socket: WebSocket, session: Session[Command, Response], readable: asyncio.Event
    ) -> None:
        try:
            await socket.send_text(self._codec.encode_welcome().decode())
            while True:
                readable.clear()
                while (response := session.pull()) is not None:
                    await socket.send_text(self._codec.encode_response(response).decode())
                await readable.wait()
        except WebSocketDisconnect as error:
            session.close(_closed_by_peer(error))

    async def _message(self, socket: WebSocket) -> bytes:
        """Receive the next message, text or binary."""
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"], message.get("reason") or "")
        text: str | None = message.get("text")
        data: bytes = message["bytes"] if text is None else text.encode()
        limit = self._endpoint.limits.message_bytes
        if len(data) > limit:
            raise InvalidUsage(
                f"a message of {len(data)} bytes, the limit is {limit}", code=_TOO_LARGE
            )
        return data


class _Signals:
    """A session's notifications, carried from any thread into the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.readable = asyncio.Event()
        self.ended = asyncio.Event()
        self._loop = loop
        self._session: Session[Any, Any] | None = None

    def watch(self, session: Session[Any, Any]) -> None:
        """Set the session; in the same step of the loop in which `notify` was handed out.

        So no notification is handled before the session is known.
        """
        self._session = session

    def notify(self) -> None:
        """Signal that something can be pulled, or the session has ended. Called by any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to signal
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self.readable.set()
        if self._session and self._session.closed:
            self.ended.set()


def _closed_by_error(error: InvalidUsage) -> Closed:
    codes = {_TOO_LARGE: CloseCode.TOO_LARGE, "PROTOCOL_VERSION": CloseCode.PROTOCOL_VERSION}
    return Closed(codes.get(error.code, CloseCode.PROTOCOL_ERROR), str(error))


def _closed_by_peer(error: WebSocketDisconnect) -> Closed:
    """The reason of an end that came from the other side, or from the server."""
    if error.code in _NORMAL_CLOSURES:
        return Closed(CloseCode.DONE, "the controller has closed it")
    if error.code == _SERVER_RESTARTS:
        return Closed(CloseCode.SHUTDOWN, "the server is ending")
    if error.code == CloseCode.TOO_LARGE:
        return Closed(CloseCode.TOO_LARGE, error.reason or "a message is too large")
    return Closed(CloseCode.LOST, f"the controller is gone (code {error.code}) {error.reason}")


def _reason(detail: str) -> str:
    """The beginning of a sentence, as far as it fits into a close frame."""
    return detail.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
