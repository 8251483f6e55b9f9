"""Retention commands set how far back a shard stays readable without any reader, and apply it.

A shard with a policy of `retain_ms` is readable at every time from `upper - 1 - retain_ms` on (its
newest readable time less the policy), and no longer than that unless a reader holds more
(Materialize: RETAIN HISTORY). The policy is one more holder of the since, with two differences: it
follows the upper by itself, and it moves the since where there is no reader at all.

Times are on the shard's own clock. Where its writers use one that is not milliseconds, `retain_ms`
counts in that clock's unit: nothing here looks at the time of day. A shard whose upper stands still
keeps its history.

Invariants:
    The since is never moved beyond a holder, beyond the newest readable time, or back.
    Without a policy only readers move the since.
"""

from __future__ import annotations

import msgspec

from shardline.datasource.arguments import whole_number
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import TIME_MAX, Frontier
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import ShardState, expire_leases, is_tombstone, since_bound
from shardline.datasource.shard.trace import downgrade

__all__ = ["apply_policy", "checked_retention", "set_retention"]


def checked_retention(name: str, retain_ms: int | None) -> int | None:
    """Return `retain_ms` if it can be the policy of shard `name`; errors as `set_retention`."""
    if retain_ms is None:
        return None
    retain_ms = whole_number("retain_ms", retain_ms)
    if not 0 <= retain_ms <= TIME_MAX:
        raise InvalidUsage(
            f"shard '{name}' cannot retain {retain_ms} ms of history",
            code="INVALID_RETENTION",
            hint=f"use 0 to {TIME_MAX}, or none to leave it to readers",
        )
    return retain_ms


def set_retention(state: ShardState, now_ms: int, *, retain_ms: int | None) -> Transition[bool]:
    """Make `retain_ms` the shard's policy; None for none.

    False if it is the policy already, or if the shard is dropped. It holds from now on: history
    that was merged away does not come back.

    Raises:
        InvalidUsage: It is negative, or greater than any time.
    """
    del now_ms
    retain_ms = checked_retention(state.name, retain_ms)
    if is_tombstone(state) or state.retain_ms == retain_ms:
        return Transition(None, result=False)
    return Transition(msgspec.structs.replace(state, retain_ms=retain_ms), result=True)


def apply_policy(state: ShardState, now_ms: int) -> Transition[Frontier]:
    """Move the since up as far as the policy and all holders allow; answers the new since."""
    if state.retain_ms is None or is_tombstone(state):
        return Transition(None, state.since)
    # A reader whose lease is over holds nothing, also if no record has expired it yet.
    alive = expire_leases(state, now_ms)
    bound = since_bound(alive)
    if bound is None or bound <= state.since:
        return Transition(None, state.since)
    trace = downgrade(alive.trace, bound)
    return Transition(msgspec.structs.replace(alive, trace=trace), trace.since_frontier)
