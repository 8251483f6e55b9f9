"""Results that ties decide, above and below temporal filters: views follow changes and times."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from shardline.app.execution.object_shards import drop_object_shard
from shardline.app.execution.observations import Stepped
from shardline.app.protocol.objects import state_shards
from support.profiles import some_of
from support.spark.timed_world import CUTS, END, START, TimedWorld
from support.spark.view_world import SteppedView
from support.spark.views import Following, contents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are put together here

ORDER: Final = "ORDER BY id DESC, price, begins NULLS FIRST, ends NULLS FIRST"
PLACED: Final = f"SELECT *, row_number() OVER (PARTITION BY who {ORDER}) AS place FROM events"
JOIN: Final = "JOIN people p ON p.name = e.who"
QUERIES: Final = {
    "above": f"SELECT e.id, e.price, p.city FROM ({PLACED}) e {JOIN} WHERE e.place <= 2 "
    "AND e.ends > {now}",
    "below": f"SELECT e.id, e.price, p.city FROM ({PLACED} WHERE ends > {{now}}) e {JOIN} "
    "WHERE e.place <= 2",
    "limited": f"SELECT e.id, e.price, p.city FROM (SELECT * FROM events WHERE ends > {{now}} "
    f"{ORDER}, who NULLS FIRST LIMIT 4) e {JOIN}",
}
"""Their `{now}` is now() to Spark, and µs to DuckDB, to which timestamps are numbers."""


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedWorld]:
    made = TimedWorld(spark, tmp_path_factory.mktemp("timed"))
    yield made
    made.close()


def recomputed(world: TimedWorld, name: str) -> list[str]:
    """Why steps of a view ran its query anew."""
    steps = [one for one in world.bench.told(Stepped) if one.id == name]
    return [one.reason for one in steps if one.way == "recompute"]


@pytest.mark.parametrize("name", some_of(QUERIES, {"below"}))
def test_results_follow_changes_and_times(world: TimedWorld, name: str) -> None:
    """After the first contents, of which the query is run anew, as states are not there yet."""
    query, view = QUERIES[name], f"timed_{name}"
    kept = world.kept(view, query.format(now="now()"))
    world.follow(kept, partial(world.by_duck, query))
    assert recomputed(world, view) == ["its first contents"]


@pytest.mark.parametrize("name", some_of(QUERIES, {"above"}))
def test_a_lost_state_is_made_at_the_time_of_a_step(world: TimedWorld, name: str) -> None:
    """Rows that are there then are shown, and go at their own times, whatever changes."""
    query, view = QUERIES[name], f"lost_{name}"
    kept = SteppedView(world, view, query.format(now="now()"), Following())
    for lower, upper in zip((START, *CUTS), CUTS, strict=False):
        if lower == CUTS[2]:
            drop_object_shard(world.bench.client, state_shards(view)[0], lambda: None)
        kept.step(lower, upper)
    for time in range(START, END):
        found = contents(world.bench.client, view, time)
        assert found == world.by_duck(query, time), time
    assert "its first contents" in recomputed(world, view)
