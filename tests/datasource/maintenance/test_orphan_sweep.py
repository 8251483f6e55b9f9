"""The sweep: what crashes leave goes, and nothing that anybody can still commit or ask for."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, InvalidUsage, ShardError
from shardline.datasource.inspect.fsck import check_location
from shardline.datasource.maintenance.orphan_sweep import SweepResult, sweep, sweep_orphans
from shardline.datasource.parts.stage import Staged
from shardline.datasource.shard.commands.append import Append, compare_and_append
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS, is_sweep_due
from shardline.datasource.shard.commands.readers import pin_critical
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import STAGE_LIFE_MS, Registration, ShardState
from shardline.datasource.shard.state_history import state_at
from shardline.datasource.stores.file import FileObjects
from shardline.datasource.stores.location import BlobEntry
from shardline.datasource.stores.shard_names import shard_directory
from support.faults.leftovers import (
    BLOBS,
    FOREIGN,
    HOUR_MS,
    LEAKS,
    SHARD,
    contents,
    filled,
    litter,
    named,
    stored,
)
from support.models.shards import SETTINGS, Crash, Effect, Mortal, World, dangling, table

PERIOD_MS = SETTINGS.sweep_every_ms
YEAR_MS = 365 * 24 * HOUR_MS
FILLED = Counter({(number, "x"): 1 for number in range(4)})


def stage(client: ShardClient, number: int = 77) -> Staged:
    return client.writer(SHARD).stager().stage([table((number, "late"))])


# --- what goes and what stays --------------------------------------------------------------------


def test_what_crashes_left_goes_once_it_is_too_old_to_be_committed(world: World) -> None:
    """Whatever its name below `part/`; what is not ours by its name stays."""
    client = filled(world)
    litter(world)
    world.clock.advance(SWEEP_AGE_MS)
    assert client.sweep(SHARD) == SweepResult(), "one ms too young"
    world.clock.advance(1)
    swept = client.sweep(SHARD)
    assert swept.keys == LEAKS
    assert (swept.parts.count, swept.parts.size_bytes) == (3, 15)
    assert (swept.rollups.count, swept.total.size_bytes) == (1, 20)
    machine = world.client().machine(SHARD)
    assert stored(world.objects(), "part") == named(machine.state())
    assert all(world.objects().get(key) for key in FOREIGN)
    assert contents(world) == FILLED
    assert client.sweep(SHARD) == SweepResult()


def test_a_dry_run_says_the_same_and_writes_nothing(world: World) -> None:
    """Neither a deletion nor a record."""
    client = filled(world)
    litter(world)
    world.clock.advance(SWEEP_AGE_MS + 1)
    before = {e.key: e for e in world.objects().entries("")}
    found = client.sweep(SHARD, dry_run=True)
    assert {e.key: e for e in world.objects().entries("")} == before
    assert found == client.sweep(SHARD)


def test_what_was_staged_can_be_committed_for_a_day_and_not_after(world: World) -> None:
    """Sweeps before that leave it alone; after it, the commit is refused whether swept or not."""
    client = filled(world)
    first, second = stage(client, 1), stage(client, 2)
    world.clock.advance(STAGE_LIFE_MS)
    world.client().sweep(SHARD)
    client.writer(SHARD).commit(first)
    world.clock.advance(SWEEP_AGE_MS - STAGE_LIFE_MS + 1)
    world.client().sweep(SHARD)
    assert not stored(world.objects(), "part") & set(second.blob_keys)
    with pytest.raises(Determinate, match="STAGED_TOO_LONG"):
        client.writer(SHARD).commit(second)
    assert contents(world) == FILLED + Counter([(1, "late")])


def test_parts_of_states_that_are_held_or_not_collected_stay(world: World) -> None:
    """Those are the collector's: the sweep counts on it, and takes nothing that it may keep."""
    client = filled(world)
    hold = client.hold(SHARD, "query:1")
    pinned = client.machine(SHARD).state()
    pin = partial(pin_critical, reader="query:1", epoch=hold.epoch, seqno=pinned.seqno)
    client.machine(SHARD).apply(pin)
    for number in range(2):
        client.compact(SHARD, force=True)
        client.writer(SHARD).append_now(table((number, "y")))
    world.clock.advance(2 * SWEEP_AGE_MS)
    assert world.client().sweep(SHARD) == SweepResult()
    client.collect_garbage(SHARD)
    assert world.client().sweep(SHARD) == SweepResult()
    machine = world.client().machine(SHARD)
    assert dangling(machine, state_at(machine, pinned.seqno)) == []
    assert dangling(machine) == []


def test_a_blob_without_a_time_is_never_swept(world: World) -> None:
    """Where a store does not say how old it is, nothing can be concluded."""

    class Timeless(Mortal):
        @override
        def entries(
            self, prefix: str, start_after: str = "", limit: int | None = None
        ) -> Iterator[BlobEntry]:
            found = super().entries(prefix, start_after, limit)
            return (replace(entry, modified_ms=0) for entry in found)

    filled(world)
    litter(world)
    world.clock.advance(10 * SWEEP_AGE_MS)
    client = world.client(BLOBS, Timeless(world.objects()))
    assert client.sweep(SHARD) == SweepResult()
    assert client.usage(SHARD).leaked.count == 0


def test_only_a_person_takes_back_the_barrier_of_a_clock_that_was_ahead(world: World) -> None:
    """On a file system its times are those of the blobs. To maintenance its own may be wrong."""
    client = filled(world)
    world.clock.advance(10 * YEAR_MS)
    stage(client)
    world.clock.advance(SWEEP_AGE_MS + 1)
    assert client.sweep(SHARD).parts.count == 1
    world.clock.advance(-10 * YEAR_MS)
    late = world.client(BLOBS)
    # Its time of the sweep keeps nobody from the next one.
    assert is_sweep_due(late.state(SHARD), world.clock.now_ms() + PERIOD_MS, PERIOD_MS)
    before = late.state(SHARD).swept_before_ms
    sweep(late.machine(SHARD))
    late.sweep(SHARD, dry_run=True)
    assert late.state(SHARD).swept_before_ms == before
    with pytest.raises(Determinate, match="STAGED_TOO_LONG"):
        late.writer(SHARD).append_now(table((5, "new")))
    with pytest.raises(InvalidUsage, match="SWEPT_IN_THE_FUTURE"):
        late.transactions().register(SHARD)
    assert late.sweep(SHARD) == SweepResult()
    late.writer(SHARD).append_now(table((5, "new")))
    late.transactions().register(SHARD)


def test_a_person_takes_back_the_barrier_of_the_transactions_shard_as_well(world: World) -> None:
    """What is written through it is written again after one sweep of the shard."""
    client = filled(world)
    client.transactions().register(SHARD)
    world.clock.advance(10 * YEAR_MS)
    stage(client)
    world.clock.advance(SWEEP_AGE_MS + 1)
    client.sweep(SHARD)
    world.clock.advance(-10 * YEAR_MS)
    late = world.client(BLOBS)
    assert late.has_future_barrier(SHARD)
    with pytest.raises(Determinate, match="STAGED_TOO_LONG"), late.transaction() as transaction:
        transaction.append(SHARD, table((5, "new")))
    late.sweep(SHARD)
    assert not late.has_future_barrier(SHARD)
    with late.transaction() as transaction:
        transaction.append(SHARD, table((5, "new")))


def test_a_transactions_shard_whose_log_is_gone_has_no_barrier(world: World) -> None:
    """A sweep of a shard that is registered in it, and has no orphans, has nothing to ask it."""
    client = filled(world)
    client.transactions().register(SHARD)
    mark = client.state(SHARD).registered
    assert mark is not None
    for entry in world.objects().entries(shard_directory(mark.txns)):
        world.objects().delete(entry.key)
    late = world.client(BLOBS)
    assert not late.has_future_barrier(SHARD)
    assert late.sweep(SHARD) == SweepResult()


# --- transactions --------------------------------------------------------------------------------


def test_what_a_transaction_needs_stays(world: World) -> None:
    """Asked once, after the listing, and only if there is something to ask about."""
    client = filled(world)
    staged = stage(client)
    world.clock.advance(SWEEP_AGE_MS + 1)
    asked: list[int | None] = []

    def needed(begun_before_ms: int | None) -> list[str]:
        asked.append(begun_before_ms)
        return list(staged.blob_keys)

    litter(world)
    assert sweep(client.machine(SHARD), needed=needed) == SweepResult()
    assert set(staged.blob_keys) <= stored(world.objects(), "part")
    assert len(asked) == 1
    assert sweep(client.machine(SHARD)).keys == staged.blob_keys
    assert sweep(client.machine(SHARD), needed=needed) == SweepResult()
    assert len(asked) == 1


def test_a_transaction_that_is_applied_and_forgotten_meanwhile_is_not_missed(world: World) -> None:
    """Parts go from the transaction into the state: that is the order of asking, too."""
    client = filled(world)
    staged = stage(client)
    world.clock.advance(SWEEP_AGE_MS + 1)

    def applied(_: int | None) -> list[str]:
        """Applying was allowed: the transaction was committed in time."""
        state = client.state(SHARD)
        append = Append(
            shard=state.shard,
            runs=staged.runs,
            writer="txn",
            sequence=1,
            durable=True,
            lease_ms=1,
            attempt="t",
        )
        world.client().machine(SHARD).apply(partial(compare_and_append, append=append))
        return []

    assert sweep(client.machine(SHARD), needed=applied) == SweepResult()
    assert dangling(world.client().machine(SHARD)) == []
    assert contents(world)[(77, "late")] == 1


def test_a_registered_shard_is_not_swept_without_asking(world: World) -> None:
    """Its parts may wait in a transaction for longer than any commit: that must be said."""
    client = filled(world)
    litter(world)

    def register(state: ShardState, now_ms: int) -> Transition[None]:
        del now_ms
        registered = Registration("txns", "s1", 5)
        return Transition(msgspec.structs.replace(state, registered=registered), None)

    client.machine(SHARD).apply(register)
    world.clock.advance(SWEEP_AGE_MS + 1)
    with pytest.raises(InvalidUsage, match="SHARD_REGISTERED"):
        sweep(client.machine(SHARD))
    assert set(LEAKS) <= stored(world.objects(), "part", "rollup")
    assert client.usage(SHARD).leaked.count == 0
    assert sweep(client.machine(SHARD), needed=lambda _: LEAKS[1:]).keys == LEAKS[:1]


# --- stopped anywhere ----------------------------------------------------------------------------


@pytest.mark.parametrize("lasts", [None, 1], ids=["killed", "failed"])
@pytest.mark.parametrize("effect", ["none", "done", "late"])
def test_stopped_anywhere_the_next_sweep_finishes(effect: Effect, lasts: int | None) -> None:
    """At every store operation, also when that one takes effect after the next sweep."""
    for at in itertools.count():
        world = World()
        filled(world)
        litter(world)
        world.clock.advance(SWEEP_AGE_MS + 1)
        store = Mortal(world.objects(), at, effect, lasts=lasts)
        try:
            world.client(BLOBS, store).sweep(SHARD)
        except (Crash, ShardError):
            assert store.failed
        world.client().sweep(SHARD)
        store.deliver()
        machine = world.client().machine(SHARD)
        assert stored(world.objects(), "part") == named(machine.state()), store.failed
        assert dangling(machine) == []
        assert contents(world) == FILLED
        world.close()
        if not store.failed:
            assert at > 5
            return


# --- when ----------------------------------------------------------------------------------------


def test_a_sweep_is_due_a_period_after_the_last_one(world: World) -> None:
    """Or after the shard was made; and each one is noted, whatever it found."""
    client = filled(world)
    machine = client.machine(SHARD)
    made = machine.state().created_ms
    assert not is_sweep_due(machine.state(), made + PERIOD_MS - 1, PERIOD_MS)
    assert is_sweep_due(machine.state(), made + PERIOD_MS, PERIOD_MS)
    world.clock.advance(PERIOD_MS)
    client.sweep(SHARD)
    swept = machine.state().swept_ms
    assert swept == world.clock.now_ms()
    assert not is_sweep_due(machine.state(), swept + PERIOD_MS - 1, PERIOD_MS)
    assert is_sweep_due(machine.state(), swept + PERIOD_MS, PERIOD_MS)
    # Two maintainers whose clocks differ by hours do not sweep in turns.
    assert not is_sweep_due(machine.state(), swept - 8 * HOUR_MS, PERIOD_MS)


def test_a_failed_sweep_stays_due(world: World) -> None:
    """Only one that has ended is noted."""
    client = filled(world)
    litter(world)
    world.clock.advance(SWEEP_AGE_MS + 1)
    for at in range(3, 7):
        store = Mortal(world.objects(), at, lasts=20)
        with pytest.raises(ShardError):
            world.client(BLOBS, store).sweep(SHARD)
    assert client.machine(SHARD).state().swept_ms == 0


def test_a_dropped_shard_is_swept_once_and_then_left_alone(world: World) -> None:
    """When everything that was staged for it is old; its log is one record again after a grace."""
    client = filled(world)
    client.drop(SHARD)
    litter(world)
    machine = client.machine(SHARD)
    world.clock.advance(PERIOD_MS)
    assert not is_sweep_due(machine.state(), world.clock.now_ms(), PERIOD_MS)
    world.clock.advance(SWEEP_AGE_MS)
    assert is_sweep_due(machine.state(), world.clock.now_ms(), PERIOD_MS)
    assert client.sweep(SHARD).keys == LEAKS
    world.clock.advance(100 * PERIOD_MS)
    assert not is_sweep_due(machine.state(), world.clock.now_ms(), PERIOD_MS)
    for _ in range(3):
        client.collect_garbage(SHARD)
        world.clock.advance(HOUR_MS)
    assert len(stored(world.objects(), "log")) == 1
    assert stored(world.objects(), "part", "rollup") == {FOREIGN[0]}
    assert not is_sweep_due(machine.state(), world.clock.now_ms(), PERIOD_MS)


def test_a_barrier_outlives_its_shard(world: World) -> None:
    """A rollup that began in the old shard's time may come when a new one has its name."""
    client = filled(world)
    litter(world)
    world.clock.advance(SWEEP_AGE_MS + 1)
    client.sweep(SHARD)
    before = client.state(SHARD).swept_before_ms
    client.drop(SHARD)
    filled(world)
    assert world.client().state(SHARD).swept_before_ms == before > 0


# --- on disk -------------------------------------------------------------------------------------


def on_disk(tmp_path: Path) -> World:
    """A world on disk; its clock begins at the time that files are stamped with."""
    world = World(objects=lambda world: FileObjects(str(tmp_path / "lake"), world.ids))
    (stamped,) = world.objects().entries("")
    world.clock.advance(stamped.modified_ms - world.clock.now_ms())
    return world


def test_folders_of_a_killed_job_go_with_it_and_those_of_a_live_one_stay(tmp_path: Path) -> None:
    """On disk a folder is something by itself; a job that has just begun has empty ones."""
    world = on_disk(tmp_path)
    client = filled(world)
    litter(world)
    parts = tmp_path / "lake" / SHARD / "part"
    (parts / "tdead" / "_temporary" / "0").mkdir(parents=True)
    world.clock.advance(SWEEP_AGE_MS + 2 * HOUR_MS)
    client.sweep(SHARD)
    found = sorted(str(path.relative_to(parts)) for path in parts.rglob("*") if path.is_dir())
    assert found == [], "their ages are told by the disk"
    (parts / "tlive" / "_temporary" / "0").mkdir(parents=True)
    world.clock.advance(-SWEEP_AGE_MS)
    client.sweep(SHARD)
    assert (parts / "tlive" / "_temporary" / "0").is_dir()
    client.writer(SHARD).append_now(table((5, "x")))
    assert dangling(client.machine(SHARD)) == []


def test_collecting_the_last_file_of_a_job_removes_its_folder(tmp_path: Path) -> None:
    """Parts that Spark wrote are in a folder of their attempt; nobody writes into it any more."""
    world = on_disk(tmp_path)
    objects = world.objects()
    for name in ("a", "b"):
        objects.put(f"{SHARD}/part/tjob/sub/{name}.parquet", b"x")
    folder = tmp_path / "lake" / SHARD / "part" / "tjob"
    objects.delete_many([f"{SHARD}/part/tjob/sub/a.parquet"])
    assert folder.is_dir()
    objects.delete_many([f"{SHARD}/part/tjob/sub/b.parquet"])
    assert not folder.exists()
    assert folder.parent.is_dir(), "where all writers keep their files"
    objects.put(f"{SHARD}/part/tjob/sub/c.parquet", b"y")
    assert objects.get(f"{SHARD}/part/tjob/sub/c.parquet") == b"y"


def test_markers_that_hadoop_leaves_in_a_bucket_go_too(world: World) -> None:
    """Objects whose names end in a slash, in place of folders."""
    client = filled(world)
    markers = (f"{SHARD}/part/tjob/", f"{SHARD}/part/tjob/_temporary/")
    for key in markers:
        world.objects().put(key, b"")
    world.clock.advance(SWEEP_AGE_MS + 1)
    assert client.sweep(SHARD).keys == markers
    assert stored(world.objects(), "part") == named(client.machine(SHARD).state())


def test_a_key_that_no_blob_can_have_does_not_stop_a_sweep(world: World) -> None:
    """A copy with a slash too many, or a name on a disk that is no UTF-8: fsck reports them."""
    client = filled(world)
    litter(world)
    odd = (f"{SHARD}/part//x.parquet", f"{SHARD}/part/caf\udce9.bak", f"{SHARD}/part/a\nb")
    for key in (*odd, "gone/part//x", "gone/part/x"):
        world.objects().put(key, b"1")
    world.clock.advance(SWEEP_AGE_MS + 1)
    assert set(client.sweep(SHARD).keys) == set(LEAKS)
    assert sweep_orphans(client.location, world.clock).keys == ("gone/part/x",)
    assert stored(world.objects(), "part") - set(odd) == named(client.machine(SHARD).state())
    [found] = check_location(world.objects(), world.clock, shard=SHARD).shards
    assert {one.subject for one in found.findings if one.code == "FOREIGN_OBJECT"} >= set(odd)


# --- directories of no shard ---------------------------------------------------------------------


def test_what_is_left_of_a_lost_shard_is_swept_by_an_admin_only(world: World) -> None:
    """Old blobs where no log is; nothing of a shard, and nothing of what is not ours."""
    client = filled(world)
    litter(world)
    lost = ("gone/part/p1.parquet", "gone/part/t1/", "gone/rollup/0000000000000001-ab")
    kept = ("gone/readme.txt", "Not A Shard/part/p1.parquet")
    for key in (*lost, *kept):
        world.objects().put(key, b"1")
    now = partial(sweep_orphans, client.location, world.clock)
    world.clock.advance(SWEEP_AGE_MS)
    assert now() == SweepResult()
    world.clock.advance(1)
    world.objects().put("gone/part/young", b"1")
    assert now(dry_run=True).keys == lost
    assert now().keys == lost
    assert now() == SweepResult()
    left = {entry.key for entry in world.objects().entries("")}
    assert left >= {*kept, *LEAKS, "gone/part/young"}
    assert contents(world) == FILLED
