"""Lists the objects of one shard, by kind.

The log is listed first, and the parts and rollups after it. They are written before a record names
them, so all that the newest listed record names was there before the rest was listed: if it is not
in the listing, it is missing. In the other order, a part that is written and committed during the
listing would look like a missing one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from shardline.datasource.stores.entry import entry_seqno, is_entry
from shardline.datasource.stores.location import BlobEntry
from shardline.datasource.stores.objects import Objects

__all__ = ["Listing", "is_directory_marker", "list_shard"]

_ROLLUP: Final = re.compile(r"([0-7][0-9a-f]{15})-[0-9a-f]{32}")
_PART: Final = re.compile(r"p[0-9a-f]{32}\.parquet|t[0-9a-f]{32}/.+")
"""Names of our own files, and of those that Spark's writer makes in a directory of its own."""


@dataclass(slots=True)
class Listing:
    """The objects of one shard.

    Attributes:
        records: Seqnos of the log's entries, ascending.
        floors: Numbers of the floor log's entries, ascending.
        rollups: Sizes of rollups, by key.
        rollup_seqnos: Keys of rollups, by the seqno in the name; any one of several.
        parts: Sizes of parts, by key.
        foreign: Keys of all other objects.
    """

    records: list[int] = field(default_factory=list)
    floors: list[int] = field(default_factory=list)
    rollups: dict[str, int] = field(default_factory=dict)
    rollup_seqnos: dict[int, str] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)

    @property
    def head(self) -> int:
        """Seqno of the newest record; 0 without any."""
        return self.records[-1] if self.records else 0

    @property
    def foreign_entries(self) -> Iterator[str]:
        """Keys of foreign objects in the directories of the log and the floor log."""
        return (key for key in self.foreign if _kind_of(key) in ("log", "floor"))


def list_shard(objects: Objects, directory: str) -> Listing:
    """All objects of the shard in `directory`.

    Raises:
        Determinate: The store did not answer.
    """
    listing = Listing()
    # A request of its own: not every store lists a directory in key order and at one moment.
    for entry in objects.entries(f"{directory}/log/"):
        if is_entry(entry.key):
            listing.records.append(entry_seqno(entry.key))
    for entry in objects.entries(f"{directory}/"):
        kind, name = _kind_of(entry.key), entry.key.split("/", 2)[-1]
        rollup = _ROLLUP.fullmatch(name) if kind == "rollup" else None
        if kind in ("log", "floor") and is_entry(entry.key):
            if kind == "floor":
                listing.floors.append(entry_seqno(entry.key))
        elif rollup is not None:
            listing.rollups[entry.key] = entry.size_bytes
            listing.rollup_seqnos[int(rollup[1], 16)] = entry.key
        elif kind == "part" and _PART.fullmatch(name):
            listing.parts[entry.key] = entry.size_bytes
        elif not is_directory_marker(entry):
            listing.foreign.append(entry.key)
    listing.records.sort()
    listing.floors.sort()
    return listing


def is_directory_marker(entry: BlobEntry) -> bool:
    """True if `entry` is an empty object by which other tools mark a directory in a bucket."""
    return entry.key.endswith("/") and entry.size_bytes == 0


def _kind_of(key: str) -> str:
    segments = key.split("/", 2)
    return segments[1] if len(segments) > 2 else ""  # noqa: PLR2004 - directory, kind, name
