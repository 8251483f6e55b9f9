"""Maintenance is reported: rounds of the application, and merges of writers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardline.app.introspection.events import Remembered
from shardline.app.introspection.feeds import RuntimeFeeds
from shardline.app.introspection.history import HistoryKeeper
from shardline.app.introspection.poll import ShardPoller
from shardline.app.server.metrics import encode_metrics
from shardline.datasource.maintainer import WHOLE_LOCATION, Maintainer, RoundResult
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
        assert told(observing) == [], "a row for each would leave no room for rounds"
        (row,) = observing.relations.rows("shard_maintenance")
        merged = 40 - len(client.state(SHARD).trace.batches)
        assert before == 0
        assert (row["shard"], row["last_round_at"], row["failed"]) == (SHARD, None, None)
        assert 0 < int(str(row["writer_merges"])) <= merged
    finally:
        end()
    for _ in range(40):
        client.writer(SHARD).append_now(table((1, "x")))
    assert told(observing) == []
    assert observing.relations.rows("shard_maintenance") == [row]


def failing(observing: RuntimeFeeds) -> dict[str, float]:
    """Steps that fail, by shard, as an alert sees them."""
    observing.sink.step()
    text = encode_metrics(observing.relations).decode()
    return {
        sample.labels["shard"]: sample.value
        for family in text_string_to_metric_families(text)
        if family.name == "shardline_maintenance_failed_steps"
        for sample in family.samples
    }


def test_merges_of_a_writer_do_not_hide_that_maintenance_fails(
    world: World, observing: RuntimeFeeds
) -> None:
    """Many come between two rounds; only a round that does not fail ends it, or the shard's end."""
    client = filled(world.client(QUIET), 1)
    failed = RoundResult(failed=("collection",))
    for _ in range(3):
        observing.on_maintenance(SHARD, failed, 5.0)
        for _ in range(10):
            observing.on_merges(client.machine(SHARD), 1, 5.0)
            assert failing(observing) == {SHARD: 1}
    assert [row["failed"] for row in told(observing)] == [["collection"]], "no news after the first"
    observing.on_maintenance(SHARD, RoundResult(), 5.0)
    assert failing(observing) == {SHARD: 0}
    assert [row["failed"] for row in told(observing)] == [["collection"], []]


def test_a_shard_that_is_gone_does_not_fail_for_ever(world: World, observing: RuntimeFeeds) -> None:
    """Also if it was dropped while no application ran, and this one knows its rounds only."""
    client = filled(world.client(QUIET), 1)
    poller = ShardPoller(observing.sink, client)
    observing.on_maintenance(WHOLE_LOCATION, RoundResult(failed=("listing",)), 5.0)
    row = ("long_gone", 5.0, 0, None, None, ("sweep",))
    observing.put(Remembered(relation="maintenance", rows=((world.clock.now_ms(), row),)))
    observing.on_maintenance(SHARD, RoundResult(failed=("collection",)), 5.0)
    assert failing(observing) == {WHOLE_LOCATION: 1, "long_gone": 1, SHARD: 1}
    client.drop(SHARD)
    poller.step()
    assert failing(observing) == {WHOLE_LOCATION: 1}
    assert len(told(observing)) == 3, "what was is kept"
