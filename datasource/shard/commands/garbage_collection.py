"""Collection commands record how far garbage collection may go, and how far it has come.

Deleting objects takes many requests and may be interrupted between any two. Two seqnos in the
state, which only move forward, keep that safe:

`gc_seqno`: every state before it is given up. It is raised before anything is deleted and never
beyond a seqno hold, and no hold can be taken before it (`pin_critical`): so no reader has a right
to an object that is deleted later.

`cleaned_seqno`: the parts that only states before it named have been deleted. After a collector
that died, the next one begins there.
"""

from __future__ import annotations

import msgspec

from shardline.datasource.shard.commands.rollups import oldest_whole
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import ShardState, expire_leases, seqno_since

__all__ = ["give_up_states", "note_cleaned"]


def give_up_states(state: ShardState, now_ms: int, *, seqno: int) -> Transition[int]:
    """Give up states before `seqno` that no hold needs; answers the resulting `gc_seqno`."""
    # The machine expires leases only in records, and a refusal writes none: without this, a dead
    # reader would hold back collection of a shard that nobody writes for ever.
    alive = expire_leases(state, now_ms)
    given_up = min(seqno, seqno_since(alive))
    if given_up <= state.gc_seqno:
        return Transition(None, state.gc_seqno)
    return Transition(msgspec.structs.replace(alive, gc_seqno=given_up), given_up)


def note_cleaned(state: ShardState, now_ms: int, *, seqno: int) -> Transition[bool]:
    """Note that the parts that only states before `seqno` name are deleted; forget old rollups.

    False if that changes nothing.
    """
    del now_ms
    cleaned = max(state.cleaned_seqno, min(seqno, state.gc_seqno))
    new = msgspec.structs.replace(state, cleaned_seqno=cleaned)
    oldest = oldest_whole(new)
    rollups = {at: rollup for at, rollup in state.rollups.items() if at >= oldest}
    if cleaned == state.cleaned_seqno and len(rollups) == len(state.rollups):
        return Transition(None, result=False)
    return Transition(msgspec.structs.replace(new, rollups=rollups), result=True)
