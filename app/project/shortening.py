"""Finds the objects that a project keeps readable for a shorter time, and the times that are lost.

A retention is applied as soon as it is set: the next round of maintenance moves the since of the
shard, and what is before it is merged away for good. One line of a settings file is enough for that
(`retain_history`), and the plan of it looks like that of any other change.

    find_shortened(descriptions, shards)      (ShortenedHistory("orders", since, until),)

What counts is the retention that the shard has, and not that of the definition that runs: a shard
of a dropped object is still there when the object is created again, and what was permitted once is
not asked for again when the process had died in the middle.

Invariants:
    Pure: everything about the location is in the arguments.
    A retention that stays, or that is longer, never loses anything. Nor does one that is shorter
    and still reaches back to the first time of which the shard knows anything.
    A holder of earlier times is not counted: it delays the loss until it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardline.app.project.replacement import ExistingShard
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import SourceDescription, ViewDescription

__all__ = ["ShortenedHistory", "find_shortened"]


@dataclass(frozen=True, slots=True)
class ShortenedHistory:
    """An object that loses times at which it can be read now.

    Attributes:
        name: The object.
        since: The first time at which it can be read now, ms since the epoch.
        until: The first time at which it can be read afterwards, > `since`.
    """

    name: str
    since: int
    until: int


def find_shortened(
    descriptions: Iterable[ObjectDescription], shards: Mapping[str, ExistingShard]
) -> tuple[ShortenedHistory, ...]:
    """The sources and views among `descriptions` that lose times by their retention.

    Args:
        descriptions: Objects that are created or changed, and keep their shard if there is one.
        shards: The shards that are there, by name.
    """
    found = []
    for one in descriptions:
        if not isinstance(one, SourceDescription | ViewDescription) or one.name not in shards:
            continue
        shard, retain_ms = shards[one.name], one.retain_ms
        if retain_ms is None or (shard.retain_ms is not None and retain_ms >= shard.retain_ms):
            continue
        if shard.first < shard.newest - retain_ms:
            found.append(ShortenedHistory(one.name, shard.first, shard.newest - retain_ms))
    return tuple(found)
