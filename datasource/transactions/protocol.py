"""Implements the transactions shard for its users: register, forget, commit, apply, tidy.

An object store cannot change two shards at once. So everything is decided by a compare-and-append
to one shard, the transactions shard (`commit_loop`), and the data shards follow: the committer
applies what it has committed, or else the first reader does (`applier`). Where two shards are
written, the order is this, and a crash in between does no harm:

    register   mark the data shard, then add its row. After a crash between the two, direct writes
               are refused; registering again completes it, forgetting undoes it.
    forget     one commit retracts the `register` row and adds a `forget` row; then the data shard's
               upper is moved beyond that time and its mark removed, in one transition. After a
               crash between the two, every reader and every other caller completes it.
    commit     parts are staged before; they enter the data shard's state after.

Undoing a registration goes through the transactions shard as well, so that it cannot overtake a
process that is about to complete it: one of the two commits loses, and starts again.

Invariants:
    A shard with a `register` row is marked.
    The time of a `forget` row is at or after the upper of its data shard.
    The upper of a data shard with a `register` row is never beyond that of the transactions shard.
    Where it is, an older copy of the transactions shard was restored, and a commit before the data
    shard's upper would be taken for one that was applied to it: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from shardline.datasource.arguments import moment
from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    Indeterminate,
    InvalidUsage,
    MissingBlob,
    ShardError,
)
from shardline.datasource.frontier import Frontier
from shardline.datasource.ids import new_id
from shardline.datasource.shard.batch import Run
from shardline.datasource.shard.codec import CODE_VERSION
from shardline.datasource.shard.commands.append import AlreadyCommitted, Appended, UpperMismatch
from shardline.datasource.shard.commands.lifecycle import (
    Finalised,
    Held,
    initial_state,
    reinitialise,
)
from shardline.datasource.shard.commands.orphan_sweep import write_barrier
from shardline.datasource.shard.commands.txns import (
    Marked,
    allow_direct_writes,
    finalise_txns,
    refuse_direct_writes,
)
from shardline.datasource.shard.replay import LogReader
from shardline.datasource.shard.state import Registration, ShardState, is_tombstone
from shardline.datasource.shared_threads import THREADS, in_few_threads
from shardline.datasource.stores.shard_names import is_shard_directory, shard_name
from shardline.datasource.transactions.applier import apply_ledger, is_applied, is_newest_there
from shardline.datasource.transactions.client_protocol import TransactionClient
from shardline.datasource.transactions.commit_loop import (
    Committer,
    Identity,
    Outcome,
    Refused,
    Rows,
)
from shardline.datasource.transactions.ledger import Ledger
from shardline.datasource.transactions.loss import check_not_lost, data_shard_lost
from shardline.datasource.transactions.rows import KEY, Payload, Row, RowKind, schema
from shardline.datasource.transactions.shard_view import ShardViews

__all__ = ["Committed", "Transactions", "Write"]


_HISTORY_MS: Final = 60_000
"""How long the transactions shard keeps its own history. A process that has read the ledger within
this time reads the changes since then; any other reads all of it."""


@dataclass(frozen=True, slots=True)
class Write:
    """The updates that a transaction adds to one shard.

    Attributes:
        name: The shard's name.
        shard: Its id.
        runs: Parts that were staged for it, without times.
        writer: Writer that the data shard is to remember for the append; empty for none.
        sequence: Number of the append among those of `writer`.
        attempt: Id of the attempt that staged it.
        covers: What the append covers (`shardline.datasource.shard.covered_range`).
        lease_ms: How long an anonymous writer is remembered; None for a durable one.
    """

    name: str
    shard: str
    runs: tuple[Run, ...]
    writer: str = ""
    sequence: int = 0
    attempt: str = ""
    covers: str = ""
    lease_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """All writes took effect together, at time `at`."""

    at: int


class Transactions:
    """The transactions shard `name` of a location; may be shared between threads."""

    def __init__(self, client: TransactionClient, shard_views: ShardViews, name: str) -> None:
        """Prepare to use it, without I/O. The shard is made when a first shard is registered."""
        self.client = client
        self.name = name
        self.reader = shard_views.ledger(name)
        self._committer = Committer(client, self.reader)

    # -- looking -----------------------------------------------------------------------------

    def upper(self) -> int:
        """The logical upper of all registered shards; 0 before anything was registered."""
        ledger = self.reader.read()
        return 0 if ledger is None else ledger.upper

    def registered(self) -> list[str]:
        """Names of the shards that are registered, sorted."""
        ledger = self.reader.read()
        return [] if ledger is None else sorted(row.name for row in ledger.registered.values())

    # -- registering -------------------------------------------------------------------------

    def register(
        self, *names: str, at: int | None = None, takes_over: bool = True
    ) -> int | UpperMismatch:
        """Register shards: from then on they are written through transactions only. Idempotent.

        Args:
            names: Shards of the location.
            at: Time of the registration; None for now. Their uppers are beyond it afterwards.
            takes_over: False to refuse shards whose writers choose the times of rows, such as
                outputs of views. True if these have ended: what they have not written by now, they
                cannot write any more.

        Returns:
            The upper afterwards, or a mismatch if `at` is decided already.

        Raises:
            InvalidUsage: There is no such shard, it is finished, it is registered with another
                transactions shard, or (`TIMES_OF_WRITER`) it is not to be taken over.
            Indeterminate: It may have happened: call it again.
        """
        self._create()

        def judge(ledger: Ledger) -> Rows:
            # First: a `forget` that is not applied yet would remove the new mark as its own.
            apply_ledger(self.client, ledger)
            rows, least, barrier_ms = [], 0, 0
            for name in dict.fromkeys(names):
                # The mark before the row: otherwise a direct append could come in between, at a
                # time that readers have already taken as complete.
                marked = self._mark(name, ledger, takes_over=takes_over)
                if marked.shard not in ledger.registered:
                    barrier_ms = max(barrier_ms, marked.swept_before_ms)
                    rows.append(self._row("register", name, marked.shard))
                    least = max(least, marked.upper)
            self._take_over_barrier(barrier_ms)
            return Rows(rows, least)

        return self._change(judge, at)

    def forget(
        self, *names: str, at: int | None = None, despite_loss: bool = False
    ) -> int | UpperMismatch:
        """End the registration of shards: they are written directly again. Idempotent.

        All that was committed for them is applied before direct writers are admitted.

        Args:
            names: Shards of the location.
            at: As of `register`.
            despite_loss: True gives up what cannot be applied: because the transactions shard of
                their registration is gone for good (`TXNS_MISSING`, `TXNS_OTHER`), or because the
                shards themselves are (`REGISTERED_SHARD_MISSING`).

        Returns:
            As `register`.

        Raises:
            InvalidUsage: There is no such shard, or it is registered with another transactions
                shard.
            ShardError: The transactions shard of their registration was lost (`check_not_lost`),
                or one of them was (`data_shard_lost`).
            Indeterminate: It may have happened: call it again.
        """
        for name in names:
            if not despite_loss or self.client.machine(name).refresh() is not None:
                self._remove_stale_mark(name, despite_loss=despite_loss)

        def judge(ledger: Ledger) -> Rows:
            lost = self._rows_of_lost(ledger, names) if despite_loss else []
            due = {row.shard for row in ledger.pending()} - {row.shard for row in lost}
            apply_ledger(self.client, ledger, due)
            rows, least = [], 0
            for name in dict.fromkeys(names):
                state = self.client.machine(name).refresh()
                if state is None and all(row.name != name for row in lost):
                    raise self.client.machine(name).not_found_error()
                if state is not None and state.registered is not None:
                    rows.append(self._row("forget", name, state.shard))
                    least = max(least, state.upper.time or 0)
            return Rows(rows, least, lost)

        return 0 if self.reader.read() is None else self._change(judge, at)

    def drop(self, shard: str, despite_holders: frozenset[str]) -> Finalised | Held:
        """Finalise the transactions shard itself.

        Args:
            shard: Id of the one that is meant: the next one of its name stays.
            despite_holders: Readers and holds that may be cut off, by id or name.

        Raises:
            InvalidUsage: A shard is registered with it.
        """
        while True:
            ledger = self.reader.read()
            if ledger is None or ledger.shard != shard:
                return Finalised()
            apply_ledger(self.client, ledger)
            if ledger.registered:
                names = ", ".join(sorted(f"'{row.name}'" for row in ledger.registered.values()))
                raise InvalidUsage(
                    f"transactions shard '{self.name}' cannot be dropped: {names} are registered",
                    code="SHARD_REGISTERED",
                    hint="forget them first (client.transactions().forget)",
                )
            upper = Frontier(ledger.upper)
            outcome = self._committer.machine.apply(
                partial(finalise_txns, shard=shard, upper=upper, despite_holders=despite_holders)
            )
            if not isinstance(outcome, bool):
                return outcome

    # -- committing --------------------------------------------------------------------------

    def commit(
        self,
        writes: Sequence[Write],
        *,
        at: int | None = None,
        identity: Identity | None = None,
        staged_ms: int | None = None,
        judge: Callable[[Ledger], Refused | None] = lambda _: None,
        was_registered: bool = False,
    ) -> Committed | AlreadyCommitted | UpperMismatch | Refused:
        """Commit all `writes` at one time, or none.

        Args:
            writes: At most one for each shard; all shards are registered.
            at: Time of the commit; None for now, or the upper if that is later.
            identity: Makes the commit happen once, however often it is tried.
            staged_ms: When staging of the oldest part began.
            judge: May refuse the commit, by the ledger that the commit would be based on.
            was_registered: True if the caller has seen that all shards were registered. A shard
                that is not has then been forgotten since.

        Returns:
            The time of the commit; or that it was committed before; or a mismatch if `at` is
            decided already; or the refusal by `judge`.

        Raises:
            InvalidUsage: A shard is not registered.
            Corrupt: `TXNS_BEHIND`: an older copy of the transactions shard was restored.
            Determinate: It certainly did not happen. `STAGED_TOO_LONG`: write the parts again.
                `REGISTRATION_CHANGED`: a shard was forgotten meanwhile.
            Indeterminate: It may have happened: with an identity, commit again.
        """
        attempt = "" if identity is None else identity.attempt
        rows = [self._row("append", w.name, w.shard, _encoded(w), attempt) for w in writes]

        def judged(ledger: Ledger) -> Rows | Refused:
            for write in writes:
                if write.shard not in ledger.registered:
                    raise self._not_registered(write.name)
                self._check_not_behind(write, ledger)
            return judge(ledger) or Rows(rows)

        try:
            outcome = self._committer.commit(judged, at, identity, staged_ms)
        except InvalidUsage as error:
            if was_registered and error.code == "NOT_REGISTERED":
                raise self.forgotten([write.name for write in writes]) from error
            raise
        if isinstance(outcome, Appended):
            assert outcome.upper.time is not None, outcome
            return Committed(outcome.upper.time - 1)
        return outcome

    def committed_before(self, identity: Identity) -> AlreadyCommitted | None:
        """The earlier commit of `identity`, if this process knows of one; no I/O.

        Raises:
            InvalidUsage: Its number was committed for another range.
        """
        return self._committer.committed_before(identity)

    def remember(self, identity: Identity) -> Appended | AlreadyCommitted | UpperMismatch:
        """Record a commit of `identity` that has no rows; moves no upper."""
        ledger = self.reader.read()
        if ledger is None:
            raise self.forgotten([])
        return self._committer.remember(ledger, identity)

    def decide_now(self) -> int:
        """Make now, or the upper if that is later, a time that is decided; returns the upper.

        For reads of shards that are not registered: those may have no history at an older one.
        """
        self._create()
        upper = self.advance()
        assert isinstance(upper, int), upper
        return upper

    def advance(self, at: int | None = None) -> int | UpperMismatch:
        """Move the uppers of all registered shards beyond `at` (None for now), by one append.

        Returns:
            The upper afterwards, or a mismatch if it was beyond `at` already.
        """
        at = None if at is None else moment("at", at)
        return self._upper_of(self._committer.commit(lambda _: Rows(), at))

    def apply(self) -> int:
        """Apply everything to all data shards; the number of rows that this process had to apply.

        Raises:
            ShardError: An error of the store; `Corrupt` if a shard was restored from a backup
                without the others.
        """
        ledger = self.reader.read()
        return 0 if ledger is None else apply_ledger(self.client, ledger)

    def tidy(self) -> int:
        """Apply everything and retract the applied rows; returns their number.

        Every commit does so as well. A call of its own costs an append, and pays before a long time
        without commits.
        """
        ledger = self.reader.read()
        if ledger is None or not ledger.pending():
            return 0
        apply_ledger(self.client, ledger)
        applied = sum(is_applied(self.client, row) for row in ledger.pending())
        self.advance()
        return applied

    # -- how -----------------------------------------------------------------------------------

    def _create(self) -> None:
        """Create the transactions shard if there is none.

        Raises:
            MissingBlob: There was one, and it was lost.
        """
        machine = self.client.machine(self.name)
        state = machine.refresh()
        if state is None:
            self._check_is_first()
        elif not is_tombstone(state):
            return
        shard = new_id("s", self.client.ids)
        now_ms = self.client.clock.now_ms()
        # Registered with itself, so that an ordinary append to it is refused as a direct write.
        fresh = msgspec.structs.replace(
            initial_state(
                shard=shard,
                name=self.name,
                schema=schema(),
                key=KEY,
                comment="transactions over the shards of this location",
                version=CODE_VERSION,
                now_ms=now_ms,
            ),
            registered=Registration(self.name, shard, 0),
            retain_ms=_HISTORY_MS,
        )
        if is_tombstone(machine.initialise(fresh)):
            machine.apply(partial(reinitialise, fresh=fresh))

    def _check_is_first(self) -> None:
        """Refuse to make the first one where shards are registered with one that is gone.

        Looks at every shard, once in the life of a location: what is committed to a new one would
        be in the way of restoring the one before.
        """
        location = self.client.location
        shards = filter(is_shard_directory, location.directories())
        # On an object store each look takes several requests, and there may be thousands of shards.
        with ThreadPoolExecutor(THREADS, "first-transaction") as pool:
            in_few_threads(pool, self._check_not_registered, shards)

    def _check_not_registered(self, directory: str) -> None:
        log = LogReader(shard_name(directory), self.client.location, directory)
        try:
            found = log.newest()
        except (Corrupt, MissingBlob, InvalidUsage):
            return  # who uses that one is told; nothing is known of its mark
        mark = None if found is None else found[0].registered
        if mark is not None and mark.txns == self.name:
            # It may have been made since it was looked for.
            check_not_lost(log.name, mark, self.client.machine(self.name).refresh())

    def _change(self, judge: Callable[[Ledger], Rows], at: int | None) -> int | UpperMismatch:
        """Commit rows about registrations, unless there are none, and apply them."""
        ledger = self.reader.read()
        assert ledger is not None, self.name
        if at is None:
            rows = judge(ledger)
            if not rows.added and not rows.lost:
                return ledger.upper
        upper = self._upper_of(self._committer.commit(judge, at))
        try:
            self.apply()
        except ShardError as error:
            raise Indeterminate(
                f"what is registered with transactions shard '{self.name}' was changed, and its "
                f"shards could not be told: {error.detail}",
                hint="call it again",
            ) from error
        return upper

    @staticmethod
    def _upper_of(outcome: Outcome) -> int | UpperMismatch:
        if isinstance(outcome, UpperMismatch):
            return outcome
        assert isinstance(outcome, Appended), outcome
        assert outcome.upper.time is not None, outcome
        return outcome.upper.time

    def _mark(self, name: str, ledger: Ledger, *, takes_over: bool) -> Marked:
        if name == self.name:
            raise InvalidUsage(
                f"transactions shard '{name}' cannot be registered with itself",
                code="NOT_A_DATA_SHARD",
                hint="register the shards that hold your data",
            )
        self._remove_stale_mark(name)
        time = max(ledger.upper, self.client.clock.now_ms())
        registration = Registration(self.name, ledger.shard, time)
        marked = self.client.machine(name).apply(
            partial(refuse_direct_writes, registration=registration, takes_over=takes_over)
        )
        if marked.registration.shard != ledger.shard:
            raise self._registered_elsewhere(name, marked.registration)
        return marked

    def _check_not_behind(self, write: Write, ledger: Ledger) -> None:
        """Refuse a commit that its data shard would take for one that it has already."""
        machine = self.client.machine(write.name)
        # No older than the caller's first look at the shard: while anybody is in the middle of a
        # transaction, nothing is restored. So it costs no request but a process's first.
        state = machine.cached or machine.state()
        if state.shard != write.shard or state.upper <= Frontier(ledger.upper):
            return
        # Another transaction may have been committed and applied since the ledger was read: it is
        # read again, after a state. And of a log that was replaced since nothing that is known is
        # true: its newest record is looked at.
        state = machine.state()
        is_there, now = is_newest_there(machine, state), self.reader.read()
        if not is_there or now is None:
            return  # whoever appends next, or applies, finds what there is
        if write.shard in now.registered and state.upper > Frontier(now.upper):
            raise Corrupt(
                f"transactions shard '{self.name}' is complete up to {now.upper}, and shard "
                f"'{write.name}', which is registered with it, up to {state.upper.time}: an older "
                "copy of the transactions shard was restored; nothing was written",
                code="TXNS_BEHIND",
                hint="restore all shards of the location to one moment; or, if it does not matter "
                "that transactions since that copy may be in some of their shards only, and are "
                "made again if they are repeated, go on after them "
                f"(client.transactions('{self.name}').advance({state.upper.time}))",
            )

    def _take_over_barrier(self, begun_before_ms: int) -> None:
        """Refuse what sweeps of shards may have deleted, before a transaction can bring it in."""
        machine = self.client.machine(self.name)
        if begun_before_ms > machine.state().swept_before_ms:
            machine.apply(partial(write_barrier, begun_before_ms=begun_before_ms))

    def _remove_stale_mark(self, name: str, *, despite_loss: bool = False) -> None:
        """Remove a mark that names an earlier transactions shard of this name, which was dropped.

        A transactions shard with registered shards cannot be dropped, so this registration had not
        been completed.

        Raises:
            ShardError: It was not dropped, but lost, unless `despite_loss`.
        """
        state = self._state(name)
        found = state.registered
        if found is None:
            return
        if found.txns != self.name or found.shard == state.shard:
            raise self._registered_elsewhere(name, found)
        ledger = self.reader.read()
        if ledger is None or ledger.shard != found.shard:
            if not despite_loss:
                check_not_lost(name, found, self.client.machine(self.name).cached)
            self.client.machine(name).apply(partial(allow_direct_writes, registration=found))

    def _rows_of_lost(self, ledger: Ledger, names: Sequence[str]) -> list[Row]:
        """Rows for shards of these names that are not there, or in whose place is another one."""
        # After the ledger: no shard is dropped before what it is registered for has been applied.
        states = {name: self.client.machine(name).refresh() for name in names}
        return [
            row
            for row in ledger.rows.values()
            if row.name in states
            and ((state := states[row.name]) is None or state.shard != row.shard)
        ]

    def _state(self, name: str) -> ShardState:
        state = self.client.machine(name).refresh()
        if state is None:
            if name in self.registered():
                raise data_shard_lost(name)
            raise self.client.machine(name).not_found_error()
        if is_tombstone(state):
            raise InvalidUsage(
                f"shard '{name}' was dropped",
                code="SHARD_DROPPED",
                hint="make it again by writing to it",
            )
        return state

    def _row(
        self, kind: RowKind, name: str, shard: str, data: bytes | None = None, attempt: str = ""
    ) -> Row:
        # One id for all tries of an attempt. The one that has landed may be an earlier one, at the
        # same time: who is told of it takes its rows for this one's, and retracts them by their id.
        found = f"{attempt}.{shard}" if attempt else self.client.ids.token().hex()
        return Row(found, kind, name, shard, 0, data)

    @staticmethod
    def _registered_elsewhere(name: str, found: Registration) -> InvalidUsage:
        return InvalidUsage(
            f"shard '{name}' is registered with transactions shard '{found.txns}'",
            code="REGISTERED_ELSEWHERE",
            hint=f"use client.transactions('{found.txns}')",
        )

    def forgotten(self, names: Sequence[str]) -> Determinate:
        """The error of a write during which one of its shards was forgotten."""
        shards = ", ".join(f"'{name}'" for name in names) or "a shard"
        return Determinate(
            f"{shards}: forgotten by transactions shard '{self.name}' while it was written to; "
            "nothing was written",
            code="REGISTRATION_CHANGED",
            hint="write again; or run the transaction again, which registers what it writes to",
        )

    def _not_registered(self, name: str) -> InvalidUsage:
        return InvalidUsage(
            f"shard '{name}' is not registered with transactions shard '{self.name}'",
            code="NOT_REGISTERED",
            hint="register it first (client.transactions().register)",
        )


def _encoded(write: Write) -> bytes:
    said = Payload(
        write.runs, write.writer, write.sequence, write.attempt, write.covers, write.lease_ms
    )
    return said.encode()
