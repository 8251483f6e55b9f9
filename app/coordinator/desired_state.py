"""What a project wants and what a lane has, in the same words, so that they can be compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from shardline.app.lane.state import LaneState
from shardline.app.project.project import Resolved
from shardline.app.project.statements import Kept
from shardline.app.protocol.objects import (
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
    inputs_of,
)
from shardline.datasource.errors import InvalidUsage

__all__ = ["check_unread", "complete", "living"]


def living(state: LaneState) -> dict[str, Kept]:
    """What a lane says should be there, by name; subscriptions apart."""
    return {
        name: found
        for name, known in state.objects.items()
        if known.life == "live" and not isinstance(found := known.description, SubscribeDescription)
    }


def complete(resolved: Resolved, retain_ms: int) -> dict[str, Kept]:
    """What a project says should be there, with `retain_ms` where it does not say how long."""
    found: dict[str, Kept] = {}
    for name, description in resolved.descriptions.items():
        match description:
            case SourceDescription(retain_ms=None) | ViewDescription(retain_ms=None):
                found[name] = replace(description, retain_ms=retain_ms)
            case _:
                found[name] = description
    return found


def check_unread(names: Collection[str], wanted: Mapping[str, Kept]) -> None:
    """Make sure that nothing that is to stay reads what is to go.

    Raises:
        InvalidUsage: `STILL_READ`.
    """
    for other, description in wanted.items():
        read = [name for name in inputs_of(description) if name in names]
        if read and other not in names:
            raise InvalidUsage(
                f"'{other}' reads '{read[0]}'",
                code="STILL_READ",
                hint=f"drop '{other}' too, or take it out of the project first",
            )
