"""Acts are the verbs that change a shard: first a plan, then, with `--commit`, the change itself.

Each verb returns an `Outcome`. Without `commit` it has the plan alone; with it, the plan that was
made right before, and the result. The changes are the client's own commands, which read the shard
again and are safe to repeat, to race and to interrupt: a plan that is out of date does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from shardline.app.cli.admin.plans import (
    CompactPlan,
    Plan,
    compact_plan,
    expire_plan,
    finalise_plan,
    gc_plan,
    refuse_newer,
    retention_plan,
    sweep_plan,
)
from shardline.datasource.client import ShardClient
from shardline.datasource.maintenance.orphan_sweep import SweepResult, sweep_orphans
from shardline.datasource.shard.commands.readers import expire_readers
from shardline.datasource.shard.state import ShardState, is_tombstone

__all__ = ["Outcome", "compact", "expire", "finalise", "gc", "retain", "sweep"]


class Outcome(msgspec.Struct, frozen=True):
    """The plan of a verb, and its result if it was carried out.

    Attributes:
        verb: Its name on the command line.
        location: Canonical URL.
        shard: Name of the shard; null for directories that are no shard's.
        todo: True if the plan changes anything.
        committed: True if it was carried out.
        result: The result in words; empty for a dry run.
        plan: As it was made right before.
    """

    verb: str
    location: str
    shard: str | None
    todo: bool
    committed: bool
    result: str
    plan: Plan


def expire(client: ShardClient, shard: str, readers: Sequence[str], *, commit: bool) -> Outcome:
    """Expire readers of a shard: their leases and holds are given up, whoever owns them.

    Raises:
        InvalidUsage: There is no such shard or reader; or newer code has written to it.
    """
    state = _state(client, shard)
    plan = expire_plan(client, state, readers)
    if not commit:
        return _outcome(client, "expire-reader", shard, plan, todo=True)
    gone = client.machine(shard).apply(partial(expire_readers, readers=frozenset(readers)))
    result = f"expired {len(gone)}: {', '.join(gone)}" if gone else "they were gone already"
    return _outcome(client, "expire-reader", shard, plan, todo=True, result=result)


def compact(client: ShardClient, shard: str, *, force: bool, commit: bool) -> Outcome:
    """Merge the batches that are due, or all.

    Raises:
        InvalidUsage: There is no such shard, it was dropped, or newer code has written to it.
        MissingBlob: A part is missing.
        Corrupt: A part does not have the bytes that were written.
    """
    state = _state(client, shard)
    client.state(shard)
    plan = compact_plan(client, state, force=force)
    if not commit:
        return _outcome(client, "compact", shard, plan, todo=bool(plan.merges))
    return _compacted(client, shard, plan, force=force)


def _compacted(client: ShardClient, shard: str, plan: CompactPlan, *, force: bool) -> Outcome:
    merges = client.compact(shard, force=force)
    left = len(client.state(shard).trace.batches)
    result = f"{_count(merges, 'merge')}; {_count(left, 'batch', 'batches')} now"
    return _outcome(client, "compact", shard, plan, todo=bool(plan.merges), result=result)


def gc(client: ShardClient, shard: str, *, commit: bool) -> Outcome:
    """Delete objects that no state needs that somebody may still read.

    Raises:
        InvalidUsage: There is no such shard, or newer code has written to it.
    """
    plan = gc_plan(client, _state(client, shard))
    todo = plan.garbage.count > 0
    if not commit:
        return _outcome(client, "gc", shard, plan, todo=todo)
    deleted = client.collect_garbage(shard)
    left = client.usage(shard).garbage
    result = f"deleted {_count(deleted, 'blob')}"
    if left.count:
        result += f"; {_count(left.count, 'record')} of the log wait for the end of the grace"
    return _outcome(client, "gc", shard, plan, todo=todo, result=result)


def sweep(client: ShardClient, shard: str | None, *, commit: bool) -> Outcome:
    """Delete objects that nothing refers to; without a shard, in directories of no shard.

    Raises:
        InvalidUsage: There is no such shard, or newer code has written to it.
    """
    plan = sweep_plan(client, None if shard is None else _state(client, shard))
    todo = plan.parts.count + plan.rollups.count > 0
    if not commit:
        return _outcome(client, "sweep", shard, plan, todo=todo)
    swept = _swept(client, shard)
    result = f"deleted {_count(swept.total.count, 'blob')} of {swept.total.size_bytes:,} bytes"
    return _outcome(client, "sweep", shard, plan, todo=todo, result=result)


def _swept(client: ShardClient, shard: str | None) -> SweepResult:
    return sweep_orphans(client.location, client.clock) if shard is None else client.sweep(shard)


def finalise(client: ShardClient, shard: str, despite: Sequence[str], *, commit: bool) -> Outcome:
    """Drop a shard for good.

    Raises:
        InvalidUsage: There is no such shard, somebody reads it, or newer code has written to it.
    """
    plan = finalise_plan(client, _state(client, shard), despite)
    if not commit:
        return _outcome(client, "finalise", shard, plan, todo=not plan.dropped)
    client.drop(shard, despite_holders=despite)
    result = "it was dropped before" if plan.dropped else f"dropped shard '{shard}'"
    return _outcome(client, "finalise", shard, plan, todo=not plan.dropped, result=result)


def retain(client: ShardClient, shard: str, retain_ms: int | None, *, commit: bool) -> Outcome:
    """Set the retention of a shard: how far its since stays behind its upper.

    Raises:
        InvalidUsage: There is no such shard, or newer code has written to it.
    """
    state = _state(client, shard)
    if is_tombstone(state):
        client.state(shard)
    plan = retention_plan(state, retain_ms)
    todo = plan.before_ms != plan.after_ms
    if not commit:
        return _outcome(client, "set-retention", shard, plan, todo=todo)
    changed = client.set_retention(shard, retain_ms)
    result = "the policy is set" if changed else "that is the policy already"
    return _outcome(client, "set-retention", shard, plan, todo=todo, result=result)


def _state(client: ShardClient, shard: str) -> ShardState:
    """Read a shard's state.

    Raises:
        InvalidUsage: There is no such shard, or newer code has written to it.
    """
    state = client.machine(shard).state()
    refuse_newer(state)
    return state


def _outcome(
    client: ShardClient, verb: str, shard: str | None, plan: Plan, *, todo: bool, result: str = ""
) -> Outcome:
    return Outcome(
        verb=verb,
        location=client.location.url,
        shard=shard,
        todo=todo,
        committed=bool(result),
        result=result,
        plan=plan,
    )


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
