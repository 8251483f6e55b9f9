"""The retention step moves a shard's since along with its upper, as its policy asks.

    apply_retention(machine)             apply the shard's policy, if that is worth a record
    set_retention(machine, 86_400_000)   set the policy; None leaves the since to readers

Without it a shard that nobody reads would keep all of its history. The policy is defined in
`shardline.datasource.shard.commands.retention`. `apply_retention` may be called at any time, any
number of times, from any process: it is one transition.

Invariants:
    A shard is readable at least as far back as its policy asks, and at most a sixteenth further
    right after a call, unless a holder wants more.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from shardline.datasource.shard.commands import retention
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState, expire_leases, since_bound

__all__ = ["apply_retention", "set_retention"]

_STEPS: Final = 16
"""The since moves in steps of at least this fraction of the policy: a shard that is written all the
time would otherwise get a record at every round of maintenance."""


def apply_retention(machine: Machine) -> bool:
    """Move the since of the shard to where its policy puts it; True if it moved.

    Costs one read of the state if nothing is due.

    Raises:
        InvalidUsage: There is no such shard.
        Determinate: It certainly did not happen.
        Indeterminate: It may have happened: call it again.
    """
    if not _is_due(machine.state(), machine.clock.now_ms()):
        return False
    before = machine.cached
    after = machine.apply(retention.apply_policy)
    return before is not None and after > before.since


def set_retention(machine: Machine, retain_ms: int | None) -> bool:
    """Make `retain_ms` the policy of the shard; False if it is already.

    Raises:
        InvalidUsage: There is no such shard, or the number is negative or greater than any time.
        Determinate: It certainly did not happen.
        Indeterminate: It may have happened: call it again.
    """
    return machine.apply(partial(retention.set_retention, retain_ms=retain_ms))


def _is_due(state: ShardState, now_ms: int) -> bool:
    bound = None if state.retain_ms is None else since_bound(expire_leases(state, now_ms))
    if bound is None or bound <= state.since:
        return False
    if state.retain_ms is None or bound.time is None or state.since.time is None:
        return False
    return bound.time - state.since.time >= max(state.retain_ms // _STEPS, 1)
