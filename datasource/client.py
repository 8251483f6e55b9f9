"""A client opens the shards of one location, and handles that read, write and hold them.

    client = ShardClient.open("s3://lake/shards")
    client.create("orders", schema, key=("id",))
    client.writer("orders").append_now(table)
    with client.reader("orders") as reader:
        table = reader.snapshot()

It is where a program without Spark begins (persist: `PersistClient`). A client is cheap to keep and
safe to share between threads. All users of one client share one machine per shard, so that commits
of all threads are made together (`shared_client` keeps one client per process and location). A
client is never carried across a fork: the child opens its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from shardline.datasource.arguments import (
    Pathname,
    moment,
    names_of,
    text_of,
    whole_number,
    wrong_kind,
)
from shardline.datasource.clock import Clock, IdGenerator, SystemClock, SystemIds
from shardline.datasource.drop_shard import drop_shard
from shardline.datasource.errors import Fenced, InvalidUsage
from shardline.datasource.ids import check_owner_name, new_id, process_name
from shardline.datasource.inspect.usage import ShardUsage, shard_usage
from shardline.datasource.maintenance.compact import compact
from shardline.datasource.maintenance.garbage_collection import collect_garbage
from shardline.datasource.maintenance.orphan_sweep import SweepResult, sweep
from shardline.datasource.maintenance.retention import set_retention
from shardline.datasource.read import ReadHandle, current_schema, history_gone_error, open_reader
from shardline.datasource.settings import LONGEST_MS, ShardSettings, checked_settings
from shardline.datasource.shard.codec import CODE_VERSION
from shardline.datasource.shard.commands.evolve import (
    Evolved,
    SchemaMismatch,
    SchemaRefused,
    evolve_schema,
)
from shardline.datasource.shard.commands.lifecycle import (
    FirstTime,
    initial_state,
    reinitialise,
)
from shardline.datasource.shard.commands.readers import SinceExceeded
from shardline.datasource.shard.commands.retention import checked_retention
from shardline.datasource.shard.commands.txns import note_times_by
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState, is_tombstone
from shardline.datasource.since_hold import SinceHandle, open_since_hold
from shardline.datasource.stores.location import Location
from shardline.datasource.stores.open import open_location
from shardline.datasource.stores.shard_names import shard_name
from shardline.datasource.transactions.protocol import Transactions
from shardline.datasource.transactions.redirected_append import commit_append
from shardline.datasource.transactions.rows import TRANSACTIONS
from shardline.datasource.transactions.shard_view import ShardViews
from shardline.datasource.transactions.transaction import Isolation, Transaction, run_transaction
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import Field, type_text
from shardline.datasource.write import Redirect, WriteHandle

__all__ = ["ShardClient", "process_name"]

R = TypeVar("R")


class ShardClient:
    """Opens handles on the shards of one location.

    Attributes:
        location: The opened location.
        settings: The settings of all handles.
        shard_views: Reads the states that readers see, of shards that are registered with a
            transactions shard and of others.
    """

    def __init__(
        self, location: Location, settings: ShardSettings, clock: Clock, ids: IdGenerator
    ) -> None:
        """Make a client of an opened `location`; most callers use `open`."""
        self.location = location
        self.settings = settings
        self.clock = clock
        self.ids = ids
        self.shard_views = ShardViews(self)
        self._machines: dict[str, Machine] = {}
        self._transactions: dict[str, Transactions] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls,
        url: Pathname,
        options: Mapping[str, str] | None = None,
        *,
        create: bool = True,
        settings: ShardSettings | None = None,
        clock: Clock | None = None,
        ids: IdGenerator | None = None,
    ) -> ShardClient:
        """A client of the location at `url`.

        Args:
            url: `file:///path`, a plain path, `s3://bucket/prefix`, `memory://name`, or any URL of
                an fsspec file system that can create a file only if it does not exist.
            options: Storage options such as `s3.endpoint`.
            create: True to make the location if it is missing, after a probe that its store can
                create an object only if it does not exist; False makes a missing one an error.
            settings: None for the defaults.
            clock: None for the system's.
            ids: None for the system's.

        Raises:
            InvalidUsage: The URL, an option or the store cannot be used.
        """
        settings = checked_settings(settings)
        clock, ids = clock or SystemClock(), ids or SystemIds()
        location = open_location(
            text_of("url", url),
            options or {},
            clock=clock,
            ids=ids,
            if_missing="create" if create else "refuse",
        )
        return cls(location, settings, clock, ids)

    def shards(self) -> list[str]:
        """Names of all shards, sorted, with those that were dropped and left a tombstone."""
        return sorted(map(shard_name, self.location.consensus.list_shards()))

    def machine(self, name: str) -> Machine:
        """The one machine of shard `name` in this client. Does no I/O."""
        with self._lock:
            if name not in self._machines:
                self._machines[name] = Machine(
                    name, self.location, self.clock, self.ids, self.settings
                )
            return self._machines[name]

    def exists(self, name: str) -> bool:
        """True if there is a shard `name` that was not dropped."""
        state = self.machine(name).refresh()
        return state is not None and not is_tombstone(state)

    def state(self, name: str) -> ShardState:
        """The state of shard `name`, no older than this call.

        Raises:
            InvalidUsage: There is no such shard, or it was dropped.
        """
        with self._forgetting_missing([name]):
            return _check_not_dropped(self.machine(name).state())

    def look(self, name: str) -> ShardState | None:
        """The state of shard `name`, no older than this call; None if there never was one.

        By one look at the store: of its leader, if it follows one, what was seen before counts.
        """
        return self.shard_views.look(name)

    def readable(self, *names: str, pool: Executor | None = None) -> list[ShardState]:
        """The states of shards as readers plan from them, none older than this call.

        The upper of a registered shard moves with its transactions shard, a follower's with its
        leader.

        Raises:
            InvalidUsage: There is no such shard, or it was dropped.
        """
        with self._forgetting_missing(names):
            return [_check_not_dropped(state) for state in self.shard_views.states(names, pool)]

    def create(
        self,
        name: str,
        schema: ShardSchema,
        *,
        key: Sequence[str] = (),
        comment: str = "",
        retain_ms: int | None = None,
        first_time: FirstTime = "least",
        times_by: str = "",
    ) -> ShardState:
        """Make shard `name` if it is missing or was dropped; idempotent.

        Args:
            name: The shard's name.
            schema: Its columns.
            key: Columns that order parts, bound them, and identify rows for upserts.
            comment: Free text kept with a shard that this call makes.
            retain_ms: Its retention, see `set_retention`; an existing shard keeps its own.
            first_time: Its since, if this call makes it. "former-upper" is for a writer whose times
                are those of a clock: one that begins at 0 again would not be readable for long.
            times_by: Who will choose the times of its rows, see `note_times_by`; an existing shard
                is given it, too. Empty if rows take effect when they are committed, or if that is
                not known.

        Raises:
            InvalidUsage: The shard exists with another schema or another key; a key column is not
                in the schema; or its place is that of a location.
        """
        if not isinstance(schema, ShardSchema):
            raise wrong_kind("schema", schema, "give ShardSchema.from_arrow(…) of an Arrow schema")
        key = names_of("key", key)
        schema.check_key(key)
        machine = self.machine(name)
        fresh = initial_state(
            shard=new_id("s", self.ids),
            name=name,
            schema=schema,
            key=key,
            comment=comment,
            version=CODE_VERSION,
            now_ms=self.clock.now_ms(),
            retain_ms=checked_retention(name, retain_ms),
            times_by=times_by,
        )
        state = machine.initialise(fresh)
        if is_tombstone(state):
            machine.apply(partial(reinitialise, fresh=fresh, first_time=first_time))
            state = machine.state()
        # Always: another process may have made it at the same time, with another schema.
        self._check_same(state, schema, key)
        if times_by and not state.times_by:
            self.note_times_by(name, times_by)
            state = self.state(name)
        return state

    def note_times_by(self, name: str, by: str) -> None:
        """Note that the times of rows in shard `name` are chosen by their writer, `by`; idempotent.

        Transactions then write to it only once it was registered by hand. The first rows whose
        writer has chosen their times say the same by themselves.

        Args:
            name: The shard's name.
            by: The writer, in a few words for people.
        """
        self.machine(name).apply(partial(note_times_by, by=by))

    def writer(self, name: str, writer: str | None = None) -> WriteHandle:
        """A handle that appends rows of the shard's current schema.

        Args:
            name: The shard's name.
            writer: Name of a durable writer. The shard remembers it for ever, so that an append
                that is repeated after a crash changes nothing. None for an anonymous writer.
        """
        state = self.state(name)
        durable = writer is not None
        name_of = check_owner_name("writer", writer or "") if durable else new_id("w", self.ids)
        known = state.writers.get(name_of)
        return WriteHandle(
            machine=self.machine(name),
            shard=state.shard,
            schema=current_schema(state),
            schema_id=state.schema_id,
            key=state.key,
            writer=name_of,
            durable=durable,
            sequence=known.last if known else 0,
        )

    def reader(
        self, name: str, *, since: int | None = None, lease_ms: int | None = None, purpose: str = ""
    ) -> ReadHandle:
        """A leased reader of the shard, to be closed by the caller.

        Args:
            name: The shard's name.
            since: Least `as_of` to be read; None for the shard's since.
            lease_ms: How long the lease lasts without a heartbeat; None for the settings'.
            purpose: Who reads and what for; shown by `inspect`.

        Raises:
            InvalidUsage: There is no such shard, its history is gone, or an argument is wrong.
        """
        self.state(name)
        since = None if since is None else moment("since", since)
        if lease_ms is not None:
            # Before there is a lease: one that cannot be renewed would be left behind.
            lease_ms = whole_number("lease_ms", lease_ms, least=1, most=LONGEST_MS)
        return open_reader(
            self.machine(name),
            since=since,
            lease_ms=lease_ms,
            purpose=purpose or process_name(),
            look=partial(self.shard_views.state, name),
        )

    def hold(
        self, name: str, hold: str, *, since: int | None = None, purpose: str = ""
    ) -> SinceHandle:
        """Create the since hold `hold` on shard `name`, or take it over, fencing its owner.

        Args:
            name: The shard's name.
            hold: The hold's name, chosen and remembered by the caller.
            since: Least `as_of` that a new hold keeps; None for the shard's since. An existing hold
                stays where it is.
            purpose: Who holds it and what for; shown by `inspect`.

        Raises:
            InvalidUsage: The hold is new and history at `since` is gone.
        """
        self.state(name)
        since = None if since is None else moment("since", since)
        handle = open_since_hold(
            self.machine(name),
            hold,
            epoch=self.ids.token().hex(),
            since=since,
            purpose=purpose or process_name(),
        )
        if isinstance(handle, SinceExceeded):
            raise history_gone_error(self.state(name), since, handle.since)
        return handle

    def transactions(self, name: str = TRANSACTIONS) -> Transactions:
        """The transactions shard of this location: register, forget, advance. Does no I/O."""
        found = self._transactions.get(name)
        return found or self._transactions.setdefault(
            name, Transactions(self, self.shard_views, name)
        )

    def transaction(
        self,
        *,
        isolation: Isolation = "snapshot",
        writer: str | None = None,
        sequence: int | None = None,
        covers: str = "",
    ) -> Transaction:
        """A transaction over any shards of the location, which it registers at their first use.

        Args:
            isolation: "snapshot" refuses to commit if others have changed a shard that is
                overwritten, upserted or deleted from; "serializable" also one that was read.
            writer: Name of a durable writer; needs `sequence`. The transaction then happens once,
                however often it is tried.
            sequence: Number of this transaction among those of `writer`, from 0 on; grows.
            covers: The range of its source that is done under that number
                (`shardline.datasource.shard.covered_range`), if known: the same number for another
                range is refused then.

        Raises:
            InvalidUsage: The arguments contradict each other.
        """
        txns = self.transactions()
        return Transaction(
            txns,
            self.shard_views,
            isolation=isolation,
            writer=writer,
            sequence=sequence,
            covers=covers,
        )

    def run_transaction(
        self, work: Callable[[Transaction], R], *, isolation: Isolation = "serializable"
    ) -> R:
        """Run `work` in a transaction, anew after each conflict; return its result.

        Args:
            work: Reads and writes through the transaction that it is called with; may be called
                several times.
            isolation: As for `transaction`.

        Raises:
            Determinate: It met a conflict many times in a row.
        """
        return run_transaction(self, partial(self.transaction, isolation=isolation), work)

    def redirect(self, name: str) -> Redirect:
        """The function that appends to shard `name` while it is registered; for frame writers."""
        return lambda request, mark: commit_append(self.transactions(mark.txns), name, request)

    def evolve(self, name: str, schema: ShardSchema) -> int:
        """Make `schema` the current one of shard `name`; return its id.

        Raises:
            InvalidUsage: Rows that are stored cannot be read with it; names the column.
            Fenced: The schema was changed by another process at the same time.
        """
        if not isinstance(schema, ShardSchema):
            raise wrong_kind("schema", schema, "give ShardSchema.from_arrow(…) of an Arrow schema")
        state = self.state(name)
        outcome = self.machine(name).apply(
            partial(evolve_schema, expected=state.schema_id, schema=schema)
        )
        match outcome:
            case Evolved(schema_id):
                return schema_id
            case SchemaRefused(obstacle):
                raise obstacle.error()
            case SchemaMismatch(current):
                raise Fenced(
                    f"the schema of shard '{name}' was evolved to number {current} meanwhile",
                    code="SCHEMA_CHANGED",
                    hint="look at the new schema and evolve that",
                )

    def drop(
        self,
        name: str,
        *,
        shard: str | None = None,
        despite_holders: Sequence[str] = (),
        seen: ShardState | None = None,
    ) -> None:
        """Finalise shard `name` for good and delete its blobs; harmless if it was dropped.

        Args:
            name: The shard's name.
            shard: The shard's id, for a drop that is repeated, or that was decided on an earlier
                state: another shard that has the name now was made since, and stays. None for the
                shard that has the name at this call.
            despite_holders: Readers and holds to cut off, by id or name; `inspect` lists them.
            seen: The state by which the drop was decided: if anything has changed since, nothing
                is dropped. None for whatever is there. Not for a transactions shard.

        Raises:
            InvalidUsage: There is no such shard, or it is still read, held or registered.
            Determinate: `SHARD_CHANGED`: it is not in the state `seen` any more.
            Indeterminate: It may have been dropped: call it again, with the id that the hint names.
        """
        drop_shard(
            self.machine(name),
            shard=shard,
            despite=frozenset(despite_holders),
            seen=seen,
            drop_register=lambda *which: self.transactions(name).drop(*which),
        )

    def set_retention(self, name: str, retain_ms: int | None) -> bool:
        """Keep shard `name` readable `retain_ms` far back; False if that is its policy already.

        Times from `upper - 1 - retain_ms` on stay readable, with or without readers, and
        maintenance moves the since along behind them, as far as no reader or hold wants more.
        History that was merged away does not come back.

        Args:
            name: The shard's name.
            retain_ms: Milliseconds; in the unit of the writers' own clock, if they use another one.
                None leaves the since to readers: without any it stays.

        Raises:
            InvalidUsage: There is no such shard, it was dropped, or the number is negative.
        """
        self.state(name)
        return set_retention(self.machine(name), retain_ms)

    def compact(self, name: str, *, force: bool = False, most_bytes: int | None = None) -> int:
        """Merge batches of shard `name`, invisibly to readers; return the number of merges applied.

        Args:
            name: The shard's name.
            force: True merges all batches into one, whatever it costs. By default neighbours of
                like size are merged, so that each update is written again O(log n) times in its
                life; and history whose updates mostly cancel.
            most_bytes: The most that may be read; merges that exceed it stay due. None for any
                amount.

        Raises:
            MissingBlob: A part is missing in the store.
            Corrupt: A part is not what was written.
            Determinate: The store did not answer; or `MERGED_ELSEWHERE`, other processes have
                replaced the batches of each merge, and some may be due still.
            Indeterminate: A merge may have been applied; the contents are the same either way.
        """
        self.state(name)
        return compact(self.machine(name), force=force, most_bytes=most_bytes)

    def collect_garbage(self, name: str) -> int:
        """Delete blobs of shard `name` that no reader can need any more; return their number.

        Also of a shard that was dropped. Blobs that readers and pinned holds need are kept.

        Raises:
            InvalidUsage: There is no such shard.
            Determinate: The store did not answer: run it again.
            Indeterminate: The same.
        """
        return collect_garbage(self.machine(name))

    def sweep(self, name: str, *, dry_run: bool = False) -> SweepResult:
        """Delete orphans of shard `name`: unreferenced blobs that cannot be committed any more.

        Also of a shard that was dropped. Only blobs that are more than 25 hours old. Unlike
        maintenance, this also lets a shard be written again to which a clock that was ahead has
        kept everybody from writing (`STAGED_TOO_LONG`): be sure that this machine's clock is right.

        Args:
            name: The shard's name.
            dry_run: True only reports what would be deleted.

        Raises:
            InvalidUsage: There is no such shard.
            Determinate: The store did not answer: run it again.
            Indeterminate: The same.
        """
        takes_back = not dry_run and self.has_future_barrier(name)
        needed = partial(self.shard_views.pending_parts, name, takes_back=takes_back)
        return sweep(self.machine(name), needed=needed, dry_run=dry_run, takes_back=takes_back)

    def has_future_barrier(self, name: str) -> bool:
        """True if the barrier of a sweep, in the shard or its transactions shard, is in the future.

        No part can come in before that time (`STAGED_TOO_LONG`). A clock was ahead when it was
        recorded, or this process's is behind. A shard that was dropped takes no part anyway: its
        barrier does not count, and no sweep takes it back.

        Raises:
            InvalidUsage: There is no such shard.
        """
        state = self.machine(name).state()
        states = [state]
        if state.registered is not None:
            # None if its log is gone, which no sweep brings back.
            states += filter(None, [self.machine(state.registered.txns).refresh()])
        now_ms = self.clock.now_ms()
        return any(one.swept_before_ms > now_ms and not is_tombstone(one) for one in states)

    def usage(self, name: str) -> ShardUsage:
        """The bytes of shard `name`, by the reason that they are kept for.

        Raises:
            InvalidUsage: There is no such shard.
        """
        return shard_usage(self.machine(name))

    @contextmanager
    def _forgetting_missing(self, names: Sequence[str]) -> Iterator[None]:
        """Keep no machine for a name without a shard: of wrong names there is no end."""
        try:
            yield
        except InvalidUsage as error:
            with self._lock:
                for name in names if error.code == "SHARD_NOT_FOUND" else ():
                    # One that has seen its shard stays: it refuses writes to an older copy of it.
                    if name in self._machines and self._machines[name].cached is None:
                        del self._machines[name]
            raise

    def _check_same(self, state: ShardState, schema: ShardSchema, key: tuple[str, ...]) -> None:
        if state.key != key:
            raise InvalidUsage(
                f"shard '{state.name}' has the key {_listed(state.key)}, not {_listed(key)}",
                code="KEY_MISMATCH",
                hint="leave the key out, or write to another shard",
            )
        theirs = current_schema(state)
        if theirs == schema:
            return
        for name in (*theirs.names, *schema.names):
            mine = schema.field(name) if name in schema else None
            other = theirs.field(name) if name in theirs else None
            if mine != other:
                raise InvalidUsage(
                    f"shard '{state.name}' has another schema: column '{name}' is "
                    f"{_described(other)}, not {_described(mine)}",
                    code="SCHEMA_MISMATCH",
                    hint="evolve the schema, or write to another shard",
                )
        raise InvalidUsage(
            f"shard '{state.name}' has another schema: its columns are {_listed(theirs.names)}",
            code="SCHEMA_MISMATCH",
            hint="name them in this order",
        )


def _check_not_dropped(state: ShardState) -> ShardState:
    if is_tombstone(state):
        raise InvalidUsage(
            f"shard '{state.name}' was dropped",
            code="SHARD_DROPPED",
            hint="make it again by writing to it",
        )
    return state


def _listed(names: Sequence[str]) -> str:
    return "(" + ", ".join(names) + ")"


def _described(field: Field | None) -> str:
    if field is None:
        return "absent"
    return type_text(field.type) + ("" if field.nullable else " not null")
