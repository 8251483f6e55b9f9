"""The WebSocket client connects a controller to a runtime in another process.

    client = connect("ws://127.0.0.1:8080/v1/compute", COMPUTE, nonce, token=token)

Invariants:
    A client that `connect` returns is the runtime's current controller, or was for a moment.
    A runtime that is silent for longer than the limits allow counts as gone: `closed` is LOST.
    Only the given address is connected to: proxies of the environment are ignored.
"""

from __future__ import annotations

from contextlib import ExitStack
from http import HTTPStatus
from typing import Generic, TypeVar

from typing_extensions import override
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as open_socket

from shardline.app.protocol.codec import Codec
from shardline.app.protocol.compute import Hello
from shardline.app.transport.client import Client
from shardline.app.transport.session import CloseCode, Closed, Limits
from shardline.app.transport.token_header import token_header
from shardline.datasource.errors import Determinate, InvalidUsage

__all__ = ["WebSocketClient", "connect"]

Command = TypeVar("Command")
Response = TypeVar("Response")

_CLOSING_S = 1.0
"""How long the close handshake may take."""


def connect(
    url: str,
    codec: Codec[Command, Response],
    nonce: str,
    *,
    token: str = "",
    limits: Limits | None = None,
) -> WebSocketClient[Command, Response]:
    """Connect to a runtime; a controller that is connected is replaced.

    Args:
        url: `ws://…` or `wss://…`, with the path of the protocol.
        codec: Codec of that protocol.
        nonce: The connection's name: the hex digits of a fresh token.
        token: The server's token; "" for none.
        limits: `opening_ms`, `heartbeat_ms` and `silence_ms` apply to this side as well.

    Raises:
        Determinate: With code RUNTIME_UNAVAILABLE if nothing answers, or the runtime is ending.
        InvalidUsage: With code UNAUTHORIZED for a wrong token, NOT_AN_ENDPOINT for an address where
            there is no such protocol, PROTOCOL_VERSION for a runtime of another version, and other
            codes for messages that the runtime does not accept.
    """
    limits = limits or Limits()
    stack = ExitStack()
    try:
        socket = stack.enter_context(
            open_socket(
                url,
                additional_headers=token_header(token),
                compression=None,
                proxy=None,
                open_timeout=limits.opening_ms / 1000,
                ping_interval=limits.heartbeat_ms / 1000,
                ping_timeout=limits.silence_ms / 1000,
                close_timeout=_CLOSING_S,
                max_size=None,  # the runtime bounds what it answers, by each peek's own limit
            )
        )
        socket.send(codec.encode_opening(Hello(nonce)).decode())
        codec.check_welcome(_bytes(socket.recv(limits.opening_ms / 1000)))
    except InvalidUsage:
        stack.close()
        raise
    except (OSError, WebSocketException) as error:
        stack.close()
        raise _connect_error(url, error) from error
    return WebSocketClient(codec, nonce, socket, stack)


class WebSocketClient(Client[Command, Response], Generic[Command, Response]):
    """A connection over a socket; made by `connect`."""

    def __init__(
        self,
        codec: Codec[Command, Response],
        nonce: str,
        socket: ClientConnection,
        stack: ExitStack,
    ) -> None:
        self._codec = codec
        self._nonce = nonce
        self._socket = socket
        self._stack = stack
        self._closed: Closed | None = None

    @property
    @override
    def nonce(self) -> str:
        return self._nonce

    @property
    @override
    def closed(self) -> Closed | None:
        code = self._socket.close_code
        if self._closed is None and code is not None:
            self._closed = _as_closed(code, self._socket.close_reason or "")
        return self._closed

    @override
    def send(self, command: Command) -> bool:
        try:
            self._socket.send(self._codec.encode_command(command).decode())
        except ConnectionClosed as error:
            self._closed = self._closed or _closed_of(error)
        return self._closed is None

    @override
    def receive(self, timeout_ms: float = 0) -> Response | None:
        try:
            data = _bytes(self._socket.recv(timeout_ms / 1000))
            return self._codec.decode_response(data)
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            self._closed = self._closed or _closed_of(error)
        except InvalidUsage as error:
            self._end(Closed(CloseCode.PROTOCOL_ERROR, str(error)))
        return None

    @override
    def close(self) -> None:
        self._end(Closed(CloseCode.DONE, "the controller has closed it"))

    def _end(self, closed: Closed) -> None:
        self._closed = self.closed or closed
        self._stack.close()


def _bytes(message: str | bytes) -> bytes:
    return message.encode() if isinstance(message, str) else message


def _closed_of(error: ConnectionClosed) -> Closed:
    if error.rcvd is not None:
        return _as_closed(error.rcvd.code, error.rcvd.reason)
    said = error.sent.reason if error.sent else ""
    return Closed(CloseCode.LOST, f"the runtime is gone {said}".rstrip())


def _as_closed(code: int, reason: str) -> Closed:
    known = {int(c): c for c in CloseCode}
    if code == _SERVER_RESTARTS:
        return Closed(CloseCode.SHUTDOWN, reason or "the server is ending")
    return Closed(known.get(code, CloseCode.LOST), reason or f"closed with code {code}")


_SERVER_RESTARTS = 1012


def _connect_error(url: str, error: Exception) -> InvalidUsage | Determinate:
    match error:
        case InvalidURI():
            return InvalidUsage(f"'{url}' is no address of a socket", hint="ws://host:port/path")
        case InvalidStatus(response=response):
            return _status_error(url, response.status_code)
        case ConnectionClosed():
            return _closed_at_once(url, _closed_of(error))
        case _:
            return Determinate(
                f"no runtime answers at {url}: {error}",
                code="RUNTIME_UNAVAILABLE",
                hint="is the application running?",
            )


def _status_error(url: str, status: int) -> InvalidUsage | Determinate:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return InvalidUsage(
            f"{url} accepts no controller with this token, or none at all",
            code="UNAUTHORIZED",
            hint="check the token and the path of the address",
        )
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Determinate(f"{url} answers with status {status}", code="RUNTIME_UNAVAILABLE")
    return InvalidUsage(
        f"{url} answers with status {status}, not as a runtime does",
        code="NOT_AN_ENDPOINT",
        hint="check the address",
    )


def _closed_at_once(url: str, closed: Closed) -> InvalidUsage | Determinate:
    if closed.code in (CloseCode.PROTOCOL_ERROR, CloseCode.PROTOCOL_VERSION):
        return InvalidUsage(f"{url} refuses the connection: {closed.detail}", code=closed.code.name)
    return Determinate(
        f"{url} has closed the connection: {closed.detail}", code="RUNTIME_UNAVAILABLE"
    )
