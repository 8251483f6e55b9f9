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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import msgspec
import pyarrow as pa

from shardline.datasource.clock import Clock
from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.ids import new_id
from shardline.datasource.maintenance.compact import compact_inline, flush_inline
from shardline.datasource.parts.stage import Staged, Stager, UncommittedParts
from shardline.datasource.shard.batch import Run, stamp
from shardline.datasource.shard.commands.append import (
    Abandoned,
    AlreadyCommitted,
    Append,
    Appended,
    AppendResult,
    InlineBackpressure,
    OtherRange,
    Redirected,
    StagedTooLong,
    UpperMismatch,
    abandon,
    committed_before,
    compare_and_append,
)
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import Registration, ShardState
from shardline.datasource.types.schema import ShardSchema

__all__ = [
    "Decided",
    "Redirect",
    "Staged",
    "UncommittedParts",
    "Updates",
    "WriteHandle",
    "WriteResult",
    "other_range",
]

Updates: TypeAlias = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch | pa.Table]
"""Rows with the shard's columns by name, and optionally `_ts` and `_diff`."""

WriteResult = Appended | AlreadyCommitted | UpperMismatch

Decided: TypeAlias = (
    Appended | AlreadyCommitted | OtherRange | UpperMismatch | StagedTooLong | Abandoned
)

Redirect: TypeAlias = Callable[[Append, Registration], Decided]
"""Makes an append by a transaction of one shard. Idempotent; errors as those of an append."""

_ATTEMPTS = 3
"""How often one call repeats an append whose outcome is unknown; each attempt waits for the commit
timeout, and the writer's entry makes the repetition harmless."""


@dataclass(slots=True)
class WriteHandle:
    """Appends to one shard; may be shared between threads.

    Attributes:
        machine: The shard's.
        shard: The shard's id: a handle does not outlive it.
        schema: Schema of the updates this handle takes, registered under `schema_id`.
        writer: Name or id of the writer.
        durable: Whether the shard remembers the writer for ever.
        sequence: Number of the writer's last append that this handle knows of.
        txns: Id of the transactions shard whose protocol this handle is part of.
        redirect: Takes appends to a registered shard; None refuses them.
        covers: What its appends cover (`shardline.datasource.shard.covered_range`); empty if that
        is not
            known. Of a handle that is made for one append.

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
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _stagers: dict[tuple[int, bool], Stager] = field(default_factory=dict)

    def stager(self, *, may_inline: bool = True) -> Stager:
        """What writes this handle's parts; can be sent to other processes once its blob can."""
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
            sequence: Number of this append, greater than all before of this writer; None counts
                up from the writer's last one when the handle was opened, so an append repeated
                after a restart is a new one.

        Raises:
            InvalidUsage: The updates do not fit the schema or the interval.
            Determinate: It certainly did not happen.
            Indeterminate: It may have happened: repeat it with the same sequence number.
        """
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
        staged = self._stage(updates)
        if lower.time is not None:
            staged = replace(staged, runs=stamp(staged.runs, lower.time))
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

    def abandon(self, attempt: str, sequence: int) -> bool:
        """Give up `attempt`; True if it never was, and never will be, committed."""
        lease_ms = None if self.durable else self.machine.settings.writer_lease_ms
        return self.machine.apply(
            partial(
                abandon, writer=self.writer, sequence=sequence, attempt=attempt, lease_ms=lease_ms
            )
        )

    def committed(self, sequence: int) -> AlreadyCommitted | None:
        """Whether the number was committed before, as far as this process knows.

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
        many = [updates] if isinstance(updates, pa.Table | pa.RecordBatch) else updates
        return self.stager().stage(many)

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
            lower=lower,
            upper=upper,
            staged_ms=staged.staged_ms if staged.runs else None,
            attempt=attempt or new_id("t", self.machine.ids),
            earliest=earliest,
            inline_max_bytes=self.machine.settings.inline_state_bytes,
            txns=self.txns,
            covers=self.covers,
        )
        with self._uncommitted(staged) as parts:
            with self._turn, parts.commit():
                number = self.sequence + 1 if sequence is None else sequence
                self.sequence = max(self.sequence, number)
                outcome, runs = self._decided(replace(request, sequence=number), parts)
            if isinstance(outcome, Appended):
                # It is committed, whatever comes of the merges that it has made due.
                compact_inline(self.machine, (p for run in runs for p in run.parts))
                return outcome
            if isinstance(outcome, AlreadyCommitted):
                # Of an attempt that is not known any more, these may be the parts.
                if outcome.attempt not in {"", request.attempt}:
                    parts.unused()
                return outcome
            if isinstance(outcome, OtherRange) and not outcome.attempt:
                # Passed by another number: nobody knows any more whose parts are in use.
                raise other_range(self.machine.name, self.writer, number, outcome)
            if keep and isinstance(outcome, UpperMismatch):
                parts.hand_over(staged.runs)
            parts.unused()
        match outcome:
            case OtherRange():
                raise other_range(self.machine.name, self.writer, number, outcome)
            case UpperMismatch():
                return outcome
            case StagedTooLong(age_ms):
                raise Determinate(
                    f"updates for shard '{self.machine.name}' were staged {age_ms} ms ago, longer "
                    f"than staged parts are kept",
                    code="STAGED_TOO_LONG",
                    hint="write them again",
                )
            case Abandoned():
                raise Determinate(
                    f"attempt {request.attempt} to append to shard '{self.machine.name}' was given "
                    "up",
                    code="ABANDONED",
                    hint="another attempt of the same work has taken over",
                )

    def _uncommitted(self, staged: Staged) -> UncommittedParts:
        return UncommittedParts(self.machine.location.blob, staged.runs)

    def _decided(
        self, request: Append, uncommitted: UncommittedParts
    ) -> tuple[Decided, tuple[Run, ...]]:
        """Run the append until its outcome is known, flushing inline parts if the state is full.

        Args:
            request: The append.
            uncommitted: Takes the parts that are flushed on the way.

        Returns:
            The outcome, and the runs as they were asked to be appended in the end.

        Raises:
            Indeterminate: Also when only the last attempt certainly did not happen: an earlier
                one may have, or may yet.
        """
        unknown: Indeterminate | None = None
        clock, known = self.machine.clock, self.machine.cached
        first = partial(_append_remembered, clock, clock.elapsed_ms())
        again = partial(first, doubted=-1 if known is None else known.seqno)
        for _ in range(_ATTEMPTS):
            append = first if unknown is None else again
            try:
                outcome = self.machine.apply(partial(append, append=request))
                if isinstance(outcome, InlineBackpressure):
                    flush_inline(self.machine)
                    outcome = self.machine.apply(partial(append, append=request))
                if isinstance(outcome, InlineBackpressure):
                    # What is inline cannot be moved, or others filled the room at once.
                    request = replace(request, runs=self._flushed(request.runs))
                    uncommitted.add(request.runs)
                    outcome = self.machine.apply(partial(append, append=request))
                    assert not isinstance(outcome, InlineBackpressure), "nothing inline is left"
                if isinstance(outcome, Redirected):
                    outcome = self._redirected(request, outcome.registration)
            except Indeterminate as error:
                unknown = error
            except ShardError as error:
                if unknown is not None:
                    raise unknown from error
                raise
            else:
                if unknown is not None and _leaves_earlier_unknown(outcome):
                    raise unknown
                return outcome, request.runs
        assert unknown is not None
        raise unknown

    def _redirected(self, request: Append, registration: Registration) -> Decided:
        if self.redirect is not None:
            return self.redirect(request, registration)
        raise InvalidUsage(
            f"shard '{self.machine.name}' is registered with the transactions shard "
            f"'{registration.txns}': direct writes to it are refused",
            code="SHARD_REGISTERED",
            hint="write in a transaction (client.transaction()), by Spark, or forget it first "
            "(client.transactions().forget)",
        )

    def _flushed(self, runs: tuple[Run, ...]) -> tuple[Run, ...]:
        """`runs` with every inline part written to the blob store."""
        stager = self.stager(may_inline=False)
        return tuple(
            msgspec.structs.replace(run, parts=tuple(stager.flush(part) for part in run.parts))
            for run in runs
        )

    def _finished(self) -> InvalidUsage:
        return InvalidUsage(
            f"shard '{self.machine.name}' is finished: its upper is empty, nothing can be added",
            code="SHARD_FINISHED",
            hint="write to another shard, or make this one again after dropping it",
        )


def _leaves_earlier_unknown(outcome: Decided) -> bool:
    """Whether what came of one attempt says nothing of an earlier one of the same call."""
    if isinstance(outcome, OtherRange):
        # It may have arrived before the writer went on to greater numbers.
        return not outcome.attempt
    # It began in time, and may yet arrive.
    return isinstance(outcome, StagedTooLong)


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


def _append_remembered(
    clock: Clock,
    began_ms: float,
    state: ShardState,
    now_ms: int,
    *,
    append: Append,
    doubted: int | None = None,
) -> Transition[AppendResult]:
    """As `compare_and_append`, if the shard would still know of an earlier attempt.

    An anonymous writer is forgotten some time after its append, by the clock of whoever commits.
    One that was suspended for longer, with an answer on its way, must not take that for "it did not
    happen"; nor one whose clock is behind, whom any other commit may forget at once.

    Args:
        doubted: Newest seqno that was known before an attempt of unknown outcome; None if there
            was none. While nothing came after it, that attempt has not happened either.

    Raises:
        Determinate: This attempt comes too late; earlier ones may have happened.
    """
    late_ms = clock.elapsed_ms() - began_ms
    forgotten = not append.durable and append.writer not in state.writers
    passed = doubted is not None and state.seqno > doubted
    if forgotten and (passed or late_ms > append.lease_ms / 2):
        raise Determinate(
            f"an append to shard '{state.name}' was begun {late_ms:.0f} ms ago, and its writer is "
            "forgotten",
            code="WRITER_FORGOTTEN",
            hint="append under a writer's name: such appends can be repeated at any time",
        )
    return compare_and_append(state, now_ms, append=append)
