"""The verbs of upkeep merge batches, collect garbage and sweep what crashes have left.

carry_out(Compact("orders", force=False), client, commit=True)
carry_out(CollectGarbage("orders"), client, commit=False)
carry_out(Sweep(None), client, commit=False)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from shardline.app.admin.plans import CompactPlan, GcPlan, MergeStep, SweepPlan
from shardline.app.admin.verb import ChangingVerb, count_text, read_state
from shardline.datasource.client import ShardClient
from shardline.datasource.state import (
    Batch,
    Description,
    Trace,
    cancelled_past,
    due_merges,
    level_of,
    live_claims,
    seqno_since,
)
from shardline.datasource.upkeep import (
    SweepResult,
    all_mergeable_batches,
    is_unclaimed_by,
    merge_weight,
    sweep_orphans,
)

__all__ = ["CollectGarbage", "Compact", "Sweep"]

_PLANNED_MAX: Final = 10_000
"""Merges that a plan follows: each makes fewer batches, so a shard has fewer."""


@dataclass(frozen=True, slots=True)
class Compact(ChangingVerb[CompactPlan]):
    """The batches that are due are merged, or, with `force`, all into one.

    Attributes:
        shard: Name of the shard.
        force: True to leave one batch.
        most_bytes: The most that may be read, as `MergeStep.work_bytes` counts it; larger merges
            stay due. None for any amount.
    """

    name = "compact"

    shard: str
    force: bool
    most_bytes: int | None = None

    @override
    def plan(self, client: ShardClient) -> CompactPlan:
        """See `ChangingVerb`; a shard that was dropped is refused."""
        state = read_state(client, self.shard)
        client.state(self.shard)
        claims = live_claims(state, client.clock.now_ms())
        if self.force:
            inputs = all_mergeable_batches(state, claims)
            merges = [_step(inputs)] if inputs else []
        else:
            factor = client.settings.compact_factor
            free = filter(is_unclaimed_by(claims), state.trace.batches)
            merges = _due(state.trace, set(map(id, free)), factor)
        return CompactPlan(tuple(merges), len(claims), len(state.trace.batches))

    @override
    def has_work(self, plan: CompactPlan) -> bool:
        return bool(plan.merges)

    @override
    def do(self, client: ShardClient, plan: CompactPlan) -> str:
        """See `ChangingVerb`.

        Raises:
            MissingBlob: A part is missing.
            Corrupt: A part does not have the bytes that were written.
        """
        merges = client.compact(self.shard, force=self.force, most_bytes=self.most_bytes)
        left = len(client.state(self.shard).trace.batches)
        said = f"{count_text(merges, 'merge')}; {count_text(left, 'batch', 'batches')} now"
        due = 0 if self.force else len(self.plan(client).merges)
        if due:
            said += f"; {count_text(due, 'merge')} {'is' if due == 1 else 'are'} still due"
        return said


@dataclass(frozen=True, slots=True)
class CollectGarbage(ChangingVerb[GcPlan]):
    """Objects are deleted that no state needs that somebody may still read."""

    name = "gc"

    shard: str

    @override
    def plan(self, client: ShardClient) -> GcPlan:
        """See `ChangingVerb`; as of now, or of the end of the log's grace period."""
        state = read_state(client, self.shard)
        usage = client.usage(state.name)
        return GcPlan(usage.garbage, usage.held, seqno_since(state), state.gc_seqno)

    @override
    def has_work(self, plan: GcPlan) -> bool:
        return plan.garbage.count > 0

    @override
    def do(self, client: ShardClient, plan: GcPlan) -> str:
        deleted = client.collect_garbage(self.shard)
        left = client.usage(self.shard).garbage
        result = f"deleted {count_text(deleted, 'blob')}"
        if left.count:
            waiting = count_text(left.count, "record")
            result += f"; {waiting} of the log wait for the end of the grace"
        return result


@dataclass(frozen=True, slots=True)
class Sweep(ChangingVerb[SweepPlan]):
    """Objects are deleted that nothing refers to; without a shard, in directories of no shard."""

    name = "sweep"

    shard: str | None

    @override
    def plan(self, client: ShardClient) -> SweepPlan:
        if self.shard is not None:
            read_state(client, self.shard)
        swept = self._sweep(client, dry_run=True)
        return SweepPlan(swept.parts, swept.rollups, swept.keys, self._reopens(client))

    @override
    def has_work(self, plan: SweepPlan) -> bool:
        return plan.reopens or plan.parts.count + plan.rollups.count > 0

    @override
    def do(self, client: ShardClient, plan: SweepPlan) -> str:
        total = self._sweep(client, dry_run=False).total
        return f"deleted {count_text(total.count, 'blob')} of {total.size_bytes:,} bytes"

    def _reopens(self, client: ShardClient) -> bool:
        return self.shard is not None and client.has_future_barrier(self.shard)

    def _sweep(self, client: ShardClient, *, dry_run: bool) -> SweepResult:
        if self.shard is None:
            return sweep_orphans(client.location, client.clock, dry_run=dry_run)
        return client.sweep(self.shard, dry_run=dry_run)


def _due(trace: Trace, free: set[int], factor: int) -> list[MergeStep]:
    """The merges that follow from each other, if none of them makes the rows fewer."""
    steps: list[MergeStep] = []
    made: list[Batch] = []  # kept alive: they are told apart by identity

    def is_free(batch: Batch) -> bool:
        return id(batch) in free

    while len(steps) < _PLANNED_MAX:
        due = next(due_merges(trace, factor, is_free), None) or cancelled_past(trace, is_free)
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
        work_bytes=merge_weight(inputs),
    )
