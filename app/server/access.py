"""Who may ask what: the token, where requests may come from, and how large they may be.

On loopback, reading is free: whoever can connect is on this machine. Everything that is sent with
another method than GET needs the token. Bound elsewhere, everything needs it, apart from health.

A page of another site must not reach us through a visitor's browser. It cannot name us: on loopback
the Host must be a name of loopback, so a name that its owner points at 127.0.0.1 is refused. It
cannot send a form: a body must be JSON, which a browser asks us about first, and we never agree. An
Origin that is not our own is refused in any case.

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

__all__ = ["BODY_MAX", "Access", "Guard", "refusal"]

BODY_MAX: Final = 1 << 20
"""Largest body of a request, in bytes."""

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_OPEN: Final = frozenset({"/healthz", "/readyz"})
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Access:
    """What is asked for before a request is served.

    Attributes:
        token: The one token; it must not be empty.
        bound: Whether the server listens on loopback only, or elsewhere too.
    """

    token: str
    bound: Literal["loopback", "elsewhere"] = "loopback"

    def __post_init__(self) -> None:
        """A token that is empty would be no token."""
        assert self.token, "an empty token"

    def refused(self, path: str, method: str, headers: Headers) -> JSONResponse | None:
        """Why a request is not served; None if it is."""
        host = urlsplit(f"//{headers.get('host', '')}")
        if self.bound == "loopback" and host.hostname not in _LOOPBACK:
            return refusal(403, "FOREIGN_HOST", "this name is not one of ours", "use 127.0.0.1")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host.netloc:
            return refusal(403, "FOREIGN_ORIGIN", "requests of other sites are refused", "")
        changes = method not in _READS
        if (changes or self.bound == "elsewhere") and path not in _OPEN:
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                hint = "send it as 'Authorization: Bearer …'; the application says where it is"
                return refusal(401, "TOKEN_NEEDED", "this needs the application's token", hint)
        if changes and headers.get("content-type", "").split(";")[0] != "application/json":
            return refusal(415, "JSON_NEEDED", "a body must be application/json", "")
        return None


class Guard:
    """Lets those requests through that `access` does not refuse."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or say why not."""
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


def refusal(status: int, code: str, message: str, hint: str) -> JSONResponse:
    """An error as this interface gives it: a code that stays, a sentence, what to do."""
    error = {"code": code, "message": message, "hint": hint}
    return JSONResponse({"error": error}, status_code=status)
