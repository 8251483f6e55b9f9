"""Transaction commands bring what a transactions shard has committed into one data shard.

A transaction over several shards is committed by one append to the transactions shard; its data
shards follow later, in any process (`shardline.datasource.transactions.protocol`; Materialize:
txn-wal's apply). So that they can follow safely, a data shard must refuse all other writes.

    note_times_by   say that a writer chooses the times of rows: no transaction may then do so
    mark            refuse direct writes to a shard from here on
    settle_time     move the upper of a shard that is written directly, for a read by a transaction
    unmark          take away a mark whose transactions shard does not exist any more
    apply_commits   append the updates that transactions have committed, in order of time
    finalise_txns   end a transactions shard that no shard is registered with

Invariants:
    While a shard is marked, its upper moves by `apply_commits` only. So what was committed at `t`
    is in the shard if and only if its upper is beyond `t`: applying is exactly once, by itself.
    A shard that is forgotten loses its mark in the same transition that moves its upper beyond the
    time of the forgetting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.batch import Batch, Run, stamp_time
from shardline.datasource.shard.commands.append import InlineBackpressure, StagedTooLong
from shardline.datasource.shard.commands.leader import check_no_follower
from shardline.datasource.shard.commands.lifecycle import Finalised, Held, finalise
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import (
    Registration,
    ShardState,
    Writer,
    begun_too_early,
    is_tombstone,
)
from shardline.datasource.shard.trace import level_of, push_batch

__all__ = [
    "Applied",
    "Commit",
    "Marked",
    "allow_direct_writes",
    "apply_commits",
    "finalise_txns",
    "note_times_by",
    "refuse_direct_writes",
    "settle_time",
    "times_of_writer_error",
]


@dataclass(frozen=True, slots=True)
class Marked:
    """Shard `shard` is marked by `registration`: the requested one, or an earlier one.

    Attributes:
        shard: Id of the shard.
        registration: Its mark.
        upper: Its upper.
        swept_before_ms: As of its state.
    """

    shard: str
    registration: Registration
    upper: int
    swept_before_ms: int


@dataclass(frozen=True, slots=True)
class Applied:
    """All requested commits are in the shard.

    Attributes:
        upper: The shard's upper.
        entered: Times of the commits that this very call has appended. The others were in the
            shard before; parts that were written for them by this call will never be used.
    """

    upper: Frontier
    entered: frozenset[int] = frozenset()


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The change that one transaction makes to one shard.

    Attributes:
        at: Time of the transaction.
        runs: The updates, without times; empty where the shard is forgotten.
        forget: True if the shard is written directly afterwards.
        writer: The writer that the shard is to remember for this append; empty for none.
        sequence: Number of the append among those of `writer`.
        attempt: Id of the attempt that staged the runs.
        covers: The range of its source that the append covers; empty if that is not known.
        lease_ms: How long an anonymous writer is remembered; None for a durable one.
    """

    at: int
    runs: tuple[Run, ...] = ()
    forget: bool = False
    writer: str = ""
    sequence: int = 0
    attempt: str = ""
    covers: str = ""
    lease_ms: int | None = None


def refuse_direct_writes(
    state: ShardState, now_ms: int, *, registration: Registration, takes_over: bool = True
) -> Transition[Marked]:
    """Refuse direct writes from here on.

    Args:
        registration: The mark.
        takes_over: True if the caller knows that no writer chooses the shard's times any more;
            False to refuse a shard whose state says that one does.

    Raises:
        InvalidUsage: The shard is finished: nothing can be written to it in any way. Or its times
            are another writer's (`TIMES_OF_WRITER`). Or a clock that was ahead keeps everybody from
            writing to it (`SWEPT_IN_THE_FUTURE`). Or it follows another shard (`SHARD_FOLLOWS`).
    """
    upper = state.upper.time
    if upper is None:
        raise InvalidUsage(
            f"shard '{state.name}' is finished: its upper is empty, nothing can be added",
            code="SHARD_FINISHED",
            hint="write to another shard, or make this one again after dropping it",
        )
    if state.registered is None and state.swept_before_ms > now_ms:
        # It would take its barrier along, and keep everybody from writing to any shard.
        raise InvalidUsage(
            f"nothing that is begun before {state.swept_before_ms} ms can come into shard "
            f"'{state.name}', and that is in the future: a clock was ahead when it was swept",
            code="SWEPT_IN_THE_FUTURE",
            hint="set clocks right; then sweep the shard, which takes that back",
        )
    if state.registered is not None:
        return Transition(None, Marked(state.shard, state.registered, upper, state.swept_before_ms))
    if state.times_by and not takes_over:
        raise times_of_writer_error(
            state,
            "a transaction, which decides the times of what it writes, cannot write to it",
            "write to another shard, and let queries read both; or, if that writer has ended for "
            f"good, register the shard first (client.transactions().register('{state.name}'))",
        )
    check_no_follower(state)
    marked = msgspec.structs.replace(state, registered=registration, times_by="")
    return Transition(marked, Marked(state.shard, registration, upper, state.swept_before_ms))


def times_of_writer_error(state: ShardState, why: str, hint: str) -> InvalidUsage:
    """The error of a use of a shard that is not possible because a writer chooses its times."""
    return InvalidUsage(
        f"the times of rows in shard '{state.name}' are chosen by another writer "
        f"('{state.times_by}'): {why}",
        code="TIMES_OF_WRITER",
        hint=hint,
    )


def note_times_by(state: ShardState, now_ms: int, *, by: str) -> Transition[None]:
    """Note who chooses the times of rows, unless the state says so, or transactions decide them."""
    del now_ms
    if state.times_by or state.registered is not None or is_tombstone(state):
        return Transition(None, None)
    return Transition(msgspec.structs.replace(state, times_by=by), None)


def settle_time(state: ShardState, now_ms: int, *, shard: str, time: int) -> Transition[bool]:
    """Let nothing be added at `time` or before any more; False if that is not for us to decide.

    A shard whose rows take effect when they are committed says nothing of the times after its last
    row: without this a reader of a time could wait for it for ever. Its writers do not notice, as
    they take the upper as it is.

    Args:
        shard: Id of the shard.
        time: A time that is not after now.
    """
    del now_ms
    lower = state.upper.time
    if lower is None or lower > time:
        return Transition(None, result=True)
    # Of a writer that chooses times, rows may yet come at this one.
    if state.shard != shard or state.times_by or state.registered is not None:
        return Transition(None, result=False)
    trace = push_batch(state.trace, Batch(Description(lower, time + 1)))
    return Transition(msgspec.structs.replace(state, trace=trace), result=True)


def allow_direct_writes(
    state: ShardState, now_ms: int, *, registration: Registration
) -> Transition[bool]:
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
    """Append the commits that are not in the shard yet; those that are change nothing.

    Args:
        shard: Id of the shard that the commits are for. If the shard was dropped and made again
            since, none of them is appended.
        txns: Id of the transactions shard.
        commits: All commits before some time that may be missing here, in order of time.
        inline_max_bytes: Limit of all inline parts in the state.
        flushed_ms: When the oldest part was begun that the caller wrote in the place of an inline
            one, so that no row of the transactions shard names it; None if there is none.

    Raises:
        Corrupt: The shard does not know that it is registered.
    """
    if state.shard != shard:
        return Transition(None, Applied(state.upper))
    new, entered = state, set()
    for commit in commits:
        # The whole of exactly-once. To skip a commit that is missing would lose it for good, as the
        # next one moves the upper past it: `commits` must have no holes.
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
    if flushed_ms is not None and begun_too_early(state, now_ms, flushed_ms):
        return Transition(None, StagedTooLong(now_ms - flushed_ms))
    inline = new.trace.inline_bytes
    if inline > state.trace.inline_bytes and inline > inline_max_bytes:
        return Transition(None, InlineBackpressure())
    return Transition(new, Applied(new.upper, frozenset(entered)))


def _applied(state: ShardState, now_ms: int, commit: Commit) -> ShardState:
    lower = state.upper.time
    assert lower is not None, commit.at
    runs = stamp_time(commit.runs, commit.at)
    rows = sum(part.rows for run in runs for part in run.parts)
    desc = Description(lower, commit.at + 1)
    trace = push_batch(state.trace, Batch(desc, runs, level=level_of(rows) if runs else 0))
    writers = state.writers
    if commit.writer:
        entry = Writer(
            last=commit.sequence,
            upper=commit.at + 1,
            # Not before the commit, if the clock of who applies it is behind.
            heartbeat_ms=max(now_ms, commit.at),
            lease_ms=commit.lease_ms,
            attempt=commit.attempt,
            covers=commit.covers,
        )
        writers = {**writers, commit.writer: entry}
    registered = None if commit.forget else state.registered
    return msgspec.structs.replace(state, trace=trace, writers=writers, registered=registered)


def finalise_txns(
    state: ShardState, now_ms: int, *, shard: str, upper: Frontier, despite_holders: frozenset[str]
) -> Transition[Finalised | Held | bool]:
    """Finalise a transactions shard, if its upper is still `upper`; False if it is not.

    Args:
        shard: Id of the shard that is meant; see `finalise`.
        upper: The upper at which the caller saw that nothing is registered.
        despite_holders: Readers and holds that may be cut off, by id or name.
    """
    if state.shard == shard and state.upper != upper:
        return Transition(None, result=False)
    own = msgspec.structs.replace(state, registered=None)
    done = finalise(own, now_ms, shard=shard, despite_holders=despite_holders)
    return Transition(done.state, done.result)
