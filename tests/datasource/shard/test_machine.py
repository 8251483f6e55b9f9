"""The commit loop: answers about the present, cold starts, and state that cannot be trusted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    Indeterminate,
    InvalidUsage,
    MissingBlob,
)
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.codec import CODE_VERSION, Record, encode_record, encode_rollup
from shardline.datasource.shard.commands.readers import heartbeat, register_leased
from shardline.datasource.shard.group_commit import Pending
from shardline.datasource.stores import log
from shardline.datasource.stores.entry import encode_entry, entry_key
from shardline.datasource.stores.faulty import Fault, Faulty
from shardline.datasource.stores.objects import Objects
from support.models.shards import SETTINGS, World, rows, schema_of, table

SHARD = "orders"
ROLLUPS = replace(SETTINGS, rollup_every=4)


def filled(world: World, appends: int, rollup_every: int = 128) -> ShardClient:
    client = world.client(replace(SETTINGS, rollup_every=rollup_every, compact_inline_bytes=0))
    client.create(SHARD, schema_of())
    writer = client.writer(SHARD)
    for number in range(appends):
        writer.append_now(table((number, "x")))
    return client


def log_keys(objects: Objects) -> list[str]:
    """Keys of the log's records, oldest first."""
    return [entry.key for entry in objects.entries(f"{SHARD}/log/")][::-1]


def rollup_keys(objects: Objects) -> list[str]:
    return [entry.key for entry in objects.entries(f"{SHARD}/rollup/")]


# --- answers -------------------------------------------------------------------------------------


def test_a_refusal_after_a_lost_race_is_about_the_newest_state(world: World) -> None:
    """The record that won the race need not be the newest: refusing on it would be too early."""
    ours, theirs = filled(world, 1), world.client()
    ours.state(SHARD)
    with theirs.reader(SHARD):
        pass
    # Ours has not seen the reader come nor go; its first try loses against the coming.
    ours.drop(SHARD)
    assert not theirs.exists(SHARD)


def test_a_refusal_on_a_cached_state_is_checked(world: World) -> None:
    """A reader that another process has registered is found, though the cache knows nothing."""
    ours, theirs = filled(world, 1), world.client()
    register = partial(register_leased, reader="r1", since=None, lease_ms=1000, purpose="")
    theirs.machine(SHARD).apply(register)
    answer = ours.machine(SHARD).apply(partial(heartbeat, reader="r1"))
    assert getattr(answer, "since", None) == Frontier(0)


def test_a_command_on_nothing_says_what_is_there(world: World) -> None:
    """An unknown shard is an error that names the nearest known one."""
    client = filled(world, 0)
    with pytest.raises(InvalidUsage, match=r"SHARD_NOT_FOUND.*'order'.*did you mean 'orders'"):
        client.state("order")
    with pytest.raises(InvalidUsage, match="the location has 'orders'"):
        client.reader("zzz")
    with pytest.raises(InvalidUsage, match="the location has no shards yet"):
        World().client().state("orders")


def test_losing_every_race_ends_in_an_error_that_says_so(world: World) -> None:
    """Contention is bounded, and certainly nothing happened."""
    filled(world, 1)
    store = Faulty(world.objects(), clock=world.clock, ids=world.ids)
    rival = world.client().writer(SHARD)
    original = store.create

    def create(key: str, value: bytes) -> object:
        world.clock.advance(10)
        rival.append_now(None)
        return original(key, value)

    store.create = create  # type: ignore[method-assign,assignment]
    loser = world.client(replace(SETTINGS, commit_timeout_ms=1), store).writer(SHARD)
    with pytest.raises(Determinate, match="CONTENTION"):
        loser.append_now(table((9, "z")))
    with world.client().reader(SHARD) as reader:
        assert rows(reader.snapshot()) == rows(table((0, "x")))


@pytest.mark.parametrize("sizes", [(9000, 10, 10), (10, 9000, 10), (2500, 2500, 10)])
def test_a_command_that_is_too_large_fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    """Those that were to be in the same record are committed; so are some too large together."""
    filled(world, 1)
    machine = world.client().machine(SHARD)
    before = machine.state().seqno
    monkeypatch.setattr(log, "RECORD_BYTES_MAX", 4000)
    register = [
        Pending(
            partial(register_leased, reader=f"r{at}", since=None, lease_ms=1000, purpose="x" * size)
        )
        for at, size in enumerate(sizes)
    ]
    machine._queue += register[1:]
    try:
        machine.apply(register[0].command)
        failed = set()
    except InvalidUsage:
        failed = {"r0"}
    for at, pending in enumerate(register[1:], 1):
        assert pending.answer is not None
        if pending.answer.error is not None:
            assert isinstance(pending.answer.error, InvalidUsage)
            assert pending.answer.error.code == "RECORD_TOO_LARGE"
            failed.add(f"r{at}")
    assert failed == {f"r{at}" for at, size in enumerate(sizes) if size > 4000}
    assert world.client().state(SHARD).leased.keys() == {"r0", "r1", "r2"} - failed
    assert world.client().state(SHARD).seqno == before + 3 - len(failed), "one record each"
    assert machine._queue == []


@pytest.mark.parametrize("purpose", ["host \udc80", 7])
def test_a_command_that_cannot_be_encoded_fails_alone(world: World, purpose: Any) -> None:
    """It is refused as an argument, and is no error of those who were to be in its record."""
    filled(world, 1)
    machine = world.client().machine(SHARD)
    purposes = {"poison": purpose, "r1": "first", "r2": "second"}
    waiting = {
        name: Pending(partial(register_leased, reader=name, since=None, lease_ms=1000, purpose=one))
        for name, one in purposes.items()
    }
    machine._queue += [waiting["poison"], waiting["r2"]]
    machine.apply(waiting["r1"].command)
    poison, other = waiting["poison"].answer, waiting["r2"].answer
    assert poison is not None
    assert other is not None
    assert isinstance(poison.error, InvalidUsage)
    assert poison.error.code == "INVALID_ARGUMENT"
    assert other.error is None
    assert world.client().state(SHARD).leased.keys() == {"r1", "r2"}


def test_no_row_is_in_the_representation_of_a_handle(world: World) -> None:
    """In a notebook it is printed, and in a traceback that shows local variables."""
    client = world.client(SETTINGS)
    client.create(SHARD, schema_of())
    writer = client.writer(SHARD)
    writer.append_now(table((1, "a secret of somebody")))
    for handle in (client.hold(SHARD, "report"), writer, client.machine(SHARD)):
        assert f"Machine(name='{SHARD}')" in repr(handle)
        assert "a secret" not in repr(handle)
        assert len(repr(handle)) < 2_000


def test_what_cannot_be_read_back_is_unknown(world: World) -> None:
    """A lost acknowledgement while reads fail is `Indeterminate`, never "did not happen"."""
    filled(world, 1)
    store = Faulty(world.objects(), clock=world.clock, ids=world.ids)
    machine = world.client(SETTINGS, store).machine(SHARD)
    machine.state()
    store.fail("create", Fault.AFTER)
    store.fail("get", *[Fault.BEFORE] * 100)
    with pytest.raises(Indeterminate):
        machine.apply(partial(register_leased, reader="r1", since=None, lease_ms=1000, purpose=""))
    assert "r1" in world.client().state(SHARD).leased


def test_a_wall_clock_that_jumps_back_does_not_take_the_log_with_it(world: World) -> None:
    """Times of records grow strictly; appends go on at the upper until the clock catches up."""
    client = filled(world, 2)
    before = client.state(SHARD)
    world.clock.set_back(3_600_000)
    done = client.writer(SHARD).append_now(table((9, "z")))
    after = client.state(SHARD)
    assert after.walltime_ms > before.walltime_ms
    assert after.upper.time == (before.upper.time or 0) + 1
    assert done.upper == after.upper


# --- cold starts ---------------------------------------------------------------------------------


def test_a_cold_start_reads_a_rollup_and_the_records_after_it(world: World) -> None:
    """Opening a shard costs one rollup and less than `rollup_every` records, however old it is."""
    filled(world, 40, rollup_every=8)
    objects = world.objects()
    newest = rollup_keys(objects)[-1]
    for key in log_keys(objects)[:30]:
        objects.delete(key)
    for key in rollup_keys(objects)[:-1]:
        objects.delete(key)
    state = world.client().state(SHARD)
    assert len(state.trace.batches) == 40
    assert state.rollup is not None
    assert state.rollup[1].key == newest


def test_rollups_are_written_by_whoever_commits_on_a_multiple(world: World) -> None:
    """One rollup per `rollup_every` records, not one per process."""
    clients = [filled(world, 0, rollup_every=8) for _ in range(3)]
    for number in range(40):
        clients[number % 3].writer(SHARD).append_now(table((number, "x")))
    state = clients[0].state(SHARD)
    assert len(rollup_keys(world.objects())) == len(state.rollups)
    assert all(seqno % 8 == 0 for seqno in state.rollups)


@pytest.mark.parametrize("error", [Determinate("no"), OSError("no"), MemoryError()])
def test_a_rollup_that_cannot_be_written_does_not_fail_what_was_committed(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever goes wrong with it, the append before it is acknowledged."""
    client = filled(world, 0, rollup_every=2)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(client.location.blob, "set", fail)
    for number in range(5):
        client.writer(SHARD).append_now(table((number, "x")))
    with world.client().reader(SHARD) as reader:
        assert sum(rows(reader.snapshot()).values()) == 5


def test_a_shard_made_again_does_not_roll_up_its_first_records(world: World) -> None:
    """The record that makes a shard holds its whole state: counting starts there."""
    client = filled(world, 30, rollup_every=8)
    client.drop(SHARD)
    client.create(SHARD, schema_of())
    client.writer(SHARD).append_now(None)
    assert client.state(SHARD).rollups == {}


# --- state that cannot be trusted ----------------------------------------------------------------


def test_a_missing_rollup_is_missing_state(world: World) -> None:
    """A rollup that is gone is an error that names it; the shard is not taken for a new one."""
    filled(world, 12, rollup_every=4)
    objects = world.objects()
    for key in rollup_keys(objects):
        objects.delete(key)
    with pytest.raises(MissingBlob, match=r"MISSING_STATE.*rollup"):
        world.client().state(SHARD)
    with pytest.raises(MissingBlob, match="MISSING_STATE"):
        world.client().create(SHARD, schema_of())


def test_a_missing_first_record_is_missing_state(world: World) -> None:
    """Without a rollup the state starts at the first record; without that, nowhere."""
    filled(world, 3)
    objects = world.objects()
    objects.delete(log_keys(objects)[0])
    with pytest.raises(MissingBlob, match=r"MISSING_STATE.*record 1"):
        world.client().state(SHARD)


def test_a_hole_in_the_log_is_missing_state(world: World) -> None:
    """Records are read without gaps, or not at all: never as an older state."""
    filled(world, 5)
    objects = world.objects()
    objects.delete(log_keys(objects)[2])
    with pytest.raises(MissingBlob, match=r"MISSING_STATE.*after seqno 2"):
        world.client().state(SHARD)


def test_any_damaged_bit_of_a_record_is_noticed(world: World) -> None:
    """Every bit of the newest and of an older record is covered."""
    state = filled(world, 2).state(SHARD)
    objects = world.objects()
    for key in log_keys(objects)[-2:]:
        whole = objects.get(key) or b""
        for bit in range(0, 8 * len(whole), 13):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            objects.put(key, bytes(damaged))
            if bit // 8 in range(5, 8):  # padding of the entry's header: means nothing
                assert world.client().state(SHARD) == state
                continue
            with pytest.raises(Corrupt):
                world.client().state(SHARD)
        for end in (0, 1, 20, 28, len(whole) - 1):
            objects.put(key, whole[:end])
            with pytest.raises(Corrupt):
                world.client().state(SHARD)
        objects.put(key, whole)
    assert world.client().state(SHARD).upper.time is not None


@pytest.mark.parametrize("end", [0, 7, 12, 19, 20, -1])
def test_a_cut_rollup_is_corrupt(world: World, end: int) -> None:
    """A rollup that is not whole is refused by name, with what to do."""
    filled(world, 9, rollup_every=4)
    objects = world.objects()
    key = rollup_keys(objects)[-1]
    objects.put(key, (objects.get(key) or b"")[:end])
    with pytest.raises(Corrupt, match=rf"CORRUPT_STATE.*{key}.*backup"):
        world.client().state(SHARD)


def test_a_rollup_in_another_s_place_is_corrupt(world: World) -> None:
    """A whole rollup of another moment is not the one that is referred to."""
    client = filled(world, 14, rollup_every=4)
    objects = world.objects()
    first, *_, last = rollup_keys(objects)
    objects.put(last, objects.get(first) or b"")
    with pytest.raises(Corrupt, match="holds the state at seqno"):
        world.client().state(SHARD)
    del client


def forge(world: World, seqno: int, data: bytes) -> None:
    """A record that is whole and checksummed, but not ours."""
    key = entry_key(f"{SHARD}/log/", seqno)
    world.objects().put(key, encode_entry(key, b"x" * 16, data))


@pytest.mark.parametrize("data", [b"", b"hello", b"{}", b"[1, 2]", b'{"seqno": 4}', b"\xff\xfe"])
def test_a_foreign_record_is_corrupt(world: World, data: bytes) -> None:
    """What is framed like a record and is none stops everybody, warm and cold."""
    warm = filled(world, 2)
    forge(world, warm.state(SHARD).seqno + 1, data)
    for client in (warm, world.client()):
        with pytest.raises(Corrupt, match="CORRUPT_STATE"):
            client.state(SHARD)
        with pytest.raises(Corrupt, match="CORRUPT_STATE"):
            client.drop(SHARD)


def test_a_record_that_says_another_number_is_corrupt(world: World) -> None:
    """A record in the wrong place is not applied."""
    client = filled(world, 2)
    state = client.state(SHARD)
    record = Record(seqno=99, token="", walltime_ms=1, version=(1, 0), state=state)
    forge(world, state.seqno + 1, encode_record(record))
    with pytest.raises(Corrupt, match="says that it is record 99"):
        client.state(SHARD)


def test_state_of_a_newer_version_is_refused_and_left_alone(world: World) -> None:
    """Nothing is read from it, and nothing is written to it."""
    client = filled(world, 2)
    state = client.state(SHARD)
    too_new = (CODE_VERSION[0], CODE_VERSION[1] + 2)
    newer = msgspec.structs.replace(state, seqno=state.seqno + 1, version=too_new)
    record = Record(seqno=newer.seqno, token="", walltime_ms=1, version=newer.version, state=newer)
    forge(world, newer.seqno, encode_record(record))
    for one in (client, world.client()):
        with pytest.raises(InvalidUsage, match=r"NEWER_VERSION.*upgrade"):
            one.state(SHARD)
        with pytest.raises(InvalidUsage, match="NEWER_VERSION"):
            one.create(SHARD, schema_of())
    assert len(log_keys(world.objects())) == newer.seqno


def test_the_newest_version_that_contributed_is_kept(world: World) -> None:
    """Older code that goes on writing does not hide that a newer one was there."""
    client = filled(world, 1)
    state = client.state(SHARD)
    ahead = (CODE_VERSION[0], CODE_VERSION[1] + 1)
    newer = msgspec.structs.replace(state, seqno=state.seqno + 1, version=ahead)
    record = Record(
        seqno=newer.seqno, token="", walltime_ms=newer.walltime_ms, version=ahead, state=newer
    )
    forge(world, newer.seqno, encode_record(record))
    client.writer(SHARD).append_now(None)
    assert client.state(SHARD).version == ahead
    assert encode_rollup(client.state(SHARD))
