"""Lifecycle commands begin a shard and end it.

Initialising is idempotent: it makes the shard if there is none, or if the last one of that name was
finalised. Finalising moves since and upper to the empty frontier, for good (persist: tombstone).
The tombstone stays in the log: without it, a late writer or reader of the old shard could not be
refused, and would begin or use a new shard of that name by mistake.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shardline.datasource.frontier import TIME_MIN
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import ShardState, expire_leases, is_tombstone
from shardline.datasource.shard.trace import Trace
from shardline.datasource.types.schema import ShardSchema

__all__ = ["Finalised", "Held", "finalise", "initial_state", "reinitialise"]


@dataclass(frozen=True, slots=True)
class Finalised:
    """The shard is a tombstone; its parts and rollups are garbage."""


@dataclass(frozen=True, slots=True)
class Held:
    """The shard is still read, or registered; `holders` names the readers, holds and so on."""

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
    """The state that the first record of a new shard's log holds."""
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
    # Once the old shard's parts are deleted, its log before the tombstone may be, too.
    is_clean = state.cleaned_seqno == state.gc_seqno
    state = msgspec.structs.replace(
        fresh,
        seqno=state.seqno,
        walltime_ms=state.walltime_ms,
        version=state.version,
        created_ms=now_ms,
        # The garbage of the old shard is collected while the new one lives.
        rollups=state.rollups,
        gc_seqno=state.seqno if is_clean else state.gc_seqno,
        cleaned_seqno=state.seqno if is_clean else state.cleaned_seqno,
    )
    return Transition(state, result=True)


def finalise(
    state: ShardState, now_ms: int, *, despite_holders: frozenset[str]
) -> Transition[Finalised | Held]:
    """Turn the shard into a tombstone, unless a reader not in `despite_holders` still holds it.

    Args:
        despite_holders: Readers and holds that may be cut off, by id or name.
    """
    if is_tombstone(state):
        return Transition(None, Finalised())
    # The machine expires leases only in records, and a refusal writes none: without this, a dead
    # reader of a shard that nobody writes would refuse its end for ever.
    state = expire_leases(state, now_ms)
    holders = tuple(sorted({*state.leased, *state.critical} - despite_holders))
    if state.registered is not None:
        # A transaction may be committed and not applied here yet.
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
