"""Maintenance is reported: rounds of the application, and merges of writers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from shardline.app.introspection.feeds import RuntimeFeeds
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
