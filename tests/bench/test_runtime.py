"""The runtime's load is made as asked, and rows' stamps become freshness."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from bench.runtime_load import STAMPED, resting, streaming
from bench.runtime_watch import Watch, freshness, stamps_of, unreadable
from shardline.app.project.project import Project
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.state import ShardState
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import ManualClock
from support.models.shards import World

MADE = pa.timestamp("us", "UTC")


def test_a_row_counts_from_its_making_to_the_first_look_beyond_its_time() -> None:
    """Rows of one time are readable together; a look exactly at the time is too early."""
    stamps = {1000: [400, 900], 2000: [1500]}
    looks = [(1000, 1050), (1001, 1200), (2001, 2600)]
    assert freshness(stamps, looks, 9000) == [800.0, 300.0, 1100.0]


def test_a_row_that_was_never_readable_takes_until_the_end() -> None:
    """It is not left out: a view that hangs must not look fresh."""
    assert freshness({1000: [400]}, [(1000, 1050)], 9000) == [8600.0]
    assert freshness({1000: [400]}, [], 9000) == [8600.0]
    assert unreadable({1000: [400, 500], 2000: [1500]}, [(2000, 2050)]) == 1
    assert unreadable({1000: [400, 500]}, [(1001, 1050)]) == 0


def test_a_watch_sees_each_upper_once_and_when() -> None:
    """Also of a shard that is made later; all must be beyond a time for it to be reached."""
    world, clock = World(), ManualClock()
    client = world.client()
    watch = Watch(world.client(), clock, ["one", "two"])
    watch.look()
    assert (watch.passed("one"), watch.least()) == ([], 0)
    for name, upper in (("one", 5), ("two", 9)):
        client.create(name, ShardSchema.from_arrow(pa.schema([("id", pa.int64())])))
        client.writer(name).compare_and_append(None, Frontier(0), Frontier(upper))
    seen_ms = clock.now_ms()
    watch.look()
    clock.advance(100)
    watch.look()
    assert watch.passed("two") == [(9, seen_ms)]
    assert watch.least() == 5
    assert watch.until(4, patience_ms=0)
    world.close()


def test_a_shard_is_asked_for_only_when_its_log_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again for a while: a change of the same moment would not show."""
    client, clock, asked = ShardClient.open(str(tmp_path / "a b")), ManualClock(), list[str]()
    client.create("one", ShardSchema.from_arrow(pa.schema([("id", pa.int64())])))
    watch = Watch(client, clock, ["one"])
    readable = client.readable

    def ask(name: str) -> list[ShardState]:
        asked.append(name)
        return readable(name)

    def look() -> int:
        """How often it was asked for, a second later."""
        clock.advance(1_000)
        watch.look()
        return len(asked)

    monkeypatch.setattr(client, "readable", ask)
    log = tmp_path / "a b" / client.machine("one").directory / "log"
    os.utime(log, (0, 0))
    assert [look() for _ in range(3)] == [1, 1, 1]
    client.writer("one").compare_and_append(None, Frontier(0), Frontier(5))
    assert log.stat().st_mtime > 0
    changed_s = clock.now_ms() / 1000.0
    os.utime(log, (changed_s, changed_s))
    assert [look() for _ in range(3)] == [2, 2, 2]
    assert watch.least() == 5
    asked_s = clock.now_ms() / 1000.0 - 2.0
    changed_s = asked_s - 0.02  # a change behind that look could have the same time
    os.utime(log, (changed_s, changed_s))
    assert [look() for _ in range(3)] == [3, 3, 3]


def test_stamps_are_those_of_the_window_by_the_rows_time() -> None:
    """The window is of making, not of taking effect."""
    world = World()
    client = world.client()
    client.create("bids", ShardSchema.from_arrow(pa.schema([("made", MADE)])))
    rows = pa.table(
        {
            "made": pa.array([1_990_000, 2_000_000, 2_500_000, 3_000_000], MADE),
            "_ts": pa.array([2000, 3000, 3000, 4000], pa.int64()),
        }
    )
    client.writer("bids").compare_and_append(rows, Frontier(0), Frontier(5000))
    assert stamps_of(client, "bids", "made", 2000, 3000) == {3000: [2000, 2500]}
    world.close()


def test_a_row_that_is_committed_after_the_window_is_of_it_all_the_same() -> None:
    """The upper may pass the window's end before a source has committed what was made in it."""
    world = World()
    client = world.client()
    client.create("bids", ShardSchema.from_arrow(pa.schema([("made", MADE)])))
    writer = client.writer("bids")
    writer.compare_and_append(None, Frontier(0), Frontier(3100))
    rows = pa.table(
        {
            "made": pa.array([2_900_000, 3_300_000], MADE),
            "_ts": pa.array([3200, 3200], pa.int64()),
        }
    )
    writer.compare_and_append(rows, Frontier(3100), Frontier(3400))
    assert stamps_of(client, "bids", "made", 2000, 3000) == {3200: [2900]}
    world.close()


@pytest.mark.parametrize("views", [1, 8, 33])
def test_a_streaming_load_has_as_many_views_as_it_says(views: int) -> None:
    """Each another query, over the source that is stamped."""
    load = streaming(views, 1000)
    Project.parse({"load.sql": load.sql})
    assert len(load.views) == views == len(set(load.views))
    assert load.objects == views + 2 == load.sql.count("CREATE ")
    assert STAMPED in load.sources


def test_a_resting_load_has_objects_of_all_kinds(tmp_path: Path) -> None:
    """Fifty of them, over files that are there."""
    load = resting(tmp_path, 30, 20)
    Project.parse({"load.sql": load.sql})
    assert load.objects == 50 == load.sql.count("CREATE ")
    assert all((tmp_path / name / "rows.csv").is_file() for name in load.sources)
    for kind in ("SOURCE", "MATERIALIZED VIEW", "INDEX", "SINK"):
        assert f"CREATE {kind}" in load.sql
