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

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import (
    Append,
    Appended,
    UpperMismatch,
    decided_before,
)
from shardline.datasource.shard.state import ShardState
from shardline.datasource.transactions.applier import apply_ledger
from shardline.datasource.transactions.commit_loop import Conflict, Identity, Refused
from shardline.datasource.transactions.ledger import Ledger
from shardline.datasource.transactions.protocol import Committed, Transactions, Write
from shardline.datasource.write import Decided

__all__ = ["commit_append"]


def commit_append(txns: Transactions, name: str, request: Append) -> Decided:
    """Commit `request`, an append to the registered shard `name`, by a transaction.

    Raises:
        InvalidUsage: Rows have times of their own, but a transaction takes effect at one time.
        Determinate: It certainly did not happen.
        Indeterminate: It may have happened: call it again.
    """
    if any(part.time_bounds for run in request.runs for part in run.parts):
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
        apply_ledger(txns.home, ledger, {request.shard})
        return _refusal_by_shard(txns.home.machine(name).state(), request)

    if name not in txns.registered():
        # Another process has begun to register it, or has just forgotten it.
        _complete_registration(txns, name)
    if request.upper is not None:
        return _commit_without_rows(txns, request, identity, judge)
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
    txns: Transactions,
    request: Append,
    identity: Identity,
    judge: Callable[[Ledger], Refused | None],
) -> Decided:
    """Record an append without rows that does not move the upper, so that it happens once."""
    assert not request.runs, request
    assert request.upper == request.lower, request
    ledger = txns.reader.read()
    refused = None if ledger is None else judge(ledger)
    if refused is None:
        return txns.remember(identity)
    assert not isinstance(refused.why, Conflict), refused
    return refused.why


def _refusal_by_shard(state: ShardState, request: Append) -> Refused | None:
    """The refusal by the data shard's state, decided as `compare_and_append` does; None if none."""
    if state.shard != request.shard:
        raise InvalidUsage(
            f"shard '{state.name}' was dropped and made again since this writer was opened",
            code="SHARD_CHANGED",
            hint="open the writer again, and write the updates again",
        )
    decided = decided_before(state.writers.get(request.writer), request)
    if decided is not None:
        return Refused(decided)
    if request.lower is not None and request.lower != state.upper:
        return Refused(UpperMismatch(request.lower, state.upper))
    return None


def _complete_registration(txns: Transactions, name: str) -> None:
    state = txns.home.machine(name).state()
    if state.registered is None:
        raise txns.forgotten([name])
    txns.register(name)
