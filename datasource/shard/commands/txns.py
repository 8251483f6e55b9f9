"""What transactions over many shards do to the state of one shard; the protocol is `txn`'s.

    mark            direct writes to a shard are refused from here on
    unmark          a mark of a transactions shard that is not there any more is taken away
    apply_commits   what transactions have committed enters the shard, in order of time
    finalise_txns   the end of a transactions shard that nothing is registered with

Invariants:
    While a shard is marked, its upper moves by `apply_commits` only. So what was committed at `t`
    is in the shard if and only if its upper is beyond `t`: applying is exactly once, by itself.
    The mark goes in the same transition that moves the upper beyond the time of the forgetting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.batch import Batch, Run, stamp
from shardline.datasource.shard.commands.append import InlineBackpressure, StagedTooLong
from shardline.datasource.shard.commands.lifecycle import Finalised, Held, finalise
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import STAGE_LIFE_MS, Registration, ShardState, Writer
from shardline.datasource.shard.trace import level_of, push

__all__ = [
    "Applied",
    "Commit",
    "Marked",
    "apply_commits",
    "finalise_txns",
    "mark",
    "unmark",
]


@dataclass(frozen=True, slots=True)
class Marked:
    """Shard `shard` is marked by `registration`: the one asked for, or an earlier one."""

    shard: str
    registration: Registration
    upper: int


@dataclass(frozen=True, slots=True)
class Applied:
    """Everything asked for is in the shard.

    Attributes:
        upper: The shard's upper.
        entered: Times of the commits that this very call has brought. The others had been brought
            before; what was written for them by this call is not used, and never will be.
    """

    upper: Frontier
    entered: frozenset[int] = frozenset()


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What one transaction does to one shard.

    Attributes:
        at: When.
        runs: The updates, without times; none where the shard is forgotten.
        forget: Whether the shard is written directly afterwards.
        writer: Whose append it is, if the shard is to remember that; empty for nobody's.
        sequence: Number of the append among those of `writer`.
        attempt: Which attempt staged the runs.
        covers: What the append covers.
    """

    at: int
    runs: tuple[Run, ...] = ()
    forget: bool = False
    writer: str = ""
    sequence: int = 0
    attempt: str = ""
    covers: str = ""


def mark(state: ShardState, now_ms: int, *, registration: Registration) -> Transition[Marked]:
    """Refuse direct writes from here on.

    Raises:
        InvalidUsage: The shard is finished: nothing can be written to it in any way.
    """
    del now_ms
    upper = state.upper.time
    if upper is None:
        raise InvalidUsage(
            f"shard '{state.name}' is finished: its upper is empty, nothing can be added",
            code="SHARD_FINISHED",
            hint="write to another shard, or make this one again after dropping it",
        )
    if state.registered is not None:
        return Transition(None, Marked(state.shard, state.registered, upper))
    marked = msgspec.structs.replace(state, registered=registration)
    return Transition(marked, Marked(state.shard, registration, upper))


def unmark(state: ShardState, now_ms: int, *, registration: Registration) -> Transition[bool]:
    """Take away a mark whose transactions shard is gone; False if it is not there."""
    del now_ms
    if state.registered != registration:
        return Transition(None, result=False)
    return Transition(msgspec.structs.replace(state, registered=None), result=True)


def apply_commits(
    state: ShardState,
    now_ms: int,
    *,
    shard: str,
    txns: str,
    commits: Sequence[Commit],
    inline_max_bytes: int,
    flushed_ms: int | None = None,
) -> Transition[Applied | InlineBackpressure | StagedTooLong]:
    """Let the shard have what was committed for it; what it has already is passed over.

    Args:
        shard: Id of the shard; one that was made again under its name has all that it will have.
        txns: Id of the transactions shard.
        commits: All that were committed before some time and may not be here, in order of time.
        inline_max_bytes: Limit of all inline parts in the state.
        flushed_ms: When the oldest part was begun that no row of the transactions shard names, as
            the caller has made it of an inline one; None if there is none.

    Raises:
        Corrupt: The shard does not know that it is registered.
    """
    if state.shard != shard:
        return Transition(None, Applied(state.upper))
    new, entered = state, set()
    for commit in commits:
        if new.upper.is_beyond(commit.at):
            continue
        if new.registered is None or new.registered.shard != txns:
            raise Corrupt(
                f"shard '{state.name}' has the upper {new.upper} and is not registered, but "
                f"something was committed for it at {commit.at}",
                code="REGISTRATION_LOST",
                hint="the location was restored in part from an older copy: restore all of it",
            )
        new = _applied(new, now_ms, commit)
        entered.add(commit.at)
    if new is state:
        return Transition(None, Applied(state.upper))
    if flushed_ms is not None and now_ms - flushed_ms > STAGE_LIFE_MS:
        return Transition(None, StagedTooLong(now_ms - flushed_ms))
    inline = new.trace.inline_bytes
    if inline > state.trace.inline_bytes and inline > inline_max_bytes:
        return Transition(None, InlineBackpressure())
    return Transition(new, Applied(new.upper, frozenset(entered)))


def _applied(state: ShardState, now_ms: int, commit: Commit) -> ShardState:
    lower = state.upper.time
    assert lower is not None, commit.at
    runs = stamp(commit.runs, commit.at)
    rows = sum(part.rows for run in runs for part in run.parts)
    desc = Description(lower, commit.at + 1)
    trace = push(state.trace, Batch(desc, runs, level=level_of(rows) if runs else 0))
    writers = state.writers
    if commit.writer:
        entry = Writer(
            last=commit.sequence,
            upper=commit.at + 1,
            heartbeat_ms=now_ms,
            attempt=commit.attempt,
            covers=commit.covers,
        )
        writers = {**writers, commit.writer: entry}
    registered = None if commit.forget else state.registered
    return msgspec.structs.replace(state, trace=trace, writers=writers, registered=registered)


def finalise_txns(
    state: ShardState, now_ms: int, *, upper: Frontier, despite_holders: frozenset[str]
) -> Transition[Finalised | Held | bool]:
    """Finalise a transactions shard; False if its upper is not `upper`, at which it was empty."""
    if state.upper != upper:
        return Transition(None, result=False)
    own = msgspec.structs.replace(state, registered=None)
    done = finalise(own, now_ms, despite_holders=despite_holders)
    return Transition(done.state, done.result)
