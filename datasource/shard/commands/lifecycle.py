"""The beginning and the end of a shard.

Initialising is idempotent: it makes the shard if there is none, or if the last one of that name was
finalised. Finalising drives since and upper to the empty frontier, for good: the tombstone stays,
so that a late writer or reader is told, and never mistaken for the first one of a new shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shardline.datasource.frontier import TIME_MIN
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import ShardState, expire, is_tombstone
from shardline.datasource.shard.trace import Trace
from shardline.datasource.types.schema import ShardSchema

__all__ = ["Finalised", "Held", "finalise", "initial_state", "reinitialise"]


@dataclass(frozen=True, slots=True)
class Finalised:
    """The shard is a tombstone; what it was made of is garbage."""


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody still reads the shard; `holders` names them."""

    holders: tuple[str, ...]


def initial_state(
    *,
    shard: str,
    name: str,
    schema: ShardSchema,
    key: tuple[str, ...],
    comment: str,
    version: tuple[int, int],
    now_ms: int,
    retain_ms: int | None = None,
) -> ShardState:
    """The state that record 1 of a new shard's log holds."""
    return ShardState(
        shard=shard,
        name=name,
        seqno=1,
        walltime_ms=now_ms,
        version=version,
        created_ms=now_ms,
        key=key,
        comment=comment,
        schemas={0: schema.json},
        retain_ms=retain_ms,
    )


def reinitialise(state: ShardState, now_ms: int, *, fresh: ShardState) -> Transition[bool]:
    """Make `fresh` out of a tombstone: a new shard under an old name; False if it still lives.

    The log goes on, so seqnos do not repeat; the shard's id is new, so offsets, leases and writers
    of the old one are refused.
    """
    if not is_tombstone(state):
        return Transition(None, result=False)
    # Once the old shard's parts are gone, its log may be, too, up to the tombstone.
    is_clean = state.cleaned_seqno == state.gc_seqno
    state = msgspec.structs.replace(
        fresh,
        seqno=state.seqno,
        walltime_ms=state.walltime_ms,
        version=state.version,
        created_ms=now_ms,
        # What the old shard leaves behind is collected in the new one's time.
        rollups=state.rollups,
        gc_seqno=state.seqno if is_clean else state.gc_seqno,
        cleaned_seqno=state.seqno if is_clean else state.cleaned_seqno,
    )
    return Transition(state, result=True)


def finalise(
    state: ShardState, now_ms: int, *, despite_holders: frozenset[str]
) -> Transition[Finalised | Held]:
    """Turn the shard into a tombstone, unless somebody other than `despite_holders` reads it.

    Args:
        despite_holders: Readers and holds that may be cut off, by id or name.
    """
    if is_tombstone(state):
        return Transition(None, Finalised())
    # A refusal commits nothing, and so would expire nobody: a dead reader would hold for ever.
    state = expire(state, now_ms)
    holders = tuple(sorted({*state.leased, *state.critical} - despite_holders))
    if state.registered is not None:
        # A transaction that was committed may still be on its way here.
        holders += (f"transactions shard '{state.registered.txns}'",)
    if holders:
        return Transition(None, Held(holders))
    state = msgspec.structs.replace(
        state,
        leased={},
        critical={},
        writers={},
        claims={},
        retain_ms=None,
        registered=None,
        trace=Trace(since=None, batches=(Batch(Description(TIME_MIN, None, None)),)),
        gc_seqno=state.seqno + 1,
    )
    return Transition(state, Finalised())
