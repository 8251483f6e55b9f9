"""One-time codes stand for the application's token in a link, once and for ten minutes.

    codes = SessionCodes(token, SystemClock(), SystemIds())
    f"{url}/#code={codes.issue()}"            printed; what follows `#` is neither sent nor logged
    codes.redeem(code)                        the token, or a refusal that says why

A token in a link would stay in the terminal, in the browser's history and wherever the link is
copied to. A code that was used, or is old, is worth nothing there.

Invariants:
    A code gives the token once: of two that send it, one is refused.
    What is compared are digests: how long that takes says nothing of a code or of the token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shardline.app.server.access import SESSION_PATH
from shardline.app.server.api import read_body
from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import InvalidUsage, ShardError

__all__ = ["SessionCodes", "session_route"]

_VALID_MS: Final = 600_000
_KEPT_MAX: Final = 64
"""Codes that are remembered, used and old ones too, so that a refusal can say which it is."""

_HINT: Final = (
    "enter the token itself: it is in application.json (of one that follows another runtime, in "
    "following.json), in the application's data folder; or start the application again, which "
    "prints a new link"
)


@dataclass(slots=True)
class _Issued:
    """A code that was given out: until when it counts, and whether it was used."""

    until_ms: float
    used: bool = False


class SessionCodes:
    """The codes of one application."""

    def __init__(self, token: str, clock: Clock, ids: IdGenerator) -> None:
        """Know no code yet.

        Args:
            token: That a code stands for.
            clock: Tells how old a code is.
            ids: Makes codes: 128 random bits each.
        """
        self._token = token
        self._clock = clock
        self._ids = ids
        self._lock = threading.Lock()
        self._issued: dict[bytes, _Issued] = {}

    def issue(self) -> str:
        """Make a code that counts from now on."""
        code = base64.urlsafe_b64encode(self._ids.token()).decode().rstrip("=")
        with self._lock:
            while len(self._issued) >= _KEPT_MAX:
                self._issued.pop(next(iter(self._issued)))
            self._issued[_digest(code)] = _Issued(self._clock.elapsed_ms() + _VALID_MS)
        return code

    def redeem(self, code: str) -> str:
        """Return the token for a code, which is used up by that.

        Raises:
            ShardError: `CODE_UNKNOWN`, `CODE_USED` or `CODE_EXPIRED`.
        """
        with self._lock:
            found = self._issued.get(_digest(code))
            if found is None:
                raise _refusal("CODE_UNKNOWN", "this code is not one of this application's")
            if found.used:
                raise _refusal("CODE_USED", "this code was used already")
            if self._clock.elapsed_ms() > found.until_ms:
                raise _refusal("CODE_EXPIRED", "this code is older than ten minutes")
            found.used = True
        return self._token

    def check(self, token: str) -> str:
        """Return the token if it is the right one.

        Raises:
            ShardError: `TOKEN_WRONG`.
        """
        if not hmac.compare_digest(_digest(token), _digest(self._token)):
            raise _refusal("TOKEN_WRONG", "this is not the application's token")
        return self._token


class _Proof(msgspec.Struct, forbid_unknown_fields=True):
    """What shows that a client may have the token: a code, or the token itself."""

    code: str = ""
    token: str = ""


def session_route(codes: SessionCodes) -> Route:
    """Make the route that gives the token for a code, and checks one that was typed."""

    async def session(request: Request) -> Response:
        given = await read_body(request, _Proof)
        if bool(given.code) == bool(given.token):
            raise InvalidUsage(
                "a session begins with a code or with the token",
                code="BODY_UNREADABLE",
                hint="GET /api/v1/openapi.json describes it",
            )
        token = codes.redeem(given.code) if given.code else codes.check(given.token)
        return JSONResponse({"token": token})

    return Route(SESSION_PATH, session, methods=["POST"])


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _refusal(code: str, message: str) -> ShardError:
    return InvalidUsage(message, code=code, hint=_HINT)
