"""The runtime's side of a socket: a route of the application's HTTP server for each protocol.

    routes = [websocket_route("/v1/compute", compute, COMPUTE, token_check),
              websocket_route("/v1/storage", storage, STORAGE, token_check)]
    uvicorn.Config(Starlette(routes=routes), **server_options(compute.limits))

A controller sends an opening, is answered with a welcome, and then both send one message per value
(`shardline.app.protocol.codec`), as text. Whatever ends the connection is told in the close frame:
a code of `CloseCode`, and the reason as far as it fits.

Invariants:
    Nothing of the socket waits for the runtime, and nothing of the runtime for a socket.
    Nobody is accepted without the token, and no page in a browser at all.
    A socket whose session has ended is closed, whoever ended it; and the other way round.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from starlette.datastructures import Headers
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from shardline.app.protocol.codec import Codec
from shardline.app.transport.endpoint import Endpoint
from shardline.app.transport.session import CloseCode, Closed, Limits, Session
from shardline.datasource.errors import InvalidUsage

__all__ = ["server_options", "websocket_route"]

Command = TypeVar("Command")
Response = TypeVar("Response")

_REASON_BYTES_MAX = 123
"""Of a close frame (RFC 6455, section 5.5)."""

_CLOSING_S = 1.0
"""For saying goodbye to a peer that may not read."""

_TOO_LARGE = "MESSAGE_TOO_LARGE"
_GOOD_BYES = (1000, 1001)
_SERVER_RESTARTS = 1012


def websocket_route(
    path: str,
    endpoint: Endpoint[Command, Response],
    codec: Codec[Command, Response],
    token_check: Callable[[str], bool] | None = None,
) -> WebSocketRoute:
    """A route by which controllers connect to `endpoint`.

    Args:
        path: Of the address, `/v1/compute`.
        endpoint: The runtime's side.
        codec: Of the endpoint's protocol.
        token_check: Whether a token from `Authorization: Bearer …` is the right one ("" if none
            was given); None to accept everybody who reaches the server.
    """
    door = _Door(endpoint, codec, token_check)
    return WebSocketRoute(path, door.serve)


def server_options(limits: Limits) -> dict[str, Any]:
    """Options of `uvicorn.Config` that sockets need: heartbeats and the size of messages."""
    return {
        "ws": "websockets-sansio",
        "ws_ping_interval": limits.heartbeat_ms / 1000,
        "ws_ping_timeout": limits.silence_ms / 1000,
        "ws_max_size": limits.message_bytes,
        "ws_per_message_deflate": False,  # peers are near, and rows are compressed already
    }


class _Door(Generic[Command, Response]):
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
        """One connection, from its first byte to its last."""
        if not self._is_welcome(socket.headers):
            await socket.close()  # before it is accepted: the answer is HTTP's 403
            return
        await socket.accept()
        closed = await self._open(socket)
        if closed.code in (CloseCode.LOST, CloseCode.DONE):
            return
        # A peer that is gone, or does not read, cannot be told.
        with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
            async with asyncio.timeout(_CLOSING_S):
                await socket.close(int(closed.code), _reason(closed.detail))

    def _is_welcome(self, headers: Headers) -> bool:
        # A page in a browser can reach loopback as well; it cannot leave out its origin.
        if "origin" in headers:
            return False
        if self._token_check is None:
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return self._token_check(token.strip() if scheme.lower() == "bearer" else "")

    async def _open(self, socket: WebSocket) -> Closed:
        limit_ms = self._endpoint.limits.opening_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                hello = self._codec.decode_opening(await self._message(socket))
        except TimeoutError:
            return Closed(CloseCode.PROTOCOL_ERROR, f"no opening within {limit_ms} ms")
        except InvalidUsage as error:
            return _faulty(error)
        except WebSocketDisconnect as error:
            return _gone(error)
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
            session.close(_faulty(error))
        except WebSocketDisconnect as error:
            session.close(_gone(error))

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
            session.close(_gone(error))

    async def _message(self, socket: WebSocket) -> bytes:
        """The next message; one that is text or not is JSON or not."""
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
    """What a session tells, brought from whichever thread into the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.readable = asyncio.Event()
        self.ended = asyncio.Event()
        self._loop = loop
        self._session: Session[Any, Any] | None = None

    def watch(self, session: Session[Any, Any]) -> None:
        """Say whose signals these are; in the step of the loop in which they were given away."""
        self._session = session

    def notify(self) -> None:
        """Something can be pulled, or the session has ended. Called by any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self.readable.set()
        if self._session and self._session.closed:
            self.ended.set()


def _faulty(error: InvalidUsage) -> Closed:
    codes = {_TOO_LARGE: CloseCode.TOO_LARGE, "PROTOCOL_VERSION": CloseCode.PROTOCOL_VERSION}
    return Closed(codes.get(error.code, CloseCode.PROTOCOL_ERROR), str(error))


def _gone(error: WebSocketDisconnect) -> Closed:
    """How a connection has ended that the other side, or the server, has closed."""
    if error.code in _GOOD_BYES:
        return Closed(CloseCode.DONE, "the controller has closed it")
    if error.code == _SERVER_RESTARTS:
        return Closed(CloseCode.SHUTDOWN, "the server is ending")
    if error.code == CloseCode.TOO_LARGE:
        return Closed(CloseCode.TOO_LARGE, error.reason or "a message is too large")
    return Closed(CloseCode.LOST, f"the controller is gone (code {error.code}) {error.reason}")


def _reason(detail: str) -> str:
    """As much of a sentence as fits into a close frame."""
    return detail.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
