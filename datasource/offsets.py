"""Defines the offsets of a shard stream: how far a query has read, as its checkpoint stores it.

Spark keeps nothing of a query but its offsets, and plans a range again from two of them, after any
downtime. An offset that leaves something out, or that changes without data, loses rows, repeats
them or runs empty micro-batches for ever.

    {"v": 1, "init": true}                                          before anything is read
    {"v": 1, "shard": "s…", "hold": "…", "as_of": 17, "frontier": 18, "begins": "snapshot"}
    {"v": 1, "shard": "s…", "hold": "…", "as_of": 17, "frontier": 42}
    {"v": 2, "shards": ["s…", "s…"], "hold": "…", "as_of": 17, "frontier": 42}
    {"v": 2, "shards": ["s…"], "hold": "…", "as_of": 17, "frontier": 17,
     "snapshot": {"seqnos": [5], "done": 3}}

A range of two offsets stands for updates: `[frontier, frontier')` each at its own time, and for the
first range, from `init`, the snapshot at `as_of`, or nothing, as its end says in `begins`: the
options of a restart may be others than those of the plan. All that is needed to plan a range again,
in another process, at any later time, is in its two offsets; the *end* of the first range is what
fixes `as_of`.

A snapshot that is read in pieces stays at frontier `as_of` until its last piece. Its list of units
is planned from the states at `seqnos`, which durable seqno holds keep, and `done` counts the units
that have been read: a restarted run counts in the same list.

Several shards have one frontier: every update before it, of any of them, has been read.

Rules (after Delta's `DeltaSourceOffset`):
    An offset is a pure function of what has been read. It never carries a seqno that ticks, or an
    upper that moved without data: Spark compares offsets as text, and would run a micro-batch for
    each new text.
    The order of the keys is fixed, for the same reason. Names in it are for ever.
    Each is written in the least version that can express it, so that an older Shardline reads it.
    An older one passes over `begins`: it then has an offset of another text, which is one
    micro-batch without data, and no other range.
    A newer version, another shard, and moving back are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier

__all__ = [
    "OFFSET_VERSION",
    "START",
    "Begins",
    "ShardOffset",
    "SnapshotCut",
    "Start",
    "check_advance",
    "check_shards",
    "parse_offset",
]

OFFSET_VERSION: Final = 2

Begins = Literal["snapshot", "changes"]
"""The first updates of a stream: a snapshot at `as_of`, or the changes from `frontier` on."""


@dataclass(frozen=True, slots=True)
class Start:
    """The offset before anything is read: a constant, since Spark asks repeatedly for it.

    Spark never records it: the end of the first micro-batch is the first offset in its log.
    """

    def json(self) -> dict[str, Any]:
        """The offset as Spark stores it."""
        return {"v": 1, "init": True}


START: Final = Start()


@dataclass(frozen=True, slots=True)
class SnapshotCut:
    """A place between two pieces of a snapshot.

    Attributes:
        seqnos: Sequence number of the state of each shard that the list of units is planned from.
        done: How many units of that list have been read.
    """

    seqnos: tuple[int, ...]
    done: int


@dataclass(frozen=True, slots=True)
class ShardOffset:
    """The frontier up to which a query has read, and what is needed to go on from there.

    Attributes:
        shards: Ids of the shards, in the order of the query's inputs.
        hold: Name of the query's since hold on each of them.
        as_of: Time of the snapshot that the query started from.
        frontier: Exclusive end of what has been read; empty once all shards are finished and
            everything has been read.
        cut: The place in the snapshot while that is under way, with `frontier` at `as_of`; None
            before and after.
        begins: At the end of a first range that has all of the snapshot or nothing of it: which of
            the two. None at all others, and in checkpoints from before there was such a field.
    """

    shards: tuple[str, ...]
    hold: str
    as_of: int
    frontier: Frontier
    cut: SnapshotCut | None = None
    begins: Begins | None = None

    def json(self) -> dict[str, Any]:
        """The offset as Spark stores it; keys always in this order."""
        # If a key were left out, moved or renamed, the offset in a checkpoint would differ by text
        # from the same offset made now, and Spark would run a micro-batch without data.
        value: dict[str, Any] = (
            {"v": 1, "shard": self.shards[0]}
            if len(self.shards) == 1 and self.cut is None
            else {"v": 2, "shards": list(self.shards)}
        )
        value |= {"hold": self.hold, "as_of": self.as_of, "frontier": self.frontier.time}
        if self.cut is not None:
            value["snapshot"] = {"seqnos": list(self.cut.seqnos), "done": self.cut.done}
        if self.begins is not None:
            value["begins"] = self.begins
        return value

    @property
    def position(self) -> tuple[Frontier, int]:
        """The position in the stream, for comparison: frontier, then units of the snapshot."""
        # The frontier stands at `as_of` for all pieces and at `as_of + 1` after the last one, so a
        # finished snapshot, whose count is 0 again, still comes after each of its pieces.
        return self.frontier, self.cut.done if self.cut else 0


def parse_offset(value: dict[str, Any]) -> Start | ShardOffset:
    """Read an offset from the JSON in a checkpoint.

    Raises:
        InvalidUsage: It is not an offset of a shard stream, or one of a newer version.
    """
    if not isinstance(value, dict):  # an edited checkpoint may hold any JSON
        raise _foreign_error(value)
    named = value.get("v")
    version: int = named if type(named) is int else 0  # a bool is an int, too
    # Before any other key is looked at: a newer version may have other keys, and the user shall
    # read that an upgrade is missing, not that the checkpoint is foreign.
    if version > OFFSET_VERSION:
        raise InvalidUsage(
            f"the checkpoint holds an offset of version {version}, this code reads up to "
            f"{OFFSET_VERSION}",
            code="NEWER_OFFSET",
            hint="upgrade Shardline here; nothing was changed",
        )
    if version == 1 and value.get("init") is True and len(value) == len(START.json()):
        return START
    shards = [value.get("shard")] if version == 1 else value.get("shards")
    found = _parse_fields(value, shards, value.get("snapshot")) if version in {1, 2} else None
    if found is not None:
        return found
    raise _foreign_error(value)


def _foreign_error(value: object) -> InvalidUsage:
    return InvalidUsage(
        f"the checkpoint holds {value!r:.200}, which is not an offset of a shard stream",
        code="FOREIGN_OFFSET",
        hint="each query needs a checkpoint of its own; this one belongs to another source",
    )


def _parse_fields(value: dict[str, Any], shards: Any, snapshot: Any) -> ShardOffset | None:
    # A frontier of null is empty (all is read); a missing one is a damaged offset. A default of
    # None would take the second for the first, and end the query.
    hold, as_of, frontier = value.get("hold"), value.get("as_of"), value.get("frontier", "absent")
    if not (
        isinstance(shards, list)
        and shards
        and all(isinstance(shard, str) for shard in shards)
        and isinstance(hold, str)
        and type(as_of) is int
        and (frontier is None or type(frontier) is int)
    ):
        return None
    begins = value.get("begins")
    if begins is not None and (snapshot is not None or begins not in get_args(Begins)):
        return None
    if snapshot is None:
        return ShardOffset(tuple(shards), hold, as_of, Frontier(frontier), begins=begins)
    cut = _parse_cut(snapshot, len(shards))
    # A piece with another frontier than `as_of` cannot be compared with its neighbours.
    if cut is None or frontier != as_of:
        return None
    return ShardOffset(tuple(shards), hold, as_of, Frontier(frontier), cut)


def _parse_cut(value: Any, shards: int) -> SnapshotCut | None:
    if not isinstance(value, dict):
        return None
    seqnos, done = value.get("seqnos"), value.get("done")
    if (
        isinstance(seqnos, list)
        and len(seqnos) == shards
        and all(type(seqno) is int for seqno in seqnos)
        and type(done) is int
    ):
        return SnapshotCut(tuple(seqnos), done)
    return None


def check_advance(start: Start | ShardOffset, end: Start | ShardOffset, who: str) -> None:
    """Refuse a range that does not go forward in one stream.

    Args:
        start: Start of the range.
        end: End of the range.
        who: The stream, in words, for the error.

    Raises:
        InvalidUsage: `end` is of another stream, or lies before `start`.
    """
    if isinstance(start, Start):
        return
    if isinstance(end, Start) or end.position < start.position:
        raise InvalidUsage(
            f"{who}: the range from {start.json()} to {end.json()} goes back",
            code="OFFSET_WENT_BACK",
            hint="the checkpoint was edited or mixed with another one; restore it",
        )
    # Pins are compared only between two pieces. The last range of a snapshot ends without one.
    pinned = (start.cut.seqnos, end.cut.seqnos) if start.cut and end.cut else ((), ())
    if (end.shards, end.hold, end.as_of) != (start.shards, start.hold, start.as_of) or (
        pinned[0] != pinned[1]
    ):
        raise InvalidUsage(
            f"{who}: the range from {start.json()} to {end.json()} is of two different streams",
            code="FOREIGN_OFFSET",
            hint="each query needs a checkpoint of its own; restore this one",
        )


def check_shards(offset: ShardOffset, inputs: Sequence[tuple[str, str]], who: str) -> None:
    """Refuse an offset of other shards than those that the query reads now.

    Names are not enough: a shard that was dropped and created again has the same name and other
    times, and the frontier in the checkpoint means nothing for it.

    Args:
        offset: The one in the checkpoint.
        inputs: Name and id of each shard, in order.
        who: The stream, in words, for the error.

    Raises:
        InvalidUsage: A shard differs, or there are more or fewer.
    """
    if len(offset.shards) != len(inputs):
        raise InvalidUsage(
            f"{who}: the checkpoint belongs to a stream of {len(offset.shards)} shards, and "
            f"{len(inputs)} are read now",
            code="FOREIGN_OFFSET",
            hint="a query keeps its shards: read another set with a new checkpoint",
        )
    for shard, (name, found) in zip(offset.shards, inputs, strict=True):
        if shard == found:
            continue
        if found in offset.shards:
            hint = "the shards are named in another order: restore that of the first start"
        else:
            hint = (
                "the shard was dropped and made again, or the query reads another one now: use a "
                "new checkpoint"
            )
        raise InvalidUsage(
            f"{who}: the checkpoint (hold '{offset.hold}') belongs to shard {shard}, but '{name}' "
            f"is {found}",
            code="FOREIGN_OFFSET",
            hint=hint,
        )
