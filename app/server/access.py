"""Access control decides which requests are served: by token, Host, Origin and content type.

On loopback, reading needs no token: a client that can connect is on this machine. All methods but
GET, HEAD and OPTIONS need the token. Bound to another address, everything needs it but health.

A page of another site must not reach the server through a visitor's browser. Three rules prevent
that. On loopback the Host must be a name of loopback, so a foreign name that resolves to 127.0.0.1
is refused (DNS rebinding). A body must be JSON, for which a browser asks with a preflight request
first, and that is never granted; so a form cannot be sent. An Origin that is not our own is refused
in any case.

Invariants:
    A request that is refused reaches no route.
    Comparing tokens takes the same time whatever is wrong with them.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["BODY_MAX", "Access", "Guard", "error_response"]

BODY_MAX: Final = 1 << 20
"""Largest body of a request, in bytes."""

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_OPEN: Final = frozenset({"/healthz", "/readyz"})
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Access:
    """The rules that a request must meet.

    Attributes:
        token: The one token; it must not be empty.
        bound: "loopback" if the server listens on loopback only.
    """

    token: str
    bound: Literal["loopback", "elsewhere"] = "loopback"

    def __post_init__(self) -> None:
        """Refuse an empty token: a request without one would match it."""
        assert self.token, "an empty token"

    def refused(self, path: str, method: str, headers: Headers) -> JSONResponse | None:
        """The answer to a request that is refused; None if it may be served."""
        host = urlsplit(f"//{headers.get('host', '')}")
        if self.bound == "loopback" and host.hostname not in _LOOPBACK:
            return error_response(
                403, "FOREIGN_HOST", "this name is not one of ours", "use 127.0.0.1"
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host.netloc:
            return error_response(403, "FOREIGN_ORIGIN", "requests of other sites are refused", "")
        changes = method not in _READS
        if (changes or self.bound == "elsewhere") and path not in _OPEN:
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                hint = "send it as 'Authorization: Bearer …'; the application says where it is"
                return error_response(
                    401, "TOKEN_NEEDED", "this needs the application's token", hint
                )
        if changes and headers.get("content-type", "").split(";")[0] != "application/json":
            return error_response(415, "JSON_NEEDED", "a body must be application/json", "")
        return None


class Guard:
    """Middleware that passes on the requests that `access` does not refuse."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or answer with the refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._access.refused(scope["path"], scope["method"], headers)
        if refused is not None:
            await refused(scope, receive, send)
            return

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await self._app(scope, receive, hardened)


_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


def error_response(status: int, code: str, message: str, hint: str) -> JSONResponse:
    """Make an error in the form of this interface: a stable code, a sentence, a hint."""
    error = {"code": code, "message": message, "hint": hint}
    return JSONResponse({"error": error}, status_code=status)
