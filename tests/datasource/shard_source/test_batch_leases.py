"""A batch read of several shards keeps all of them readable while it waits for one."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.maintenance.retention import apply_retention
from shardline.datasource.read import WAIT_MS
from shardline.datasource.shard_source.batch_reader import ShardBatchReader
from shardline.datasource.shard_source.fetch_task import fetch_partition
from shardline.datasource.shard_source.row_shape import RowShape
from support.fakes.engine import options_of
from support.models.shards import SETTINGS, World, schema_of, table

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient

LEASE_MS = 60_000
AS_OF = 1
BLOBS = dataclasses.replace(SETTINGS, inline_part_bytes=0, lease_ms=LEASE_MS)

SHAPES: dict[str, dict[str, str]] = {
    "snapshot": {"readChangeFeed": "unset", "timestampAsOf": str(AS_OF)},
    "changes": {"startingTimestamp": "1", "endingTimestamp": "2"},
}


def go_on(client: ShardClient, name: str, *, row: int) -> None:
    """Write to a shard, forget its history, and delete what nobody holds."""
    state = client.state(name)
    assert state.upper.time is not None
    upper = Frontier(state.upper.time + 1)
    client.writer(name).compare_and_append(table((row, "later")), state.upper, upper)
    client.set_retention(name, 0)
    apply_retention(client.machine(name))
    client.compact(name, force=True)
    client.collect_garbage(name)


@pytest.mark.parametrize("waiting", ["a", "b"])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_are_kept_while_one_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, shape: str, waiting: str
) -> None:
    """However long: whichever is ready is written, compacted and collected meanwhile."""
    client, other = world.client(BLOBS), world.client(BLOBS)
    ready = "b" if waiting == "a" else "a"
    for name in "ab":
        client.create(name, schema_of())
        upper = Frontier(AS_OF + 1 if name == ready else AS_OF)
        client.writer(name).compare_and_append(table((1, name)), Frontier(0), Frontier(AS_OF))
        if name == ready:
            client.writer(name).compare_and_append(table((2, name)), Frontier(AS_OF), upper)
    began = world.clock.now_ms()
    done: list[str] = []
    wait = world.clock.wait

    def meanwhile(signal: threading.Event, timeout_ms: float) -> bool:
        if threading.current_thread().daemon:
            return wait(signal, timeout_ms)
        # In steps that are shorter than half a lease, for more than two of them.
        world.clock.advance(LEASE_MS / 3)
        if not done and world.clock.now_ms() - began > 2 * LEASE_MS:
            done.append(waiting)
            go_on(other, waiting, row=2)
        go_on(other, ready, row=9)
        return False

    monkeypatch.setattr(world.clock, "wait", meanwhile)
    options = options_of(shards="a,b", waitTimeout="1h", **SHAPES[shape])
    reader = ShardBatchReader(options, RowShape.now(options, [schema_of(), schema_of()]))
    found: Counter[Any] = Counter()
    for partition in reader._planned(client):
        assert partition.guard.reader in other.state(partition.options.shard).leased
        for batch in fetch_partition(client, partition):
            for row in batch.to_pylist():
                values = row["a"] or row["b"]
                found[values["id"], partition.options.shard] += 1
    assert done
    new = Counter({(2, ready): 1, (2, waiting): 1})
    assert found == (new if shape == "changes" else new + Counter({(1, "a"): 1, (1, "b"): 1}))


@pytest.mark.parametrize("shape", ["timestampAsOf", "endingTimestamp"])
def test_a_time_that_is_still_to_come_is_refused_without_a_wait_or_a_lease(
    world: World, shape: str
) -> None:
    """The error has what can be read; a wait that is asked for is as long as that says."""
    client, started = world.client(BLOBS), world.clock.elapsed_ms()
    client.create("in", schema_of())
    client.writer("in").compare_and_append(table((1, "a")), Frontier(0), Frontier(8))
    feed = "unset" if shape == "timestampAsOf" else "true"
    given = {"readChangeFeed": feed, shape: str(world.clock.now_ms() + WAIT_MS + 2)}

    def plan(**more: str) -> None:
        options = options_of(shard="in", **given, **more)
        ShardBatchReader(options, RowShape.now(options, [schema_of()]))._planned(client)

    with pytest.raises(Determinate, match=r"NOT_YET_READABLE.*to come.*read at 7 .*`waitTimeout`"):
        plan()
    assert (world.clock.elapsed_ms(), client.state("in").leased) == (started, {})
    with pytest.raises(Determinate, match=r"NOT_YET_READABLE.*within 1000 ms.*read at 7 "):
        plan(waitTimeout="1s")
    assert world.clock.elapsed_ms() >= started + 1000


@pytest.mark.parametrize("again", [False, True])
def test_a_read_of_a_dropped_shard_is_told_so(world: World, *, again: bool) -> None:
    """Also where a shard was made again under the name: it knows nothing of the read's lease."""
    client, other = world.client(BLOBS), world.client(BLOBS)
    options = options_of(shard="in", readChangeFeed="unset")
    client.create("in", schema_of())
    client.writer("in").compare_and_append(table((1, "a")), Frontier(0), Frontier(1))
    reader = ShardBatchReader(options, RowShape.now(options, [schema_of()]))
    [partition] = reader._planned(client)
    other.drop("in", despite_holders=[partition.guard.reader])
    if again:
        other.create("in", schema_of())

    how = "dropped and made again since" if again else "dropped since"
    with pytest.raises(InvalidUsage, match=rf"\[SHARD_DROPPED\].*{how}"):
        list(fetch_partition(client, partition))
