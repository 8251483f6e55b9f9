"""Access control decides which requests are served: by token, Host, Origin and content type.

On loopback, reading needs no token: a client that can connect is on this machine. All methods but
GET, HEAD and OPTIONS need the token. Bound to another address, everything needs it but health and
the files of the page, which hold no data. A WebSocket by which relations are followed is a GET;
those of controllers have rules of their own.

A page of another site must not reach the server through a visitor's browser. Three rules prevent
that. On loopback the Host must be a name of loopback, so a foreign name that resolves to 127.0.0.1
is refused (DNS rebinding). A body must be JSON, for which a browser asks with a preflight request
first, and that is never granted; so a form cannot be sent. An Origin that is not our own is refused
in any case.

A client that has found the application by its file names the location that it means. It may be the
file of another application, which was killed, and whose port this one has got. So a request for
another location is refused, whatever its token, as by an application that does not run. And each
answer names the location that it is of: a client that would send a secret looks at that first.

Invariants:
    A request that is refused reaches no route.
    Comparing tokens takes the same time whatever is wrong with them.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardline.app.server.discovery import LOCATION_HEADER

__all__ = [
    "BODY_MAX",
    "PAGE_FILES",
    "SCREENS",
    "SESSION_PATH",
    "TOKEN_PROTOCOL",
    "Access",
    "Guard",
    "error_response",
]

BODY_MAX: Final = 1 << 20
"""Largest body of a request, in bytes."""

TOKEN_PROTOCOL: Final = "shardline-token-"  # noqa: S105 - the name of a header's value
"""Beginning of the WebSocket subprotocol by which a browser sends the token; its base64url follows.

A page can give no header to a WebSocket, and what stands in a URL is logged."""

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_OPEN: Final = frozenset({"/healthz", "/readyz"})
SCREENS: Final = frozenset({"object", "dataflow", "shard", "sql", "lane", "project"})
"""First parts of the paths of the page's screens; that of the first screen is empty."""

PAGE_FILES: Final = "page"
"""First part of the paths of the files that the page's document loads."""

SESSION_PATH: Final = "/api/v1/session"
"""Where a one-time code, which a body has, becomes the token: asked for by who has no token yet."""

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Access:
    """The rules that a request must meet.

    Attributes:
        token: The one token; it must not be empty.
        bound: "loopback" if the server listens on loopback only.
        location: Identity of the application's location; "" for none, then any may be meant.
    """

    token: str
    bound: Literal["loopback", "elsewhere"] = "loopback"
    location: str = ""

    def __post_init__(self) -> None:
        """Refuse an empty token: a request without one would match it."""
        assert self.token, "an empty token"

    def refused(
        self, path: str, method: str, headers: Headers, offered: str = ""
    ) -> JSONResponse | None:
        """The answer to a request that is refused; None if it may be served.

        Args:
            path: That is asked for.
            method: Of the request.
            headers: Of the request.
            offered: Its token, if that is not among the headers.
        """
        host = _split(f"//{headers.get('host', '')}")
        if self.bound == "loopback" and host.hostname not in _LOOPBACK:
            return error_response(
                403, "FOREIGN_HOST", "this name is not one of ours", "use 127.0.0.1"
            )
        origin = headers.get("origin")
        if origin is not None and _split(origin).netloc != host.netloc:
            return error_response(403, "FOREIGN_ORIGIN", "requests of other sites are refused", "")
        # Before the token, which is that of the other application.
        if self.location and headers.get(LOCATION_HEADER, self.location) != self.location:
            return error_response(
                421,
                "NOT_RUNNING",
                "the application that is meant does not run: another one answers at its address",
                "it has ended, or was killed: start it again",
            )
        changes = method not in _READS
        if (changes or self.bound == "elsewhere") and not _is_open(path, changes=changes):
            given = headers.get("authorization", "").removeprefix("Bearer ")
            # Bytes of a header are read as Latin-1, whatever they were: a token in UTF-8 is there
            # again once they are bytes.
            sent = given.encode("latin-1") or offered.encode()
            if not hmac.compare_digest(sent, self.token.encode()):
                hint = "send it as 'Authorization: Bearer …'; the application says where it is"
                return error_response(
                    401, "TOKEN_NEEDED", "this needs the application's token", hint
                )
        if changes and headers.get("content-type", "").split(";")[0] != "application/json":
            return error_response(415, "JSON_NEEDED", "a body must be application/json", "")
        return None

    def refused_socket(self, path: str, headers: Headers) -> JSONResponse | None:
        """The answer to a WebSocket that is refused: like a GET, its token also as subprotocol."""
        return self.refused(path, "GET", headers, _offered_token(headers))


class Guard:
    """Middleware that passes on the requests that `access` does not refuse."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._added = (*_HEADERS, (LOCATION_HEADER.encode(), access.location.encode()))

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
                given = {name for name, _ in message["headers"]}
                added = [header for header in self._added if header[0] not in given]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, hardened)


def _split(address: str) -> SplitResult:
    """The parts of an address; of one that is none they are empty, as no host of ours is."""
    try:
        return urlsplit(address)
    except ValueError:  # such as `[` without its end
        return SplitResult("", "", "", "", "")


def _is_open(path: str, *, changes: bool) -> bool:
    """True for health, for the files of the page, and for what brings a proof of its own."""
    first = path.split("/")[1] if "/" in path else ""
    return (
        path in _OPEN
        or (changes and path == SESSION_PATH)
        or (not changes and first in {"", PAGE_FILES, *SCREENS})
    )


_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


def error_response(
    status: int, code: str, message: str, hint: str, kind: str = "invalid_usage"
) -> JSONResponse:
    """Make an error in the form of this interface.

    Args:
        status: Of HTTP.
        code: Stable name of the condition.
        message: A sentence about it.
        hint: What to do about it; "" for none.
        kind: One of `error_kinds.KINDS`.
    """
    error = {"kind": kind, "code": code, "message": message, "hint": hint}
    return JSONResponse({"error": error}, status_code=status)


def _offered_token(headers: Headers) -> str:
    """The token among the subprotocols that a WebSocket offers; "" if there is none."""
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        name = offered.strip()
        if name.startswith(TOKEN_PROTOCOL):
            encoded = name.removeprefix(TOKEN_PROTOCOL)
            try:
                # Padding is no character of a subprotocol's name, so it was left out.
                return base64.urlsafe_b64decode(f"{encoded}{'=' * (-len(encoded) % 4)}").decode()
            except (binascii.Error, UnicodeDecodeError):
                return ""
    return ""
