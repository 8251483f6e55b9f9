"""Applies transactions: brings what was committed in the transactions shard into the data shards.

The commit writes one shard only, so that it is atomic; the data shards follow. Any process may
apply, any number of times, at the same time as others: each shard knows by its own upper what it
has already (`commands.txns`). All that is due to one shard is applied by one record.

Invariants:
    Commits are applied to a shard in order of time, without gaps.
    Parts that a row of the transactions shard names are never deleted here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import msgspec

from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.maintenance.compact import compact_inline
from shardline.datasource.maintenance.make_room import make_room
from shardline.datasource.parts.stage import Stager, UncommittedParts
from shardline.datasource.read import current_schema
from shardline.datasource.shard.batch import Run
from shardline.datasource.shard.commands.append import InlineBackpressure, StagedTooLong
from shardline.datasource.shard.commands.orphan_sweep import CLOCKS_WRONG
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.commands.txns import Applied, Commit, apply_commits
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState
from shardline.datasource.transactions.client_protocol import TransactionClient
from shardline.datasource.transactions.ledger import Ledger
from shardline.datasource.transactions.loss import data_shard_lost
from shardline.datasource.transactions.rows import Row
from shardline.datasource.types.schema import ShardSchema

__all__ = ["apply_ledger", "is_applied", "is_newest_there"]


def apply_ledger(
    client: TransactionClient, ledger: Ledger, shards: Collection[str] | None = None
) -> int:
    """Apply all rows of `ledger` to their data shards; returns how many this process had to apply.

    Args:
        client: The client.
        ledger: The ledger of a transactions shard.
        shards: Only these data shards, by id; None for all.

    Raises:
        Corrupt: The state of a data shard does not say that it is registered.
        MissingBlob: A data shard is not there (`REGISTERED_SHARD_MISSING`).
        Determinate: `STAGED_TOO_LONG`: this process was suspended for a day in the middle of it.
        ShardError: An error of the store. Rows may have been applied to other shards.
    """
    due: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in ledger.pending():
        if (shards is None or row.shard in shards) and not is_applied(client, row):
            due[row.name, row.shard].append(row)
    for (name, shard), rows in due.items():
        commits = [row.commit() for row in rows]
        try:
            _apply(client.machine(name), shard, ledger.shard, commits)
        except InvalidUsage as error:
            if error.code == "SHARD_NOT_FOUND":
                raise data_shard_lost(name) from error
            raise
    return sum(map(len, due.values()))


def is_applied(client: TransactionClient, row: Row) -> bool:
    """True if it is known that `row` was applied to its data shard, or that the shard is no more.

    Costs requests only where this process knows another shard of that name.
    """
    machine = client.machine(row.name)
    state = machine.cached
    if state is not None and state.shard != row.shard:
        # Which of the two is the older one only a state says that is newer than the row. Where the
        # known one is, the row is of a shard that was made since, and may wait to be applied: taken
        # for applied it would be retracted, and what was committed would be lost.
        state = machine.refresh()
        # Nor does one whose log was deleted, or replaced: what was made in its place has other
        # records, and the known state is the newest for as long as those are fewer.
        if state is not None and state.shard != row.shard and not is_newest_there(machine, state):
            return False
    return state is not None and (state.shard != row.shard or state.upper.is_beyond(row.at))


def is_newest_there(machine: Machine, state: ShardState) -> bool:
    """True if the record of a known state is in the log: false of one that was replaced since."""
    record = machine.log.record(state.seqno)
    return record is not None and record.walltime_ms == state.walltime_ms


def _apply(machine: Machine, shard: str, txns: str, commits: list[Commit]) -> None:
    command = partial(
        apply_commits,
        shard=shard,
        txns=txns,
        inline_max_bytes=machine.settings.inline_state_bytes,
    )
    outcome = machine.apply(partial(command, commits=commits))
    # Unlike a direct append, this must not be refused: it is committed, and readers wait for it.
    if isinstance(outcome, InlineBackpressure):
        make_room(machine)
        outcome = machine.apply(partial(command, commits=commits))
    if isinstance(outcome, InlineBackpressure):
        # Inline parts could not be moved to blobs, or others filled the space at once.
        _apply_as_blobs(machine, command, commits)
    compact_inline(machine, (p for commit in commits for run in commit.runs for p in run.parts))


def _apply_as_blobs(
    machine: Machine,
    command: Callable[..., Transition[Applied | InlineBackpressure | StagedTooLong]],
    commits: list[Commit],
) -> None:
    """Apply `commits` with their inline parts as blobs, which belong to this call alone.

    Several appliers may do so at once; the blobs of one of them enter the shard. The others delete
    their own when the outcome says so, and leave them to the orphan sweep after an unknown outcome.
    """
    # Before the first blob is written: the age that a commit is judged by must not be too low.
    flushed_ms = machine.clock.now_ms()
    with UncommittedParts(machine.location.blob) as parts:
        flushed = []
        for commit in commits:
            flushed.append(_flushed(machine, commit))
            parts.add(flushed[-1].runs)
            # Parts that were staged for the transaction are named by every applier, and never ours
            # to delete.
            parts.hand_over(commit.runs)
        with parts.commit():
            outcome = machine.apply(partial(command, commits=flushed, flushed_ms=flushed_ms))
        assert not isinstance(outcome, InlineBackpressure), "nothing inline is left"
        entered = outcome.entered if isinstance(outcome, Applied) else frozenset()
        for commit in flushed:
            if commit.at in entered:
                parts.hand_over(commit.runs)
        parts.note_refused()
    if isinstance(outcome, StagedTooLong):
        raise Determinate(
            f"parts for shard '{machine.name}' were written longer ago than staged parts are kept "
            f"({outcome.age_ms} ms, by this machine's clock); what was committed for it is not "
            "applied yet",
            code="STAGED_TOO_LONG",
            hint=f"try again: they are then written again; if it persists, {CLOCKS_WRONG}",
        )


def _flushed(machine: Machine, commit: Commit) -> Commit:
    """`commit` with its inline parts written as blobs."""
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
