"""A drop's plan says what goes for good, as a value: objects, their shards, rows and history.

What a drop deletes nobody brings back, and a name is easily mistaken. So it is shown first, and
carried out when it is asked for a second time.

    plan = DropPlan((DroppedObject("late", "view", (DroppedShard("late", 12, …),)),))
    drop_plan_from_json(drop_plan_json(plan))      the same plan, after a way through JSON

    find_droppable(running, shards)     the names that can be dropped, each object once

Invariants:
    Only objects can be dropped, by their own names: shards that belong to an object, or to the
    runtime itself, go with it or stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.app.protocol.objects import (
    errors_shard,
    is_runtime_shard,
    progress_shard,
    shards_of,
    skipped_shard,
    state_shards,
)
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from shardline.app.project.statements import ObjectDescription

__all__ = [
    "DropPlan",
    "DroppedObject",
    "DroppedShard",
    "drop_plan_from_json",
    "drop_plan_json",
    "find_droppable",
    "owned_shards",
]


@dataclass(frozen=True, slots=True)
class DroppedShard:
    """A shard that goes.

    Attributes:
        name: Its name.
        rows: How many rows it has now.
        size_bytes: Size of the parts of its newest state.
        since: The first time that can be read, ms since the epoch; None if none can.
        upper: Its upper, ms since the epoch; None if it is finished.
    """

    name: str
    rows: int
    size_bytes: int
    since: int | None
    upper: int | None


@dataclass(frozen=True, slots=True)
class DroppedObject:
    """An object that goes.

    Attributes:
        name: Its name.
        kind: source, view, index or sink; "" for one that the project has lost before, of which
            only shards are left.
        shards: Its shards that are there, its own one last.
    """

    name: str
    kind: str
    shards: tuple[DroppedShard, ...]


@dataclass(frozen=True, slots=True)
class DropPlan:
    """Everything that a drop deletes, in the order of the request."""

    objects: tuple[DroppedObject, ...]


def owned_shards(name: str, known: Mapping[str, ObjectDescription]) -> tuple[str, ...]:
    """The shards that go with an object, in the order in which they go.

    Its own one is the last: while it is there the drop can be asked for again.

    Args:
        name: Name of the object.
        known: The objects that run, or wait to be created, by name. Of one that is not among them
            nobody knows the kind: the shards of all kinds are its own, but for those of these.
    """
    if name in known:
        # No others, however they are called: `v_progress` is free for another object beside a view.
        return shards_of(known[name])
    taken = {shard for one in known.values() for shard in shards_of(one)} | known.keys()
    return tuple(shard for shard in _shards_of_any_kind(name) if shard not in taken)


def _shards_of_any_kind(name: str) -> tuple[str, ...]:
    beside = (skipped_shard(name), errors_shard(name), progress_shard(name))
    return (*state_shards(name), *beside, name)


def find_droppable(running: Mapping[str, ObjectDescription], shards: Iterable[str]) -> list[str]:
    """The names of all objects that can be dropped, sorted.

    Args:
        running: The objects that run, or wait to be created, by name.
        shards: Names of the shards that are there.
    """
    # The runtime's own, such as the lane: dropping that would be the end of everything.
    left = {name for name in shards if not is_runtime_shard(name)} - running.keys()
    owned = {shard for one in running.values() for shard in shards_of(one)}
    owned |= {shard for name in left for shard in _shards_of_any_kind(name)[:-1]}
    return sorted(running.keys() | (left - owned))


def drop_plan_json(plan: DropPlan) -> dict[str, Any]:
    """A plan as values of JSON."""
    found: dict[str, Any] = msgspec.to_builtins(plan)
    return found


def drop_plan_from_json(value: Mapping[str, Any]) -> DropPlan:
    """Read a plan that `drop_plan_json` has written.

    Raises:
        InvalidUsage: It is none: another version has sent it.
    """
    try:
        return msgspec.convert(value, DropPlan)
    except msgspec.ValidationError as error:
        raise InvalidUsage(
            f"this is no plan of a drop: {error}",
            code="MALFORMED_MESSAGE",
            hint="use the version of the application that was asked",
        ) from error
