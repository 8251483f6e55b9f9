"""Lag behind inputs is computed from the uppers of both."""

from __future__ import annotations

from msgspec import UNSET

from shardline.app.introspection.facts import Facts, Observed

__all__ = ["behind_ms", "slowest"]


def slowest(facts: Facts, names: tuple[str, ...]) -> str | None:
    """The object with the earliest upper, among those whose upper is known; None if none is."""
    uppers: dict[str, int | None] = {}
    for name in names:
        found = facts.objects.get(name)
        if found is not None and found.write is not UNSET:
            uppers[name] = found.write
    return min(uppers, key=lambda name: (uppers[name] is None, uppers[name] or 0), default=None)


def behind_ms(facts: Facts, own: Observed, other: str | None) -> int | None:
    """Milliseconds from an upper to that of `other`; None if unknown, or `other` finished."""
    if own is None:
        return 0
    theirs = facts.objects[other].write if other is not None else UNSET
    if own is UNSET or theirs is UNSET or theirs is None:
        return None
    return max(0, theirs - own)
