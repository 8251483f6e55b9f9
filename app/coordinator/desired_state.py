"""The desired state puts the objects of a project and those of a lane into one form.

A deployment is the difference of the two. It is only right if equal objects have equal
descriptions: an unset retention on one side would make every source and view look changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from shardline.app.lane.state import LaneState
from shardline.app.project.project import CheckedProject
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import (
    Description,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
    inputs_of,
)
from shardline.app.protocol.project_identity import is_same_project
from shardline.datasource.errors import InvalidUsage

__all__ = [
    "desired_objects",
    "live_objects",
    "other_owner",
    "refuse_if_overtaken",
    "refuse_if_read",
]


def live_objects(state: LaneState) -> dict[str, ObjectDescription]:
    """The objects that a lane keeps running, by name, without subscriptions and dropped ones."""
    return {
        name: found
        for name, known in state.objects.items()
        if known.life == "live" and not isinstance(found := known.description, SubscribeDescription)
    }


def desired_objects(resolved: CheckedProject, retain_ms: int) -> dict[str, ObjectDescription]:
    """The objects of a project, by name, with `retain_ms` where it sets no retention itself."""
    found: dict[str, ObjectDescription] = {}
    for name, description in resolved.descriptions.items():
        match description:
            case SourceDescription(retain_ms=None) | ViewDescription(retain_ms=None):
                found[name] = replace(description, retain_ms=retain_ms)
            case _:
                found[name] = description
    return found


def other_owner(state: LaneState, resolved: CheckedProject) -> str:
    """The project whose objects a lane keeps running, if it is another one; "" if it is not.

    Without a record, of which earlier versions made none, and without objects there is no owner.
    """
    if state.project is None or resolved.identity is None or not live_objects(state):
        return ""
    return "" if is_same_project(state.project, resolved.identity) else str(state.project)


def refuse_if_read(names: Collection[str], wanted: Mapping[str, ObjectDescription]) -> None:
    """Refuse to drop `names` if an object that stays reads one of them.

    Raises:
        InvalidUsage: `STILL_READ`: names the reader and its input.
    """
    for other, description in wanted.items():
        read = [name for name in inputs_of(description) if name in names]
        if read and other not in names:
            raise InvalidUsage(
                f"'{other}' reads '{read[0]}'",
                code="STILL_READ",
                hint=f"drop '{other}' too, or take it out of the project first",
            )


def refuse_if_overtaken(
    before: Mapping[str, Description],
    now: Mapping[str, Description],
    wanted: Mapping[str, Description],
) -> None:
    """Refuse a project that would undo what was changed since it was meant to take effect.

    A change that the project has as well is none that it would undo.

    Args:
        before: The objects that were there when the project was given.
        now: Those that are there.
        wanted: Those of the project.

    Raises:
        InvalidUsage: `PROJECT_OVERTAKEN`: names the objects that were changed.
    """
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    newer = [name for name in changed if wanted.get(name) != now.get(name)]
    if newer:
        names = ", ".join(f"'{name}'" for name in newer)
        raise InvalidUsage(
            f"since this project was given to the runtime that follows, {names} was made, changed "
            "or dropped in the one that it follows, and this project would undo that",
            code="PROJECT_OVERTAKEN",
            hint="what that one ran runs on; to have this project all the same, or a newer one, "
            "`run` it now",
        )
