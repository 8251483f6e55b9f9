"""Commits to a transactions shard, in one loop that everything goes through.

    1. read the ledger, complete up to U
    2. judge: the rows to add, or a refusal
    3. append them to `[U, t + 1)`; if the upper is not U any more, start again

Without the compare-and-append at U, another transaction could change between 2 and 3 what this one
was judged by. Rows that are applied are retracted by the same append, so tidying costs none of its
own.

Invariants:
    Threads of one process take turns: they would only lose races to each other.
    A commit that happened before is reported as such before anything is judged.
    Once a commit is durable, no later failure makes it look as if it had failed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import pyarrow as pa

from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.ids import new_id
from shardline.datasource.maintenance.compact import compact
from shardline.datasource.maintenance.garbage_collection import collect_garbage
from shardline.datasource.maintenance.retention import apply_retention
from shardline.datasource.parts.stage import Staged, Stager, UncommittedParts
from shardline.datasource.shard.backoff import Backoff
from shardline.datasource.shard.batch import stamp_time
from shardline.datasource.shard.commands.append import (
    Abandoned,
    AlreadyCommitted,
    Appended,
    OtherRange,
    UpperMismatch,
    committed_before,
)
from shardline.datasource.shard.machine import Machine
from shardline.datasource.transactions.applier import apply_ledger, is_applied
from shardline.datasource.transactions.client_protocol import TransactionClient
from shardline.datasource.transactions.ledger import Ledger, LedgerReader
from shardline.datasource.transactions.rows import KEY, Row, schema, updates_table
from shardline.datasource.write import WriteHandle, WriteResult, other_range

__all__ = ["Committer", "Conflict", "Identity", "Judge", "Outcome", "Refused", "Rows"]

_log = logging.getLogger(__name__)

_TIDY_MAX: Final = 1000
"""Most rows that one commit retracts."""

_UPKEEP_EVERY: Final = 32
"""Records of the transactions shard between two attempts at compaction and garbage collection."""

_INLINE_FACTOR: Final = 4
"""How many times larger than other parts the rows of a commit may be and still live in the state.
With it, a reader of a transaction over a dozen shards needs one request instead of two."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The idempotency token of a commit: with it, however often tried, it happens once.

    Losing it (a new writer name, a number that starts again) makes repetitions take effect twice.

    Attributes:
        writer: The name of the writer.
        sequence: A number that grows with each of its commits.
        durable: True if the writer is remembered for ever.
        attempt: Id of this attempt; if empty, one is made.
        covers: The range that is committed under the number
            (`shardline.datasource.shard.covered_range`); empty if not known.
        is_counted: True if only `attempt` says which commit this is, as in `Append`.
    """

    writer: str
    sequence: int
    durable: bool = True
    attempt: str = ""
    covers: str = ""
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another writer has changed shard `name` since `time`, at which it was read."""

    name: str
    time: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The commit was refused when it was judged; nothing was committed."""

    why: Abandoned | AlreadyCommitted | Conflict | OtherRange | UpperMismatch


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to add, at a time not before `least`; the loop sets that time in the rows.

    Attributes:
        added: The rows to add.
        least: The time.
        lost: Rows to retract that are given up: what they say can be applied to no shard any more.
    """

    added: Sequence[Row] = ()
    least: int = 0
    lost: Sequence[Row] = ()


Judge: TypeAlias = Callable[[Ledger], Rows | Refused]
"""Called at each attempt, with the ledger that the commit will be based on."""

Outcome: TypeAlias = Appended | AlreadyCommitted | UpperMismatch | Refused


@dataclass(slots=True)
class Committer:
    """Commits to one transactions shard; may be shared between threads."""

    client: TransactionClient
    reader: LedgerReader
    _anonymous: WriteHandle | None = None
    _upkeep_seqno: int = 0
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def machine(self) -> Machine:
        """The transactions shard's machine."""
        return self.reader.machine

    def commit(
        self,
        judge: Judge,
        at: int | None = None,
        identity: Identity | None = None,
        staged_ms: int | None = None,
    ) -> Outcome:
        """Commit the rows that `judge` returns, at `at`; if None, now or at the upper if later.

        Args:
            judge: Returns the rows to add, or a refusal.
            at: Time of the commit; the outcome is `UpperMismatch` if it is decided already.
            identity: Makes it happen once; None for a commit that will not be repeated.
            staged_ms: When staging of the oldest part that the rows name began.

        Raises:
            InvalidUsage: There is no transactions shard.
            Determinate: It certainly did not happen.
            Indeterminate: It may have happened: with an identity, commit again.
        """
        clock, settings = self.client.clock, self.client.settings
        backoff = Backoff(clock, self.client.ids, settings.conflict_pause_ms)
        deadline = clock.elapsed_ms() + settings.commit_timeout_ms
        while True:
            began_ms = clock.elapsed_ms()
            with self._turn:
                outcome = self._attempt(judge, at, identity, staged_ms)
            if outcome is not None:
                return outcome
            # Determinate, as a round ends without an outcome only if its append was refused: an
            # unknown one is raised out of it.
            if clock.elapsed_ms() > deadline:
                raise Determinate(
                    f"lost every race for transactions shard '{self.machine.name}' during "
                    f"{settings.commit_timeout_ms} ms",
                    code="CONTENTION",
                    hint="retry; commit larger transactions less often",
                )
            backoff.lost(clock.elapsed_ms() - began_ms)

    def handle(self, shard: str, identity: Identity | None) -> WriteHandle:
        """A writer of the transactions shard whose id is `shard`."""
        # One for all commits without an identity, as the state remembers each name for a while. Not
        # for another shard of that name: each append would be refused, until the deadline.
        kept = self._anonymous
        if identity is None and kept is not None and kept.shard == shard:
            return kept
        anonymous = identity is None
        made = WriteHandle(
            machine=self.machine,
            shard=shard,
            schema=schema(),
            schema_id=0,
            key=KEY,
            writer=new_id("w", self.client.ids) if identity is None else identity.writer,
            durable=identity is not None and identity.durable,
            txns=shard,
            covers="" if identity is None else identity.covers,
            is_counted=identity is not None and identity.is_counted,
        )
        if anonymous:
            self._anonymous = made
        return made

    def _attempt(
        self, judge: Judge, at: int | None, identity: Identity | None, staged_ms: int | None
    ) -> Outcome | None:
        """One round of the loop; None if another commit came first."""
        # First of all: everything below is true of the ledger's upper, at which it is appended.
        ledger = self.reader.read()
        if ledger is None:
            raise InvalidUsage(
                f"there is no transactions shard '{self.machine.name}' at "
                f"{self.client.location.url}",
                code="NOT_REGISTERED",
                hint="register shards first (client.transactions().register)",
            )
        # Before the judge, who could refuse what this very identity has committed already.
        known = None if identity is None else self.committed_before(identity)
        if known is not None:
            return known
        # In each round: what another transaction has committed since the last may forbid this one.
        rows = judge(ledger)
        if isinstance(rows, Refused):
            return rows
        least = max(ledger.upper, rows.least)
        time = max(least, self.client.clock.now_ms()) if at is None else at
        if time < least:
            return UpperMismatch(Frontier(time), Frontier(least))
        added = [replace(row, at=time) for row in rows.added]
        gone = self._rows_to_retract(ledger, added, rows.lost)
        try:
            outcome = self._append(ledger, time, updates_table(added, gone), identity, staged_ms)
        except InvalidUsage as error:
            if error.code in {"SHARD_CHANGED", "SHARD_FINISHED"}:
                # The transactions shard was dropped, or made again, since its ledger was read. The
                # caller relies on no particular one: start again with what is there now.
                return None
            raise
        # Not for an earlier commit, whose rows these are not: the next reader applies it.
        if isinstance(outcome, Appended):
            self._follow_up(ledger, time, added, gone)
        return None if isinstance(outcome, UpperMismatch) else outcome

    def committed_before(self, identity: Identity) -> AlreadyCommitted | None:
        """The earlier commit of `identity`, by the state that the ledger was read from or a newer.

        Raises:
            InvalidUsage: Its number was committed for another range.
        """
        state = self.machine.cached
        found = committed_before(
            None if state is None else state.writers.get(identity.writer),
            sequence=identity.sequence,
            covers=identity.covers,
            attempt=identity.attempt,
        )
        if isinstance(found, OtherRange):
            raise other_range(self.machine.name, identity.writer, identity.sequence, found)
        return found

    def _rows_to_retract(
        self, ledger: Ledger, added: Sequence[Row], lost: Sequence[Row]
    ) -> list[Row]:
        given_up = {row.id for row in lost}
        pending = [row for row in ledger.pending() if row.id not in given_up]
        # Only what is known to be applied: a row that is retracted before never reaches its shard.
        applied = [row for row in pending if is_applied(self.client, row)]
        forgotten = {row.shard for row in added if row.kind == "forget"}
        left = [row for shard, row in ledger.registered.items() if shard in forgotten]
        return [*applied[:_TIDY_MAX], *left, *lost]

    def _append(
        self,
        ledger: Ledger,
        time: int,
        table: pa.Table,
        identity: Identity | None,
        staged_ms: int | None,
    ) -> Appended | AlreadyCommitted | UpperMismatch:
        handle = self.handle(ledger.shard, identity)
        sequence = handle.sequence + 1 if identity is None else identity.sequence
        lower, upper = Frontier(ledger.upper), Frontier(time + 1)
        # Also without rows: of a counted append only the attempt says that it has happened. With
        # another one its caller would take it for somebody else's, and record its own beside it.
        attempt = self._attempt_of(identity)
        if table.num_rows == 0:
            outcome = handle.commit_at(
                Staged((), 0, 0, 0), lower, sequence=sequence, attempt=attempt, upper=upper
            )
        else:
            staged = self._stager(handle).stage([table])
            # The oldest counts: an orphan sweep may have deleted a part that the rows only name,
            # and the commit must then be refused, however new the rows are.
            begun_ms = staged.staged_ms if staged_ms is None else min(staged_ms, staged.staged_ms)
            staged = replace(staged, runs=stamp_time(staged.runs, time), staged_ms=begun_ms)
            with UncommittedParts(self.client.location.blob, staged.runs) as parts:
                with parts.commit():
                    outcome = handle.commit_at(staged, lower, sequence=sequence, attempt=attempt)
                if isinstance(outcome, UpperMismatch):
                    parts.note_refused()
        # The acknowledgement was lost, and a repetition found our own commit. If its upper differs,
        # it is not this round's: the caller names the attempt and commits again after an unknown
        # outcome, so what an earlier round sent may have landed since this one read the ledger. Its
        # rows are at its own time, and none are at this round's.
        if isinstance(outcome, AlreadyCommitted) and outcome.attempt == attempt:
            return Appended(ledger.upper, upper) if outcome.upper == upper else outcome
        return outcome

    def remember(self, ledger: Ledger, identity: Identity) -> WriteResult:
        """Record a commit of `identity` that has no rows and moves no upper."""
        here = Frontier(ledger.upper)
        return self.handle(ledger.shard, identity).commit_at(
            Staged((), 0, 0, 0),
            here,
            sequence=identity.sequence,
            attempt=self._attempt_of(identity),
            upper=here,
        )

    def _attempt_of(self, identity: Identity | None) -> str:
        return (identity.attempt if identity else "") or new_id("t", self.client.ids)

    @staticmethod
    def _stager(handle: WriteHandle) -> Stager:
        stager = handle.stager()
        limit = stager.settings.inline_part_bytes * _INLINE_FACTOR
        return replace(stager, settings=replace(stager.settings, inline_part_bytes=limit))

    # -- after the commit --------------------------------------------------------------------

    def _follow_up(
        self, ledger: Ledger, time: int, added: Sequence[Row], gone: Sequence[Row]
    ) -> None:
        """Apply to data shards, and keep the transactions shard small; failing is harmless."""
        # First, and without I/O: if the rest fails, the next commit need not read all of it again.
        now = ledger.after_commit(time + 1, added, gone)
        self.reader.learn(now)
        # Nothing is raised, whatever it is: the caller would take a durable commit for a failed
        # one.
        context = {"context": {"shard": self.machine.name, "time": time}}
        try:
            if added:
                apply_ledger(self.client, now, {row.shard for row in added})
        except Exception:  # noqa: BLE001 - of any kind: it is committed
            # Readers and the next commit apply it. Upkeep would keep the caller waiting once more.
            problem = "a transaction was committed and not applied yet"
            _log.warning(problem, exc_info=True, extra=context)
            return
        try:
            self.upkeep()
        except Exception:  # noqa: BLE001 - as above
            problem = "the transactions shard could not be kept small"
            _log.warning(problem, exc_info=True, extra=context)

    def upkeep(self) -> None:
        """Move since, compact and collect garbage, when there are enough batches to gain by it."""
        state = self.machine.cached
        if state is None or len(state.trace.batches) < _UPKEEP_EVERY:
            return
        if state.seqno < self._upkeep_seqno + _UPKEEP_EVERY:
            return
        # Before the work: if it fails, each commit would pay for it and for what fails in it.
        self._upkeep_seqno = state.seqno
        # In this order: only what is before the since is compacted away, and only what a merge has
        # replaced is garbage.
        apply_retention(self.machine)
        known, state = self.reader.known, self.machine.state()
        live = 0 if known is None else len(known.rows)
        old = (batch for batch in state.trace.batches if batch.desc.upper_frontier <= state.since)
        # A forced merge removes rows that were added and retracted before since; merges by size may
        # leave the two in different batches.
        compact(self.machine, force=sum(batch.rows for batch in old) > _UPKEEP_EVERY + 2 * live)
        collect_garbage(self.machine)
        # The records that it has written itself are no reason for the next one.
        self._upkeep_seqno = (self.machine.cached or state).seqno
