"""Writing: handles that append updates to a shard.

Three ways to say where in time the updates go:

    `compare_and_append`   exactly `[lower, upper)`, if the shard's upper is `lower`; linearizable.
    `append`               `[lower, upper)`, by several writers of *identical* data: what is there
                           already is trimmed, and only a gap is refused.
    `append_now`           whatever the upper is: takes effect at `max(upper, now)`.

Exactly once: every append of a handle has a number. With a durable writer (named by its user) and a
sequence number of the user's, repeating an append after a crash is answered `AlreadyCommitted`.
Within a call, lost acknowledgements are resolved the same way; a call that still raises
`Indeterminate` can be repeated with the same sequence number. A handle that says what its numbers
cover (`covers`) gets an error where one of them was committed for something else.

A refusal (`UpperMismatch`, …) is a return value. After one, and after an error whose class says
that it certainly did not happen, the parts that the call had staged are deleted; after any other
error they stay: leak rather than dangle (`stage.UncommittedParts`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa

from shardline.datasource.append_attempts import AppendAttempts, Decided, Redirect
from shardline.datasource.arguments import append_number, frontier_of, wrong_kind
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import MINIMUM, Frontier
from shardline.datasource.ids import new_id
from shardline.datasource.maintenance.compact import compact_inline
from shardline.datasource.parts.stage import Staged, Stager, UncommittedParts
from shardline.datasource.shard.batch import Run, stamp_time
from shardline.datasource.shard.commands.append import (
    Abandon,
    Abandoned,
    AlreadyCommitted,
    Append,
    Appended,
    OtherRange,
    StagedTooLong,
    UpperMismatch,
    abandon,
    committed_before,
)
from shardline.datasource.shard.commands.orphan_sweep import CLOCKS_WRONG
from shardline.datasource.shard.machine import Machine
from shardline.datasource.types.schema import ShardSchema

__all__ = [
    "Decided",
    "Redirect",
    "Staged",
    "UncommittedParts",
    "Updates",
    "WriteHandle",
    "WriteResult",
    "arrow_tables",
    "other_range",
    "shard_exists",
]

Updates: TypeAlias = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch | pa.Table]
"""Rows with the shard's columns by name, and optionally `_ts` and `_diff`."""

WriteResult = Appended | AlreadyCommitted | UpperMismatch

_NUMBERS_MAX: Final = 100
"""Most numbers that one append tries and other handles of its writer have taken. Each try loses to
an append of another handle, so more means that handles of one writer are in each other's way."""


@dataclass(slots=True)
class WriteHandle:
    """Appends to one shard; may be shared between threads.

    Attributes:
        machine: The shard's.
        shard: The shard's id: a handle does not outlive it.
        schema: Schema of the updates this handle takes, registered under `schema_id`.
        writer: Name or id of the writer.
        durable: True if the shard remembers the writer for ever.
        sequence: Number of the writer's last append that this handle knows of.
        txns: Id of the transactions shard whose protocol this handle is part of.
        redirect: Takes appends to a registered shard; None refuses them.
        covers: The range that its appends cover (`shard.covered_range`); empty if that is not
            known. Of a handle that is made for one append.
        is_counted: True if the numbers that it is given were counted up by another handle, so that
            only the attempt says which append it is. Of a handle that is made for one append.
        writes_leader: As of `Append`.
        is_first: True if its append must be the first one to the shard: after any other it is the
            error `SHARD_EXISTS`. Of a handle that is made for one append.

    The shard has an entry for the writer, with the number of its last append. Losing that entry
    loses the proof that an append has happened: repeated, it would be appended twice. So a durable
    writer's is never removed; an anonymous one expires `writer_lease_ms` after its last append, and
    one whose outcome is unknown by then is not repeated: it stays `Indeterminate`.

    Appends of one handle are committed one after the other: a number that overtook another would
    make the other one look as if it had happened. Threads whose appends are to be committed
    together use a handle each.
    """

    machine: Machine
    shard: str
    schema: ShardSchema
    schema_id: int
    key: tuple[str, ...]
    writer: str
    durable: bool
    sequence: int = 0
    txns: str = ""
    redirect: Redirect | None = None
    covers: str = ""
    writes_leader: bool = False
    is_counted: bool = False
    is_first: bool = False
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _stagers: dict[tuple[int, bool], Stager] = field(default_factory=dict)

    def stager(self, *, may_inline: bool = True) -> Stager:
        """The writer of this handle's parts; can be sent to other processes once its blob can."""
        wanted = (self.schema_id, may_inline)
        if wanted not in self._stagers:
            m = self.machine
            self._stagers[wanted] = Stager(
                m.location.blob,
                m.directory,
                self.schema,
                self.schema_id,
                self.key,
                m.settings,
                m.clock,
                m.ids,
                may_inline,
            )
        return self._stagers[wanted]

    def compare_and_append(
        self,
        updates: Updates | None,
        lower: Frontier,
        upper: Frontier,
        *,
        sequence: int | None = None,
    ) -> WriteResult:
        """Append `updates` as the contents of `[lower, upper)` if the shard's upper is `lower`.

        Args:
            updates: None for none: only moves the upper. Rows without `_ts` are put at the least
                time that is not before now and lies in the interval, or its last.
            lower: The upper that the shard must have.
            upper: Its upper afterwards; empty says that nothing more will ever come.
            sequence: Number of this append, at least 0 and greater than all before of this writer;
                None takes the writer's next one, so the append is a new one, also if it is
                repeated after a restart or if other handles of the writer append at the same time.

        Raises:
            InvalidUsage: The updates do not fit the schema or the interval.
            Determinate: It certainly did not happen.
            Indeterminate: It may have happened: repeat it with the same sequence number.
        """
        lower, upper = _interval(lower, upper)
        staged = self._stage(updates)
        return self._append(staged, lower=lower, upper=upper, sequence=sequence)

    def append_now(
        self, updates: Updates | None, *, sequence: int | None = None
    ) -> Appended | AlreadyCommitted:
        """Append `updates` at `max(upper, now)`; errors as `compare_and_append`.

        Updates that carry their own `_ts` must lie at or after the shard's upper, which moves to
        right after the last of them.
        """
        return self.commit(self._stage(updates), sequence=sequence)

    def commit(
        self, staged: Staged, *, sequence: int | None = None, attempt: str | None = None
    ) -> Appended | AlreadyCommitted:
        """Append what was staged, here or elsewhere, at `max(upper, now)`.

        Args:
            staged: Parts written under this handle's schema.
            sequence: As in `compare_and_append`.
            attempt: Id of the attempt that staged them, if `abandon` may give it up.
        """
        outcome = self._append(staged, sequence=sequence, attempt=attempt)
        if isinstance(outcome, UpperMismatch):
            assert outcome.current.is_empty, outcome
            raise self._finished()
        return outcome

    def commit_at(
        self,
        staged: Staged,
        expected: Frontier,
        *,
        sequence: int,
        attempt: str,
        upper: Frontier | None = None,
    ) -> WriteResult:
        """As `commit`, but only if the shard's upper is `expected`; keeps the parts otherwise.

        With `upper` they become the contents of exactly `[expected, upper)`, and a shard that is
        finished is an `UpperMismatch` like any other.
        """
        outcome = self._append(
            staged, lower=expected, upper=upper, sequence=sequence, attempt=attempt, keep=True
        )
        if upper is None and isinstance(outcome, UpperMismatch) and outcome.current.is_empty:
            raise self._finished()
        return outcome

    def append(self, updates: Updates | None, lower: Frontier, upper: Frontier) -> WriteResult:
        """Make `[lower, upper)` of the shard hold `updates`, whoever writes them first.

        For several writers of identical data. Whatever part of the interval is in the shard
        already is taken to hold the same. `UpperMismatch` says that there is a gap: the shard's
        upper is before `lower`. Rows without `_ts` are put at `lower`, the one time that all
        writers agree on.
        """
        lower, upper = _interval(lower, upper)
        staged = self._stage(updates)
        if lower.time is not None:
            staged = replace(staged, runs=stamp_time(staged.runs, lower.time))
        start = lower
        while True:
            outcome = self._append(staged, lower=start, upper=upper, earliest=lower.time, keep=True)
            if not isinstance(outcome, UpperMismatch):
                return outcome
            if outcome.current < lower:
                self._uncommitted(staged).delete()
                return outcome
            if outcome.current >= upper:
                self._uncommitted(staged).delete()
                return AlreadyCommitted(outcome.current, attempt="")
            start = outcome.current

    def abandon(
        self, staged: Staged, *, sequence: int, attempt: str, was_asked: bool = True
    ) -> bool:
        """Give up `attempt`; True if it certainly never was, and never will be, committed.

        Args:
            staged: What was staged for it.
            sequence: Its number, as in `commit`.
            attempt: Its id, as in `commit`.
            was_asked: False if certainly nobody has called `commit` for it.
        """
        request = Abandon(
            writer=self.writer,
            sequence=append_number("sequence", sequence),
            attempt=attempt,
            lease_ms=None if self.durable else self.machine.settings.writer_lease_ms,
            parts=frozenset(part.key for run in staged.runs for part in run.parts),
            staged_ms=staged.staged_ms,
            was_asked=was_asked,
        )
        return self.machine.apply(partial(abandon, request=request))

    def committed(self, sequence: int) -> AlreadyCommitted | None:
        """The earlier commit of this number, as far as this process knows; None if there is none.

        Raises:
            InvalidUsage: It was committed for another range than `covers`.
        """
        entry = self.machine.state().writers.get(self.writer)
        found = committed_before(entry, sequence=sequence, covers=self.covers)
        if isinstance(found, OtherRange):
            raise other_range(self.machine.name, self.writer, sequence, found)
        return found

    def upper(self) -> Frontier:
        """The shard's upper, no older than this call."""
        return self.machine.state().upper

    def _stage(self, updates: Updates | None) -> Staged:
        if updates is None:
            return Staged((), self.machine.clock.now_ms(), 0, 0)
        return self.stager().stage(arrow_tables(updates))

    def _append(
        self,
        staged: Staged,
        *,
        lower: Frontier | None = None,
        upper: Frontier | None = None,
        sequence: int | None = None,
        attempt: str | None = None,
        earliest: int | None = None,
        keep: bool = False,
    ) -> WriteResult:
        """One append to its end. `keep` leaves staged parts alone after a mismatch."""
        request = Append(
            shard=self.shard,
            runs=staged.runs,
            writer=self.writer,
            sequence=-1,
            durable=self.durable,
            lease_ms=self.machine.settings.writer_lease_ms,
            lower=MINIMUM if self.is_first else lower,
            upper=upper,
            staged_ms=staged.staged_ms if staged.runs else None,
            attempt=attempt or new_id("t", self.machine.ids),
            earliest=earliest,
            inline_max_bytes=self.machine.settings.inline_state_bytes,
            txns=self.txns,
            covers=self.covers,
            writes_leader=self.writes_leader,
            is_counted=self.is_counted or sequence is None,
        )
        # An error whose outcome is unknown keeps the parts: an append that has happened, and lost
        # them, would leave a shard that cannot be read.
        with self._uncommitted(staged) as parts:
            with self._turn, parts.commit():
                # Under the turn: of two appends of this handle the smaller number must be first.
                outcome, runs, number = self._under_number(request, sequence, parts)
            if isinstance(outcome, Appended):
                # It is committed, whatever comes of the merges that it has made due. One without
                # rows has made none due, and a shard at rest has one each second.
                if runs:
                    compact_inline(self.machine, (p for run in runs for p in run.parts))
                return outcome
            if isinstance(outcome, AlreadyCommitted):
                # Of an attempt that is not known any more, these may be the parts.
                if outcome.attempt not in {"", request.attempt}:
                    parts.note_refused()
                return outcome
            if isinstance(outcome, OtherRange) and not outcome.attempt:
                # Passed by another number: nobody knows any more whose parts are in use.
                raise other_range(self.machine.name, self.writer, number, outcome)
            if keep and isinstance(outcome, UpperMismatch) and not self.is_first:
                parts.hand_over(staged.runs)
            parts.note_refused()
        return self._refused(outcome, request, number)

    def _refused(
        self,
        outcome: OtherRange | UpperMismatch | StagedTooLong | Abandoned,
        request: Append,
        number: int,
    ) -> UpperMismatch:
        """The answer for an append that has certainly not happened; most refusals are errors."""
        match outcome:
            case OtherRange():
                raise other_range(self.machine.name, self.writer, number, outcome)
            case UpperMismatch() if self.is_first:
                raise shard_exists(self.machine.name)
            case UpperMismatch():
                return outcome
            case StagedTooLong(age_ms):
                raise Determinate(
                    f"updates for shard '{self.machine.name}' were staged longer ago than staged "
                    f"parts are kept ({age_ms} ms, by this machine's clock)",
                    code="STAGED_TOO_LONG",
                    hint=f"write them again; if it persists, {CLOCKS_WRONG}",
                )
            case Abandoned():
                raise Determinate(
                    f"attempt {request.attempt} to append to shard '{self.machine.name}' was given "
                    "up",
                    code="ABANDONED",
                    hint="another attempt of the same work has taken over",
                )

    def _under_number(
        self, request: Append, sequence: int | None, parts: UncommittedParts
    ) -> tuple[Decided, tuple[Run, ...], int]:
        """Append under `sequence`; if None, under the next number that no other handle takes.

        Returns:
            The outcome and the runs, as of `AppendAttempts.run`, and the number.

        Raises:
            Determinate: Others took every number; or as `AppendAttempts.run`.
        """
        if sequence is not None:
            sequence = append_number("sequence", sequence)
            self.sequence = max(self.sequence, sequence)
            return *self._attempts(replace(request, sequence=sequence), parts).run(), sequence
        for _ in range(_NUMBERS_MAX):
            self.sequence += 1
            outcome, runs = self._attempts(replace(request, sequence=self.sequence), parts).run()
            if not isinstance(outcome, AlreadyCommitted | OtherRange):
                return outcome, runs, self.sequence
            if outcome.attempt == request.attempt:
                return outcome, runs, self.sequence
            # By an append of another handle. This one has certainly not happened, and nothing that
            # is on its way has this number: the next number is as good as the first.
            request = replace(request, runs=runs)
            known = self.machine.state().writers.get(self.writer)
            self.sequence = max(self.sequence, known.last if known else 0)
        raise Determinate(
            f"other handles of writer '{self.writer}' took {_NUMBERS_MAX} numbers in a row before "
            f"this append to shard '{self.machine.name}'",
            code="CONTENTION",
            hint="retry; give each process a writer of its own, or number the appends",
        )

    def _attempts(self, request: Append, parts: UncommittedParts) -> AppendAttempts:
        stager = partial(self.stager, may_inline=False)
        return AppendAttempts(self.machine, stager, parts, self.redirect, request)

    def _uncommitted(self, staged: Staged) -> UncommittedParts:
        return UncommittedParts(self.machine.location.blob, staged.runs)

    def _finished(self) -> InvalidUsage:
        return InvalidUsage(
            f"shard '{self.machine.name}' is finished: its upper is empty, nothing can be added",
            code="SHARD_FINISHED",
            hint="write to another shard, or make this one again after dropping it",
        )


def shard_exists(shard: str) -> InvalidUsage:
    """The error of a write that is to be the first one of its shard, and is not."""
    return InvalidUsage(
        f"shard '{shard}' is already there",
        code="SHARD_EXISTS",
        hint="use mode append or overwrite, or saveMode ignore",
    )


def other_range(shard: str, writer: str, sequence: int, found: OtherRange) -> InvalidUsage:
    """The error of a number that was committed for another range."""
    return InvalidUsage(
        f"number {sequence} of writer '{writer}' now covers another range than what was committed "
        f"to shard '{shard}': its last commit is number {found.last}, right before the upper "
        f"{found.upper}; nothing was written, as rows would be lost or doubled",
        code="OTHER_RANGE",
        hint="a checkpoint was rolled back, restored from a copy or made anew: put back the one "
        "that has the last commit, offsets and commits; or begin with a new checkpoint (and a new "
        "txnAppId) where the shard's rows end; or, to write all rows again, into another shard",
    )


def arrow_tables(rows: Updates) -> Iterable[pa.RecordBatch | pa.Table]:
    """Rows as the tables or batches that they are, each looked at when its turn comes.

    Raises:
        InvalidUsage: They are something else; also while the result is gone through.
    """
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return [rows]
    if not isinstance(rows, Iterable):
        raise _not_arrow(rows)
    return map(_check_arrow, rows)


def _interval(lower: Frontier, upper: Frontier) -> tuple[Frontier, Frontier]:
    """Both ends of an interval, if the upper is not before the lower.

    Before anything is staged, or compared with the shard: the answer that its upper is another one
    would send the caller to try the same interval again.
    """
    lower, upper = frontier_of("lower", lower), frontier_of("upper", upper)
    if upper < lower:
        raise InvalidUsage(
            f"the upper {upper} lies before the lower {lower}",
            code="INVALID_INTERVAL",
            hint="an interval begins at its lower, and ends right before its upper",
        )
    return lower, upper


def _check_arrow(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    if isinstance(rows, pa.RecordBatch | pa.Table):
        return rows
    raise _not_arrow(rows)


def _not_arrow(rows: object) -> InvalidUsage:
    return wrong_kind(
        "updates", rows, "give a pyarrow Table or RecordBatch, or several: pa.Table.from_pylist(…)"
    )
