"""Any interleaving of commands by two processes, against a plain list of updates.

Two clients share a store and nothing else; each may be restarted, and each may lose
acknowledgements. Either merges batches and collects garbage whenever it likes. After every step,
since and upper have not gone back, no reader has been cut off, and every state that somebody holds
can be rebuilt, with all of its parts; at any moment, a snapshot at any time and the changes after
it are what the list adds up to.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, Fenced, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.overwrite import overwrite
from shardline.datasource.read import ReadHandle
from shardline.datasource.shard.commands.append import AlreadyCommitted, UpperMismatch
from shardline.datasource.shard.commands.readers import Registered, SeqnoGone, pin_critical
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard.state_history import state_at
from shardline.datasource.since_hold import SinceHandle
from shardline.datasource.stores.faulty import Fault, Faulty
from support.models.shards import TINY, World, dangling, schema_of
from support.profiles import wide_examples

SHARD = "orders"
WIDTH_MAX = 4
LEASE_MS = 1_000_000
BASE_MS = 1000

Row = tuple[Any, ...]

CLIENTS = st.sampled_from(["a", "b"])
ROWS = st.tuples(st.integers(0, 3) | st.none(), st.sampled_from(["", "x", "y", None]))
NEW_ROWS = st.lists(ROWS, max_size=6)
LENGTHS = st.integers(0, 6)


@dataclass
class Model:
    """What a shard is: its updates, as a list."""

    updates: list[tuple[Row, int, int]] = field(default_factory=list)
    upper: int = 0
    since: int = 0
    width: int = 2
    sequence: int = 0

    def padded(self, row: Row) -> Row:
        return (*row, *[None] * (self.width - len(row)))

    def contents(self, as_of: int) -> Counter[Row]:
        total: Counter[Row] = Counter()
        for row, time, diff in self.updates:
            if time <= as_of:
                total[self.padded(row)] += diff
        return +total

    def changes(self, after: int, until: int) -> dict[tuple[Row, int], int]:
        total: Counter[tuple[Row, int]] = Counter()
        for row, time, diff in self.updates:
            if after < time < until:
                total[self.padded(row), time] += diff
        return {key: diff for key, diff in total.items() if diff}


def columns_of(width: int) -> pa.Schema:
    schema = schema_of().arrow
    for number in range(width - 2):
        schema = schema.append(pa.field(f"c{number}", pa.int32()))
    return schema


def to_table(width: int, rows: list[Row], times: list[int] | None, diffs: list[int]) -> pa.Table:
    schema = columns_of(width)
    padded = [(*row, *[None] * (width - len(row))) for row in rows]
    arrays = [pa.array([row[i] for row in padded], schema.field(i).type) for i in range(width)]
    made = pa.Table.from_arrays(arrays, schema=schema)
    if times is not None:
        made = made.append_column("_ts", pa.array(times, pa.int64()))
    return made.append_column("_diff", pa.array(diffs, pa.int64()))


class Shards(RuleBasedStateMachine):
    """Two clients and the model of their shard."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.clients: dict[str, ShardClient] = {}
        self.stores: dict[str, Faulty] = {}
        self.readers: dict[str, tuple[ReadHandle, int]] = {}
        self.holds: dict[str, SinceHandle] = {}
        self.owners: list[SinceHandle] = []
        self.pins: dict[str, ShardState] = {}
        self.named: set[str] = set()
        self.model = Model()
        self.alive = False

    @override
    def teardown(self) -> None:
        for reader, _ in self.readers.values():
            reader.close()
        self.world.close()

    def client(self, name: str) -> ShardClient:
        if name not in self.clients:
            store = Faulty(self.world.objects(), clock=self.world.clock, ids=self.world.ids)
            tiny = dataclasses.replace(TINY, compact_factor=2)
            if name == "b":
                tiny = dataclasses.replace(
                    tiny, inline_part_bytes=0, part_buffer_bytes=64, compact_memory_bytes=1
                )
            self.stores[name] = store
            self.clients[name] = self.world.client(tiny, store)
        return self.clients[name]

    # -- the shard --------------------------------------------------------------------------------

    @initialize()
    def start(self) -> None:
        self.create("a")

    @precondition(lambda self: not self.alive)
    @rule(name=CLIENTS)
    def create(self, name: str) -> None:
        self.client(name).create(SHARD, schema_of(), key=["id"])
        self.model, self.alive = Model(), True

    @precondition(lambda self: self.alive)
    @rule(name=CLIENTS)
    def create_again(self, name: str) -> None:
        if self.model.width == 2:
            self.client(name).create(SHARD, schema_of(), key=["id"])
        else:
            with pytest.raises(InvalidUsage, match="SCHEMA_MISMATCH"):
                self.client(name).create(SHARD, schema_of(), key=["id"])

    @precondition(lambda self: self.alive and len(self.model.updates) > 12)
    @rule(name=CLIENTS)
    def drop(self, name: str) -> None:
        holders = [reader.lease.reader for reader, _ in self.readers.values()]
        self.client(name).drop(SHARD, despite_holders=[*holders, *self.holds])
        self.alive = False
        for reader, _ in self.readers.values():
            with pytest.raises(InvalidUsage, match="SHARD_DROPPED"):
                reader.snapshot(timeout_ms=1)
            reader.close()
        self.readers, self.holds, self.owners, self.pins = {}, {}, [], {}

    @rule(name=CLIENTS)
    def restart(self, name: str) -> None:
        self.clients.pop(name, None)

    @rule(
        name=CLIENTS,
        fault=st.sampled_from(
            [Fault.BEFORE, Fault.AFTER, Fault.LATE, Fault.SELF_RETRY, Fault.PHANTOM]
        ),
    )
    def lose(self, name: str, fault: Fault) -> None:
        self.client(name)
        self.stores[name].fail("create", fault)

    @rule(name=CLIENTS)
    def deliver(self, name: str) -> None:
        self.client(name)
        self.stores[name].deliver()

    @precondition(lambda self: self.alive and self.model.width < WIDTH_MAX)
    @rule(name=CLIENTS)
    def evolve(self, name: str) -> None:
        self.client(name).evolve(SHARD, schema_of(columns_of(self.model.width + 1)))
        self.model.width += 1

    # -- writing ----------------------------------------------------------------------------------

    def draw_updates(
        self, data: st.DataObject, lower: int, upper: int
    ) -> tuple[list[Row], list[int], list[int]]:
        """Rows added and rows taken away, never more of one than are there."""
        rows: list[Row] = list(data.draw(NEW_ROWS)) if lower < upper else []
        diffs = data.draw(st.lists(st.integers(1, 2), min_size=len(rows), max_size=len(rows)))
        times = data.draw(
            st.lists(
                st.integers(lower, max(lower, upper - 1)), min_size=len(rows), max_size=len(rows)
            )
        )
        there = sorted(self.model.contents(self.model.upper), key=repr)
        if there and lower < upper:
            gone = data.draw(st.lists(st.sampled_from(there), max_size=3, unique=True))
            rows, diffs = [*rows, *gone], [*diffs, *[-1] * len(gone)]
            times += [lower] * len(gone)
        return rows, times, diffs

    def note(self, rows: list[Row], times: list[int], diffs: list[int], upper: int) -> None:
        self.model.updates += zip(map(self.model.padded, rows), times, diffs, strict=True)
        self.model.upper = upper

    @precondition(lambda self: self.alive)
    @rule(name=CLIENTS, length=LENGTHS, data=st.data(), durable=st.booleans())
    def compare_and_append(
        self, name: str, length: int, data: st.DataObject, durable: bool
    ) -> None:
        lower, upper = self.model.upper, self.model.upper + length
        rows, times, diffs = self.draw_updates(data, lower, upper)
        writer = self.client(name).writer(SHARD, "etl" if durable else None)
        table = to_table(self.model.width, rows, times, diffs) if rows else None
        self.model.sequence += durable
        done = writer.compare_and_append(
            table,
            Frontier(lower),
            Frontier(upper),
            sequence=self.model.sequence if durable else None,
        )
        assert not isinstance(done, UpperMismatch), done
        self.note(rows, times, diffs, upper)

    @precondition(lambda self: self.alive and self.model.sequence)
    @rule(name=CLIENTS, rows=NEW_ROWS)
    def repeat(self, name: str, rows: list[Row]) -> None:
        writer = self.client(name).writer(SHARD, "etl")
        table = to_table(self.model.width, rows, None, [1] * len(rows))
        done = writer.append_now(table, sequence=self.model.sequence)
        assert isinstance(done, AlreadyCommitted)

    @precondition(lambda self: self.alive)
    @rule(name=CLIENTS, off=st.integers(-3, 3).filter(bool), rows=NEW_ROWS)
    def mismatch(self, name: str, off: int, rows: list[Row]) -> None:
        lower = self.model.upper + off
        assume(lower >= 0)
        table = to_table(self.model.width, rows, [lower] * len(rows), [1] * len(rows))
        writer = self.client(name).writer(SHARD)
        done = writer.compare_and_append(table, Frontier(lower), Frontier(lower + 5))
        assert done == UpperMismatch(Frontier(lower), Frontier(self.model.upper))

    @precondition(lambda self: self.alive)
    @rule(name=CLIENTS, rows=NEW_ROWS)
    def append_now(self, name: str, rows: list[Row]) -> None:
        before = self.world.clock.now_ms()
        done = (
            self.client(name)
            .writer(SHARD)
            .append_now(to_table(self.model.width, rows, None, [1] * len(rows)))
        )
        upper = done.upper.time or 0
        assert upper > max(before, self.model.upper - 1)
        self.note(rows, [upper - 1] * len(rows), [1] * len(rows), upper)

    @precondition(lambda self: self.alive)
    @rule(name=CLIENTS, back=st.integers(-2, 8), length=LENGTHS, data=st.data())
    def append(self, name: str, back: int, length: int, data: st.DataObject) -> None:
        """A second writer of what is there, which goes on where the first one stopped."""
        lower, upper = max(0, self.model.upper - back), self.model.upper + length
        rows, times, diffs = self.draw_updates(data, max(lower, self.model.upper), upper)
        # What is there already may differ in this writer: it is not looked at.
        if lower < self.model.upper:
            mine = [*rows, (0, "known")], [*times, lower], [*diffs, 1]
        else:
            mine = rows, times, diffs
        table = to_table(self.model.width, *mine)
        assume(table.num_rows)
        done = self.client(name).writer(SHARD).append(table, Frontier(lower), Frontier(upper))
        if lower > self.model.upper:
            assert done == UpperMismatch(Frontier(lower), Frontier(self.model.upper))
        elif upper <= self.model.upper:
            assert isinstance(done, AlreadyCommitted)
        else:
            assert not isinstance(done, UpperMismatch)
            self.note(rows, times, diffs, upper)

    @precondition(lambda self: self.alive)
    @rule(name=CLIENTS, rows=NEW_ROWS)
    def overwrite(self, name: str, rows: list[Row]) -> None:
        writer = self.client(name).writer(SHARD, "etl")
        wanted = to_table(self.model.width, rows, None, [1] * len(rows)).drop_columns("_diff")
        self.model.sequence += 1
        staged = writer.stager().stage([wanted])
        done = overwrite(writer, staged, sequence=self.model.sequence, attempt="t")
        upper = done.upper.time or 0
        difference = Counter(map(self.model.padded, rows))
        difference.subtract(self.model.contents(self.model.upper))
        changed = {row: diff for row, diff in difference.items() if diff}
        self.note(list(changed), [upper - 1] * len(changed), list(changed.values()), upper)

    # -- reading ----------------------------------------------------------------------------------

    @precondition(lambda self: self.alive)
    @rule(name=CLIENTS, as_of=st.integers(-1, 40), data=st.data())
    def snapshot(self, name: str, as_of: int, data: st.DataObject) -> None:
        since, upper = self.model.since, self.model.upper
        if upper > 50:
            as_of = data.draw(st.integers(since - 1, max(since, upper)))
        with self.client(name).reader(SHARD) as reader:
            if as_of < since:
                with pytest.raises(InvalidUsage, match="HISTORY_GONE"):
                    reader.snapshot(as_of, timeout_ms=1)
            elif as_of >= upper:
                with pytest.raises(Determinate, match="NOT_YET_READABLE"):
                    reader.snapshot(as_of, timeout_ms=1)
            else:
                assert counted(reader.snapshot(as_of, timeout_ms=1)) == self.model.contents(as_of)

    @precondition(lambda self: self.alive and self.readers)
    @rule(data=st.data())
    def listen(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.readers)))
        reader, since = self.readers[name]
        upper = self.model.upper
        assume(since < upper)
        as_of = data.draw(st.integers(since, upper - 1))
        found: Counter[tuple[Row, int]] = Counter()
        frontier = as_of + 1
        for step in reader.listen(as_of, until=Frontier(upper), timeout_ms=1):
            assert step.lower == frontier
            frontier = step.upper.time or 0
            for *row, time, diff in rows_of(step.updates):
                assert step.lower <= time < frontier
                found[tuple(row), time] += diff
        assert frontier == upper or as_of + 1 >= upper
        changes = {key: diff for key, diff in found.items() if diff}
        assert changes == self.model.changes(as_of, upper)
        if as_of + 1 < upper:
            self.readers[name] = reader, max(since, upper - 1)

    @precondition(lambda self: self.alive and len(self.readers) < 3)
    @rule(name=CLIENTS, reader=st.sampled_from("pqr"))
    def open(self, name: str, reader: str) -> None:
        assume(reader not in self.readers)
        opened = self.client(name).reader(SHARD, lease_ms=LEASE_MS)
        assert opened.lease.since == Frontier(self.model.since)
        self.readers[reader] = opened, self.model.since

    @precondition(lambda self: self.alive and self.readers)
    @rule(data=st.data(), step=st.integers(0, 6))
    def downgrade(self, data: st.DataObject, step: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.readers)))
        reader, since = self.readers[name]
        target = min(since + step, max(since, self.model.upper - 1))
        reader.lease.downgrade(Frontier(target), reader.lease.seqno)
        self.readers[name] = reader, target

    @precondition(lambda self: self.alive and self.readers)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.readers.pop(data.draw(st.sampled_from(sorted(self.readers))))[0].close()

    @rule()
    def forget_readers(self) -> None:
        """All leases run out: their readers are told, whatever they do next."""
        self.world.clock.advance(LEASE_MS + 1)
        if self.alive:
            self.append_now("a", [])
        for reader, _ in self.readers.values():
            reader.close()
        self.readers = {}

    @precondition(lambda self: self.alive)
    @rule(name=CLIENTS, hold=st.sampled_from("hk"))
    def take_hold(self, name: str, hold: str) -> None:
        if hold in self.holds:
            self.owners.append(self.holds[hold])
        self.holds[hold] = self.client(name).hold(SHARD, hold)

    @precondition(lambda self: self.alive and self.holds)
    @rule(data=st.data(), step=st.integers(1, 6))
    def downgrade_hold(self, data: st.DataObject, step: int) -> None:
        hold = self.holds[data.draw(st.sampled_from(sorted(self.holds)))]
        target = min((hold.since.time or 0) + step, max(self.model.upper - 1, 0))
        assert hold.downgrade(Frontier(target)) >= Frontier(target)
        if self.owners:
            with pytest.raises(Fenced):
                self.owners.pop().downgrade(Frontier(10**15))

    # -- maintenance ------------------------------------------------------------------------------

    @precondition(lambda self: self.alive)
    @rule(name=CLIENTS, force=st.booleans())
    def compact(self, name: str, force: bool) -> None:
        self.client(name).compact(SHARD, force=force)
        batches = self.world.client().state(SHARD).trace.batches
        assert not force or sum(not batch.is_empty for batch in batches) <= 1
        assert self.client(name).compact(SHARD, force=force) == 0

    @rule(name=CLIENTS)
    def collect_garbage(self, name: str) -> None:
        self.client(name).collect_garbage(SHARD)
        state = self.world.client().machine(SHARD).state()
        if not self.readers and not self.pins:
            # Parts that were staged and not appended are not garbage yet: nobody can tell.
            stored = {entry.key for entry in self.world.objects().entries(f"{SHARD}/part/")}
            assert stored & self.named == blobs_of(state)

    @rule(hours=st.integers(0, 2))
    def wait(self, hours: int) -> None:
        """Long enough for the log to be truncated, with heartbeats in between."""
        self.world.clock.advance(hours * LEASE_MS // 4)
        for reader, _ in self.readers.values():
            reader.lease.renew()

    @precondition(lambda self: self.alive and self.holds)
    @rule(data=st.data(), back=st.integers(0, 6))
    def pin(self, data: st.DataObject, back: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.holds)))
        machine = self.client("a").machine(SHARD)
        newest = machine.state()
        seqno = max(newest.seqno - back, 1)
        outcome = machine.apply(
            partial(pin_critical, reader=name, epoch=self.holds[name].epoch, seqno=seqno)
        )
        if isinstance(outcome, SeqnoGone):
            assert seqno < newest.gc_seqno
        else:
            assert isinstance(outcome, Registered)
            self.pins[name] = state_at(machine, seqno)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pins)))
        machine = self.client("b").machine(SHARD)
        machine.apply(partial(pin_critical, reader=name, epoch=self.holds[name].epoch, seqno=None))
        del self.pins[name]

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def nothing_goes_back(self) -> None:
        if not self.alive:
            return
        machine = self.world.client().machine(SHARD)
        state = machine.state()
        assert state.upper == Frontier(self.model.upper)
        assert state.since.time is not None
        assert state.since.time >= self.model.since
        self.model.since = state.since.time
        for reader, since in self.readers.values():
            assert state.leased[reader.lease.reader].since == since
            assert state.since <= Frontier(since)
        for name, hold in self.holds.items():
            assert Frontier(state.critical[name].since) == hold.since >= state.since
        assert dangling(machine, state) == []
        self.named |= blobs_of(state)
        held = [state_at(machine, reader.lease.seqno) for reader, _ in self.readers.values()]
        for name, pinned in self.pins.items():
            held.append(state_at(machine, pinned.seqno))
            assert held[-1] == pinned
            assert state.critical[name].seqno == pinned.seqno
        for old in held:
            # Rollups that an old state knew of are not its own: newer ones take their place.
            assert dangling(machine, msgspec.structs.replace(old, rollups={})) == []


def blobs_of(state: ShardState) -> set[str]:
    parts = (part for batch in state.trace.batches for part in batch.parts)
    return {part.key for part in parts if part.inline is None}


def rows_of(table: pa.Table) -> list[Row]:
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))


def counted(table: pa.Table) -> Counter[Row]:
    return Counter(rows_of(table))


@pytest.mark.slow
def test_two_processes_and_the_model_agree() -> None:
    """Whatever two processes do in turn, the shard is the sum of its updates at every time."""
    run_state_machine_as_test(
        Shards,
        settings=wide_examples(1.5, stateful_step_count=30),
    )
