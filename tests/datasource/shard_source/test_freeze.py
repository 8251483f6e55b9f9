"""Freezing: the frontier stays at the first part that cannot be read, and goes on when it can."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.errors import Corrupt, MissingBlob
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart, TimeFilter
from shardline.datasource.shard_source import freeze
from shardline.datasource.shard_source.descs import parts_with_news, stop_before
from shardline.datasource.shard_source.freeze import Freezer
from shardline.datasource.stores.open import open_objects
from support.fakes.clock import ManualClock
from support.fakes.engine import Checkpoint, Killed, Query, options_of
from support.fakes.ranged_store import OpenedByRanges
from support.models.shards import TINY, World, schema_of, updates
from support.processes.s3_server import S3Server, s3_server
from support.spark.streams import churn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardline.datasource.client import ShardClient

BLOBS = dataclasses.replace(TINY, inline_part_bytes=0, compact_inline_bytes=0)

FREEZE = {"onMissingPart": "freeze", "startingTimestamp": 0}


@pytest.fixture(params=["opened whole", "opened by ranges"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A store that finds out that an object is gone when it is opened, or when it is read."""
    if request.param == "opened whole":
        made = World()
    else:
        made = World(objects=lambda here: OpenedByRanges(here._name, here.clock))
    yield made
    made.close()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


def put(client: ShardClient, time: int, rows: int = 1) -> None:
    """One batch of so many rows at `time`."""
    some = updates(*((i, f"at {time}", time, 1) for i in range(rows)))
    client.writer("in").compare_and_append(some, Frontier(time), Frontier(time + 1))


def shard(world: World, batches: int, rows: int = 1) -> ShardClient:
    """Batches at t = 0, 1, 2, ..."""
    client = world.client(BLOBS)
    client.create("in", schema_of())
    for time in range(batches):
        put(client, time, rows)
    return client


def keys_at(client: ShardClient, time: int) -> list[str]:
    batches = client.state("in").trace.batches
    return [p.key for b in batches for p in b.parts if p.time_bounds == (time, time)]


def delete(world: World, key: str) -> bytes:
    """Take a blob away behind the shard's back; returns it."""
    data = world.objects().get(key)
    assert data is not None
    world.objects().delete(key)
    return data


def truncate(world: World, key: str) -> bytes:
    data = delete(world, key)
    world.objects().put(key, data[:-7])
    return data


def flip(world: World, key: str) -> bytes:
    """Turn one bit over, in the middle of the data."""
    data = delete(world, key)
    at = len(data) // 3
    world.objects().put(key, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    return data


def times(checkpoint: Checkpoint) -> list[int]:
    return sorted({row[-2] for row in checkpoint.rows()})


# --- the planner's decision -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batches", "bad", "stop"), [(3, [1], 1), (12, [5], 5), (12, [9, 5, 11], 5), (3, [], None)]
)
def test_the_frontier_stops_at_the_least_unreadable_time(
    world: World, batches: int, bad: list[int], stop: int | None
) -> None:
    """Whatever else can be read, and in whatever order it was looked at."""
    client = shard(world, batches)
    planned = parts_with_news([client.state("in")], 0, EMPTY)
    unreadable = {key for time in bad for key in keys_at(client, time)}

    assert stop_before(planned, unreadable) == stop
    assert stop_before(reversed(planned), unreadable) == stop


# --- a query --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [delete, truncate, flip])
@pytest.mark.parametrize(
    ("batches", "bad", "limit"),
    [
        (3, 1, {}),
        (3, 2, {}),
        (3, 0, {}),
        (12, 5, {}),
        (12, 5, {"maxFilesPerTrigger": 1}),
        (12, 5, {"maxFilesPerTrigger": 4}),
        (12, 5, {"partitionBytes": "300k"}),
    ],
)
def test_a_frozen_stream_never_passes(
    world: World,
    batches: int,
    bad: int,
    limit: dict[str, object],
    damage: Callable[[World, str], bytes],
) -> None:
    """It reads all that is before, stays, says so, and goes on when the blob is back."""
    client = shard(world, batches)
    (key,) = keys_at(client, bad)
    data = damage(world, key)
    checkpoint = Checkpoint()
    query = Query(world.client(BLOBS), checkpoint, options_of(**FREEZE, **limit))

    query.drain()
    world.clock.advance(10_000)
    assert query.drain() == 0
    put(client, batches)
    world.clock.advance(10_000)
    assert query.drain() == 0
    said = (query.run.report() or {})["frozen"]
    (hold,) = client.state("in").critical.values()

    assert times(checkpoint) == list(range(bad))
    assert checkpoint.frontier() == bad
    assert said["part"] == key
    assert f"frozen since {said['since_ms']} at part '{key}'" in hold.purpose

    world.objects().put(key, data)
    world.clock.advance(10_000)
    query.drain()

    assert times(checkpoint) == list(range(batches + 1))
    assert "frozen" not in (query.run.report() or {})
    assert "frozen" not in next(iter(client.state("in").critical.values())).purpose


@pytest.mark.s3
@pytest.mark.parametrize("damage", [delete, truncate])
def test_a_stream_freezes_on_s3(server: S3Server, damage: Callable[[World, str], bytes]) -> None:
    """Over the store itself, whose objects are gone or short only where they are read."""
    url = f"s3://{server.new_bucket()}/lake"
    world = World(
        objects=lambda here: open_objects(url, server.options, clock=here.clock, ids=here.ids)
    )
    client = shard(world, 3)
    (key,) = keys_at(client, 1)
    data = damage(world, key)
    checkpoint = Checkpoint()
    query = Query(world.client(BLOBS), checkpoint, options_of(**FREEZE))
    query.drain()
    stood_at = checkpoint.frontier()
    said = (query.run.report() or {})["frozen"]
    world.objects().put(key, data)
    world.clock.advance(10_000)
    query.drain()

    assert stood_at == 1
    assert said["part"] == key
    assert key in said["reason"]
    assert times(checkpoint) == [0, 1, 2]


def test_a_restarted_stream_is_as_frozen(world: World) -> None:
    """Standing still survives the process."""
    client = shard(world, 3)
    (key,) = keys_at(client, 1)
    data = delete(world, key)
    checkpoint = Checkpoint()
    for _ in range(3):
        Query(world.client(BLOBS), checkpoint, options_of(**FREEZE)).drain()
    frozen_at = checkpoint.frontier()
    world.objects().put(key, data)

    Query(world.client(BLOBS), checkpoint, options_of(**FREEZE)).drain()

    assert frozen_at == 1
    assert times(checkpoint) == [0, 1, 2]


def test_the_last_of_a_tasks_parts_is_missed_too(world: World) -> None:
    """One task reads several parts of one time, and it is the last one that is gone."""
    client = shard(world, 1)
    put(client, 1, rows=60)
    put(client, 2)
    keys = keys_at(client, 1)
    assert len(keys) > 1
    delete(world, keys[-1])
    checkpoint = Checkpoint()

    Query(world.client(BLOBS), checkpoint, options_of(**FREEZE)).drain()

    assert times(checkpoint) == [0]
    assert checkpoint.frontier() == 1


def test_a_snapshot_freezes_before_its_unreadable_piece(world: World) -> None:
    """What the pieces before it hold is read; then nothing, until it is back."""
    client = shard(world, 6)
    (key,) = keys_at(client, 3)
    data = delete(world, key)
    checkpoint = Checkpoint()
    options = options_of(onMissingPart="freeze", maxFilesPerTrigger=1)
    query = Query(world.client(BLOBS), checkpoint, options)
    query.drain()
    before = len(checkpoint.rows())
    world.objects().put(key, data)
    world.clock.advance(10_000)
    query.drain()

    assert before < 6
    assert sorted(row[1] for row in checkpoint.rows()) == [f"at {n}" for n in range(6)]


def test_a_published_range_is_waited_for(world: World) -> None:
    """A part that is lost after its range was published: planning waits, and gives up in time."""
    client = shard(world, 3)
    checkpoint = Checkpoint()
    options = options_of(**FREEZE, freezeTimeout="5min")
    Query(world.client(BLOBS), checkpoint, options).step()

    def die(step: str, _batch: int) -> bool:
        return step == "offset log"

    with pytest.raises(BaseException, match="after offset log"):
        Query(world.client(BLOBS), checkpoint, options, kill=die).step()
    (key,) = keys_at(client, 1)
    data = delete(world, key)
    started_ms = world.clock.now_ms()
    with pytest.raises(MissingBlob, match=rf"FREEZE_TIMEOUT.*{key}"):
        Query(world.client(BLOBS), checkpoint, options).step()
    waited_ms = world.clock.now_ms() - started_ms
    world.objects().put(key, data)
    Query(world.client(BLOBS), checkpoint, options).drain()

    assert 300_000 <= waited_ms < 310_000
    assert times(checkpoint) == [0, 1, 2]


def test_a_frozen_stream_gives_up_in_time(world: World) -> None:
    """`freezeTimeout` turns standing still into a failure that names the part."""
    client = shard(world, 3)
    (key,) = keys_at(client, 1)
    delete(world, key)
    query = Query(world.client(BLOBS), Checkpoint(), options_of(**FREEZE, freezeTimeout="1h"))
    query.drain()
    world.clock.advance(3_599_000)
    assert query.drain() == 0
    world.clock.advance(2_000)

    with pytest.raises(MissingBlob, match=rf"FREEZE_TIMEOUT.*{key}"):
        query.step()


def test_a_run_to_a_target_does_not_end_as_if_it_had_read_all(world: World) -> None:
    """AvailableNow ends a query that has no news; a frozen one must not look like that."""
    client = shard(world, 3)
    (key,) = keys_at(client, 1)
    delete(world, key)
    checkpoint = Checkpoint()
    query = Query(world.client(BLOBS), checkpoint, options_of(**FREEZE), available_now=True)

    with pytest.raises(MissingBlob, match=key):
        query.drain()

    assert times(checkpoint) == [0]


def test_a_run_to_a_target_does_not_wait_for_a_published_range(world: World) -> None:
    """A job at night that was killed within a micro-batch, and then a part is lost: it fails."""
    client = shard(world, 3)
    # With a timeout, or the test would wait for ever as well, where the run does.
    checkpoint, options = Checkpoint(), options_of(**FREEZE, freezeTimeout="1h")
    with pytest.raises(Killed):
        Query(
            world.client(BLOBS),
            checkpoint,
            options,
            kill=lambda step, _: step == "offset log",
            available_now=True,
        ).drain()
    (key,) = keys_at(client, 1)
    data = delete(world, key)
    with pytest.raises(MissingBlob, match=f"cannot reach its target.*{key}"):
        Query(world.client(BLOBS), checkpoint, options, available_now=True).drain()
    world.objects().put(key, data)
    Query(world.client(BLOBS), checkpoint, options, available_now=True).drain()
    assert times(checkpoint) == [0, 1, 2]


@pytest.mark.parametrize("resumed", [False, True], ids=["first range", "resumed"])
def test_a_part_that_is_merged_while_it_is_looked_at_is_not_missing(
    world: World, monkeypatch: pytest.MonkeyPatch, *, resumed: bool
) -> None:
    """Before its first range a run has a hold, which keeps history; files are kept by a lease."""
    client = shard(world, 1 if resumed else 6)
    checkpoint = Checkpoint()
    options = options_of(onMissingPart="freeze")
    if resumed:
        before = Query(world.client(BLOBS), checkpoint, options, available_now=True)
        before.drain()
        before.run.release()  # its lease would keep the files of this run, too
        for time in range(1, 6):
            put(client, time)
    query = Query(world.client(BLOBS), checkpoint, options, available_now=True)
    real = Freezer.find_unreadable
    merges: list[int] = []

    def merged_meanwhile(self: Freezer, planned: Iterable[PlannedPart]) -> dict[str, str]:
        if not merges:
            merges.append(len(client.state("in").trace.batches))
            churn(client)
        return real(self, planned)

    monkeypatch.setattr(Freezer, "find_unreadable", merged_meanwhile)
    query.drain()
    assert merges[0] > len(client.state("in").trace.batches), "parts were merged"
    assert sorted(row[1] for row in checkpoint.rows()) == [f"at {n}" for n in range(6)]


def test_failing_is_the_default(world: World) -> None:
    """The micro-batch fails with all that is known; it succeeds once the blob is back."""
    client = shard(world, 3)
    (key,) = keys_at(client, 1)
    data = delete(world, key)
    checkpoint, options = Checkpoint(), options_of(startingTimestamp=0, maxFilesPerTrigger=1)
    query = Query(world.client(BLOBS), checkpoint, options)
    with pytest.raises(MissingBlob) as caught:
        query.drain()
    for _ in range(3):
        with pytest.raises(MissingBlob):
            Query(world.client(BLOBS), checkpoint, options).step()
    reached = times(checkpoint)
    world.objects().put(key, data)
    Query(world.client(BLOBS), checkpoint, options).drain()

    said = str(caught.value)
    assert reached == [0]
    assert times(checkpoint) == [0, 1, 2]
    assert caught.value.code == "BLOB_DELETED"
    for words in (key, "shard 'in'", "times 1 to 1", "is alive"):
        assert words in said


def test_a_lost_lease_is_told_from_a_deletion(world: World) -> None:
    """Whoever lost a part by losing the lease is told so."""
    client = shard(world, 2)
    query = Query(client, Checkpoint(), options_of(startingTimestamp=0))

    def lose(step: str, batch: int) -> bool:
        if (step, batch) == ("plan", 1):
            world.clock.advance(BLOBS.lease_ms + 1)
            client.writer("in").append_now(updates((9, "x", 100, 1)).drop_columns(["_ts", "_diff"]))
            for key in (*keys_at(client, 0), *keys_at(client, 1)):
                delete(world, key)
        return False

    query._kill = lose
    with pytest.raises(MissingBlob) as caught:
        query.drain()

    assert caught.value.code == "LEASE_LOST"


def test_damage_names_shard_and_times(world: World) -> None:
    """A part that is there and wrong."""
    client = shard(world, 1)
    put(client, 1, rows=40)
    truncate(world, keys_at(client, 1)[0])
    query = Query(client, Checkpoint(), options_of(startingTimestamp=0))

    # A remote store cannot tell a short part from one that is gone.
    told = r"(not \d+|gone or shorter than).*\(shard 'in', times 0 to 1\)"
    with pytest.raises((Corrupt, MissingBlob), match=told):
        query.drain()


def test_new_parts_do_not_keep_a_restored_one_from_being_found() -> None:
    """Where parts come faster than bad ones are checked again, these are checked all the same."""
    clock = ManualClock()
    lost = {"a"}
    freezer = Freezer(
        lambda part: MissingBlob("gone") if part.key in lost else None,
        lambda _: None,
        clock,
        "a stream",
        None,
    )

    def look(number: int) -> dict[str, str]:
        parts = [Part("a", 1, 1, 0), Part(f"new {number}", 1, 1, 0)]
        return freezer.find_unreadable(
            [PlannedPart(part, TimeFilter(None, None), ordered=True) for part in parts]
        )

    assert set(look(0)) == {"a"}
    lost.clear()
    looks = []
    for number in range(1, 10):
        clock.advance(100)
        looks.append(set(look(number)))
    assert looks[0] == {"a"}, "it is not checked at each look"
    assert looks[-1] == set()


def test_a_run_remembers_good_parts_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the ranges under way are not checked again; the oldest ones are forgotten."""
    monkeypatch.setattr(freeze, "_GOOD_MAX", 10)
    checked = list[str]()

    def verify(part: Part) -> None:
        checked.append(part.key)

    freezer = Freezer(verify, lambda _: None, ManualClock(), "a stream", None)

    def look(number: int, count: int = 4) -> None:
        keys = ["in every range", *(f"{number}-{n}" for n in range(1, count))]
        parts = [Part(key, 1, 1, 0) for key in keys]
        planned = [PlannedPart(part, TimeFilter(None, None), ordered=True) for part in parts]
        assert freezer.find_unreadable(planned) == {}

    for number in range(100):
        look(number)
        look(number + 1)
        look(number)
    assert len(checked) == len(set(checked)) == 101 * 3 + 1
    assert len(freezer._good) <= 10
    look(1000, 30)
    look(1000, 30)
    assert len(checked) == 101 * 3 + 30, "a range that is larger than the bound is kept whole"
