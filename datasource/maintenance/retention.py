"""Retention as a step of maintenance: moves a shard's since along with its upper.

    retain(machine)                      does what the shard's policy says, if it is worth a record
    set_retention(machine, 86_400_000)   makes the policy; None leaves the since to readers

What the policy means is said in `shardline.datasource.shard.commands.retention`. Anybody may call
`retain` at any time, any number of times, from any process: it is one transition.

Invariants:
    A shard is readable at least as far back as its policy says, and at most a sixteenth further
    right after a call, as far as no holder wants more.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from shardline.datasource.shard.commands import retention
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState, expire, since_bound

__all__ = ["retain", "set_retention"]

_STEPS: Final = 16
"""The since moves in steps of at least such a part of the policy: a shard that is written all the
time would otherwise get a record for every look at it."""


def retain(machine: Machine) -> bool:
    """Move the since of the shard to what its policy says; True if it moved.

    Costs a look at the state where nothing is due.

    Raises:
        InvalidUsage: There is no such shard.
        Determinate: It certainly did not happen.
        Indeterminate: It may have happened: call it again.
    """
    if not _is_due(machine.state(), machine.clock.now_ms()):
        return False
    before = machine.cached
    after = machine.apply(retention.retain)
    return before is not None and after > before.since


def set_retention(machine: Machine, retain_ms: int | None) -> bool:
    """Make `retain_ms` the policy of the shard; False if it was.

    Raises:
        InvalidUsage: There is no such shard, or the number is negative or greater than any time.
        Determinate: It certainly did not happen.
        Indeterminate: It may have happened: call it again.
    """
    return machine.apply(partial(retention.set_retention, retain_ms=retain_ms))


def _is_due(state: ShardState, now_ms: int) -> bool:
    bound = None if state.retain_ms is None else since_bound(expire(state, now_ms))
    if bound is None or bound <= state.since:
        return False
    if state.retain_ms is None or bound.time is None or state.since.time is None:
        return False
    return bound.time - state.since.time >= max(state.retain_ms // _STEPS, 1)
