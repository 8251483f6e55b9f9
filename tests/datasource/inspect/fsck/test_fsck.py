"""Fsck finds nothing where only Shardline was at work, writes nothing, and says how far it is."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.inspect.fsck import check_location
from shardline.datasource.inspect.fsck.findings import Findings
from shardline.datasource.inspect.fsck.states import check_state
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.codec import Record, diff, encode_record, encode_rollup
from shardline.datasource.shard.commands.readers import pin_critical
from shardline.datasource.shard.state import RollupRef, ShardState, is_tombstone
from shardline.datasource.stores.entry import encode_entry, entry_key
from shardline.datasource.stores.metered import Metered
from shardline.datasource.stores.open import open_objects
from shardline.datasource.stores.ranged import open_ranged
from shardline.datasource.stores.shard_names import shard_directory
from support.faults.damage import OTHER, SHARD, Lake
from support.models.shards import TINY, Crash, Mortal, World, schema_of, table, updates
from support.profiles import examples, one_of
from support.strategies.commands import histories

if TYPE_CHECKING:
    from shardline.datasource.stores.location import BlobEntry
    from shardline.datasource.stores.objects import Objects

_HOUR_MS = 3_600_000


def findings(world: World, *, deep: bool = True) -> list[str]:
    report = check_location(world.objects(), world.clock, deep=deep)
    everything = [*report.findings, *(f for shard in report.shards for f in shard.findings)]
    return [f"{f.code} {f.subject}: {f.detail}" for f in everything]


# --- histories of states -------------------------------------------------------------------------


def planted(world: World, states: list[ShardState]) -> Objects:
    """A store with the log of a shard that had `states`, and with the rollups that they name."""
    objects = world.objects()
    directory = shard_directory(states[0].name)
    stored: dict[int, ShardState] = {}
    refs: dict[int, RollupRef] = {}
    previous: ShardState | None = None
    for state in states:
        rollups = {}
        for at in state.rollups:
            if at not in refs:
                key, data = f"{directory}/rollup/{at:016x}-{0:032x}", encode_rollup(stored[at])
                objects.put(key, data)
                refs[at] = RollupRef(key, len(data))
            rollups[at] = refs[at]
        new = stored[state.seqno] = msgspec.structs.replace(state, rollups=rollups)
        whole = previous is None or is_tombstone(new) or new.shard != previous.shard
        record = Record(
            seqno=new.seqno,
            token="",
            walltime_ms=new.walltime_ms,
            version=new.version,
            rollup=new.rollup,
            base=new.base,
            diff=None if whole or previous is None else diff(previous, new),
            state=new if whole else None,
        )
        key = entry_key(f"{directory}/log/", new.seqno)
        objects.put(key, encode_entry(key, b"0" * 16, encode_record(record)))
        previous = new
    return objects


@examples(1.5)
@given(histories())
def test_any_history_of_commands_is_in_order(states: list[ShardState]) -> None:
    """Whatever commands make, replays and satisfies every check; only its made-up blobs lack."""
    world = World()
    try:
        report = check_location(planted(world, states), world.clock, deep=False)
    finally:
        world.close()
    [shard] = report.shards
    assert shard.seqno == states[-1].seqno
    made_up = {"PART_MISSING", "PART_SIZE", "FOREIGN_PART"}
    assert [f for f in shard.findings if f.code not in made_up] == []


@examples()
@given(histories(), st.integers(0, 9))
def test_a_record_left_out_of_any_history_is_found(states: list[ShardState], which: int) -> None:
    """Wherever the gap is, it is named, and the walk goes on after it if it can."""
    world = World()
    try:
        objects = planted(world, states)
        if len(states) < 3:
            return
        seqno = states[1 + which % (len(states) - 2)].seqno
        objects.delete(entry_key(f"{shard_directory(states[0].name)}/log/", seqno))
        [shard] = check_location(objects, world.clock, deep=False).shards
    finally:
        world.close()
    assert f"record {seqno}" in {f.subject for f in shard.findings if f.code == "RECORD_MISSING"}


def test_what_has_no_name_is_found_by_the_states_own_check() -> None:
    """An invariant that only `state.check_invariants` knows is a finding, too, and no crash."""
    world = World()
    client = world.client()
    client.create(SHARD, schema_of())
    state = msgspec.structs.replace(client.state(SHARD), seqno=0)
    found = Findings()
    check_state(state, SHARD, found)
    assert [finding.code for finding in found.sorted()] == ["STATE_INVARIANT"]


# --- histories of clients ------------------------------------------------------------------------


class Play:
    """A shard in use by clients that come, go and die."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sequence = 0
        self.epoch = ""

    def client(self) -> ShardClient:
        client = self.world.client(TINY)
        if not client.exists(SHARD):
            client.create(SHARD, schema_of(), key=["id"])
            self.epoch = ""
        return client

    def append(self, count: int) -> None:
        self.world.clock.advance(7)
        self.sequence += 1
        self.write(self.rows(count, self.sequence))

    def rows(self, count: int, number: int) -> pa.Table:
        return table(*((i * 31 % 17, f"value {i} of {number}" * 2) for i in range(count)))

    def retract(self, count: int) -> None:
        self.append(count)
        self.sequence += 1
        rows = self.rows(count, self.sequence - 1)
        self.write(rows.append_column("_diff", pa.array([-1] * count, pa.int64())))

    def write(self, rows: pa.Table, client: ShardClient | None = None) -> None:
        client = client or self.client()
        writer = client.writer(SHARD, "loader")
        writer.append_now(self.fitted(rows, writer.schema.names), sequence=self.sequence)

    def fitted(self, rows: pa.Table, names: tuple[str, ...]) -> pa.Table:
        """With the column that the schema may have got."""
        if "w" not in names:
            return rows
        return rows.append_column("w", pa.array([1.5] * rows.num_rows, pa.float64()))

    def overlap(self, back: int) -> None:
        """Two writers of the same data, the second of which comes late."""
        client = self.client()
        upper = client.state(SHARD).upper.time or 0
        for early in (0, back):
            lower = max(upper - early, 0)
            rows = [(at % 17, "same") for at in range(lower, upper + 5)]
            data = table(*rows).append_column("_ts", pa.array(range(lower, upper + 5), pa.int64()))
            writer = client.writer(SHARD)
            data = self.fitted(data, writer.schema.names)
            writer.append(data, Frontier(lower), Frontier(upper + 5))

    def read(self, _: int) -> None:
        self.client().reader(SHARD, lease_ms=500)

    def hold(self, _: int) -> None:
        client = self.client()
        self.epoch = client.hold(SHARD, "report").epoch

    def pin(self, _: int) -> None:
        machine = self.client().machine(SHARD)
        seqno = machine.state().seqno
        machine.apply(partial(pin_critical, reader="report", epoch=self.epoch, seqno=seqno))

    def release(self, _: int) -> None:
        client = self.client()
        hold = client.hold(SHARD, "report")
        self.epoch = hold.epoch
        hold.downgrade(client.state(SHARD).upper)
        client.machine(SHARD).apply(
            partial(pin_critical, reader="report", epoch=self.epoch, seqno=None)
        )

    def compact(self, count: int) -> None:
        self.client().compact(SHARD, force=count % 2 == 0)

    def collect(self, _: int) -> None:
        self.client().collect_garbage(SHARD)

    def sweep(self, _: int) -> None:
        self.world.clock.advance(30 * _HOUR_MS)
        self.client().sweep(SHARD)

    def wait(self, count: int) -> None:
        self.world.clock.advance(count * _HOUR_MS // 2)

    def evolve(self, _: int) -> None:
        client = self.client()
        wider = pa.schema([("id", pa.int64()), ("v", pa.string()), ("w", pa.float64())])
        client.evolve(SHARD, schema_of(wider))

    def retain(self, count: int) -> None:
        self.client().set_retention(SHARD, count * 5)

    def drop(self, count: int) -> None:
        client = self.client()
        if count == 5:
            state = client.state(SHARD)
            client.drop(SHARD, despite_holders=[*state.leased, *state.critical])

    def die(self, count: int) -> None:
        """A writer that merges and collects, killed in the middle of it."""
        mortal = Mortal(self.world.objects(), at=count * 3, effect="done" if count % 2 else "none")
        with contextlib.suppress(Crash):
            client = self.world.client(TINY, objects=mortal)
            self.sequence += 1
            self.write(table((1, "x" * 40)), client)
            client.compact(SHARD)
            client.collect_garbage(SHARD)


_MOVES = (
    *["append"] * 6, "retract", "overlap", "read", "hold", "pin", "release", *["compact"] * 2,
    *["collect"] * 2, "sweep", "wait", "evolve", "retain", "drop", *["die"] * 2,
)  # fmt: skip


@pytest.mark.slow
@examples()
@given(st.lists(st.tuples(st.sampled_from(_MOVES), st.integers(1, 9)), min_size=5, max_size=25))
def test_no_use_of_a_shard_is_a_finding(moves: list[tuple[str, int]]) -> None:
    """Writers, readers, collectors and crashes in any order leave nothing for fsck to find."""
    world = World()
    play = Play(world)
    try:
        for name, count in moves:
            move: Callable[[int], None] = getattr(play, name)
            with contextlib.suppress(ShardError):  # refused: nothing was done
                move(count)
        assert findings(world) == []
    finally:
        world.close()


def test_diffs_that_add_up_beyond_an_int64_are_no_damage(world: World) -> None:
    """Of several rows, each of which has fewer; their writer records what is left of the sum."""
    client = world.client(TINY)
    client.create(SHARD, schema_of())
    writer = client.writer(SHARD)
    writer.append_now(updates(*((i, "x" * 40, 0, 2**62) for i in range(3))).drop_columns(["_ts"]))
    assert findings(world) == []


# --- what it relies on ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lake() -> Lake:
    return Lake.filled(World())


@pytest.mark.parametrize("deep", [True, False])
def test_a_check_only_reads(lake: Lake, deep: bool) -> None:
    """Nothing is created, put or deleted; seen by a store that counts."""
    store = Metered(lake.objects, lake.world.clock)
    assert check_location(store, lake.world.clock, deep=deep).is_clean
    done = {one.operation for one in store.statistics().operations if one.calls}
    assert not done & {"create", "put", "delete", "delete_many"}
    assert done


def test_one_shard_can_be_checked_alone(lake: Lake) -> None:
    """By its name; a name that is none is refused with the nearest one."""
    [shard] = lake.check(shard=OTHER).shards
    assert shard.shard == OTHER
    with pytest.raises(InvalidUsage, match=r"SHARD_NOT_FOUND.*did you mean 'orders'"):
        lake.check(shard="ordres")


class Moving(Metered):
    """A store on which others merge and collect while a part is about to be read.

    Args:
        inner: The store.
        world: Of the others.
        often: How many times they do.
        opening: How many times a part has been opened when they do, itself counted.
        remote: True to open objects of known size without a request, as remote stores do.
    """

    def __init__(
        self, inner: Objects, world: World, often: int, *, opening: int = 1, remote: bool = False
    ) -> None:
        super().__init__(inner, world.clock)
        self._world = world
        self._left = often
        self._opening = opening
        self._remote = remote
        self._opened = Counter[str]()

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        self._opened[key] += 1
        if self._left and "/part/" in key and self._opened[key] == self._opening:
            self._left -= 1
            client = self._world.client(TINY)
            client.writer(SHARD).append_now(table(*((i, "new" * 20) for i in range(9))))
            client.compact(SHARD, force=True)
            client.collect_garbage(SHARD)
        if self._remote and size_bytes is not None:
            return open_ranged(self, key, size_bytes)
        return super().open(key, size_bytes, via)


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("opening", one_of(2, [1, 2, 3]))
@pytest.mark.parametrize("often", [1, 2])
def test_a_shard_that_moves_under_the_check_is_looked_at_again(
    often: int, opening: int, remote: bool
) -> None:
    """Parts that were merged and collected after the listing are not missing.

    Each is opened for its checksum, for its rows, and for the contents of all.
    """
    world = World()
    play = Play(world)
    for _ in range(4):
        play.append(30)
    play.retract(5)
    before = world.client(TINY).state(SHARD).seqno
    store = Moving(world.objects(), world, often, opening=opening, remote=remote)
    report = check_location(store, world.clock)
    assert report.is_clean, report
    assert (report.shards[0].seqno or 0) > before
    world.close()


@pytest.mark.parametrize("opening", [1, 2, 3])
def test_a_part_that_is_lost_during_the_check_is_missing(opening: int) -> None:
    """At whichever of its readings: nobody has written to the shard since."""
    opened = Counter[str]()

    class Losing(Metered):
        @override
        def open(
            self, key: str, size_bytes: int | None = None, via: Objects | None = None
        ) -> pa.NativeFile | None:
            opened[key] += key == lost
            if opened[key] == opening:
                super().delete(key)
            return super().open(key, size_bytes, via)

    world = World()
    play = Play(world)
    play.append(30)
    play.retract(5)
    [lost, *_] = [p.key for b in play.client().state(SHARD).trace.batches for p in b.parts]
    report = check_location(Losing(world.objects(), world.clock), world.clock)
    assert [(f.code, f.subject) for f in report.shards[0].findings] == [("PART_MISSING", lost)]
    world.close()


def test_contents_that_cannot_be_read_are_a_finding_of_their_shard(world: World) -> None:
    """A value that the present type has no place for: other shards are checked all the same."""
    client = world.client(TINY)
    for name in ("before", "dates", "other"):
        client.create(name, schema_of(pa.schema([("d", pa.date32())])))
        days = pa.array([0, 2**31 - 1 if name == "dates" else 1], pa.int32()).view(pa.date32())
        rows = pa.table({"d": days})
        client.writer(name).append_now(rows)
        client.writer(name).append_now(rows.append_column("_diff", pa.array([-1, -1], pa.int64())))
    client.evolve("dates", schema_of(pa.schema([("d", pa.timestamp("us"))])))
    with pytest.raises(InvalidUsage, match="LOSSY_VALUE"):
        client.reader("dates").snapshot()
    report = check_location(world.objects(), world.clock)
    found = {shard.shard: [f.code for f in shard.findings] for shard in report.shards}
    assert found == {"before": [], "dates": ["PART_UNREADABLE"], "other": []}


class Unordered(Metered):
    """A store that lists a directory piece by piece, the parts long before the log."""

    def __init__(self, inner: Objects, play: Play) -> None:
        super().__init__(inner, play.world.clock)
        self._play = play
        self._looking = False

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        found = list(super().entries(prefix, start_after, limit))
        self._looking |= prefix == f"{SHARD}/log/"
        if prefix == f"{SHARD}/" and self._looking:
            self._play.append(30)
            log = super().entries(f"{SHARD}/log/")
            found = [e for e in found if "/log/" not in e.key] + list(log)
        return iter(found)


def test_a_part_is_not_missed_for_being_newer_than_its_listing() -> None:
    """Whatever order a store lists in, parts are looked for that were there before."""
    world = World()
    play = Play(world)
    play.append(30)
    report = check_location(Unordered(world.objects(), play), world.clock)
    assert report.is_clean, report
    assert report.shards[0].seqno == 2, "the state when the look began"
    world.close()


def test_what_is_missing_is_found_also_while_the_shard_moves() -> None:
    """A second look forgives what has gone away meanwhile, not what was gone before."""
    world = World()
    play = Play(world)
    play.append(30)
    play.hold(0)
    play.pin(0)
    [key, *_] = [p.key for b in play.client().state(SHARD).trace.batches for p in b.parts]
    world.objects().delete(key)
    with contextlib.suppress(ShardError):  # the merge of what is not there
        play.append(30)
    store = Moving(world.objects(), world, 0)
    looked = check_location(store, world.clock)
    assert [(f.code, f.subject) for f in looked.shards[0].findings] == [("PART_MISSING", key)]
    world.close()


def test_a_copy_in_the_order_of_keys_is_a_backup() -> None:
    """Also while writers append between any two objects: whatever a record names is older."""
    world, copy = World(), World()
    play = Play(world)
    for _ in range(4):
        play.append(20)
    last = ""
    while (entry := next(world.objects().entries("", last, 1), None)) is not None:
        data = world.objects().get(entry.key)
        assert data is not None
        copy.objects().put(entry.key, data)
        last = entry.key
        if play.sequence < 30:
            play.append(20)
    # Rollups are copied last, and some of them are of states that came after the copied log.
    assert {found.split()[0] for found in findings(copy)} <= {"HEAD_MISSING"}
    restored = copy.client(TINY).state(SHARD)
    assert 4 <= restored.writers["loader"].last < play.sequence
    for one in (world, copy):
        one.close()


@pytest.mark.parametrize("shard", [SHARD, OTHER])
def test_a_copy_beside_a_shard_is_reported_by_its_own_name(lake: Lake, shard: str) -> None:
    """And as nothing else: what its states name is there, where the shard is."""
    for entry in list(lake.objects.entries(f"{shard}/")):
        lake.objects.put(entry.key.replace(shard, "a_copy", 1), lake.get(entry.key))
    [copy] = [one for one in lake.check().shards if one.shard == "a_copy"]
    assert [finding.code for finding in copy.findings] == ["NAME_MISMATCH"]
    assert (copy.parts, copy.unreferenced) == (0, 0)


def test_a_copy_with_a_slash_too_many_is_foreign(lake: Lake) -> None:
    """`aws s3 cp --recursive . s3://bucket/prefix//` gives all keys an empty first segment."""
    lake.objects.put("/orders/log/7ffffffffffffffe", b"x")
    report = check_location(lake.objects, lake.world.clock)
    assert [(one.code, one.subject) for one in report.findings] == [("FOREIGN_DIRECTORY", "/")]


def test_an_empty_place_is_no_location() -> None:
    """Nothing there is an error, and not a clean bill of health."""
    world = World()
    world.objects().delete("_shardline")
    with pytest.raises(InvalidUsage, match="LOCATION_NOT_FOUND"):
        check_location(world.objects(), world.clock)


def test_a_folder_of_other_things_is_no_location_either() -> None:
    """It has folders, whose names shards could have, and none of what shards have in theirs."""
    world = World()
    world.objects().delete("_shardline")
    for key in ("landing/a.csv", "spark/log", "spark/logs/x", "project/orders/part.sql"):
        world.objects().put(key, b"x")
    with pytest.raises(InvalidUsage, match="LOCATION_NOT_FOUND"):
        check_location(world.objects(), world.clock)


def test_progress_counts_records_and_parts(lake: Lake) -> None:
    """Whoever waits sees which shard it is at, and that it moves."""
    seen: list[tuple[str, int]] = []
    lock = threading.Lock()

    def progress(shard: str, count: int) -> None:
        with lock:
            seen.append((shard, count))

    report = check_location(lake.objects, lake.world.clock, progress=progress)
    for shard in report.shards:
        assert sum(n for name, n in seen if name == shard.shard) >= shard.records + shard.parts


def test_a_report_survives_json(lake: Lake) -> None:
    """Programs read it by names that stay."""
    report = lake.check()
    text = msgspec.json.encode(report)
    assert msgspec.json.decode(text, type=type(report)) == report
    assert {"location", "at_ms", "deep", "findings", "shards"} == set(msgspec.json.decode(text))


def test_a_backup_that_was_made_while_the_shard_was_written_is_whole(tmp_path: Path) -> None:
    """The log first, as documented: rollups of records behind its end are none of the copy's."""
    settings = replace(TINY, rollup_every=8)

    def append(location: Path, count: int, settings: ShardSettings) -> ShardClient:
        client = ShardClient.open(location, settings=settings)
        for number in range(count):
            client.writer(SHARD).append_now(table((number, "v")))
        return client

    live, backup = tmp_path / "live", tmp_path / "backup"
    ShardClient.open(live, settings=settings).create(SHARD, schema_of())
    append(live, 21, settings)
    shutil.copytree(live, backup, ignore=shutil.ignore_patterns("part", "rollup"))
    append(live, 20, settings)
    for folder in ("part", "rollup"):
        shutil.copytree(live / SHARD / folder, backup / SHARD / folder, dirs_exist_ok=True)
    # Its own records pass those seqnos, without rollups of their own there.
    restored = append(backup, 60, replace(TINY, rollup_every=1000))
    with restored.reader(SHARD) as reader:
        assert reader.snapshot().num_rows == 81
    objects = open_objects(str(backup), {}, clock=SystemClock(), ids=SystemIds())
    report = check_location(objects, SystemClock(), deep=True)
    assert [f.code for shard in report.shards for f in shard.findings] == []
