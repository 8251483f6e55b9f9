"""Runs a program's transaction: reads at one time, writes at another, all of them or none.

A program that reads some shards and writes others would otherwise leave half of its result behind
after a crash, or overwrite what another program has written meanwhile.

    with client.transaction() as t:
        open_orders = t.read("orders")
        t.append("orders", new)
        t.overwrite("totals", recomputed)

Everything is read at the *read time*: the last one that was decided when the transaction first
used a shard. Everything is written at the *commit time*. The isolation level defines which changes
by others in between refuse the commit:

    snapshot       changes of a shard that this transaction overwrites, upserts or deletes from: the
                   first committer wins. Appends never conflict with anything.
    serializable   also changes of a shard that it has read: as if transactions had run one after
                   the other, in the order of their commit times.

A commit that is refused has done nothing and raises `Determinate`, code `TRANSACTION_CONFLICT`,
which names the shard. `run_transaction` runs the whole function again.

Invariants:
    No record names a staged part before the commit. Staged parts are deleted when it is certain
    that none ever will; after an unknown outcome they stay.
    The history that is read is protected by a lease until the transaction ends.
    Reading registers no shard, and shows nothing that its own writer has not settled. Of a shard
    that is not registered, only a commit that depends on it makes sure that it has not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

import pyarrow as pa

from shardline.datasource.arguments import append_number, text_of, wrong_kind
from shardline.datasource.difference import Difference
from shardline.datasource.errors import Determinate, InvalidUsage, unknown_name
from shardline.datasource.frontier import TIME_MIN
from shardline.datasource.ids import check_owner_name, new_id
from shardline.datasource.overwrite import overwrite_difference
from shardline.datasource.parts.stage import Staged, Stager, UncommittedParts
from shardline.datasource.read import ReadHandle, current_schema, open_reader
from shardline.datasource.shard.backoff import Backoff
from shardline.datasource.shard.batch import Run
from shardline.datasource.shard.commands.append import AlreadyCommitted
from shardline.datasource.shard.commands.txns import settle_time, times_of_writer_error
from shardline.datasource.shard.plan import plan_changes
from shardline.datasource.shard.state import ShardState, is_tombstone, last_update
from shardline.datasource.transactions.client_protocol import TransactionClient
from shardline.datasource.transactions.commit_loop import Conflict, Identity, Refused
from shardline.datasource.transactions.ledger import Ledger
from shardline.datasource.transactions.protocol import Committed, Transactions, Write
from shardline.datasource.transactions.shard_view import ShardViews
from shardline.datasource.types.schema import DIFF, TS
from shardline.datasource.upsert import CARRIER_ID, LIVE, carrier_schema, upsert_difference
from shardline.datasource.write import Updates, arrow_tables

__all__ = ["Isolation", "Transaction", "run_transaction"]

Isolation = Literal["snapshot", "serializable"]

_ISOLATIONS: Final = ("snapshot", "serializable")

_RUNS_MAX: Final = 32
"""Most runs of `run_transaction` before it gives up."""

_RUN_AGAIN: Final = ("TRANSACTION_CONFLICT", "REGISTRATION_CHANGED")
"""Codes of errors after which another run may succeed; each run registers the shards it uses."""

R = TypeVar("R")


@dataclass(slots=True)
class _UsedShard:
    """One shard that a transaction uses.

    Attributes:
        shard: Its id when it was used first.
        stager: Writes parts for it.
        reader: Keeps the shard readable at the read time; None if nothing was read.
        staged: The parts to add at the commit.
        read: True if its contents were read by the program.
        replaced: True if the parts to add depend on its contents.
        registered: True if it was registered when it was looked at last.
    """

    shard: str
    stager: Stager
    reader: ReadHandle | None = None
    staged: list[Staged] = field(default_factory=list)
    read: bool = False
    replaced: bool = False
    registered: bool = False


class Transaction:
    """One transaction. Use it as a context manager: it commits at the end, or not at all.

    Attributes:
        committed_at: Time of the commit. None before it, if there was nothing to commit, or if it
            was so long ago that its writer has committed again since.
        was_committed_before: True if one with this writer and sequence had been committed: then
            this one has no effect, and rows that are passed to it are not even staged.
    """

    def __init__(
        self,
        txns: Transactions,
        shard_views: ShardViews,
        *,
        isolation: Isolation = "snapshot",
        writer: str | None = None,
        sequence: int | None = None,
        covers: str = "",
    ) -> None:
        """Begin, without I/O; the arguments are explained at `ShardClient.transaction`."""
        if text_of("isolation", isolation) not in _ISOLATIONS:
            raise unknown_name("isolation", isolation, _ISOLATIONS)
        if (writer is None) != (sequence is None):
            raise InvalidUsage(
                "a transaction has a writer and a sequence number, or neither",
                code="INVALID_IDENTITY",
                hint="give both: the name of the writer, and a number that grows",
            )
        if sequence is not None:
            sequence = append_number("sequence", sequence)
        self.committed_at: int | None = None
        self.was_committed_before = self._asked_if_done = False
        self._txns = txns
        self._shard_views = shard_views
        self._client = txns.client
        self._isolation = isolation
        self._attempt = new_id("t", self._client.ids)
        self._identity = None
        if writer is not None and sequence is not None:
            name = f"txn:{check_owner_name('writer', writer)}"
            self._identity = Identity(name, sequence, attempt=self._attempt, covers=covers)
        self._read_time: int | None = None
        self._used: dict[str, _UsedShard] = {}
        self._parts = UncommittedParts(self._client.location.blob)
        self._open = True

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or after an error roll back."""
        if not self._open:
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()

    # -- what is done in it ------------------------------------------------------------------

    def read_time(self) -> int:
        """The time at which all shards are read."""
        self._check_open()
        if self._read_time is None:
            upper = self._txns.upper() or self._txns.decide_now()
            self._read_time = upper - 1
        return self._read_time

    def read(self, name: str) -> pa.Table:
        """The contents of shard `name` at the read time, without this transaction's own writes.

        A shard that is not registered stays so. If its writer chooses the times of rows, such as
        that of a view, this waits until the writer has settled the read time.

        Raises:
            InvalidUsage: There is no such shard.
            Determinate: `TRANSACTION_CONFLICT`: its history at the read time is gone already.
                `NOT_YET_READABLE`: its writer has not settled the read time within a minute.
        """
        time = self.reads(name)
        return self._reader(name, self._used[name]).snapshot(time)

    def append(self, name: str, data: Updates) -> None:
        """Add rows to shard `name`; with a column `_diff` they are updates.

        Raises:
            InvalidUsage: The rows do not fit the shard, or have times.
        """
        if not self.done_before():
            tables = arrow_tables(data)
            used = self._shard_to_write(name)
            self.add(name, used.stager.stage(tables))

    def overwrite(self, name: str, data: Updates) -> None:
        """Make these rows the contents of shard `name`.

        They replace its contents at the read time and all that this transaction has written to it.

        Raises:
            InvalidUsage: The rows do not fit the shard, or are updates with diffs.
            Determinate: As `read`.
        """
        if not self.done_before():
            tables = arrow_tables(data)
            used = self._shard_to_write(name)
            self.replace(name, used.stager.stage(tables))

    def upsert(self, name: str, data: pa.Table) -> None:
        """Insert rows, each in place of the row with its key in the contents at the read time.

        Raises:
            InvalidUsage: The shard has no key, the rows do not fit it, are updates, or two of them
                have the same key; or this transaction has written to the shard before.
            Determinate: As `read`.
        """
        self._replace_keys(name, data, live=True)

    def delete(self, name: str, keys: pa.Table) -> None:
        """Delete the rows with these keys; `keys` has the key columns. Errors as `upsert`."""
        self._replace_keys(name, keys, live=False)

    def reads(self, name: str) -> int:
        """Note that shard `name` is read by other means, at the returned time.

        It stays readable at that time until the end of the transaction. Errors as `read`.
        """
        used = self._shard_to_read(name)
        # Before it counts as read: whoever catches an error here, and commits, has read nothing.
        reader = self._reader(name, used)
        if not used.registered:
            self._settle(name, used, reader)
        used.read = True
        return self.read_time()

    # -- what was staged elsewhere -------------------------------------------------------------

    def done_before(self) -> bool:
        """True if this very transaction was committed before; costs a request the first time.

        Raises:
            InvalidUsage: Its number was committed for another range.
        """
        self._check_open()
        if self._identity is not None and not self._asked_if_done:
            self._txns.reader.machine.refresh()
            self.was_committed_before = self._txns.committed_before(self._identity) is not None
            self._asked_if_done = True
        return self.was_committed_before

    def shard_id(self, name: str) -> str:
        """Id of the shard `name` that this transaction writes to, whoever has the name later."""
        return self._shard_to_write(name).shard

    def add(self, name: str, staged: Staged) -> None:
        """Add parts staged for shard `name`; the transaction takes charge of them."""
        self._check_open()
        # First: what is refused is deleted at the end, whatever becomes of the rest.
        self._parts.add(staged.runs)
        used = self._shard_to_write(name)
        for run in staged.runs:
            for part in run.parts:
                if part.time_bounds is not None:
                    raise InvalidUsage(
                        f"rows for shard '{name}' carry times of their own",
                        code="TIMES_IN_TRANSACTION",
                        hint="leave _ts out: a transaction takes effect at one time",
                    )
        # Last: the caller may catch the refusal, and commit what else there is.
        used.staged.append(staged)

    def replace(self, name: str, staged: Staged) -> None:
        """Make the staged rows the contents of shard `name`; their parts are deleted afterwards."""
        with UncommittedParts(self._client.location.blob, staged.runs) as replaced:
            used = self._shard_to_write(name)
            reader = self._reader(name, used)
            state = self._state_at(reader, name)
            difference = overwrite_difference(self._client.machine(name), staged)
            more = self._difference(used, state, difference)
            # Deleted here and now, and only after the difference was staged: if that fails, the
            # transaction still has its earlier writes.
            for before in used.staged:
                self._parts.hand_over(before.runs)
                replaced.add(before.runs)
        used.replaced = True
        used.staged[:] = [more]

    # -- the end -----------------------------------------------------------------------------

    def commit(self) -> int | None:
        """Commit everything; returns the commit time, as `committed_at`.

        Raises:
            Determinate: It certainly did not happen. `TRANSACTION_CONFLICT`: another writer has
                changed a shard that this transaction depends on. `REGISTRATION_CHANGED`: a shard
                was forgotten while it ran.
            Indeterminate: It may have happened: with a writer and a sequence, run it again.
        """
        self._check_open()
        try:
            return self._commit()
        finally:
            self._close()

    def rollback(self) -> None:
        """End the transaction without any effect, and delete what it has staged."""
        if self._open:
            self._close()

    def _commit(self) -> int | None:
        writes, begun = self._writes()
        if not writes and self._identity is None:
            return None
        # Without a transactions shard there is nothing that could remember the identity.
        if self._identity is not None and self._txns.reader.read() is None:
            self._txns.register()
        self._register_reads(writes)
        with self._parts.commit():
            outcome = self._txns.commit(
                writes,
                identity=self._identity,
                staged_ms=min(begun, default=None),
                judge=self._judge,
                was_registered=True,
            )
        if isinstance(outcome, Committed):
            self.committed_at = outcome.at
            return outcome.at
        # A commit whose attempt is not known any more may have been ours, with these parts.
        if not isinstance(outcome, AlreadyCommitted) or outcome.attempt not in {"", self._attempt}:
            self._parts.note_refused()
        if isinstance(outcome, AlreadyCommitted):
            self.was_committed_before = True
            if outcome.attempt and outcome.upper.time is not None:
                self.committed_at = outcome.upper.time - 1
            return self.committed_at
        assert isinstance(outcome, Refused), outcome
        assert isinstance(outcome.why, Conflict), outcome
        raise self._conflict(outcome.why.name)

    def _writes(self) -> tuple[list[Write], list[int]]:
        writes, begun = [], []
        for name, used in self._used.items():
            runs = tuple(run for staged in used.staged for run in staged.runs)
            if runs:
                writes.append(Write(name, used.shard, runs, attempt=self._attempt))
                begun += [staged.staged_ms for staged in used.staged if staged.runs]
        return writes, begun

    def _judge(self, ledger: Ledger) -> Refused | None:
        """Refuse if a shard that this transaction depends on has changed since the read time."""
        serializable = self._isolation == "serializable"
        for name, used in self._used.items():
            if not used.replaced and not (serializable and used.read):
                continue
            time = self.read_time()
            pending = ledger.pending(used.shard)
            state = self._client.machine(name).state()
            # The state is read after the ledger: what is in neither has not been committed. In the
            # other order, an append could be applied and retracted in between, and be missed.
            if (
                state.shard != used.shard
                or any(row.at > time and row.kind == "append" for row in pending)
                or state.upper.is_beyond(time + 1)
            ):
                return Refused(Conflict(name, time))
        return None

    # -- how ---------------------------------------------------------------------------------

    def _shard_to_write(self, name: str) -> _UsedShard:
        """The entry of shard `name`, which is to be written to: it is registered if it was not."""
        self._check_open()
        known = self._used.get(name)
        if known is None or not known.registered:
            # Before the read time is chosen: at that of the first use everything is decided.
            if name not in self._txns.registered():
                self._txns.register(name, takes_over=False)
            known = self._begin_using(name)
            known.registered = True
        return known

    def _shard_to_read(self, name: str) -> _UsedShard:
        """The entry of shard `name`, which stays as it is: it is to be read."""
        self._check_open()
        known = self._used.get(name)
        if known is not None:
            return known
        registered = name in self._txns.registered()
        if not registered and self._client.machine(name).state().registered is not None:
            # Whoever began to register it may have died: nobody could write to it, or settle it.
            self._txns.register(name)
            registered = True
        if not registered and self._read_time is None:
            # The last time that was decided may be hours ago. For registered shards nothing has
            # come since; this one may have gone on, and not keep so much history.
            self._read_time = self._txns.decide_now() - 1
        known = self._begin_using(name)
        known.registered = registered
        return known

    def _begin_using(self, name: str) -> _UsedShard:
        if name not in self._used:
            self.read_time()
            state = self._client.machine(name).state()
            client = self._client
            stager = Stager(
                client.location.blob,
                client.machine(name).directory,
                current_schema(state),
                state.schema_id,
                state.key,
                client.settings,
                client.clock,
                client.ids,
            )
            self._used[name] = _UsedShard(state.shard, stager)
        return self._used[name]

    def _settle(self, name: str, used: _UsedShard, reader: ReadHandle) -> None:
        """Wait until shard `name`, which is not registered, is complete up to the read time."""
        machine, time = self._client.machine(name), self.read_time()
        if reader.look().upper.is_beyond(time):
            return
        if not machine.apply(partial(settle_time, shard=used.shard, time=time)):
            reader.wait_until_settled(time)

    def _register_reads(self, writes: list[Write]) -> None:
        """Register what a serializable transaction has read, so that its commit can be judged.

        A direct append could otherwise come between the judge and the commit.

        Raises:
            InvalidUsage: The times of rows in a shard that was read are chosen by its writer.
        """
        if not writes or self._isolation != "serializable":
            return
        for name, used in self._used.items():
            if not used.read or used.registered:
                continue
            state = self._client.machine(name).state()
            if state.shard != used.shard or is_tombstone(state):
                raise self._conflict(name)
            if state.upper.is_empty:
                if (last_update(state) or 0) > self.read_time():
                    raise self._conflict(name)
                used.read = False  # it is finished: nothing can have changed, or will
                continue
            if state.times_by:
                raise times_of_writer_error(
                    state,
                    "nobody can promise that none is added before the commit, as a serializable "
                    "transaction that has read it, and writes, needs",
                    "use isolation 'snapshot' for it",
                )
            self._txns.register(name, takes_over=False)
            used.registered = True

    def _reader(self, name: str, used: _UsedShard) -> ReadHandle:
        """A reader at the read time, whose lease lasts until the end of the transaction."""
        if used.reader is None:
            try:
                used.reader = open_reader(
                    self._client.machine(name),
                    since=self.read_time(),
                    purpose="transaction",
                    look=lambda: self._shard_views.state(name),
                )
            except InvalidUsage as error:
                if error.code == "HISTORY_GONE":
                    if not used.registered:
                        # The next run would read at the same time, and find the same.
                        self._txns.decide_now()
                    raise self._conflict(name) from error
                raise
        return used.reader

    def _state_at(self, reader: ReadHandle, name: str) -> ShardState:
        """A state of the shard that is complete up to the read time."""
        state = self._shard_views.state(name)
        reader.lease.check(state)
        assert state.upper.is_beyond(self.read_time()), (name, state.upper, self._read_time)
        return state

    def _replace_keys(self, name: str, data: pa.Table, *, live: bool) -> None:
        if self.done_before():
            return
        if not isinstance(data, pa.Table):
            raise wrong_kind("data" if live else "keys", data, "give a pyarrow Table")
        for column in (TS, DIFF):
            # Not passed over: with a diff of -1 a row would be inserted that was to be taken away.
            if live and column in data.column_names:
                raise InvalidUsage(
                    f"the rows for shard '{name}' have column '{column}', and an upsert takes none "
                    "that are changes",
                    code="ENVELOPE_MISMATCH",
                    hint="leave it out, or append",
                )
        used = self._shard_to_write(name)
        if used.staged:
            raise InvalidUsage(
                f"this transaction has written to shard '{name}' before",
                code="WRITTEN_BEFORE",
                hint="put all of its new and deleted rows together, or use two transactions",
            )
        state = self._state_at(self._reader(name, used), name)
        schema, key = current_schema(state), state.key
        if not key:
            raise InvalidUsage(
                f"shard '{name}' has no key to replace rows by",
                code="KEY_NEEDED",
                hint="a key is given when a shard is made; overwrite does without",
            )
        missing = [column for column in key if column not in data.column_names]
        if missing:
            raise InvalidUsage(
                f"the rows for shard '{name}' have no column '{missing[0]}', which is of its key",
                code="MISSING_COLUMN",
                hint=f"give the columns {', '.join(key)}",
            )
        carriers = carrier_schema(schema, key)
        kept = data if live else data.select(list(key))
        for column in carriers.arrow:
            if not live and column.name not in kept.column_names and column.name != LIVE:
                kept = kept.append_column(column, pa.nulls(kept.num_rows, column.type))
        lives = pa.repeat(pa.scalar(live), kept.num_rows)
        kept = kept.append_column(pa.field(LIVE, pa.bool_()), lives)
        carrying = replace(used.stager, schema=carriers, schema_id=CARRIER_ID)
        new = carrying.stage([kept])
        with UncommittedParts(self._client.location.blob, new.runs):
            difference = upsert_difference(self._client.machine(name), carriers, new)
            used.staged.append(self._difference(used, state, difference))
        used.replaced = True

    def _difference(self, used: _UsedShard, state: ShardState, difference: Difference) -> Staged:
        """`difference` to the contents at the read time, staged with the newest schema."""
        there = plan_changes(state, TIME_MIN, self.read_time() + 1)
        stager = replace(used.stager, schema=current_schema(state), schema_id=state.schema_id)
        more = stager.stage(difference.against(state, there, whole=True))
        self._parts.add(more.runs)
        parts = tuple(part for run in more.runs for part in run.parts)
        # The updates came in order, so their parts are one run.
        return replace(more, runs=(Run(parts),) if parts else ())

    def _close(self) -> None:
        self._open = False
        # Keeps them if the commit may have happened: see `UncommittedParts`.
        self._parts.delete()
        for used in self._used.values():
            if used.reader is not None:
                used.reader.close()

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidUsage(
                "the transaction has ended",
                code="TRANSACTION_ENDED",
                hint="begin another one",
            )

    def _conflict(self, name: str) -> Determinate:
        return Determinate(
            f"shard '{name}' was changed by others since {self._read_time}, when this transaction "
            "read it; nothing was written",
            code="TRANSACTION_CONFLICT",
            hint="run the transaction again from its start (client.run_transaction does)",
        )


def run_transaction(
    client: TransactionClient, begin: Callable[[], Transaction], work: Callable[[Transaction], R]
) -> R:
    """Run `work` in transactions until one commits; returns the result of that run.

    Args:
        client: The client.
        begin: Begins a transaction.
        work: Called once for each transaction; must not have effects outside of it.

    Raises:
        Determinate: Every run met a conflict or a forgotten shard; the error of the last one.
    """
    backoff = Backoff(client.clock, client.ids, client.settings.conflict_pause_ms)
    for left in reversed(range(_RUNS_MAX)):
        began_ms = client.clock.elapsed_ms()
        try:
            with begin() as transaction:
                return work(transaction)
        except Determinate as error:
            if error.code not in _RUN_AGAIN or not left:
                raise
        backoff.lost(client.clock.elapsed_ms() - began_ms)
    raise AssertionError("the last run returns or raises")
