"""Compare-and-append adds updates to a shard exactly once.

It is the only way updates enter a shard, but for what a transaction commits (`commands.txns`).

Exactly once, also across process crashes: an append carries the identity `(writer, sequence)`, and
the shard remembers the last sequence of each writer. A repeated append with a sequence that has
happened is answered `AlreadyCommitted`, before the upper is even looked at and in the same
transition, so a lost acknowledgement and a crashed process look the same and are both harmless.

The same number is the same append only if it covers the same range of its source. A writer that
knows its range names it (`covers`), and the shard remembers the range of the writer's last commit:

    the number is    it covers            the answer
    new              anything             the append happens
    the last one     the same             `AlreadyCommitted`: a repetition, a replay
    the last one     something else       `OtherRange`: a checkpoint was rolled back, and rows that
                                          nobody has committed would be taken for committed
    an earlier one   the same             `AlreadyCommitted`: of several numbers for one range
    an earlier one   something else       `OtherRange`: what it covered is not remembered any more,
                                          and a query's own replay never goes behind its last one
    not new          nothing, or it is    `AlreadyCommitted`, as far as anybody knows
                     not remembered

An append either names the interval `[lower, upper)` that it fills, or leaves it to the commit:
then it takes effect at `max(upper, now)`, and parts without a time are stamped with that time, in
metadata only. As the stamp is made inside the transition, a lost race costs another
compare-and-set, and the data is never written again.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import TIME_MAX, Frontier
from shardline.datasource.shard.batch import Batch, Part, Run, stamp_time
from shardline.datasource.shard.commands.leader import check_no_follower
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.covered_range import may_cover_same
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import (
    Registration,
    ShardState,
    Writer,
    begun_too_early,
)
from shardline.datasource.shard.trace import level_of, push_batch

__all__ = [
    "Abandon",
    "Abandoned",
    "AlreadyCommitted",
    "Append",
    "AppendResult",
    "Appended",
    "InlineBackpressure",
    "OtherRange",
    "Redirected",
    "StagedTooLong",
    "UpperMismatch",
    "abandon",
    "committed_before",
    "compare_and_append",
    "decided_before",
    "shard_changed_error",
]

_ABANDONED_MAX = 64
"""How many given-up attempts a writer's entry remembers. Beyond that, an abort leaves its parts to
the orphan sweep instead of deleting them."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The updates are in `[lower, upper)` of the shard, and its upper is `upper`."""

    lower: int
    upper: Frontier


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """This very append has happened before.

    Attributes:
        upper: The shard's upper right after it, or after a later append of the same writer.
        attempt: The attempt that made it; the parts of any other one will never be used. Empty if
            the writer has appended since: then it is not known any more whose parts are in use.
    """

    upper: Frontier
    attempt: str


@dataclass(frozen=True, slots=True)
class OtherRange:
    """The number, or a greater one, was committed for another range. Nothing was appended.

    Attributes:
        last: The writer's last number.
        upper: The shard's upper right after that commit.
        attempt: As of `AlreadyCommitted`.
    """

    last: int
    upper: Frontier
    attempt: str


@dataclass(frozen=True, slots=True)
class UpperMismatch:
    """The shard's upper is `current`, not `expected`. Nothing was appended."""

    expected: Frontier
    current: Frontier


@dataclass(frozen=True, slots=True)
class InlineBackpressure:
    """The state holds enough inline parts: write these to the blob store and append again."""


@dataclass(frozen=True, slots=True)
class StagedTooLong:
    """The parts were staged too long ago: a sweep may have deleted them. Write them again."""

    age_ms: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """This attempt was given up and its parts may be gone. Start a new attempt."""


@dataclass(frozen=True, slots=True)
class Redirected:
    """The shard is written through a transactions shard, and only so. Nothing was appended."""

    registration: Registration


AppendResult = (
    Appended
    | AlreadyCommitted
    | OtherRange
    | UpperMismatch
    | InlineBackpressure
    | StagedTooLong
    | Abandoned
    | Redirected
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A request to append.

    Attributes:
        shard: Id of the shard that the parts were written for.
        runs: The updates; empty to only move the upper.
        writer: Id or name of the writer.
        sequence: Number of this append among those of `writer`; greater than all before.
        durable: True if the shard is to remember `writer` for ever (named by its user), False for
            `lease_ms` after its last append (a handle's own id).
        lease_ms: How long an anonymous writer is remembered.
        attempt: Id of this attempt; another attempt at the same append has other parts.
        lower: The shard's expected upper; None takes the upper as it is.
        upper: The shard's upper afterwards; None for right after the last time appended.
        staged_ms: When the oldest part was begun; None when nothing was staged before.
        earliest: Least time that rows may carry, if it lies before `lower`: rows between the two
            are in the shard already, put there by another writer of the same data, and are left
            out. None refuses rows before `lower`.
        inline_max_bytes: Limit of all inline parts in the state.
        txns: Id of the transactions shard by whose protocol this append is made; empty for a
            direct one, which a registered shard refuses.
        covers: The range of its source that the append covers
            (`shardline.datasource.shard.covered_range`); empty if that is not known.
        writes_leader: True if the same writer appends to the shard's leader, in the order that
            `shardline.datasource.shard.commands.leader` has; a follower refuses all others.
        is_counted: True if the handle has counted up to `sequence`, so that only `attempt` says
            which append this is; False if the caller means the number.
    """

    shard: str
    runs: tuple[Run, ...]
    writer: str
    sequence: int
    durable: bool
    lease_ms: int
    attempt: str
    lower: Frontier | None = None
    upper: Frontier | None = None
    staged_ms: int | None = None
    earliest: int | None = None
    inline_max_bytes: int = 1 << 20
    txns: str = ""
    covers: str = ""
    writes_leader: bool = False
    is_counted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """A request to give up an attempt.

    Attributes:
        writer: Id or name of the writer.
        sequence: The number that the attempt was made for.
        attempt: Id of the attempt.
        lease_ms: How long the shard remembers a commit of the writer; None for a durable one.
        parts: Keys of the parts that were staged for it.
        staged_ms: When the oldest of them was begun.
        was_asked: False if certainly nobody has asked for a commit of the attempt.
    """

    writer: str
    sequence: int
    attempt: str
    lease_ms: int | None
    parts: frozenset[str]
    staged_ms: int
    was_asked: bool = True


def compare_and_append(
    state: ShardState, now_ms: int, *, append: Append
) -> Transition[AppendResult]:
    """Append, if it has not happened yet and the shard's upper is the expected one.

    Raises:
        InvalidUsage: The append contradicts itself: times outside its interval, an empty interval
            with updates, an unknown schema. Or it is meant for a shard that was dropped; or for a
            follower, by a writer that does not write the leader.
    """
    if append.shard != state.shard:
        # Schema ids start over with a new shard: its columns would be taken for the old ones.
        raise shard_changed_error(state)
    entry = state.writers.get(append.writer)
    # Before the upper is compared: a repetition of an append that has happened finds the upper
    # moved by itself. It would get `UpperMismatch`, and its caller would append the rows again.
    decided = decided_before(entry, append)
    if decided is not None:
        return Transition(None, decided)
    # In every attempt, and of its state: `commands.orphan_sweep` says why no sweep can delete the
    # parts between this check and the record.
    if append.staged_ms is not None and begun_too_early(state, now_ms, append.staged_ms):
        return Transition(None, StagedTooLong(now_ms - append.staged_ms))
    if state.registered is not None and state.registered.shard != append.txns:
        return Transition(None, Redirected(state.registered))
    if not append.writes_leader:
        check_no_follower(state)
    expected = state.upper if append.lower is None else append.lower
    if state.upper != expected or state.upper.time is None:
        return Transition(None, UpperMismatch(expected, state.upper))
    inline = sum(p.size_bytes for run in append.runs for p in run.parts if p.inline is not None)
    if inline and state.trace.inline_bytes + inline > append.inline_max_bytes:
        return Transition(None, InlineBackpressure())

    desc, runs = _place(state, append, state.upper.time, now_ms)
    trace = state.trace
    # An append of nothing to no time still records its writer's number: the batch is left out, and
    # a repetition is answered `AlreadyCommitted` as any other.
    if not desc.is_empty_interval:
        rows = sum(part.rows for run in runs for part in run.parts)
        trace = push_batch(trace, Batch(desc, runs, level=level_of(rows)))
    abandoned = _still_abandoned(entry, append.sequence)
    lease_ms = None if append.durable else append.lease_ms
    writer = Writer(
        last=append.sequence,
        upper=desc.upper,
        heartbeat_ms=now_ms,
        lease_ms=_lease(lease_ms, gives_up=bool(abandoned)),
        attempt=append.attempt,
        abandoned=abandoned,
        covers=append.covers,
    )
    state = msgspec.structs.replace(
        state,
        trace=trace,
        writers={**state.writers, append.writer: writer},
        # In this very record: a transaction that reads the state after it must not take the shard
        # for one whose times are those of commits, and move its upper.
        times_by=state.times_by or (append.writer if _chooses_times(state, append) else ""),
    )
    return Transition(state, Appended(desc.lower, desc.upper_frontier))


def committed_before(
    entry: Writer | None, *, sequence: int, covers: str, attempt: str = ""
) -> AlreadyCommitted | OtherRange | None:
    """The answer to a number that was committed before, by the module's table; None if it is new.

    Args:
        entry: The writer's entry; None if it has none.
        sequence: The number.
        covers: The range that is to be appended under it.
        attempt: Id of the attempt that would append it; empty before there is one.
    """
    # An entry that only remembers attempts has a last number below 0, and none was committed.
    if entry is None or entry.last < 0 or sequence > entry.last:
        return None
    upper = Frontier(entry.upper)
    done_by = entry.attempt if sequence == entry.last else ""
    # An attempt is made for one range only: the one that has committed is never another one.
    ours = bool(attempt) and attempt == done_by
    if ours or may_cover_same(entry.covers, covers):
        return AlreadyCommitted(upper, done_by)
    return OtherRange(entry.last, upper, done_by)


def decided_before(
    entry: Writer | None, append: Append
) -> AlreadyCommitted | OtherRange | Abandoned | None:
    """The answer to an append that its writer's entry decides already; None if it is new."""
    found = committed_before(
        entry, sequence=append.sequence, covers=append.covers, attempt=append.attempt
    )
    if found is not None:
        return found
    if entry is not None and append.attempt in entry.abandoned:
        return Abandoned()
    return None


def shard_changed_error(state: ShardState) -> InvalidUsage:
    """The error for rows that were made for a shard that had the name of `state` before."""
    return InvalidUsage(
        f"shard '{state.name}' was dropped and made again since this writer was opened",
        code="SHARD_CHANGED",
        hint="open the writer again, and write the updates again",
    )


def _chooses_times(state: ShardState, append: Append) -> bool:
    """True if the writer, and not the commit, says at which times its rows are."""
    # The rows of a transactions shard are no rows of users. Without rows an upper was moved, to a
    # time of now mostly, and nothing says that rows will come with times of their own.
    if state.registered is not None or not append.runs:
        return False
    parts = (part for run in append.runs for part in run.parts)
    return append.upper is not None or any(part.time_bounds is not None for part in parts)


def _still_abandoned(entry: Writer | None, last: int) -> dict[str, int]:
    """The given-up attempts that a commit of sequence `last` does not refuse by itself."""
    given_up = {} if entry is None else entry.abandoned
    return {attempt: sequence for attempt, sequence in given_up.items() if sequence > last}


def _place(
    state: ShardState, append: Append, lower: int, now_ms: int
) -> tuple[Description, tuple[Run, ...]]:
    """The interval that the append fills, and its runs with every part at a time inside of it."""
    latest = (
        TIME_MAX if append.upper is None or append.upper.time is None else append.upper.time - 1
    )
    at = max(lower, now_ms) if append.upper is None else max(lower, min(latest, now_ms))
    runs = stamp_time(append.runs, at)
    earliest = lower if append.earliest is None else min(append.earliest, lower)
    # Checked before trimming: a part that is left out must be one that may be left out.
    for run in runs:
        for part in run.parts:
            _check_part(state, part, earliest, latest)
    runs = _trim(runs, lower)
    if append.upper is not None:
        upper = append.upper
    else:
        times = [part.time_bounds[1] for run in runs for part in run.parts if part.time_bounds]
        upper = Frontier(max(times) + 1) if times else Frontier(at + 1)
    last = TIME_MAX if upper.time is None else upper.time - 1
    if upper < Frontier(lower) or (runs and upper == Frontier(lower)) or last > TIME_MAX:
        raise InvalidUsage(
            f"cannot append {'updates to ' if runs else ''}the interval [{lower}, {upper.time})",
            code="INVALID_INTERVAL",
            hint="the upper must lie after the lower, unless there are no updates, and no time "
            f"after {TIME_MAX}",
        )
    return Description(lower, upper.time), runs


def _trim(runs: tuple[Run, ...], lower: int) -> tuple[Run, ...]:
    """`runs` without the parts that lie entirely before `lower`."""
    trimmed = []
    for run in runs:
        kept = tuple(
            part for part in run.parts if part.time_bounds and part.time_bounds[1] >= lower
        )
        if kept:
            trimmed.append(msgspec.structs.replace(run, parts=kept))
    return tuple(trimmed)


def _check_part(state: ShardState, part: Part, earliest: int, latest: int) -> None:
    bounds = part.time_bounds
    assert bounds is not None, part.key
    if part.schema not in state.schemas:
        raise InvalidUsage(
            f"part {part.key} was written with schema {part.schema}, unknown to the shard",
            code="UNKNOWN_SCHEMA",
            hint="open the shard again: it may have been dropped and made anew",
        )
    if bounds[0] < earliest or bounds[1] > latest:
        raise InvalidUsage(
            f"updates at times {bounds[0]} to {bounds[1]} do not fit into "
            f"[{earliest}, {latest + 1})",
            code="TIME_OUT_OF_RANGE",
            hint="times must lie at or after the shard's upper, and before the new upper",
        )


def abandon(state: ShardState, now_ms: int, *, request: Abandon) -> Transition[bool]:
    """Give up an attempt; True if it certainly has not and will never be committed.

    Only then may its parts be deleted: a request of the attempt may still be on its way, and is
    refused when it arrives. False if that sequence has been committed, by this attempt or by
    another one; if the shard may have forgotten such a commit; if too many attempts are remembered
    already; and for a registered shard, where a commit is decided elsewhere.
    """
    if state.registered is not None:
        return Transition(None, result=False)
    entry = state.writers.get(request.writer)
    if entry is not None and request.sequence <= entry.last:
        return Transition(None, result=False)
    if entry is not None and request.attempt in entry.abandoned:
        return Transition(None, result=True)
    # An entry that only remembers attempts says nothing of a commit that was forgotten before it.
    is_known = entry is not None and entry.last >= 0
    if not is_known and _may_have_forgotten(state, request):
        return Transition(None, result=False)
    if entry is None:
        entry = Writer(-1, 0, now_ms, request.lease_ms)
    if len(entry.abandoned) >= _ABANDONED_MAX:
        return Transition(None, result=False)
    # Counted from when the parts were begun, if the clock of that process is ahead: a late commit
    # is judged by their age.
    marked = msgspec.structs.replace(
        entry,
        abandoned={**entry.abandoned, request.attempt: request.sequence},
        heartbeat_ms=max(now_ms, request.staged_ms),
        lease_ms=_lease(entry.lease_ms, gives_up=True),
    )
    writers = {**state.writers, request.writer: marked}
    return Transition(msgspec.structs.replace(state, writers=writers), result=True)


def _may_have_forgotten(state: ShardState, request: Abandon) -> bool:
    """True if the shard, which has no commit of the writer, may have had one of this attempt.

    The entry of an anonymous writer expires by the clock of any process that commits, however wrong
    that is. But no clock was ever read here that is beyond the walltime of the newest record. So
    there was no entry that has expired if that record is within the lease of the earliest commit:
    half of the lease is left for a committer whose clock is behind that of the tasks.
    """
    # Whatever became of its entry: what a reader would read must not be deleted.
    if any(part.key in request.parts for batch in state.trace.batches for part in batch.parts):
        return True
    if request.lease_ms is None or not request.was_asked:
        return False
    return state.walltime_ms > request.staged_ms + request.lease_ms // 2


def _lease(lease_ms: int | None, *, gives_up: bool) -> int | None:
    """The lease of a writer's entry, prolonged if it remembers attempts that were given up."""
    # As long as a commit of their parts could be accepted: a mark that expires before lets it in.
    return lease_ms if lease_ms is None or not gives_up else max(lease_ms, SWEEP_AGE_MS)
