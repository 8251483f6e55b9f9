"""Offsets of a shard stream: how far the query has read, as Spark writes it in its checkpoint.

    {"v": 1, "init": true}                                          before anything is read
    {"v": 1, "shard": "s…", "hold": "…", "as_of": 17, "frontier": 42}

A range of two offsets stands for updates: `[frontier, frontier')` each at its own time, and for the
first range, from `init`, the snapshot at `as_of` and then the changes after it. All that is needed
to plan a range again, in another process, at any later time, is in its two offsets; the *end* of
the first range is what fixes `as_of`.

Rules (after Delta's `DeltaSourceOffset`):
    An offset is a pure function of the frontier. It never carries a seqno, or an upper that moved
    without data: Spark compares offsets as text, and would run a micro-batch for each new text.
    The order of the keys is fixed, for the same reason. Names in it are for ever.
    A newer version, another shard, and moving back are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from datasource.errors import InvalidUsage
from datasource.frontier import Frontier

__all__ = ["OFFSET_VERSION", "START", "ShardOffset", "Start", "check_advance", "parse_offset"]

OFFSET_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Start:
    """Before anything is read. A constant: Spark asks for it several times and never records it."""

    def json(self) -> dict[str, Any]:
        """The offset as Spark stores it."""
        return {"v": OFFSET_VERSION, "init": True}


START: Final = Start()


@dataclass(frozen=True, slots=True)
class ShardOffset:
    """Everything before `frontier` has been read.

    Attributes:
        shard: Id of the shard.
        hold: Name of the query's since hold on it.
        as_of: Time of the snapshot that the query started from.
        frontier: Exclusive end of what has been read; empty once the shard is finished and all of
            it has been read.
    """

    shard: str
    hold: str
    as_of: int
    frontier: Frontier

    def json(self) -> dict[str, Any]:
        """The offset as Spark stores it; keys always in this order."""
        return {
            "v": OFFSET_VERSION,
            "shard": self.shard,
            "hold": self.hold,
            "as_of": self.as_of,
            "frontier": self.frontier.time,
        }


def parse_offset(value: dict[str, Any]) -> Start | ShardOffset:
    """The offset in a checkpoint.

    Raises:
        InvalidUsage: It is not an offset of a shard stream, or one of a newer version.
    """
    named = value.get("v")
    version: int = named if type(named) is int else 0  # a bool is an int, too
    if version > OFFSET_VERSION:
        raise InvalidUsage(
            f"the checkpoint holds an offset of version {version}, this code reads up to "
            f"{OFFSET_VERSION}",
            code="NEWER_OFFSET",
            hint="upgrade Shardline here; nothing was changed",
        )
    if version == OFFSET_VERSION:
        if value.get("init") is True and len(value) == len(START.json()):
            return START
        found = _fields(value)
        if found is not None:
            return found
    raise InvalidUsage(
        f"the checkpoint holds {value!r:.200}, which is not an offset of a shard stream",
        code="FOREIGN_OFFSET",
        hint="each query needs a checkpoint of its own; this one belongs to another source",
    )


def _fields(value: dict[str, Any]) -> ShardOffset | None:
    shard, hold = value.get("shard"), value.get("hold")
    as_of, frontier = value.get("as_of"), value.get("frontier", "absent")
    if (
        isinstance(shard, str)
        and isinstance(hold, str)
        and type(as_of) is int
        and (frontier is None or type(frontier) is int)
    ):
        return ShardOffset(shard, hold, as_of, Frontier(frontier))
    return None


def check_advance(start: Start | ShardOffset, end: Start | ShardOffset) -> None:
    """Refuse a range that does not go forward on one shard.

    Raises:
        InvalidUsage: `end` is of another shard or hold, or lies before `start`.
    """
    if isinstance(start, Start):
        return
    if isinstance(end, Start) or end.frontier < start.frontier:
        raise InvalidUsage(
            f"the range from {start.json()} to {end.json()} goes back",
            code="OFFSET_WENT_BACK",
            hint="the checkpoint was edited or mixed with another one; restore it",
        )
    if (end.shard, end.hold, end.as_of) != (start.shard, start.hold, start.as_of):
        raise InvalidUsage(
            f"the range from {start.json()} to {end.json()} is of two different streams",
            code="FOREIGN_OFFSET",
            hint="each query needs a checkpoint of its own; restore this one",
        )
