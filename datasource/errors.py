"""Errors tell the caller of a shard what to do next: their classes are sorted by that.

By cause, as libraries usually sort them, a caller could not tell if a retry is safe. Expected
refusals (`UpperMismatch`, `SinceExceeded` …) are not here: they are return values of the commands
that can refuse. A broken assumption of our own is an `assert` with the values in it.

A message crosses from Python to the JVM as text and loses its class on the way, so each one starts
with a stable code in brackets: `[SHARD_NOT_FOUND] no shard 'orders' at 's3://lake' — hint: …`.
Codes are for ever: dashboards and restart policies match on them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar, Final

from typing_extensions import override

__all__ = [
    "STORE_REFUSALS",
    "Corrupt",
    "Determinate",
    "Fenced",
    "Indeterminate",
    "InvalidUsage",
    "LeaseExpired",
    "MissingBlob",
    "ShardError",
    "nearest_name",
    "unknown_name",
    "unknown_names",
]


STORE_REFUSALS: Final = frozenset({"ACCESS_DENIED", "BUCKET_NOT_FOUND", "WRONG_REGION"})
"""Codes of what a store refuses to this process: they say nothing about what is there."""


class ShardError(Exception):
    """The root of all errors. Catch a subclass: it says what to do.

    Attributes:
        code: Stable upper-case name of the exact condition, without brackets.
        detail: What was attempted, with the values.
        hint: What the reader of the message can do about it; may be empty.
    """

    default_code: ClassVar[str] = "SHARD_ERROR"

    def __init__(self, detail: str, *, code: str | None = None, hint: str = "") -> None:
        self.code = code or self.default_code
        self.detail = detail
        self.hint = hint
        super().__init__(f"[{self.code}] {detail}" + (f" — hint: {hint}" if hint else ""))

    @override
    def __reduce__(self) -> tuple[object, ...]:
        # Errors are pickled on their way from an executor; keyword-only fields need the long way.
        return (_rebuild, (type(self), self.detail, self.code, self.hint))


def _rebuild(kind: type[ShardError], detail: str, code: str, hint: str) -> ShardError:
    return kind(detail, code=code, hint=hint)


class InvalidUsage(ShardError):
    """The call, option or setting is wrong: fix it. Retrying cannot help and nothing was done."""

    default_code = "INVALID_USAGE"


class Determinate(ShardError):
    """It certainly did not happen. Retrying is safe."""

    default_code = "STORE_UNAVAILABLE"


class Indeterminate(ShardError):
    """It may have happened, or may happen yet. Read back first; never clean up after it.

    Blobs that the request would have referred to must stay (persist: `Indeterminate`).
    """

    default_code = "OUTCOME_UNKNOWN"


class Fenced(ShardError):
    """Another owner has taken over. Stop: all capabilities of this one are void."""

    default_code = "FENCED"


class LeaseExpired(ShardError):
    """The lease that protected this read is gone. Start the read (or the query) again."""

    default_code = "LEASE_EXPIRED"


class MissingBlob(ShardError):
    """A blob that state refers to is not there. Stop: never skip it."""

    default_code = "MISSING_BLOB"


class Corrupt(ShardError):
    """Bytes are not what was written: state or a part is damaged or foreign. Stop."""

    default_code = "CORRUPT"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to `name`; None if none is close."""
    by_folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InvalidUsage:
    """The error for an unknown option or setting, with the nearest known name as its hint.

    Args:
        kind: Kind of the name, in lower case: "option", "setting".
        name: The unknown name as the user wrote it.
        known: All names that are accepted.
    """
    names = sorted(known)
    near = nearest_name(name, names)
    hint = f"did you mean '{near}'?" if near else f"known names: {', '.join(names) or 'none'}"
    code = f"UNKNOWN_{kind.upper().replace(' ', '_')}"
    return InvalidUsage(f"unknown {kind} '{name}'", code=code, hint=hint)


def unknown_names(kind: str, names: Iterable[str], known: Iterable[str]) -> InvalidUsage:
    """The error for unknown names, all of them; that of `unknown_name` for a single one."""
    wrong, names_there = list(dict.fromkeys(names)), list(known)
    first = unknown_name(kind, wrong[0], names_there)
    if len(wrong) == 1:
        return first
    near = {name: nearest_name(name, names_there) for name in wrong}
    meant = ", ".join(f"'{there}' for '{name}'" for name, there in near.items() if there)
    told = ", ".join(f"'{name}'" for name in wrong)
    hint = f"did you mean {meant}?" if meant else first.hint
    return InvalidUsage(f"unknown {kind}s {told}", code=first.code, hint=hint)
