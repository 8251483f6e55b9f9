"""Maintenance is reported: rounds of the application, and merges of writers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shardline.app.introspection.feeds import RuntimeFeeds
from shardline.app.introspection.history import HistoryKeeper
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
