"""Garbage collection, as the state knows it: two marks that only move forward.

`gc_seqno`: every state before it is given up. It is raised before anything is deleted and never
beyond a seqno hold, and a hold cannot be taken before it (`pin_critical`): whatever is deleted
later, nobody can have a right to.

`cleaned_seqno`: the parts that only states before it named have been deleted. A collector that died
is followed by one that begins there.
"""

from __future__ import annotations

import msgspec

from shardline.datasource.shard.commands.rollups import oldest_whole
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import ShardState, expire, seqno_since

__all__ = ["give_up", "note_cleaned"]


def give_up(state: ShardState, now_ms: int, *, seqno: int) -> Transition[int]:
    """Give up states before `seqno`, as far as no hold needs them; answers how far in all."""
    # A refusal commits nothing and so would expire nobody: a dead reader would hold for ever.
    alive = expire(state, now_ms)
    given_up = min(seqno, seqno_since(alive))
    if given_up <= state.gc_seqno:
        return Transition(None, state.gc_seqno)
    return Transition(msgspec.structs.replace(alive, gc_seqno=given_up), given_up)


def note_cleaned(state: ShardState, now_ms: int, *, seqno: int) -> Transition[bool]:
    """Note that parts which only states before `seqno` named are gone; forget older rollups.

    False if all of that is known.
    """
    del now_ms
    cleaned = max(state.cleaned_seqno, min(seqno, state.gc_seqno))
    new = msgspec.structs.replace(state, cleaned_seqno=cleaned)
    oldest = oldest_whole(new)
    rollups = {at: rollup for at, rollup in state.rollups.items() if at >= oldest}
    if cleaned == state.cleaned_seqno and len(rollups) == len(state.rollups):
        return Transition(None, result=False)
    return Transition(msgspec.structs.replace(new, rollups=rollups), result=True)
