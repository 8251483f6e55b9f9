"""Usage: every byte is there for something, and the sum is what the store holds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import ShardError
from shardline.datasource.inspect.usage import LocationUsage, ShardUsage, location_usage
from shardline.datasource.overwrite import overwrite
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS
from shardline.datasource.shard.commands.readers import pin_critical
from shardline.datasource.shard.references import Amount
from shardline.datasource.stores.file import FileObjects
from shardline.datasource.stores.location import BlobEntry
from shardline.datasource.stores.objects import CreateOutcome
from support.fakes.clock import ManualClock
from support.models.shards import SETTINGS, Crash, Mortal, World, schema_of, table
from support.profiles import wide_examples
from support.strategies.rows import bounded

SHARD = "orders"
HOUR_MS = 3_600_000
SMALL = replace(
    SETTINGS,
    inline_part_bytes=0,
    compact_inline_bytes=0,
    rollup_every=4,
    inline_state_bytes=600,
)
NOTHING = Amount()


def total(world: World, prefix: str = f"{SHARD}/") -> Amount:
    entries = list(world.objects().entries(prefix))
    return Amount(len(entries), sum(entry.size_bytes for entry in entries))


def filled(world: World, appends: int = 5) -> ShardClient:
    client = world.client(SMALL)
    client.create(SHARD, schema_of())
    for number in range(appends):
        client.writer(SHARD).append_now(table((number, "x")))
    return client


def settled(world: World, client: ShardClient) -> ShardUsage:
    """After everything that can go has gone; a collector's records may make a rollup, and work."""
    world.clock.advance(SWEEP_AGE_MS)
    client.sweep(SHARD)
    for _ in range(8):
        client.collect_garbage(SHARD)
        world.clock.advance(HOUR_MS)
        if client.usage(SHARD).garbage == NOTHING:
            break
    return client.usage(SHARD)


def part_bytes(client: ShardClient) -> int:
    state = client.machine(SHARD).state()
    parts = [part for batch in state.trace.batches for part in batch.parts]
    return sum(part.size_bytes for part in parts if part.inline is None)


# --- one shard -----------------------------------------------------------------------------------


def test_a_shard_that_only_grew_has_nothing_to_spare(world: World) -> None:
    """Parts as the state knows them, records, and whole states: all but one of those are old."""
    client = filled(world, appends=3)
    usage = client.usage(SHARD)
    assert usage.total == usage.now == total(world)
    assert usage.parts == Amount(3, part_bytes(client))
    assert usage.records.count == usage.seqno == 4
    assert usage.holders == ()


def test_what_was_merged_is_garbage_or_held_by_name(world: World) -> None:
    """A hold keeps what was there at its seqno; so do others that came later, but not alone."""
    client = filled(world)
    old = part_bytes(client)
    hold = client.hold(SHARD, "query:1")
    pinned = client.machine(SHARD).state().seqno
    pin = partial(pin_critical, reader="query:1", epoch=hold.epoch, seqno=pinned)
    client.machine(SHARD).apply(pin)
    reader = client.reader(SHARD)
    client.compact(SHARD, force=True)
    client.writer(SHARD).append_now(table((9, "x")))
    usage = client.usage(SHARD)
    by_name = {holder.name: holder for holder in usage.holders}
    assert [by_name[n].kind for n in ("query:1", reader.lease.reader)] == ["hold", "lease"]
    assert usage.held.size_bytes >= old
    assert by_name["query:1"].kept == usage.held
    assert by_name[reader.lease.reader].kept.size_bytes >= old
    assert by_name[reader.lease.reader].alone == NOTHING
    assert by_name["query:1"].alone.size_bytes < old
    reader.close()
    alone = client.usage(SHARD)
    assert alone.holders[0].alone == alone.holders[0].kept == alone.held
    pin = partial(pin_critical, reader="query:1", epoch=hold.epoch, seqno=None)
    client.machine(SHARD).apply(pin)
    free = client.usage(SHARD)
    assert free.held == NOTHING
    assert free.garbage.size_bytes >= old
    assert free.total == total(world)
    assert settled(world, client).garbage == NOTHING


def test_a_lease_that_is_over_holds_nothing(world: World) -> None:
    """Also where no record says so yet."""
    client = filled(world)
    client.reader(SHARD, lease_ms=1000)
    client.compact(SHARD, force=True)
    assert client.usage(SHARD).held.count >= 5
    world.clock.advance(1001)
    usage = client.usage(SHARD)
    assert (usage.held, usage.holders) == (NOTHING, ())
    assert usage.garbage.count >= 5


def test_what_nothing_refers_to_is_staged_and_then_leaked(world: World) -> None:
    """A commit can still come, or none can; what is not ours is neither."""
    client = filled(world)
    staged = client.writer(SHARD).stager().stage([table((7, "late"))])
    for key in ("part/t1/x.parquet", f"rollup/{99:016x}-a", "rollup/notes", "notes", "log/x"):
        world.objects().put(f"{SHARD}/{key}", b"123")
    world.clock.advance(SWEEP_AGE_MS)
    young = client.usage(SHARD)
    assert young.staged == Amount(3, staged.size_bytes + 6)
    assert young.unattributed == Amount(3, 9)
    world.clock.advance(1)
    old = client.usage(SHARD)
    assert (old.staged, old.leaked) == (NOTHING, young.staged)
    assert client.sweep(SHARD).total == old.leaked
    assert client.usage(SHARD).leaked == NOTHING
    assert client.usage(SHARD).total == total(world)


def test_a_dropped_shard_needs_one_record_and_its_floors(world: World) -> None:
    """And says so; everything else goes."""
    client = filled(world, appends=12)
    client.drop(SHARD)
    usage = settled(world, client)
    assert usage.dropped
    assert usage.records.count == 1
    assert usage.total == usage.now == usage.records + usage.floors == total(world)


def test_inline_rows_are_a_share_of_the_log(world: World) -> None:
    """They are no objects of their own."""
    client = world.client(SETTINGS)
    client.create(SHARD, schema_of())
    client.writer(SHARD).append_now(table((1, "x")))
    usage = client.usage(SHARD)
    assert 0 < usage.inline_bytes < usage.records.size_bytes
    assert usage.parts == NOTHING
    assert usage.total == total(world)


# --- any history ---------------------------------------------------------------------------------


class Life:
    """A shard, moved along by commands that may fail or die; each takes a number."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = filled(world, appends=1)
        self.epoch = ""

    def move(self, name: str, number: int) -> None:
        self.client.create(SHARD, schema_of())
        getattr(self, name)(number)

    def append(self, number: int) -> None:
        self.client.writer(SHARD).append_now(table((number, "x")))

    def inline(self, number: int) -> None:
        small = replace(SMALL, inline_part_bytes=4096)
        other = ShardClient(self.client.location, small, self.client.clock, self.client.ids)
        other.writer(SHARD).append_now(table((number, "inline")))

    def merge(self, _: int) -> None:
        self.client.compact(SHARD, force=True)

    def collect(self, _: int) -> None:
        self.client.collect_garbage(SHARD)

    def sweep(self, _: int) -> None:
        self.client.sweep(SHARD)

    def overwrite(self, number: int) -> None:
        writer = self.client.writer(SHARD, "etl")
        staged = writer.stager().stage([table((number, "z"))])
        overwrite(writer, staged, sequence=writer.sequence + 1, attempt="t")

    def stage(self, number: int) -> None:
        self.client.writer(SHARD).stager().stage([table((number, "lost"))])

    def append_dying(self, number: int) -> None:
        self._die(number, lambda client: client.writer(SHARD).append_now(table((number, "c"))))

    def merge_dying(self, number: int) -> None:
        self._die(number, lambda client: client.compact(SHARD, force=True))

    def collect_dying(self, number: int) -> None:
        self._die(number, lambda client: client.collect_garbage(SHARD))

    def _die(self, number: int, act: Callable[[ShardClient], object]) -> None:
        store = Mortal(self.world.objects(), number + 2, "done" if number % 2 else "none")
        with suppress(Crash, ShardError):
            act(self.world.client(SMALL, store))

    def hold(self, _: int) -> None:
        self.epoch = self.client.hold(SHARD, "q").epoch

    def pin(self, number: int) -> None:
        machine = self.client.machine(SHARD)
        seqno = max(machine.state().seqno - number, machine.state().gc_seqno, 1)
        machine.apply(partial(pin_critical, reader="q", epoch=self.epoch, seqno=seqno))

    def release(self, _: int) -> None:
        machine = self.client.machine(SHARD)
        machine.apply(partial(pin_critical, reader="q", epoch=self.epoch, seqno=None))

    def read(self, number: int) -> None:
        self.client.reader(SHARD, lease_ms=(number + 1) * HOUR_MS)

    def wait(self, number: int) -> None:
        self.world.clock.advance((number + 1) * HOUR_MS if number < 8 else SWEEP_AGE_MS)

    def drop(self, _: int) -> None:
        state = self.client.machine(SHARD).state()
        self.client.drop(SHARD, despite_holders=[*state.leased, *state.critical])

    def rollup(self, _: int) -> None:
        machine = self.client.machine(SHARD)
        machine.write_rollup(machine.state())


_MOVES = [name for name in vars(Life) if not name.startswith("_") and name != "move"]
_lives = st.lists(st.tuples(st.sampled_from(_MOVES), st.integers(0, 9)), max_size=14)


def adds_up(world: World, moves: list[tuple[str, int]]) -> None:
    life = Life(world)
    for name, number in moves:
        life.move(name, number)
        usage = life.client.usage(SHARD)
        assert usage.total == total(world), name
        assert usage.unattributed == NOTHING
        assert usage.parts.size_bytes == part_bytes(life.client)
        assert all(held.kept.size_bytes <= usage.held.size_bytes for held in usage.holders)
        assert usage.held == NOTHING or usage.holders
    life.move("release", 0)
    world.clock.advance(SETTINGS.lease_ms + 3 * HOUR_MS)
    usage = settled(world, life.client)
    assert usage.total == usage.now == total(world)


@bounded
@given(moves=_lives)
def test_it_adds_up_after_any_history(moves: list[tuple[str, int]]) -> None:
    """After every command, crashed or not; when all has settled, only what is needed is left."""
    world = World()
    adds_up(world, moves)
    world.close()


@wide_examples(0.4)
@given(moves=_lives)
def test_it_adds_up_on_disk(moves: list[tuple[str, int]]) -> None:
    """The same with files; their ages are the disk's, so the clock begins there."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(objects=lambda world: Stamped(folder, world))
        adds_up(world, moves)


class Stamped(FileObjects):
    """Files stamped with the test's clock, as a disk stamps them with the machine's."""

    def __init__(self, folder: str, world: World) -> None:
        super().__init__(folder, world.ids)
        self._clock: ManualClock = world.clock
        self._folder = folder

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        super().put(key, value)
        self._stamp(key)

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        outcome = super().create(key, value)
        self._stamp(key)
        return outcome

    def _stamp(self, key: str) -> None:
        now_ns = self._clock.now_ms() * 1_000_000
        os.utime(Path(self._folder, key), ns=(now_ns, now_ns))


# --- while others are at work --------------------------------------------------------------------


class Meanwhile(Mortal):
    """A store on which something happens right before the first listing, or right after it."""

    act: Callable[[], object] | None = None

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        found = list(super().entries(prefix, start_after, limit))
        if prefix == f"{SHARD}/" and self.act is not None:
            act, self.act = self.act, None
            act()
        return iter(found)


@pytest.mark.parametrize("rival", ["append", "collect", "merge", "sweep", "drop"])
def test_races_never_make_a_leak_of_what_is_none(world: World, rival: str) -> None:
    """What was listed and is committed, merged or deleted before the state is read."""
    client = filled(world)
    client.compact(SHARD, force=True)
    client.writer(SHARD).append_now(table((8, "y")))
    world.clock.advance(2 * SWEEP_AGE_MS)
    staged = client.writer(SHARD).stager().stage([table((7, "late"))])
    before = total(world)

    def act() -> None:
        match rival:
            case "append":
                client.writer(SHARD).commit(staged)
            case "collect":
                client.collect_garbage(SHARD)
            case "merge":
                client.compact(SHARD, force=True)
                client.collect_garbage(SHARD)
            case "sweep":
                client.sweep(SHARD)
            case "drop":
                client.drop(SHARD)

    store = Meanwhile(world.objects())
    looking = world.client(SMALL, store)
    looking.machine(SHARD).state()
    store.act = act
    usage = looking.usage(SHARD)
    assert store.act is None
    assert usage.leaked == NOTHING
    assert usage.total.size_bytes <= before.size_bytes
    assert usage.staged.size_bytes == (0 if rival == "append" else staged.size_bytes)


# --- a location ----------------------------------------------------------------------------------


def test_a_location_is_its_shards_its_own_objects_and_what_is_lost(world: World) -> None:
    """Everything in the store belongs to one of them; a shard that cannot be read is told."""
    client = filled(world)
    client.create("zürich", schema_of())
    client.create("broken", schema_of())
    for entry in list(world.objects().entries("broken/log/")):
        world.objects().put(entry.key, b"nonsense")
    for key in ("gone/part/p1", "gone/rollup/1-x", "gone/part/t1/p2", "a b/part/x"):
        world.objects().put(key, b"123")
    world.clock.advance(SWEEP_AGE_MS + 1)
    world.objects().put("gone/part/young", b"12345")
    usage: LocationUsage = location_usage(world.client().location, world.clock)
    assert [shard.name for shard in usage.shards] == [SHARD, "zürich"]
    assert [problem.shard for problem in usage.problems] == ["broken"]
    assert [(o.directory, o.total, o.sweepable) for o in usage.orphans] == [
        ("a b", Amount(1, 3), NOTHING),
        ("gone", Amount(4, 14), Amount(3, 9)),
    ]
    assert usage.own == total(world, "_shardline")
    assert usage.total + total(world, "broken/") == total(world, "")
