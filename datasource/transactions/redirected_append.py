"""Redirects appends to a registered shard: each becomes a transaction of that one shard.

Code that writes frames (`format("shard")`, `save`) need not know if a shard is registered: its
write handle meets the refusal of a direct append and calls this module. The append keeps its
meaning: its identity, the upper that it expects, and that an attempt which was given up does not
commit any more.

It stays exactly once across registering and forgetting: a number that was committed directly is
among the data shard's own writers, which do not change while it is registered; one that was
committed here is among those of the transactions shard, and is applied to the data shard together
with the rows, for the time after forgetting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import (
    Append,
    Appended,
    UpperMismatch,
    decided_before,
    shard_changed_error,
)
from shardline.datasource.shard.state import ShardState
from shardline.datasource.transactions.applier import apply_ledger
from shardline.datasource.transactions.commit_loop import Conflict, Identity, Refused
from shardline.datasource.transactions.ledger import Ledger
from shardline.datasource.transactions.protocol import Committed, Transactions, Write
from shardline.datasource.write import Decided

__all__ = ["commit_append"]

_AHEAD_MAX_MS: Final = 60_000
"""An append without rows may move the upper of a transactions shard so far beyond now: all later
transactions take effect after it. More than two clocks differ; an interval may end far later."""


def commit_append(txns: Transactions, name: str, request: Append) -> Decided:
    """Commit `request`, an append to the registered shard `name`, by a transaction.

    Raises:
        InvalidUsage: Rows have times of their own, but a transaction takes effect at one time. Or
            the append is to fill an interval and has rows, or an interval that no transaction can
            end.
        Determinate: It certainly did not happen.
        Indeterminate: It may have happened: call it again.
    """
    has_times = any(part.time_bounds for run in request.runs for part in run.parts)
    # Not of an interval, which is refused below: its rows were given their time before they came
    # here, if they had none, and "leave _ts out" would be no help.
    if has_times and request.upper is None:
        raise InvalidUsage(
            f"rows for shard '{name}' carry times of their own, and the shard is registered with "
            f"transactions shard '{txns.name}', which decides them",
            code="TIMES_IN_TRANSACTION",
            hint="leave _ts out, or forget the shard first (client.transactions().forget)",
        )
    identity = Identity(
        f"{request.shard}/{request.writer}",
        request.sequence,
        durable=request.durable,
        attempt=request.attempt,
        covers=request.covers,
        is_counted=request.is_counted,
    )

    def judge(ledger: Ledger) -> Refused | None:
        # Applied first: writers and upper of the data shard are compared as of the ledger's upper.
        apply_ledger(txns.client, ledger, {request.shard})
        state = txns.client.machine(name).state()
        return _refusal_by_shard(state, request, state.upper)

    if name not in txns.registered():
        # Another process has begun to register it, or has just forgotten it.
        _complete_registration(txns, name)
    if request.upper is not None and request.runs:
        raise _interval_error(txns, name, "its rows are to be the contents of an interval")
    if request.upper is not None and request.upper == request.lower:
        return _commit_without_rows(txns, identity, judge)
    if request.upper is not None:
        return _commit_empty_interval(txns, name, request, request.upper, identity)
    write = Write(
        name,
        request.shard,
        request.runs,
        request.writer,
        request.sequence,
        request.attempt,
        request.covers,
        # An anonymous writer, too: after forgetting, nothing else says whose parts are in use.
        None if request.durable else request.lease_ms,
    )
    outcome = txns.commit(
        [write] if request.runs else [],
        identity=identity,
        staged_ms=request.staged_ms,
        judge=judge,
        was_registered=True,
    )
    if isinstance(outcome, Refused):
        assert not isinstance(outcome.why, Conflict), outcome
        return outcome.why
    if isinstance(outcome, Committed):
        return Appended(outcome.at, Frontier(outcome.at + 1))
    return outcome


def _commit_without_rows(
    txns: Transactions, identity: Identity, judge: Callable[[Ledger], Refused | None]
) -> Decided:
    """Record an append without rows that does not move the upper, so that it happens once."""
    ledger = txns.reader.read()
    refused = None if ledger is None else judge(ledger)
    if refused is None:
        return txns.remember(identity)
    assert not isinstance(refused.why, Conflict), refused
    return refused.why


def _commit_empty_interval(
    txns: Transactions, name: str, request: Append, upper: Frontier, identity: Identity
) -> Decided:
    """Record an append without rows that moves the upper: the one that readers see, of all shards.

    That upper moves by itself, with every transaction. So the append's lower may be behind it, if
    nothing has been added since, and its upper, too: then no rows are there already.
    """
    if upper.time is None:
        raise _interval_error(txns, name, "it is to be finished")

    def judge(ledger: Ledger) -> Refused | None:
        if request.shard not in ledger.registered:
            raise txns.forgotten([name])
        apply_ledger(txns.client, ledger, {request.shard})
        state = txns.client.machine(name).state()
        return _refusal_by_shard(state, request, max(state.upper, Frontier(ledger.upper)))

    while True:
        ledger = txns.reader.read()
        if ledger is None:
            raise txns.forgotten([name])
        latest = max(ledger.upper, txns.client.clock.now_ms() + _AHEAD_MAX_MS)
        if upper.time > latest:
            raise _interval_error(txns, name, f"its interval ends at {upper}, in the future")
        at = upper.time - 1 if upper.time > ledger.upper else None
        outcome = txns.commit([], at=at, identity=identity, judge=judge)
        if isinstance(outcome, Refused):
            assert not isinstance(outcome.why, Conflict), outcome
            return outcome.why
        if isinstance(outcome, Committed):
            lower = ledger.upper if request.lower is None else request.lower.time
            assert lower is not None, request
            return Appended(lower, upper)
        if not isinstance(outcome, UpperMismatch):
            return outcome
        # A transaction came first, and has passed `at`: the next round names no time, and so has
        # none that could be too early.


def _interval_error(txns: Transactions, name: str, why: str) -> InvalidUsage:
    return InvalidUsage(
        f"an append to shard '{name}' cannot be made: {why}, and the shard is registered with "
        f"transactions shard '{txns.name}', which decides its times",
        code="INTERVAL_IN_TRANSACTION",
        hint=f"forget the shard first (client.transactions('{txns.name}').forget('{name}')), and "
        "leave it out of transactions; a view's output is written by its view only",
    )


def _refusal_by_shard(state: ShardState, request: Append, upper: Frontier) -> Refused | None:
    """The refusal by the data shard's state, decided as `compare_and_append` does; None if none.

    Args:
        state: The state.
        request: The append.
        upper: The upper up to which the shard has nothing more than `state` has.
    """
    if state.shard != request.shard:
        raise shard_changed_error(state)
    decided = decided_before(state.writers.get(request.writer), request)
    if decided is not None:
        return Refused(decided)
    if request.lower is not None and not state.upper <= request.lower <= upper:
        return Refused(UpperMismatch(request.lower, upper))
    return None


def _complete_registration(txns: Transactions, name: str) -> None:
    state = txns.client.machine(name).state()
    if state.registered is None:
        raise txns.forgotten([name])
    txns.register(name)
