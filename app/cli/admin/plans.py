"""Plans are the effects of the verbs that change a shard, as values, for people and programs.

    expire_plan, compact_plan, gc_plan, sweep_plan, finalise_plan, retention_plan

A person who is about to delete something must be able to see the effect first. A plan holds for the
state that it was made from; the shard goes on meanwhile. So no plan is ever applied: the verb reads
the shard again. Field names are stable: scripts read them as JSON.

Invariants:
    Nothing here writes, deletes or takes a lease.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, nearest_name
from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.inspect.report import report_shard
from shardline.datasource.maintenance.compact import all_mergeable_batches, is_unclaimed_by
from shardline.datasource.maintenance.orphan_sweep import sweep_orphans
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.codec import CODE_VERSION
from shardline.datasource.shard.commands.claims import live_claims
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.references import Amount
from shardline.datasource.shard.state import (
    CriticalReader,
    LeasedReader,
    ShardState,
    is_tombstone,
    seqno_since,
    since_bound,
)
from shardline.datasource.shard.trace import Trace, due_merges, level_of, worn_past

__all__ = [
    "CompactPlan",
    "ExpirePlan",
    "ExpiredReader",
    "FinalisePlan",
    "GcPlan",
    "MergeStep",
    "Plan",
    "RetentionPlan",
    "SweepPlan",
    "compact_plan",
    "expire_plan",
    "finalise_plan",
    "gc_plan",
    "refuse_newer",
    "retention_plan",
    "sweep_plan",
]

_MERGES_MAX: Final = 10_000
"""Merges that a plan follows: each makes fewer batches, so a shard has fewer."""


class ExpiredReader(msgspec.Struct, frozen=True):
    """A reader to be expired.

    Attributes:
        name: Id of a lease, or name of a hold.
        kind: "lease" or "hold".
        owner: Process and purpose of the reader.
        since: Frontier from which it may still read.
        seqno: The oldest state that it keeps; null if it keeps none.
        silent_ms: Time since its last heartbeat.
        overdue: True for a lease that expires at the next record anyway.
        breaks: The error that its owner gets, and what then helps, in words.
    """

    name: str
    kind: Literal["lease", "hold"]
    owner: str
    since: int | None
    seqno: int | None
    silent_ms: int
    overdue: bool
    breaks: str


class ExpirePlan(msgspec.Struct, frozen=True, tag="expire-reader"):
    """Readers to be expired, and what that frees.

    Attributes:
        readers: In the order of the request.
        since: Of the shard, now.
        since_after: Frontier that the since can then move to; null if nobody is left to move it.
        freed: Blobs and records that become garbage.
    """

    readers: tuple[ExpiredReader, ...]
    since: int | None
    since_after: int | None
    freed: Amount


class MergeStep(msgspec.Struct, frozen=True):
    """Neighbouring batches that become one; `rows` are updates before the merge."""

    lower: int
    upper: int | None
    batches: int
    parts: int
    rows: int
    size_bytes: int


class CompactPlan(msgspec.Struct, frozen=True, tag="compact"):
    """Merges that are due.

    Attributes:
        merges: In the order in which they are made; sizes of later ones are estimates.
        claimed: Number of ranges that others are merging; those are left alone.
        batches: Number of batches of the shard, now.
    """

    merges: tuple[MergeStep, ...]
    claimed: int
    batches: int


class GcPlan(msgspec.Struct, frozen=True, tag="gc"):
    """The garbage of a shard.

    Attributes:
        garbage: Blobs and records that no state needs that somebody may still read. Records are
            deleted only after the grace period of the log.
        held: Blobs and records that only older states need, which readers hold.
        seqno: States before this one can be given up.
        gc_seqno: States before this one are given up already.
    """

    garbage: Amount
    held: Amount
    seqno: int
    gc_seqno: int


class SweepPlan(msgspec.Struct, frozen=True, tag="sweep"):
    """Blobs that nothing refers to and nobody can commit any more; the first thousand keys."""

    parts: Amount
    rollups: Amount
    keys: tuple[str, ...]


class FinalisePlan(msgspec.Struct, frozen=True, tag="finalise"):
    """A shard to be dropped.

    Attributes:
        dropped: True if it is dropped already.
        in_the_way: Readers that prevent it, unless they are expired or named.
        cut_off: Readers that were named, and lose the shard.
        rows: Number of rows that are deleted.
        total: All of its objects in the store.
        registered: Transactions shard that it is registered with, and must be removed from first;
            null if there is none.
    """

    dropped: bool
    in_the_way: tuple[str, ...]
    cut_off: tuple[str, ...]
    rows: int
    total: Amount
    registered: str | None


class RetentionPlan(msgspec.Struct, frozen=True, tag="set-retention"):
    """A change of a shard's retention.

    Attributes:
        before_ms, after_ms: The retention now and then; null leaves the since to readers.
        since: Of the shard, now.
        since_after: Frontier that maintenance can then move it to; null if nobody moves it.
    """

    before_ms: int | None
    after_ms: int | None
    since: int | None
    since_after: int | None


Plan = ExpirePlan | CompactPlan | GcPlan | SweepPlan | FinalisePlan | RetentionPlan


def refuse_newer(state: ShardState) -> None:
    """Refuse a shard that newer code has written to, even if its state can be read.

    Raises:
        InvalidUsage: Newer code has written to it (`NEWER_VERSION`).
    """
    if state.version > CODE_VERSION:
        theirs, ours = (f"{major}.{minor}" for major, minor in (state.version, CODE_VERSION))
        raise InvalidUsage(
            f"shard '{state.name}' was written by state version {theirs}, this code is {ours}",
            code="NEWER_VERSION",
            hint="use the admin command of that version; nothing was changed",
        )


# --- readers -----------------------------------------------------------------------------------


def expire_plan(client: ShardClient, state: ShardState, readers: Sequence[str]) -> ExpirePlan:
    """Plan to expire readers: what that frees, and what it breaks.

    Raises:
        InvalidUsage: There is no such reader.
    """
    known: dict[str, LeasedReader | CriticalReader] = {**state.leased, **state.critical}
    for name in readers:
        if name not in known:
            near = nearest_name(name, known)
            listed = ", ".join(f"'{one}'" for one in sorted(known)) or "none"
            raise InvalidUsage(
                f"shard '{state.name}' has no reader '{name}'",
                code="READER_NOT_FOUND",
                hint=f"did you mean '{near}'?" if near else f"its readers: {listed}",
            )
    after = _without(state, readers)
    reports = {one.name: one for one in report_shard(state, client.clock.now_ms()).holders}
    return ExpirePlan(
        readers=tuple(
            ExpiredReader(
                name=name,
                kind=reports[name].kind,
                owner=reports[name].owner,
                since=reports[name].since,
                seqno=reports[name].seqno,
                silent_ms=reports[name].silent_ms,
                overdue=reports[name].overdue,
                breaks=_breaks(known[name]),
            )
            for name in dict.fromkeys(readers)
        ),
        since=state.since.time,
        since_after=_reachable(after),
        freed=_freed(client, state, after),
    )


def _without(state: ShardState, readers: Collection[str]) -> ShardState:
    return msgspec.structs.replace(
        state,
        leased={name: one for name, one in state.leased.items() if name not in readers},
        critical={name: one for name, one in state.critical.items() if name not in readers},
    )


def _breaks(reader: LeasedReader | CriticalReader) -> str:
    if isinstance(reader, LeasedReader):
        return (
            "a read under it fails with [LEASE_EXPIRED] at its next look at the shard; started "
            "again, a reader reads, and a query goes on from its checkpoint"
        )
    if not reader.confirmed:
        return "nothing, if the query never wrote its first offset; otherwise as any hold"
    pinned = ""
    if reader.seqno is not None:
        pinned = (
            "; its first snapshot is not finished, and once its blobs are collected the query "
            "fails with [SEQNO_GONE] and needs a new checkpoint"
        )
    return (
        f"its owner fails with [HOLD_EXPIRED] at its next commit; started again while history at "
        f"{reader.since} is there, it takes the hold again and misses nothing; after the since has "
        f"moved on it fails for good and needs a new checkpoint{pinned}"
    )


def _reachable(state: ShardState) -> int | None:
    """The frontier that a shard's since can move to; None if nobody moves it."""
    bound = since_bound(state)
    if bound is None:
        return None
    upper = state.upper.time
    last = bound if upper is None else Frontier(max(upper - 1, 0))
    return max(state.since, meet((bound, last))).time


def _freed(client: ShardClient, state: ShardState, after: ShardState) -> Amount:
    """Blobs and records that only states need that nobody holds in `after`."""
    held = client.usage(state.name)
    first = seqno_since(after)
    rest = [one.kept for one in held.holders if one.seqno == first]
    kept = rest[0] if rest else Amount()
    return Amount(held.held.count - kept.count, held.held.size_bytes - kept.size_bytes)


# --- maintenance -------------------------------------------------------------------------------


def compact_plan(client: ShardClient, state: ShardState, *, force: bool) -> CompactPlan:
    """The merges that `compact` would make."""
    claims = live_claims(state, client.clock.now_ms())
    if force:
        inputs = all_mergeable_batches(state, claims)
        merges = [_step(inputs)] if inputs else []
    else:
        factor = client.settings.compact_factor
        free = filter(is_unclaimed_by(claims), state.trace.batches)
        merges = _due(state.trace, set(map(id, free)), factor)
    return CompactPlan(tuple(merges), len(claims), len(state.trace.batches))


def _due(trace: Trace, free: set[int], factor: int) -> list[MergeStep]:
    """The merges that follow from each other, if none of them makes the rows fewer."""
    steps: list[MergeStep] = []
    made: list[Batch] = []  # kept alive: they are told apart by identity

    def is_free(batch: Batch) -> bool:
        return id(batch) in free

    while len(steps) < _MERGES_MAX:
        due = next(due_merges(trace, factor, is_free), None) or worn_past(trace, is_free)
        if due is None:
            break
        inputs = trace.batches[due.start : due.end]
        steps.append(_step(inputs))
        made.append(_merged(inputs, trace.since))
        free.add(id(made[-1]))
        batches = (*trace.batches[: due.start], made[-1], *trace.batches[due.end :])
        trace = Trace(trace.since, batches)
    return steps


def _merged(inputs: Sequence[Batch], since: int | None) -> Batch:
    desc = Description(inputs[0].desc.lower, inputs[-1].desc.upper, since)
    runs = tuple(run for batch in inputs for run in batch.runs)
    return Batch(desc, runs, level=level_of(sum(batch.rows for batch in inputs)))


def _step(inputs: Sequence[Batch]) -> MergeStep:
    return MergeStep(
        lower=inputs[0].desc.lower,
        upper=inputs[-1].desc.upper,
        batches=len(inputs),
        parts=sum(1 for batch in inputs for _ in batch.parts),
        rows=sum(batch.rows for batch in inputs),
        size_bytes=sum(batch.size_bytes for batch in inputs),
    )


def gc_plan(client: ShardClient, state: ShardState) -> GcPlan:
    """Plan a garbage collection, as of now or of the end of the log's grace period."""
    usage = client.usage(state.name)
    return GcPlan(usage.garbage, usage.held, seqno_since(state), state.gc_seqno)


def sweep_plan(client: ShardClient, state: ShardState | None) -> SweepPlan:
    """Plan a sweep of a shard; without one, of directories that are no shard's."""
    if state is None:
        swept = sweep_orphans(client.location, client.clock, dry_run=True)
    else:
        swept = client.sweep(state.name, dry_run=True)
    return SweepPlan(swept.parts, swept.rollups, swept.keys)


# --- the shard itself --------------------------------------------------------------------------


def finalise_plan(client: ShardClient, state: ShardState, despite: Sequence[str]) -> FinalisePlan:
    """Plan to drop a shard: what is deleted, and which readers prevent it.

    Raises:
        InvalidUsage: A reader in `despite` does not exist.
    """
    if despite:
        expire_plan(client, state, despite)
    now_ms = client.clock.now_ms()
    holders = [one.name for one in report_shard(state, now_ms).holders if not one.overdue]
    mark = state.registered
    # A transactions shard is its own, and can be dropped.
    through = mark is not None and mark.shard != state.shard and not is_tombstone(state)
    return FinalisePlan(
        dropped=is_tombstone(state),
        in_the_way=tuple(name for name in holders if name not in despite),
        cut_off=tuple(name for name in holders if name in despite),
        rows=sum(part.diff_sum for batch in state.trace.batches for part in batch.parts),
        total=client.usage(state.name).total,
        registered=mark.txns if mark is not None and through else None,
    )


def retention_plan(state: ShardState, retain_ms: int | None) -> RetentionPlan:
    """Plan a change of a shard's retention."""
    after = msgspec.structs.replace(state, retain_ms=retain_ms)
    return RetentionPlan(state.retain_ms, retain_ms, state.since.time, _reachable(after))
