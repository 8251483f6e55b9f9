"""Applying: what was committed in the transactions shard enters the data shards.

Anybody may do it, any number of times, at the same time as others: each shard tells from its own
upper what it has already (`commands.txns`). All that is due to one shard goes in by one record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import msgspec

from shardline.datasource.errors import Determinate
from shardline.datasource.maintenance.compact import compact_inline, flush_inline
from shardline.datasource.parts.stage import Stager, UncommittedParts
from shardline.datasource.read import current_schema
from shardline.datasource.shard.batch import Run
from shardline.datasource.shard.commands.append import InlineBackpressure, StagedTooLong
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.commands.txns import Applied, Commit, apply_commits
from shardline.datasource.shard.machine import Machine
from shardline.datasource.transactions.client_protocol import Home
from shardline.datasource.transactions.ledger import Ledger
from shardline.datasource.transactions.rows import Row
from shardline.datasource.types.schema import ShardSchema

__all__ = ["apply_ledger", "is_applied"]


def apply_ledger(home: Home, ledger: Ledger, shards: Collection[str] | None = None) -> int:
    """Let data shards have everything in `ledger`; how many of its rows this was not known of.

    Args:
        home: The client.
        ledger: A transactions shard's.
        shards: Only these, by id; None for all.

    Raises:
        Corrupt: A data shard does not know that it is registered.
        Determinate: `STAGED_TOO_LONG`: this process has slept for a day in the middle of it.
        ShardError: A store's. Other shards may have been served.
    """
    due: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in ledger.pending():
        if (shards is None or row.shard in shards) and not is_applied(home, row):
            due[row.name, row.shard].append(row)
    for (name, shard), rows in due.items():
        _apply(home.machine(name), shard, ledger.shard, [row.commit() for row in rows])
    return sum(map(len, due.values()))


def is_applied(home: Home, row: Row) -> bool:
    """Whether this process knows that `row` is in its data shard."""
    state = home.machine(row.name).cached
    return state is not None and (state.shard != row.shard or state.upper.is_beyond(row.at))


def _apply(machine: Machine, shard: str, txns: str, commits: list[Commit]) -> None:
    command = partial(
        apply_commits,
        shard=shard,
        txns=txns,
        inline_max_bytes=machine.settings.inline_state_bytes,
    )
    outcome = machine.apply(partial(command, commits=commits))
    if isinstance(outcome, InlineBackpressure):
        flush_inline(machine)
        outcome = machine.apply(partial(command, commits=commits))
    if isinstance(outcome, InlineBackpressure):
        # What is inline cannot be moved, or others filled the room at once.
        _apply_as_blobs(machine, command, commits)
    compact_inline(machine, (p for commit in commits for run in commit.runs for p in run.parts))


def _apply_as_blobs(
    machine: Machine,
    command: Callable[..., Transition[Applied | InlineBackpressure | StagedTooLong]],
    commits: list[Commit],
) -> None:
    """Apply `commits` with their inline parts as blobs, which belong to this call alone.

    Several appliers may do so at once; one of them lets the shard have the rows. The others delete
    what they have written when they are told so, and after an error leave it to the sweeper.
    """
    flushed_ms = machine.clock.now_ms()
    with UncommittedParts(machine.location.blob) as parts:
        flushed = []
        for commit in commits:
            flushed.append(_flushed(machine, commit))
            parts.add(flushed[-1].runs)
            # What was staged for the transaction is the winner's as well, and never ours to delete.
            parts.hand_over(commit.runs)
        with parts.commit():
            outcome = machine.apply(partial(command, commits=flushed, flushed_ms=flushed_ms))
        assert not isinstance(outcome, InlineBackpressure), "nothing inline is left"
        entered = outcome.entered if isinstance(outcome, Applied) else frozenset()
        for commit in flushed:
            if commit.at in entered:
                parts.hand_over(commit.runs)
        parts.unused()
    if isinstance(outcome, StagedTooLong):
        raise Determinate(
            f"parts for shard '{machine.name}' were written {outcome.age_ms} ms ago, longer than "
            "staged parts are kept; what was committed for it is not applied yet",
            code="STAGED_TOO_LONG",
            hint="try again: they are then written again",
        )


def _flushed(machine: Machine, commit: Commit) -> Commit:
    """`commit` with its inline parts as blobs."""
    state = machine.state()
    stager = Stager(
        machine.location.blob,
        machine.directory,
        current_schema(state),
        state.schema_id,
        state.key,
        machine.settings,
        machine.clock,
        machine.ids,
    )

    def flush(run: Run) -> Run:
        parts = []
        for part in run.parts:
            schema = ShardSchema.parse(state.schemas[part.schema])
            parts.append(replace(stager, schema=schema, schema_id=part.schema).flush(part))
        return msgspec.structs.replace(run, parts=tuple(parts))

    return msgspec.structs.replace(commit, runs=tuple(map(flush, commit.runs)))
