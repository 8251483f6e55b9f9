"""References lists the objects that a shard's states refer to, and until when each is needed.

    part_blobs(state)          the parts that a state names
    dropped(before, after)     the parts that one transition lets go
    dropped_with(old, new)     the same, by the batches that it replaces alone
    needed_until(wholes, n)    the last state that is made with record or rollup `n`

Garbage collection, the orphan sweep, usage and reports need the same answers: an object that is
garbage to one of them and in use to another would be deleted under a reader. So the rules are here,
once, as pure functions.

An object has a *last need*: the newest seqno whose state cannot be rebuilt without it. It is needed
now if the newest state needs it, kept if a hold is at that seqno or an earlier one, and garbage
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shardline.datasource.shard.batch import Batch, Part
from shardline.datasource.shard.state import ShardState

__all__ = ["Amount", "dropped", "dropped_with", "needed_until", "part_blobs", "whole_state_seqnos"]


class Amount(msgspec.Struct, frozen=True):
    """A number of objects, and their bytes together."""

    count: int = 0
    size_bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.count + other.count, self.size_bytes + other.size_bytes)


def part_blobs(state: ShardState) -> dict[str, Part]:
    """The parts that `state` names and that are blobs, by key."""
    return _blobs(state.trace.batches)


def dropped(before: ShardState, after: ShardState) -> dict[str, Part]:
    """The parts that `before` names and `after`, the state right after it, does not."""
    old, new = before.trace.batches, after.trace.batches
    if old is new:
        return {}
    # States share the batches that a transition left alone; only the others must be searched.
    kept, known = set(map(id, new)), set(map(id, old))
    return dropped_with(
        (batch for batch in old if id(batch) not in kept),
        (batch for batch in new if id(batch) not in known),
    )


def dropped_with(removed: Iterable[Batch], added: Iterable[Batch]) -> dict[str, Part]:
    """The parts that go with batches `removed`, in whose place are `added`."""
    gone = _blobs(removed)
    if gone:
        for key in _blobs(added):
            gone.pop(key, None)
    return gone


def whole_state_seqnos(state: ShardState) -> list[int]:
    """Seqnos of the whole states that are known, ascending: rollups, and the record at `base`."""
    return sorted({*state.rollups, state.base})


def needed_until(known: Iterable[int], seqno: int) -> int | None:
    """Seqno of the last state that is made with the rollup or record at `seqno`.

    Args:
        known: Seqnos of the whole states, ascending. A state is made from the whole state at or
            before it and the records between; so nothing before a whole state is needed after it.
        seqno: Seqno of the rollup or record.

    Returns:
        None if the newest state is made with it, too.
    """
    later = next((whole for whole in known if whole > seqno), None)
    return None if later is None else later - 1


def _blobs(batches: Iterable[Batch]) -> dict[str, Part]:
    return {part.key: part for b in batches for part in b.parts if part.inline is None}
