"""The HTTP server runs an ASGI application in a thread of its own, until it is closed.

    with serve(app, "127.0.0.1", 0) as served:
        served.url

The port is bound before the thread starts: an address that is taken is an error of the caller, not
a line in the log of a thread that has ended.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import uvicorn

from shardline.datasource.background import BackgroundThread
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["RunningServer", "listen", "serve"]

_GRACE_S: Final = 5
"""How long requests that are under way may take after `close`."""


class RunningServer:
    """A running server. Close it, or use it as a context manager."""

    def __init__(self, app: ASGIApp, listening: socket.socket, sockets: Mapping[str, Any]) -> None:
        """Serve `app` on a socket that listens already; `sockets` are options for WebSockets."""
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            **sockets,
            timeout_graceful_shutdown=_GRACE_S,
            limit_concurrency=256,
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
