"""Streams over registered shards: idle ones do not hold them back, and no restart sees a step."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.errors import Determinate
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard_source.batch_reader import ShardBatchReader
from shardline.datasource.shard_source.fetch_task import fetch_partition
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.transactions.ledger import LedgerReader
from support.fakes.engine import STEPS, Checkpoint, Killed, Query, options_of
from support.models.shards import SETTINGS, World, schema_of, table

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient

BLOBS = dataclasses.replace(SETTINGS, inline_part_bytes=0)


def made(world: World, *names: str, registered: str = "") -> ShardClient:
    client = world.client(BLOBS)
    for name in names:
        client.create(name, schema_of())
        client.writer(name).append_now(table((0, name)))
    client.transactions().register(*(registered or names))
    return client


def write(client: ShardClient, name: str, *some: tuple[int, str]) -> None:
    with client.transaction() as t:
        t.append(name, table(*some))


def either_way(client: ShardClient, name: str, number: int) -> None:
    """A row, written directly or by a transaction."""
    if client.state(name).registered is None:
        client.writer(name).append_now(table((number, "x")))
    else:
        write(client, name, (number, "x"))


def ids(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    """Shard and id of each update that came, in order."""
    return [
        (row[0], next(one["id"] for one in row[3:] if one is not None))
        for batch in checkpoint.sink.values()
        for row in batch
    ]


def test_idle_shards_do_not_hold_a_stream_back(world: World) -> None:
    """Of three only one is written; the others move along without a record of their own."""
    client = made(world, "a", "b", "c")
    checkpoint = Checkpoint()
    query = Query(world.client(BLOBS), checkpoint, options_of(shards="a,b,c"))
    query.drain()
    uppers = [client.state(name).upper for name in "bc"]
    for number in (1, 2):
        write(client, "a", (number, "x"))
        assert query.drain() == 1
    assert [client.state(name).upper for name in "bc"] == uppers
    assert Counter(ids(checkpoint)) == Counter([("a", 0), ("b", 0), ("c", 0), ("a", 1), ("a", 2)])


def test_a_quiet_stream_makes_progress_by_the_interval_alone(world: World) -> None:
    """Ticks are no news; after the interval the frontier follows, and holds as well."""
    client = made(world, "a", "b")
    checkpoint = Checkpoint()
    options = options_of(shards="a,b", progressInterval="10s")
    query = Query(world.client(BLOBS), checkpoint, options)
    query.drain()
    upper = client.transactions().advance(client.transactions().upper() + 5)
    assert not query.step()
    world.clock.advance(10_001)
    assert query.step()
    assert checkpoint.frontier() == upper
    write(client, "a", (1, "x"))
    query.drain()
    assert isinstance(upper, int)
    (hold,) = client.state("b").critical.values()
    assert hold.since == upper - 1, "ahead of the upper that the shard has by itself"
    assert client.state("b").upper < Frontier(upper)


def test_registered_and_unregistered_shards_in_one_stream(world: World) -> None:
    """The frontier is the least of all uppers, whatever moves each of them."""
    client = made(world, "a", "b", registered="a")
    checkpoint = Checkpoint()
    query = Query(world.client(BLOBS), checkpoint, options_of(shards="a,b"))
    query.drain()
    world.clock.advance(10)
    write(client, "a", (1, "x"))
    assert query.drain() == 0, "b may still get updates at that time"
    world.clock.advance(10)
    client.writer("b").append_now(table((1, "y")))
    query.drain()
    client.transactions().advance()
    query.drain()
    assert Counter(ids(checkpoint)) == Counter([("a", 0), ("b", 0), ("a", 1), ("b", 1)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", STEPS)
def test_killed_anywhere_while_shards_come_and_go(world: World, step: str) -> None:
    """Registering, forgetting and direct writes between micro-batches; each update comes once."""
    client = made(world, "a", "b")
    txns = client.transactions()
    checkpoint, died = Checkpoint(), []

    def run() -> None:
        def dies(at: str, batch: int) -> bool:
            if at == step and batch not in died:
                died.append(batch)
                return True
            return False

        for _ in range(4):
            query = Query(world.client(BLOBS), checkpoint, options_of(shards="a,b"), kill=dies)
            try:
                query.drain()
            except Killed:
                continue
            return

    expected = [("a", 0), ("b", 0)]
    for number in range(1, 7):
        if number == 3:
            txns.forget("a")
        if number == 5:
            txns.register("a")
        for name in "ab":
            either_way(client, name, number)
            expected.append((name, number))
        client.compact("a", force=True)
        client.collect_garbage("a")
        world.clock.advance(5)
        run()
    txns.advance(txns.upper() + 100)
    run()
    assert Counter(ids(checkpoint)) == Counter(expected)


def test_without_its_transactions_shard_a_stream_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails as for any store that does not answer, and goes on from where it was."""
    client = made(world, "a", "b")
    checkpoint = Checkpoint()
    Query(world.client(BLOBS), checkpoint, options_of(shards="a,b")).drain()
    write(client, "a", (1, "x"))

    lost = world.client(BLOBS)

    def unreachable(_: LedgerReader) -> None:
        raise Determinate("no route")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerReader, "read", unreachable)
        with pytest.raises(Determinate, match="no route"):
            Query(lost, checkpoint, options_of(shards="a,b")).drain()
    Query(world.client(BLOBS), checkpoint, options_of(shards="a,b")).drain()
    assert Counter(ids(checkpoint)) == Counter([("a", 0), ("b", 0), ("a", 1)])


def test_a_snapshot_in_pieces_is_of_one_time(world: World) -> None:
    """Pinned before its first piece; transactions that come meanwhile are changes after it."""
    client = made(world, "a", "b")
    for number in range(1, 4):
        with client.transaction() as t:
            for name in "ab":
                t.append(name, table((number, "x")))
    checkpoint = Checkpoint()
    query = Query(world.client(BLOBS), checkpoint, options_of(shards="a,b", maxFilesPerTrigger=1))
    assert query.step()
    with client.transaction() as t:
        for name in "ab":
            t.overwrite(name, table((9, "x")))
    query.drain()
    total: Counter[Any] = Counter()
    for batch in checkpoint.sink.values():
        for shard, _, diff, *found in batch:
            (row,) = (one for one in found if one is not None)
            total[shard, row["id"]] += diff
    assert {row: n for row, n in total.items() if n} == {("a", 9): 1, ("b", 9): 1}


def test_a_batch_read_of_all_shards_is_of_one_time(world: World) -> None:
    """The latest that is settled in all of them: that of the transactions shard."""
    client = made(world, "a", "b")
    write(client, "a", (1, "x"))
    upper = client.transactions().advance()
    options = options_of(shards="a,b", readChangeFeed="unset")
    schemas = [schema_of(), schema_of()]
    reader = ShardBatchReader(options, RowShape.now(options, schemas))
    found = reader._planned(world.client(BLOBS))
    rows = [
        row
        for partition in found
        for batch in fetch_partition(client, partition)
        for row in batch.to_pylist()
    ]
    assert len(rows) == 3
    assert client.readable("a", "b")[1].upper == Frontier(upper)  # type: ignore[arg-type]
