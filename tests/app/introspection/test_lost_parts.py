"""The poller finds parts that the store has lost, though nobody reads them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa
import pytest

from shardline.app.introspection.poll import ShardPoller
from shardline.datasource.client import ShardClient
from shardline.datasource.report import find_lost_parts
from shardline.datasource.stores.location import BlobEntry
from shardline.datasource.types.schema import ShardSchema
from support.fakes.introspection import DELAYS, FLIGHTS, World
from support.models.shards import World as Shards

ROWS = 3_000
"""So many that they are no inline part."""


@pytest.fixture
def shards() -> Iterator[Shards]:
    made = Shards()
    yield made
    made.close()


def filled(shards: Shards, *names: str) -> ShardClient:
    """A location in which each of these shards has two parts."""
    client = shards.client()
    for name in names:
        client.create(name, ShardSchema.from_arrow(pa.schema([("a", pa.int64())])))
        for number in range(2):
            client.writer(name).append_now(pa.table({"a": list(range(number, ROWS))}))
    return client


def keys_of(client: ShardClient, name: str) -> list[str]:
    return [part.key for batch in client.state(name).trace.batches for part in batch.parts]


def test_an_object_whose_parts_are_gone_is_unreadable_until_they_are_back(shards: Shards) -> None:
    """Deleted or cut off; whoever reads it goes on, and the shard's row says how many."""
    client, world = filled(shards, "flights", "delays"), World()
    for one in (FLIGHTS, DELAYS):
        world.run(one)
    poller = ShardPoller(world.sink, client)

    def look() -> tuple[object, object, object]:
        for _ in range(10):
            poller.step()
        world.tell()
        (row,) = world.rows("shards", "flights")
        verdicts = {row["object_id"]: row for row in world.rows("verdicts")}
        assert verdicts["delays"]["verdict"] != "unreadable", "its own contents are there"
        return row["lost_parts"], verdicts["flights"]["verdict"], verdicts["flights"]["because"]

    lost, before, _ = look()
    assert (lost, before != "unreadable") == (0, True)
    blob = client.location.blob
    first, second = sorted(keys_of(client, "flights"))
    kept = {key: blob.get(key) for key in (first, second)}
    blob.delete(first)
    assert look() == (
        1,
        "unreadable",
        f"part '{first}' of shard 'flights' has gone, or has another size",
    )
    whole = kept[second]
    assert whole is not None
    blob.set(second, whole[:-1])
    assert look() == (
        2,
        "unreadable",
        f"part '{first}' and 1 more of shard 'flights' have gone, or have another size",
    )
    for key, value in kept.items():
        assert value is not None
        blob.set(key, value)
    assert look()[:2] == (0, before)


def test_a_shard_that_was_made_anew_has_not_lost_the_parts_of_the_one_before(
    shards: Shards,
) -> None:
    """It is not known until the store is asked about it."""
    client, world = filled(shards, "flights"), World()
    poller = ShardPoller(world.sink, client)
    client.location.blob.delete(keys_of(client, "flights")[0])

    def lost() -> object:
        world.tell()
        return world.rows("shards", "flights")[0]["lost_parts"]

    for _ in range(10):
        poller.step()
    assert lost() == 1
    client.drop("flights")
    client.create("flights", ShardSchema.from_arrow(pa.schema([("b", pa.int64())])))
    poller.step()
    assert lost() is None
    poller.step()
    assert lost() == 0


def test_parts_that_were_merged_away_are_not_lost(shards: Shards) -> None:
    """The state that is asked about may be older than the listing."""
    client = filled(shards, "flights")
    machine, before = client.machine("flights"), client.state("flights")
    old = keys_of(client, "flights")
    client.compact("flights", force=True)
    for key in old:
        client.location.blob.delete(key)
    assert find_lost_parts(machine, before) == ()
    (merged,) = keys_of(client, "flights")
    client.location.blob.delete(merged)
    assert find_lost_parts(machine, client.state("flights")) == (merged,)
    assert find_lost_parts(machine, before) == ()


def test_audits_are_of_all_shards_in_turn(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time if the store is slow; one that lacks parts is asked about each time, too."""
    names = [f"s{number}" for number in range(5)]
    client, world = filled(shards, *names), World()
    poller, blob, asked = ShardPoller(world.sink, client), client.location.blob, []
    listed = blob.list

    def slow(prefix: str) -> Iterator[BlobEntry]:
        asked.append(prefix.split("/", maxsplit=1)[0])
        shards.clock.advance(1_000)
        return listed(prefix)

    monkeypatch.setattr(blob, "list", slow)

    def audited() -> list[str]:
        asked.clear()
        for _ in range(10):
            poller.step()
        return list(asked)

    turns = [audited() for _ in names]
    assert sorted(chain.from_iterable(turns)) == names
    blob.delete(keys_of(client, turns[1][0])[0])
    assert [audited() for _ in range(3)] == [turns[0], turns[1], [*turns[1], *turns[2]]]
    world.tell()
    lost = {row["name"]: row["lost_parts"] for row in world.rows("shards")}
    assert lost == dict.fromkeys(names, 0) | {turns[1][0]: 1}
