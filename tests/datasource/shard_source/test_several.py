"""Several shards with one frontier."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard_source import stream_inputs
from support.fakes.engine import Checkpoint, Query, options_of
from support.models.shards import World, schema_of, updates
from support.spark.streams import BLOBS, Row, churn, fill, lose_leases
from support.waiting import wait_until

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient


BOTH = {"shards": "left,right"}


def put(client: ShardClient, name: str, lower: int, upper: int | None, *rows: Row) -> None:
    """Append updates of a shard in `[lower, upper)`, and make the shard first if need be."""
    client.create(name, schema_of())
    client.writer(name).compare_and_append(
        updates(*rows) if rows else None, Frontier(lower), Frontier(upper)
    )


def test_several_shards_have_one_frontier(world: World) -> None:
    """A micro-batch reads all of them up to the least of their uppers, at their own times."""
    client = world.client(BLOBS)
    put(client, "left", 0, 10, (1, "l", 3, 1))
    put(client, "right", 0, 8, (1, "r", 2, 1))
    checkpoint = Checkpoint()
    query = Query(client, checkpoint, options_of(**BOTH))
    query.drain()
    put(client, "left", 10, 30, (2, "l", 12, 1), (3, "l", 25, 1))
    put(client, "right", 8, 20, (2, "r", 9, 1))
    query.drain()
    put(client, "right", 20, 40)
    query.drain()

    left, right = {"id": 1, "v": "l"}, {"id": 1, "v": "r"}
    assert checkpoint.sink[0] == [("left", 7, 1, left, None), ("right", 7, 1, None, right)]
    assert [(r[0], r[1]) for r in checkpoint.sink[1]] == [("left", 12), ("right", 9)]
    assert [(r[0], r[1]) for r in checkpoint.sink[2]] == [("left", 25)]
    assert checkpoint.frontier() == 30


def test_an_idle_shard_holds_all_back_and_a_finished_one_none(world: World) -> None:
    """The frontier is what is settled in all of them; a finished shard is settled for ever."""
    client = world.client(BLOBS)
    put(client, "left", 0, 10, (1, "l", 3, 1))
    put(client, "right", 0, 10, (1, "r", 2, 1))
    checkpoint = Checkpoint()
    query = Query(client, checkpoint, options_of(**BOTH))
    query.drain()
    put(client, "left", 10, 50, (2, "l", 12, 1))
    assert query.drain() == 0, "the idle shard may still get updates at these times"
    put(client, "right", 10, None)
    query.drain()
    assert checkpoint.frontier() == 50
    put(client, "left", 50, None, (3, "l", 60, 1))
    query.drain()

    assert checkpoint.frontier() is None
    assert sum(map(len, checkpoint.sink.values())) == 4
    assert not client.state("left").critical
    assert not client.state("right").critical


def test_a_query_waits_until_all_shards_have_contents(world: World) -> None:
    """A shard far behind is waited for; its snapshot is taken at the common time."""
    client = world.client(BLOBS)
    put(client, "left", 0, 100, (1, "l", 3, 1))
    client.create("right", schema_of())
    checkpoint = Checkpoint()
    query = Query(client, checkpoint, options_of(**BOTH))
    assert query.drain() == 0
    put(client, "right", 0, 10, (1, "r", 2, 1))
    query.drain()

    assert [(row[0], row[1]) for row in checkpoint.sink[0]] == [("left", 9), ("right", 9)]


@pytest.mark.parametrize(
    ("shards", "hint"),
    [
        ("left,right,late", "keeps its shards"),
        ("right,left", "another order"),
        ("left,late", "new checkpoint"),
    ],
)
def test_other_shards_than_before_are_refused(world: World, shards: str, hint: str) -> None:
    """A shard that comes later, goes, or changes its place needs a new checkpoint."""
    client = world.client(BLOBS)
    for name in ("left", "right", "late"):
        put(client, name, 0, 10, (1, name, 3, 1))
    checkpoint = Checkpoint()
    Query(client, checkpoint, options_of(**BOTH)).drain()

    with pytest.raises(InvalidUsage, match=hint) as caught:
        Query(client, checkpoint, options_of(shards=shards)).step()

    assert caught.value.code == "FOREIGN_OFFSET"


def test_several_snapshots_are_read_in_pieces(world: World) -> None:
    """Pieces go through all shards, restarted between any two."""
    client = world.client(BLOBS)
    contents = {name: fill(client, name, each=60) for name in ("left", "right")}
    checkpoint = Checkpoint()
    for _ in range(50):
        fresh = world.client(BLOBS)
        if not Query(fresh, checkpoint, options_of(**BOTH, maxFilesPerTrigger=2)).step():
            break
        for name in contents:
            lose_leases(fresh, name)
            churn(fresh, name)

    found = {name: Counter() for name in contents}  # type: ignore[var-annotated]
    for rows in checkpoint.sink.values():
        for name, _, diff, left, right in rows:
            row = left or right
            found[name][row["id"], row["v"]] += diff
    assert len(checkpoint.offsets) > 4
    assert {name: +rows for name, rows in found.items()} == contents


def test_looks_that_take_no_time_have_no_threads(world: World) -> None:
    """Handing a request to another thread costs more than a disk takes for it."""
    client = world.client(BLOBS)
    put(client, "left", 0, 10, (1, "l", 3, 1))
    put(client, "right", 0, 10, (1, "r", 2, 1))
    query = Query(client, Checkpoint(), options_of(**BOTH))
    query.drain()
    query.drain()
    assert not any(one.name.startswith("look") for one in threading.enumerate())
    query.run.release()


def test_a_run_that_is_stopped_leaves_no_thread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks at several shards have threads of their own, which end with the run."""
    monkeypatch.setattr(stream_inputs, "_SLOW_LOOK_MS", -1.0)
    client = world.client(BLOBS)
    put(client, "left", 0, 10, (1, "l", 3, 1))
    put(client, "right", 0, 10, (1, "r", 2, 1))
    before = set(threading.enumerate())
    query = Query(client, Checkpoint(), options_of(**BOTH))
    for _ in range(3):
        query.drain()
    mine = [one for one in set(threading.enumerate()) - before if one.name.startswith("look")]
    assert mine
    query.run.release()
    wait_until("they have ended", lambda: not any(one.is_alive() for one in mine), 30)
    for _ in range(3):
        query.drain()
    assert any(one.name.startswith("look") for one in threading.enumerate())
    query.run.release()
