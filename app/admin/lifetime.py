"""The verbs of a shard's lifetime say how far back it stays readable, and drop it for good.

carry_out(SetRetention("orders", 86_400_000), client, commit=True)
carry_out(Finalise("orders", despite=("report",)), client, commit=False)
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from typing_extensions import override

from shardline.app.admin.plans import FinalisePlan, RetentionPlan
from shardline.app.admin.readers import check_readers
from shardline.app.admin.verb import ChangingVerb, reachable_since, read_state
from shardline.datasource.client import ShardClient
from shardline.datasource.report import report_shard
from shardline.datasource.state import is_tombstone

__all__ = ["Finalise", "SetRetention"]


@dataclass(frozen=True, slots=True)
class Finalise(ChangingVerb[FinalisePlan]):
    """A shard is dropped for good, and the readers in `despite` lose it."""

    name = "finalise"

    shard: str
    despite: tuple[str, ...]

    @override
    def plan(self, client: ShardClient) -> FinalisePlan:
        """See `ChangingVerb`; a reader in `despite` that does not exist is refused."""
        state = read_state(client, self.shard)
        check_readers(state, self.despite)
        now_ms = client.clock.now_ms()
        holders = [one.name for one in report_shard(state, now_ms).holders if not one.overdue]
        mark = state.registered
        # A transactions shard is its own, and can be dropped.
        through = mark is not None and mark.shard != state.shard and not is_tombstone(state)
        return FinalisePlan(
            id=state.shard,
            dropped=is_tombstone(state),
            in_the_way=tuple(name for name in holders if name not in self.despite),
            cut_off=tuple(name for name in holders if name in self.despite),
            rows=sum(part.diff_sum for batch in state.trace.batches for part in batch.parts),
            total=client.usage(state.name).total,
            registered=mark.txns if mark is not None and through else None,
        )

    @override
    def has_work(self, plan: FinalisePlan) -> bool:
        return not plan.dropped

    @override
    def do(self, client: ShardClient, plan: FinalisePlan) -> str:
        client.drop(self.shard, shard=plan.id, despite_holders=self.despite)
        return "it was dropped before" if plan.dropped else f"dropped shard '{self.shard}'"

    @override
    def refusal(self, plan: FinalisePlan) -> str:
        if plan.registered is not None:
            return f"it is written through '{plan.registered}', which has to forget it first"
        return "somebody reads it, and --despite NAME cuts one off" if plan.in_the_way else ""


@dataclass(frozen=True, slots=True)
class SetRetention(ChangingVerb[RetentionPlan]):
    """The retention of a shard is set: how far its since stays behind its upper.

    Attributes:
        retain_ms: The retention; None leaves the since to readers.
    """

    name = "set-retention"

    shard: str
    retain_ms: int | None

    @override
    def plan(self, client: ShardClient) -> RetentionPlan:
        """See `ChangingVerb`; a shard that was dropped is refused."""
        state = read_state(client, self.shard)
        client.state(self.shard)
        after = msgspec.structs.replace(state, retain_ms=self.retain_ms)
        since, reachable = state.since.time, reachable_since(after)
        return RetentionPlan(state.retain_ms, self.retain_ms, since, reachable)

    @override
    def has_work(self, plan: RetentionPlan) -> bool:
        return plan.before_ms != plan.after_ms

    @override
    def do(self, client: ShardClient, plan: RetentionPlan) -> str:
        changed = client.set_retention(self.shard, self.retain_ms)
        return "the policy is set" if changed else "that is the policy already"
