"""Maintenance is reported: rounds of the application, and merges of writers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shardline.app.introspection.events import Remembered
from shardline.app.introspection.feeds import RuntimeFeeds
from shardline.app.introspection.history import HistoryKeeper
from shardline.app.introspection.poll import ShardPoller
from shardline.datasource.maintainer import Maintainer
from shardline.datasource.maintenance.compact import observe_merges
from support.models.merging import SHARD, filled
from support.models.shards import SETTINGS, World, schema_of, table

BLOBS = replace(SETTINGS, inline_part_bytes=0, compact_factor=4)
QUIET = replace(BLOBS, compact_inline_bytes=0)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def observing(world: World) -> Iterator[RuntimeFeeds]:
    made = RuntimeFeeds(world.client(QUIET), world.clock)
    yield made
    made.stop()


def told(observing: RuntimeFeeds) -> list[dict[str, object]]:
    """The rows of `maintenance`."""
    observing.sink.step()
    return observing.relations.rows("maintenance")


def test_a_round_that_did_something_is_told(world: World, observing: RuntimeFeeds) -> None:
    """Merges as the round counted them, on the shard that had some due; nothing is no news."""
    client = filled(world.client(QUIET), 8)
    client.create("quiet", schema_of())
    keeper = Maintainer(client, observer=observing.on_maintenance)
    done = keeper.round()
    (row,) = told(observing)
    assert (row["shard"], row["merges"], row["failed"]) == (SHARD, done[SHARD].merges, [])
    assert done[SHARD].merges
    keeper.round()
    assert len(told(observing)) == 1


def test_rounds_are_kept_over_restarts(world: World, observing: RuntimeFeeds) -> None:
    """What the next run shows begins with what this one has done, word for word."""
    client = filled(world.client(QUIET), 8)
    Maintainer(client, observer=observing.on_maintenance).round()
    rows = told(observing)
    assert rows
    writes = threading.Event()
    writes.set()
    HistoryKeeper(observing.sink, client, writes=writes, check_fence=lambda: None).flush()
    later = RuntimeFeeds(world.client(QUIET), world.clock)
    keeper = HistoryKeeper(later.sink, client, writes=writes, check_fence=lambda: None)
    keeper.load()
    assert told(later) == rows
    later.stop()


def test_a_failure_is_told_and_so_is_its_end(world: World, observing: RuntimeFeeds) -> None:
    """The first round without it, though that did nothing; and in the next run as well."""
    filled(world.client(QUIET), 1)
    objects = world.objects()
    first = next(entry.key for entry in objects.entries(f"{SHARD}/log/"))
    whole = objects.get(first)
    assert whole is not None
    objects.put(first, b"nonsense")
    Maintainer(world.client(QUIET), observer=observing.on_maintenance).round()
    assert [(row["shard"], row["failed"]) for row in told(observing)] == [(SHARD, ["state"])]

    objects.put(first, whole)
    later = RuntimeFeeds(world.client(QUIET), world.clock)
    rows = observing.sink.read(lambda facts, _: tuple(facts.maintenance.rows))
    later.put(Remembered(relation="maintenance", rows=rows))
    for feeds in (observing, later):
        keeper = Maintainer(world.client(QUIET), observer=feeds.on_maintenance)
        assert len(told(feeds)) == 1
        for _ in range(3):
            world.clock.advance(1000)
            keeper.round()
            assert [row["failed"] for row in told(feeds)] == [["state"], []]
    later.stop()


def test_a_shard_that_cannot_be_read_keeps_its_rows(world: World, observing: RuntimeFeeds) -> None:
    """Alerts on them would end when it is damaged; one that was dropped has none."""
    client = filled(world.client(QUIET), 1)

    def shards() -> list[object]:
        # A poller of its own each time: what was read is not remembered.
        ShardPoller(observing.sink, world.client(QUIET)).step()
        observing.sink.step()
        return [row["name"] for row in observing.relations.rows("shards")]

    assert shards() == [SHARD]
    objects = world.objects()
    first = next(entry.key for entry in objects.entries(f"{SHARD}/log/"))
    whole = objects.get(first)
    assert whole is not None
    objects.put(first, b"nonsense")
    assert shards() == [SHARD]

    objects.put(first, whole)
    client.drop(SHARD)
    assert shards() == []


def test_a_process_that_is_not_allowed_maintains_nothing(world: World) -> None:
    """Also in the middle of a round: it ends before the next shard."""
    client = filled(world.client(QUIET), 8)
    client.create("quiet", schema_of())
    answers = [True, True, False]
    keeper = Maintainer(client, allowed=lambda: answers.pop(0) if answers else False)
    assert len(keeper.round()) == 1
    assert keeper.round() == {}


def test_merges_that_writers_make_are_told(world: World, observing: RuntimeFeeds) -> None:
    """By whatever client of the process; until nobody listens any more."""
    end = observe_merges(observing.on_merges)
    try:
        before = len(world.client(BLOBS).shards())
        client = filled(world.client(BLOBS), 40)
        rows = told(observing)
        merged = 40 - len(client.state(SHARD).trace.batches)
        assert before == 0
        assert {row["shard"] for row in rows} == {SHARD}
        assert 0 < sum(int(str(row["merges"])) for row in rows) <= merged
    finally:
        end()
    for _ in range(40):
        client.writer(SHARD).append_now(table((1, "x")))
    assert len(told(observing)) == len(rows)
