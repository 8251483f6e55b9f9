"""Lifecycle commands begin a shard and end it.

Initialising is idempotent: it makes the shard if there is none, or if the last one of that name was
finalised. Finalising moves since and upper to the empty frontier, for good (persist: tombstone).
The tombstone stays in the log: without it, a late writer or reader of the old shard could not be
refused, and would begin or use a new shard of that name by mistake.

The tombstone also says how far the shard had come. A reader that has followed it up to there can
then be refused by the next shard of that name (`FirstTime`), whose rows are other ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from shardline.datasource.frontier import TIME_MIN
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import ShardState, expire_leases, is_tombstone
from shardline.datasource.shard.trace import Trace
from shardline.datasource.types.schema import ShardSchema

__all__ = [
    "Changed",
    "Finalised",
    "FirstTime",
    "Held",
    "finalise",
    "finalise_unchanged",
    "initial_state",
    "reinitialise",
]

FirstTime: TypeAlias = Literal["least", "former-upper"]
"""The since of a shard that is made: the least time; or, if its name was that of a dropped shard,
the upper of that one, so that whoever has followed it finds that the history is gone."""


@dataclass(frozen=True, slots=True)
class Finalised:
    """The shard is a tombstone; its parts and rollups are garbage."""


@dataclass(frozen=True, slots=True)
class Held:
    """The shard is still read, or registered; `holders` names the readers, holds and so on."""

    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """The shard has changed since the caller has seen it."""


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
    times_by: str = "",
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
        times_by=times_by,
    )


def reinitialise(
    state: ShardState, now_ms: int, *, fresh: ShardState, first_time: FirstTime = "least"
) -> Transition[bool]:
    """Make `fresh` out of a tombstone: a new shard under an old name; False if it still lives.

    The log goes on, so seqnos do not repeat; the shard's id is new, so offsets, leases and writers
    of the old one are refused.

    Args:
        fresh: The state of a shard that nobody has used.
        first_time: Its since. In this very transition: a reader that came before it had moved
            would keep it from moving.
    """
    if not is_tombstone(state):
        return Transition(None, result=False)
    # Once the old shard's parts are deleted, its log before the tombstone may be, too.
    is_clean = state.cleaned_seqno == state.gc_seqno
    since = TIME_MIN if first_time == "least" else _former_upper(state)
    state = msgspec.structs.replace(
        fresh,
        trace=Trace(since=since),
        seqno=state.seqno,
        walltime_ms=state.walltime_ms,
        version=state.version,
        created_ms=now_ms,
        # The garbage of the old shard is collected while the new one lives.
        rollups=state.rollups,
        gc_seqno=state.seqno if is_clean else state.gc_seqno,
        cleaned_seqno=state.seqno if is_clean else state.cleaned_seqno,
        # A rollup of the old one that a sweep has deleted may still be on its way.
        swept_before_ms=state.swept_before_ms,
    )
    return Transition(state, result=True)


def finalise(
    state: ShardState, now_ms: int, *, shard: str, despite_holders: frozenset[str]
) -> Transition[Finalised | Held]:
    """Turn the shard into a tombstone, unless a reader not in `despite_holders` still holds it.

    Args:
        shard: Id of the shard that is meant.
        despite_holders: Readers and holds that may be cut off, by id or name.
    """
    # Another id: the one that was meant was dropped, as a new shard follows a tombstone only.
    # A drop that is repeated, or that has lost a race, must not take the next one of that name.
    if state.shard != shard or is_tombstone(state):
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
        times_by="",
        leader=None,
        # Nothing is left of the history before the upper of now, which is all that is still known
        # of it: see `_former_upper`.
        trace=Trace(since=None, batches=(Batch(Description(TIME_MIN, None, _reached(state))),)),
        gc_seqno=state.seqno + 1,
    )
    return Transition(state, Finalised())


def finalise_unchanged(
    state: ShardState,
    now_ms: int,
    *,
    shard: str,
    despite_holders: frozenset[str],
    seen: ShardState | None,
) -> Transition[Finalised | Held | Changed]:
    """Turn the shard into a tombstone as `finalise` does, if it is still in the state `seen`.

    None is any state.
    """
    is_there = state.shard == shard and not is_tombstone(state)
    # Not by the number alone: the commands that share a record are all applied to states of the
    # number before it.
    if is_there and seen is not None and state != seen:
        return Transition(None, Changed())
    done = finalise(state, now_ms, shard=shard, despite_holders=despite_holders)
    return Transition(done.state, done.result)


def _reached(state: ShardState) -> int | None:
    """How far readers of a shard, or of one before it under its name, have come; None: to its end.

    The upper; or the since, where it is further: of a shard that was made again and has no rows
    yet, that is the upper of the one before.
    """
    upper, since = state.upper.time, state.since.time
    return None if upper is None or since is None else max(upper, since)


def _former_upper(tombstone: ShardState) -> int:
    """The upper that the shard had when it was dropped; the least time if that is not known.

    It is not where an earlier program has dropped it, or where the shard was finished: nobody goes
    on who has followed one to its end.
    """
    since = tombstone.trace.batches[-1].desc.since
    return TIME_MIN if since is None else since
