"""Rollup commands record where whole states are stored, so that few log records need be read.

Without rollups, opening a shard would read every record since it was made (persist: rollup, Delta:
checkpoint).

Invariants:
    A rollup that is forgotten is never recorded again: it may be deleted by its seqno alone.
    One that was begun longer than `STAGE_LIFE_MS` ago is never recorded: a sweep may delete it.
"""

from __future__ import annotations

import msgspec

from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import (
    RollupRef,
    ShardState,
    begun_too_early,
    is_tombstone,
)

__all__ = ["add_rollup", "oldest_whole"]


def oldest_whole(state: ShardState) -> int:
    """Seqno of the whole state that the oldest state still needed is made from; 0 if none is known.

    Rollups and records before it are not needed: every state from `cleaned_seqno` on, and so every
    one from `gc_seqno` on, follows it. Of a shard that was dropped and whose parts are deleted,
    only the newest record is needed, which holds a whole state.
    """
    if is_tombstone(state) and state.cleaned_seqno == state.gc_seqno:
        return state.base
    return max((s for s in (*state.rollups, state.base) if s <= state.cleaned_seqno), default=0)


def add_rollup(
    state: ShardState, now_ms: int, *, seqno: int, rollup: RollupRef, begun_ms: int | None = None
) -> Transition[bool]:
    """Record where the state at `seqno` is stored.

    False if another rollup of this seqno is recorded already, if it comes so late that no state
    needs it any more, or if a sweep may have deleted it.

    Args:
        seqno: Seqno of the state in the rollup.
        rollup: Where it is stored.
        begun_ms: When its writer began, by the writer's clock; None if there is no blob to lose.
    """
    if begun_ms is not None and begun_too_early(state, now_ms, begun_ms):
        return Transition(None, result=False)
    existing = state.rollups.get(seqno)
    if existing is not None or seqno < oldest_whole(state):
        return Transition(None, existing == rollup)
    rollups = {**state.rollups, seqno: rollup}
    return Transition(msgspec.structs.replace(state, rollups=rollups), result=True)
