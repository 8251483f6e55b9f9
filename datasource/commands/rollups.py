"""Rollups: where whole states are stored, so that reading one needs few log records."""

from __future__ import annotations

import msgspec

from datasource.commands.transition import Transition
from datasource.state import RollupRef, ShardState

__all__ = ["add_rollup", "remove_rollups"]


def add_rollup(
    state: ShardState, now_ms: int, *, seqno: int, rollup: RollupRef
) -> Transition[bool]:
    """Record where the state at `seqno` is stored; False if somebody else's already is."""
    del now_ms
    existing = state.rollups.get(seqno)
    if existing is not None:
        return Transition(None, existing == rollup)
    rollups = {**state.rollups, seqno: rollup}
    return Transition(msgspec.structs.replace(state, rollups=rollups), result=True)


def remove_rollups(
    state: ShardState, now_ms: int, *, seqnos: frozenset[int]
) -> Transition[tuple[RollupRef, ...]]:
    """Forget rollups; answers with those that this call removed."""
    del now_ms
    removed = tuple(ref for seqno, ref in state.rollups.items() if seqno in seqnos)
    if not removed:
        return Transition(None, ())
    rollups = {seqno: ref for seqno, ref in state.rollups.items() if seqno not in seqnos}
    return Transition(msgspec.structs.replace(state, rollups=rollups), removed)
