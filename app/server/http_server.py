"""The HTTP server runs an ASGI application in a thread of its own, until it is closed.

    with serve(app, "127.0.0.1", 0) as served:
        served.url

The port is bound before the thread starts: an address that is taken is an error of the caller, not
a line in the log of a thread that has ended.

A connection costs a descriptor, which the stores of the process need as well, and uvicorn refuses
requests while there are many. So one that sends no request, or not the whole of its body, is closed
after a time, and each above a number.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import h11
import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from shardline.app.server.access import error_response
from shardline.datasource.background import BackgroundThread
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["RunningServer", "listen", "serve"]

_GRACE_S: Final = 5
"""How long requests that are under way may take after `close`."""

_HEAD_S: Final = 10.0
"""Time in which a client sends the head of a request, from its connection or the first byte on."""

_BODY_S: Final = 60.0
"""Time in which it sends the body, from the head on: a project, the largest one, by a slow line."""

_BUSY: Final = 256
"""Number of connections from which on requests are answered that the server is busy."""

_CONNECTIONS_MAX: Final = 2 * _BUSY
"""Number of connections that are kept, busy ones and those that have sent nothing."""

_AT_ONCE: Final = 128
"""Number of connections that wait to be accepted. asyncio accepts so many before it asks whether to
keep the first one: by uvicorn's own 2,048 they would take all descriptors for a moment."""


class RunningServer:
    """A running server. Close it, or use it as a context manager."""

    def __init__(self, app: ASGIApp, listening: socket.socket, sockets: Mapping[str, Any]) -> None:
        """Serve `app` on a socket that listens already; `sockets` are options for WebSockets."""
        config = uvicorn.Config(
            app,
            http=_Connection,
            log_config=None,
            access_log=False,
            lifespan="off",
            **sockets,
            timeout_graceful_shutdown=_GRACE_S,
            limit_concurrency=_BUSY,
            backlog=_AT_ONCE,
            h11_max_incomplete_event_size=1 << 16,
        )
        self._server = uvicorn.Server(config)
        self._socket = listening
        host, self.port = listening.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        # Ended by the server's own flag.
        self._thread = BackgroundThread("http", partial(self._server.run, [listening]))
        self._thread.start()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Take no more requests, wait up to 10 s for those under way, and end."""
        self._server.should_exit = True
        self._thread.join(2 * _GRACE_S * 1000)
        self._socket.close()


class _Connection(H11Protocol):
    """uvicorn's HTTP; it has a time-out between two requests only."""

    _timer: asyncio.TimerHandle | None = None
    _timed: tuple[type, object] | None = None
    """What the timer limits: the client's state, and the request whose head was read last."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _CONNECTIONS_MAX:
            transport.abort()
        else:
            self._limit_request()

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_request()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The head of the next request may have come during the answer to this one. Before there is
        # one, uvicorn's own time-out runs.
        if self.conn.their_state is h11.SEND_BODY:
            self._limit_request()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _limit_request(self) -> None:
        state = self.conn.their_state
        if (state, self.cycle) == self._timed:
            return
        self._stop_timer()
        # Neither during an answer nor once the connection is a WebSocket, which is none of these.
        if self not in self.connections or state not in {h11.IDLE, h11.SEND_BODY}:
            return
        self._timed = (state, self.cycle)
        if state is h11.IDLE:
            self._timer = self.loop.call_later(_HEAD_S, self.timeout_keep_alive_handler)
        else:
            self._timer = self.loop.call_later(_BODY_S, self._refuse_late_body)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timed = None

    def _refuse_late_body(self) -> None:
        """Answer 408, unless an answer has begun, and close."""
        if not self.cycle.response_started:
            # Nothing else is sent: the route learns that the client has gone.
            self.cycle.disconnected = True
            hint = "send it again, and all of it"
            text = f"the body of the request did not come within {_BODY_S:g} s"
            answer = error_response(408, "BODY_LATE", text, hint)
            headers = [*answer.raw_headers, CLOSE_HEADER]
            for event in (
                h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"),
                h11.Data(b"" if self.scope["method"] == "HEAD" else bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def listen(host: str, port: int = 0, *, preferred: int = 0) -> socket.socket:
    """Make a socket that listens: clients wait from now on until something serves them.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 for any that is free.
        preferred: Where any port will do, the one that is taken if it is free; 0 for none.

    Raises:
        InvalidUsage: The address cannot be bound: `ADDRESS_TAKEN`, or `INVALID_ADDRESS` for one
            that this machine does not have.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if port == 0 and preferred:
        with suppress(OSError):  # somebody else has it, or none but root may
            return socket.create_server((host, preferred), family=family)
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        code, hint = "INVALID_ADDRESS", "choose an address of this machine, such as 127.0.0.1"
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            code, hint = "ADDRESS_TAKEN", "choose another port, or 0 for any that is free"
        text = f"cannot listen on {host}:{port}: {error.strerror}"
        raise InvalidUsage(text, code=code, hint=hint) from None


def serve(
    app: ASGIApp,
    host: str = "127.0.0.1",
    port: int = 0,
    sockets: Mapping[str, Any] = MappingProxyType({}),
) -> RunningServer:
    """Start a server for `app`.

    Args:
        app: The ASGI application.
        host: Address to listen on.
        port: Port to listen on; 0 for any that is free.
        sockets: Options of uvicorn for WebSockets.

    Raises:
        InvalidUsage: The address cannot be bound: `ADDRESS_TAKEN`, or `INVALID_ADDRESS` for one
            that this machine does not have.
    """
    return RunningServer(app, listen(host, port), sockets)
