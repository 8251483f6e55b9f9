"""A shard's directory that was copied or renamed is no shard: nothing of it, or by it, is deleted.

Its states name the blobs of the original. Opened as a shard, a round of maintenance on a copy from
before the last merge would collect parts that are live in the original.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from shardline.datasource.errors import Corrupt
from shardline.datasource.maintainer import Maintainer
from shardline.datasource.maintenance.garbage_collection import collect_garbage
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS
from shardline.datasource.shard.commands.transition import Transition
from support.models.shards import SETTINGS, World, dangling, rows, schema_of, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.client import ShardClient
    from shardline.datasource.shard.state import ShardState

SHARD: Final = "orders"
BLOBS: Final = replace(SETTINGS, inline_part_bytes=0, compact_inline_bytes=0)


def filled(world: World, appends: int, rollup_every: int = 128) -> ShardClient:
    client = world.client(replace(BLOBS, rollup_every=rollup_every))
    client.create(SHARD, schema_of())
    append(client, range(appends))
    return client


def append(client: ShardClient, numbers: range) -> None:
    writer = client.writer(SHARD)
    for number in numbers:
        writer.append_now(table((number, "x")))


def contents(world: World) -> list[int]:
    with world.client().reader(SHARD) as reader:
        return sorted(row[0] for row in rows(reader.snapshot()).elements())


def objects_of(world: World, directory: str) -> dict[str, bytes]:
    """The objects below a directory, by the rest of their keys."""
    objects = world.objects()
    keys = [entry.key for entry in objects.entries(f"{directory}/")]
    return {key.removeprefix(directory): objects.get(key) or b"" for key in keys}


def put(world: World, directory: str, found: dict[str, bytes]) -> None:
    for key, value in found.items():
        world.objects().put(directory + key, value)


def move(world: World, directory: str, to: str) -> None:
    found = objects_of(world, directory)
    put(world, to, found)
    world.objects().delete_many([directory + key for key in found])


DEEDS: Final[dict[str, Callable[[ShardClient, str], object]]] = {
    "read": lambda client, copy: client.reader(copy),
    "write": lambda client, copy: client.writer(copy),
    "create": lambda client, copy: client.create(copy, schema_of()),
    "merge": lambda client, copy: client.compact(copy, force=True),
    "collect": lambda client, copy: client.collect_garbage(copy),
    "sweep": lambda client, copy: client.sweep(copy),
    "drop": lambda client, copy: client.drop(copy),
}


@pytest.mark.parametrize("rollup_every", [4, 128])
@pytest.mark.parametrize("deed", DEEDS)
def test_a_copy_is_refused_and_says_whose_it_is(world: World, deed: str, rollup_every: int) -> None:
    """Also where its newest state is in a rollup, which the original keeps for it."""
    client = filled(world, 6, rollup_every)
    put(world, "orders_backup", objects_of(world, SHARD))
    world.clock.advance(SWEEP_AGE_MS + 1)
    before = objects_of(world, "")
    with pytest.raises(
        Corrupt, match=r"NAME_MISMATCH.*'orders_backup'.*'orders'.*outside of the location"
    ):
        DEEDS[deed](world.client(BLOBS), "orders_backup")
    assert objects_of(world, "") == before
    assert contents(world) == list(range(6))
    assert client.state(SHARD).name == SHARD


@pytest.mark.parametrize("rollup_every", [4, 128])
def test_a_renamed_directory_says_its_own_name(world: World, rollup_every: int) -> None:
    """Not that something is lost; under its own name it is whole."""
    filled(world, 6, rollup_every)
    move(world, SHARD, "renamed")
    with pytest.raises(Corrupt, match=r"NAME_MISMATCH.*name it 'orders' again"):
        world.client().state("renamed")
    move(world, "renamed", SHARD)
    assert contents(world) == list(range(6))


def test_a_round_goes_on_beside_the_directory_that_a_restore_moved_away(world: World) -> None:
    """The merge after the backup dropped parts that are live again once it is restored."""
    client = filled(world, 10)
    backup = objects_of(world, SHARD)
    append(client, range(10, 60))
    assert client.compact(SHARD, force=True) == 1
    move(world, SHARD, "orders.broken")
    put(world, SHARD, backup)
    moved = objects_of(world, "orders.broken")
    done = Maintainer(world.client(BLOBS)).round()
    assert {name: result.failed for name, result in done.items()} == {
        SHARD: (),
        "orders.broken": ("state",),
    }
    assert objects_of(world, "orders.broken") == moved
    assert contents(world) == list(range(10))
    assert dangling(world.client().machine(SHARD)) == []


def test_a_collection_deletes_in_its_own_directory_only(world: World) -> None:
    """Whatever a damaged state names."""
    client = filled(world, 1)
    machine = client.machine(SHARD)
    foreign = "orders2/part/theirs.parquet"
    world.objects().put(foreign, b"x")

    def name_foreign(state: ShardState, _now_ms: int) -> Transition[None]:
        (batch,) = state.trace.batches
        ((part,),) = (run.parts for run in batch.runs)
        run = msgspec.structs.replace(
            batch.runs[0], parts=(msgspec.structs.replace(part, key=foreign),)
        )
        batch = msgspec.structs.replace(batch, runs=(run,))
        trace = msgspec.structs.replace(state.trace, batches=(batch,))
        return Transition(msgspec.structs.replace(state, trace=trace), None)

    machine.apply(name_foreign)
    client.drop(SHARD)
    collect_garbage(machine)
    assert [key for key in objects_of(world, SHARD) if key.startswith("/part/")] == []
    assert world.objects().get(foreign) == b"x"
