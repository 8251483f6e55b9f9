"""Every command, killed or failed at every single store operation, then repeated by a new process.

What must hold afterwards, wherever it broke: the command's effect is there exactly once, state
refers to nothing that is missing, and the state can be read by somebody who has seen nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.overwrite import overwrite
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.commands.append import UpperMismatch
from shardline.datasource.stores.file import FileObjects
from support.models.shards import (
    SETTINGS,
    TINY,
    Crash,
    Effect,
    Mortal,
    World,
    dangling,
    rows,
    schema_of,
    table,
)
from support.profiles import one_of

EXHAUSTIVE = pytest.mark.exhaustive

SHARD = "orders"
FIRST = table((1, "a"), (2, "b"))
SECOND = table((2, "b"), (3, "c"), (None, None))

BLOBS = dataclasses.replace(SETTINGS, inline_part_bytes=0)
PIECES = dataclasses.replace(BLOBS, part_buffer_bytes=1)
ROLLUPS = dataclasses.replace(SETTINGS, rollup_every=1)
FULL = dataclasses.replace(SETTINGS, inline_state_bytes=500)


@dataclass(frozen=True)
class Deed:
    """A command under test.

    Attributes:
        act: What a process does, again and again until it has succeeded once.
        settings: Of all its processes.
        contents: What the shard holds afterwards; None when it has been dropped.
        prepared: Whether the shard is there before, with `FIRST` at [0, 10).
    """

    act: Callable[[ShardClient], object]
    settings: ShardSettings
    contents: Counter[tuple[object, ...]] | None
    prepared: bool = True


def append(client: ShardClient) -> None:
    writer = client.writer(SHARD, "etl")
    done = writer.compare_and_append(SECOND, Frontier(10), Frontier(20), sequence=2)
    assert not isinstance(done, UpperMismatch), done


def append_now(client: ShardClient) -> None:
    client.writer(SHARD, "etl").append_now(SECOND, sequence=2)


def append_same_data(client: ShardClient) -> None:
    done = client.writer(SHARD).append(SECOND, Frontier(10), Frontier(20))
    assert not isinstance(done, UpperMismatch), done


def replace_all(client: ShardClient) -> None:
    writer = client.writer(SHARD, "etl")
    overwrite(writer, writer.stager().stage([SECOND]), sequence=2, attempt="t-any")


def create(client: ShardClient) -> None:
    client.create(SHARD, schema_of(), key=["id"])


def evolve(client: ShardClient) -> None:
    wider = schema_of().arrow.append(pa.field("extra", pa.int32()))
    client.evolve(SHARD, schema_of(wider))


def hold(client: ShardClient) -> None:
    assert client.hold(SHARD, "report").downgrade(Frontier(9)) == Frontier(9)


def compact(client: ShardClient) -> None:
    append(client)
    client.compact(SHARD, force=True)
    assert len(client.state(SHARD).trace.batches) == 1


def collect(client: ShardClient) -> None:
    compact(client)
    client.collect_garbage(SHARD)


def read(client: ShardClient) -> None:
    with client.reader(SHARD) as reader:
        assert rows(reader.snapshot(9)) == rows(FIRST)


BOTH = rows(FIRST) + rows(SECOND)
DEEDS = {
    "append": Deed(append, BLOBS, BOTH),
    "append-inline": Deed(append, SETTINGS, BOTH),
    "append-now-pieces": Deed(append_now, PIECES, BOTH),
    "append-flushing": Deed(append, FULL, BOTH),
    "append-same-data": Deed(append_same_data, BLOBS, BOTH),
    "append-and-rollup": Deed(append, ROLLUPS, BOTH),
    "overwrite": Deed(replace_all, BLOBS, rows(SECOND)),
    "create": Deed(create, SETTINGS, Counter(), prepared=False),
    "evolve": Deed(evolve, SETTINGS, Counter((*row, None) for row in rows(FIRST).elements())),
    "hold": Deed(hold, SETTINGS, rows(FIRST)),
    "read": Deed(read, SETTINGS, rows(FIRST)),
    "compact": Deed(compact, BLOBS, BOTH),
    "compact-pieces": Deed(compact, dataclasses.replace(PIECES, compact_memory_bytes=1), BOTH),
    "collect": Deed(collect, dataclasses.replace(BLOBS, rollup_every=2), BOTH),
    "drop": Deed(lambda client: client.drop(SHARD), BLOBS, None),
}

LONG = {"append-now-pieces", "compact", "compact-pieces", "collect"}
"""Those with many operations to break."""

Delivery = Literal["before", "after"]


def prepare(world: World, deed: Deed) -> None:
    client = world.client(deed.settings)
    if deed.prepared:
        client.create(SHARD, schema_of(), key=["id"])
        writer = client.writer(SHARD, "etl")
        writer.compare_and_append(FIRST, Frontier(0), Frontier(10), sequence=1)


def attempt(world: World, deed: Deed, store: Mortal) -> None:
    """Do the deed over `store`, in a process that may die or see an error."""
    try:
        deed.act(world.client(deed.settings, store))
    except (Crash, ShardError):
        assert store.failed, "refused without a fault"


def check(world: World, deed: Deed) -> None:
    """A process that has seen nothing finds the deed done exactly once."""
    client = world.client(deed.settings)
    if deed.contents is None:
        assert not client.exists(SHARD)
        return
    machine = client.machine(SHARD)
    assert dangling(machine) == []
    if machine.state().upper == Frontier(0):
        assert deed.contents == Counter()
        return
    with client.reader(SHARD) as reader:
        assert rows(reader.snapshot()) == deed.contents


def break_everywhere(
    make: Callable[[], World],
    deed: Deed,
    effect: Effect,
    delivery: Delivery,
    lasts: int | None,
) -> int:
    """Break the deed at each of its operations in turn; how many there were.

    Args:
        make: Makes a world that is prepared for the deed.
    """
    for at in itertools.count():
        world = make()
        store = Mortal(world.objects(), at, effect, lasts=lasts)
        attempt(world, deed, store)
        if delivery == "before":
            store.deliver()
        deed.act(world.client(deed.settings))
        store.deliver()
        check(world, deed)
        # Repeating what has been done changes nothing.
        deed.act(world.client(deed.settings))
        check(world, deed)
        world.close()
        if not store.failed:
            return at
        assert at < 200, store.failed
    raise AssertionError


@pytest.mark.parametrize(
    ("effect", "delivery", "lasts"),
    [
        pytest.param("done", "before", None, id="done-before-killed"),
        pytest.param("late", "after", None, id="late-after-killed", marks=EXHAUSTIVE),
        pytest.param("none", "before", 1, id="none-before-failed", marks=EXHAUSTIVE),
        *(
            pytest.param(*one, id="-".join(map(str, one)), marks=[EXHAUSTIVE, pytest.mark.night])
            for one in (
                ("none", "before", None),
                ("late", "before", None),
                ("done", "before", 1),
                ("late", "before", 1),
                ("late", "after", 1),
            )
        ),
    ],
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=EXHAUSTIVE if n in LONG else ()) for n in DEEDS],
)
def test_broken_anywhere_a_repeated_deed_is_done_once(
    name: str, effect: Effect, delivery: Delivery, lasts: int | None
) -> None:
    """In memory: for every operation of every command and every kind of fault."""
    deed = DEEDS[name]
    with closing(World()) as prepared:
        prepare(prepared, deed)
        assert break_everywhere(prepared.copy, deed, effect, delivery, lasts) >= 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("effect", ["done", "late"])
@pytest.mark.parametrize("name", ["append", "append-now-pieces"])
def test_an_outage_of_any_length_leaves_nothing_dangling(name: str, effect: Effect) -> None:
    """What was written with an unknown outcome is not cleaned up once the store is back."""
    deed = DEEDS[name]
    prepared = World()
    prepare(prepared, deed)
    for lasts in range(1, 30):
        world = prepared.copy()
        commit = operations_of(world, deed).index("create orders/log/")
        store = Mortal(world.objects(), commit, effect, lasts=lasts)
        attempt(world, deed, store)
        store.deliver()
        assert dangling(world.client().machine(SHARD)) == [], lasts
        deed.act(world.client(deed.settings))
        check(world, deed)
        world.close()


def operations_of(world: World, deed: Deed) -> list[str]:
    """The store operations of a deed that is killed right before its commit, and the commit's."""
    names: list[str] = []
    for at in itertools.count():
        store = Mortal(world.objects(), at)
        attempt(world, deed, store)
        names.append(store.failed.partition("7fff")[0])
        if names[-1].startswith("create"):
            return names
    raise AssertionError


@pytest.fixture
def folders(tmp_path: Path) -> Callable[[Deed], World]:
    """Makes worlds on disk, each in a folder of its own."""
    numbers = itertools.count()

    def make(deed: Deed) -> World:
        root = tmp_path / str(next(numbers))
        world = World(objects=lambda world: FileObjects(str(root), world.ids))
        prepare(world, deed)
        return world

    return make


@pytest.mark.exhaustive
@pytest.mark.parametrize("effect", ["none", "done", "late"])
@pytest.mark.parametrize("name", ["append", "overwrite"])
def test_killed_anywhere_on_disk(
    name: str, effect: Effect, folders: Callable[[Deed], World]
) -> None:
    """The same on disk, for the commands that write blobs."""
    deed = DEEDS[name]
    assert break_everywhere(partial(folders, deed), deed, effect, "after", None) >= 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("effect", ["none", "done", "late"])
@pytest.mark.parametrize("second", one_of(2, range(6)))
def test_two_faults_in_a_row_never_lose_or_repeat_an_append(effect: Effect, second: int) -> None:
    """The first process fails at any operation, and so does the one that repeats its work."""
    deed = DEEDS["append"]
    prepared = World()
    prepare(prepared, deed)
    for at in range(12):
        world = prepared.copy()
        stores = [Mortal(world.objects(), at, effect), Mortal(world.objects(), second, "late")]
        for store in stores:
            attempt(world, deed, store)
        deed.act(world.client(deed.settings))
        for store in stores:
            store.deliver()
        check(world, deed)
        world.close()


def test_settings_make_several_parts() -> None:
    """The settings above do what their names say, or the tests above test less."""
    world = World()
    prepare(world, DEEDS["append-now-pieces"])
    append_now(world.client(PIECES))
    batches = world.client().state(SHARD).trace.batches
    assert [len(list(batch.parts)) for batch in batches] == [2, 3]
    assert TINY.rollup_every > ROLLUPS.rollup_every
    world.close()
