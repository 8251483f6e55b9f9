"""Computes the lag behind inputs from the uppers of both.

The slowest source below an object is found for all objects in one walk over the graph. To walk up
from each of them would visit the sources of a deep graph once for every object below them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET

from shardline.app.introspection.facts import Facts, Observed
from shardline.app.protocol.objects import inputs_of

__all__ = ["behind_ms", "earliest", "earliest_sources", "slowest", "slowest_sources"]


def slowest(facts: Facts, names: tuple[str, ...]) -> str | None:
    """The object with the earliest upper, among those whose upper is known; None if none is."""
    uppers: dict[str, int | None] = {}
    for name in names:
        found = facts.objects.get(name)
        if found is not None and found.write is not UNSET:
            uppers[name] = found.write
    return earliest(uppers)


def earliest(uppers: Mapping[str, int | None]) -> str | None:
    """The object with the earliest upper, of equal ones the first; None if there is none."""
    return min(uppers, key=lambda name: (uppers[name] is None, uppers[name] or 0), default=None)


def slowest_sources(facts: Facts) -> dict[str, str]:
    """Find the slowest source below each object, for all objects at once."""
    return earliest_sources(
        {name: inputs_of(found.installed.description) for name, found in facts.objects.items()},
        {name: one.write for name, one in facts.objects.items() if one.write is not UNSET},
    )


def earliest_sources(
    reads: Mapping[str, Sequence[str]], uppers: Mapping[str, int | None]
) -> dict[str, str]:
    """Find the source with the earliest upper below each object, for all objects at once.

    A source is an object that reads no other one. Those whose upper is not known are left out.

    Args:
        reads: What each object reads.
        uppers: Those that are known; None for an object that is finished.

    Returns:
        For each object with such a source below it, the source with the earliest upper; of equal
        ones the first by name.
    """
    readers: dict[str, list[str]] = {}
    sources: list[tuple[bool, int, str]] = []
    for name, inputs in reads.items():
        for other in inputs:
            readers.setdefault(other, []).append(name)
        if not inputs and name in uppers:
            upper = uppers[name]
            sources.append((upper is None, upper or 0, name))
    slowest_of: dict[str, str] = {}
    # The slowest first: whatever it reaches has found its own, and is not visited again.
    for _, _, source in sorted(sources):
        ahead = list(readers.get(source, ()))
        while ahead:
            name = ahead.pop()
            if name not in slowest_of:
                slowest_of[name] = source
                ahead += readers.get(name, ())
    return slowest_of


def behind_ms(facts: Facts, own: Observed, other: str | None) -> int | None:
    """Milliseconds from an upper to that of `other`; None if unknown, or `other` finished."""
    if own is None:
        return 0
    theirs = facts.objects[other].write if other is not None else UNSET
    if own is UNSET or theirs is UNSET or theirs is None:
        return None
    return max(0, theirs - own)
