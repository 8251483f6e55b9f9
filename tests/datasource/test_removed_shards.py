"""A process that remembers a shard which somebody has deleted, or replaced by an older copy.

Nothing that it writes then is acknowledged and lost: it is refused, and the next attempt goes by
what is there.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemIds
from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.lease import take_lease
from shardline.datasource.shard import machine
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS
from shardline.datasource.stores.entry import entry_key
from shardline.datasource.stores.location import Committed, Location
from shardline.datasource.stores.log import READERS_SEEN_MS, SEEN_MS, NumberedLog
from shardline.datasource.stores.memory import MemoryObjects
from shardline.datasource.stores.probe import find_leftover
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import ManualClock
from support.models.shards import TINY, World
from support.waiting import wait_until

SCHEMA = ShardSchema.from_arrow(pa.schema([("id", pa.int64())]))


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)})


def append(client: ShardClient, *ids: int) -> None:
    """As a write does: the shard is made if it is not there."""
    if not client.exists("o"):
        client.create("o", SCHEMA)
    client.writer("o").append_now(rows(*ids))


def contents(client: ShardClient) -> list[int]:
    with client.reader("o") as reader:
        return sorted(row["id"] for row in reader.snapshot().to_pylist())


@pytest.mark.parametrize("removed", ["the location", "the shard"])
def test_a_write_after_its_shard_was_deleted_is_refused_and_the_next_one_makes_it_anew(
    tmp_path: Path, removed: str
) -> None:
    """The step of a notebook that empties a folder and writes again."""
    url = str(tmp_path / "shards")
    client = ShardClient.open(url)
    append(client, 1)
    shutil.rmtree(url if removed == "the location" else f"{url}/o")
    with pytest.raises(InvalidUsage, match="LOG_REPLACED") as refused:
        append(client, 2)
    assert "nothing was written" in str(refused.value)
    assert not list(Path(url).glob("o/log/*"))
    append(client, 3)
    assert contents(client) == contents(ShardClient.open(url, create=False)) == [3]


def test_a_reader_whose_shard_was_deleted_is_closed_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease went with the shard: at the end of a notebook that is no failure to warn of."""
    url = str(tmp_path / "shards")
    client = ShardClient.open(url)
    append(client, 1)
    readers = [client.reader("o") for _ in range(2)]
    shutil.rmtree(url)
    with caplog.at_level("INFO"):
        for reader in readers:
            # The first one finds out that the log is gone, and the next that there is no shard.
            reader.close()
    assert [(one.levelname, one.message) for one in caplog.records] == [
        ("INFO", "the lease went with its shard")
    ] * 2


def test_a_write_after_an_older_copy_was_put_back_is_refused_and_the_next_one_goes_by_that(
    tmp_path: Path,
) -> None:
    """Whatever the copy has been given since, also as many records as there were."""
    url = tmp_path / "shards"
    client = ShardClient.open(str(url))
    append(client, 1)
    shutil.copytree(url, tmp_path / "copy")
    append(client, 2)
    shutil.rmtree(url)
    (tmp_path / "copy").rename(url)
    append(ShardClient.open(str(url)), 4)
    with pytest.raises(InvalidUsage, match="LOG_REPLACED"):
        client.writer("o").append_now(rows(3))
    client.writer("o").append_now(rows(5))
    assert contents(client) == contents(ShardClient.open(str(url))) == [1, 4, 5]


def test_none_of_the_writes_that_share_a_commit_goes_into_an_older_copy(tmp_path: Path) -> None:
    """One record of several is refused for all of them: to try them singly would not be refused."""
    url = tmp_path / "shards"
    client = ShardClient.open(str(url))
    append(client, 1)
    shutil.copytree(url, tmp_path / "copy")
    append(client, 2)
    machine, handles = client.machine("o"), [client.writer("o") for _ in range(3)]
    shutil.rmtree(url)
    (tmp_path / "copy").rename(url)
    with ThreadPoolExecutor(3) as pool:
        with machine._commit_lock:
            writes = [pool.submit(handle.append_now, rows(3)) for handle in handles]
            wait_until("all are queued", lambda: len(machine._queue) == len(writes), 30)
        refused = [one.exception() for one in writes]
    assert [getattr(one, "code", one) for one in refused] == ["LOG_REPLACED"] * len(writes)
    assert contents(ShardClient.open(str(url))) == [1]


def test_none_of_those_that_are_tried_singly_goes_into_an_older_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them makes the record too large; the first that is tried finds another log."""
    monkeypatch.setattr("shardline.datasource.stores.log.RECORD_BYTES_MAX", 5_000)
    url = tmp_path / "shards"
    client = ShardClient.open(str(url))
    append(client, 1)
    shutil.copytree(url, tmp_path / "copy")
    append(client, 2)
    machine = client.machine("o")
    shutil.rmtree(url)
    (tmp_path / "copy").rename(url)

    def lease(purpose: str) -> Any:
        return take_lease(machine, since=None, lease_ms=60_000, purpose=purpose)

    with ThreadPoolExecutor(4) as pool:
        with machine._commit_lock:
            large = pool.submit(lease, "x" * 10_000)
            wait_until("the large one is first", lambda: len(machine._queue) == 1, 30)
            small = [pool.submit(lease, "small") for _ in range(3)]
            wait_until("all are queued", lambda: len(machine._queue) == 4, 30)
        refused = [one.exception() for one in (large, *small)]
    codes = [getattr(one, "code", one) for one in refused]
    assert codes == ["RECORD_TOO_LARGE", *["LOG_REPLACED"] * len(small)]
    assert not ShardClient.open(str(url)).state("o").leased


def test_no_shard_is_made_in_a_location_that_is_another_one_by_now(tmp_path: Path) -> None:
    """Its id is in what is remembered of the one that was opened."""
    url = str(tmp_path / "shards")
    client = ShardClient.open(url)
    append(client, 1)
    shutil.rmtree(url)
    append(ShardClient.open(url), 2)
    with pytest.raises(InvalidUsage, match="LOG_REPLACED"):
        append(client, 3)
    with pytest.raises(InvalidUsage, match="LOCATION_REPLACED"):
        client.create("another", SCHEMA)
    assert contents(ShardClient.open(url)) == [2]


@pytest.mark.parametrize("left", ["part", ""])
def test_a_reader_that_remembers_a_shard_is_told_that_its_log_is_lost(
    world: World, left: str
) -> None:
    """Also if it only looks for what is new: nothing is new in a log that is gone."""
    client = world.client()
    append(client, 1)
    lose_log(world, left)
    assert client.state("o").seqno > 0  # seen a moment ago
    world.clock.advance(READERS_SEEN_MS)
    with pytest.raises(InvalidUsage, match=r"LOG_REPLACED.*not there any more"):
        client.state("o")
    with pytest.raises(InvalidUsage, match="SHARD_NOT_FOUND"):
        client.state("o")


def test_a_reader_is_told_once_in_a_while_that_its_log_is_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look is a request, and a shard at rest is looked at all the time."""
    store, looks = world.objects(), list[str]()
    found = store.get

    def get(key: str, *places: Any) -> bytes | None:
        looks.append(key)
        return found(key, *places)

    client = world.client(objects=store)
    append(client, 1)
    head = entry_key("o/log/", client.state("o").seqno)
    monkeypatch.setattr(store, "get", get)
    for _ in range(3):
        world.clock.advance(READERS_SEEN_MS / 2)
        client.state("o")
    assert looks.count(head) == 1


def lose_log(world: World, *kept: str) -> None:
    """Delete all objects of shard `o` but those of the given kinds."""
    for entry in list(world.objects().entries("o/")):
        if entry.key.split("/")[1] not in kept:
            world.objects().delete(entry.key)


def filled(world: World) -> None:
    """Give shard `o` a floor, a rollup and parts."""
    client = world.client(TINY)
    for number in range(12):
        append(client, *range(number * 100, number * 100 + 100))
    log = client.location.consensus
    log.truncate("o", 8)
    kinds = {entry.key.split("/")[1] for entry in world.objects().entries("o/")}
    assert kinds == {"floor", "log", "part", "rollup"}


@pytest.mark.parametrize("left", ["floor", "rollup", "part"])
def test_no_shard_is_made_where_one_has_lost_its_log(world: World, left: str) -> None:
    """Its rows would be swept as orphans of the new one, or the new one's records be lost."""
    filled(world)
    lose_log(world, left)
    world.clock.advance(SWEEP_AGE_MS + 1)
    before = list(world.objects().entries("o/"))

    for _ in range(2):
        with pytest.raises(Corrupt, match=rf"\[SHARD_WITHOUT_LOG\].*'o/{left}/.*restore its log/"):
            world.client().create("o", SCHEMA)
    assert list(world.objects().entries("o/")) == before
    lose_log(world)
    append(world.client(), 1)
    assert contents(world.client()) == [1]


def test_what_is_staged_for_a_shard_or_put_there_by_others_does_not_keep_it_from_being_made(
    world: World,
) -> None:
    """A probe of Spark's file system lies below `part/` at that time; a bucket has markers."""
    for key in ("floor/", "part/", "rollup/", "rollup/.DS_Store", "floor/readme"):
        world.objects().put(f"o/{key}", b"")
    world.clock.advance(SWEEP_AGE_MS + 1)
    world.objects().put(f"o/part/p{'0' * 32}.parquet", b"Is this store the one?")

    append(world.client(), 1)

    assert contents(world.client()) == [1]


def test_a_shard_that_another_process_makes_meanwhile_is_taken_as_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rollups and floors are those of its log, which was not there at the first look only."""
    client = world.client()

    def meanwhile(location: Location, directory: str, before_ms: int) -> str | None:
        monkeypatch.undo()
        filled(world)
        return find_leftover(location, directory, before_ms)

    monkeypatch.setattr(machine, "find_leftover", meanwhile)
    append(client, 1)

    assert len(contents(client)) == 1201


def test_a_store_that_is_far_away_is_asked_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look is a request there: a writer that is busy goes by what it has just written."""
    clock, looks = ManualClock(), []
    store = MemoryObjects("far", clock)
    found = store.get

    def get(key: str, *places: Any) -> bytes | None:
        looks.append(key)
        return found(key, *places)

    monkeypatch.setattr(store, "get", get)
    log = NumberedLog(store, clock=clock, ids=SystemIds())
    for seqno in range(1, 4):
        assert log.compare_and_set("s", seqno - 1 or None, b"x") == Committed(seqno)
    looks.clear()
    assert log.compare_and_set("s", 3, b"x") == Committed(4)
    assert not looks
    clock.advance(SEEN_MS)
    assert log.compare_and_set("s", 4, b"x") == Committed(5)
    assert len(looks) == 1
    clock.advance(SEEN_MS)
    store.delete(entry_key("s/log/", 5))
    log.head("s")  # finds nothing behind it, and goes by what it remembers
    with pytest.raises(InvalidUsage, match="LOG_REPLACED"):
        log.compare_and_set("s", 5, b"x")
