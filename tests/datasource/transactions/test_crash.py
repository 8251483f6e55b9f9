"""Every operation of transactions, killed or failed at every single store operation, then repeated.

Wherever it broke: at any time both shards show the whole transaction or nothing of it; repeating it
has its effect exactly once; nothing dangles; and somebody who has seen nothing can go on.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.shard.commands.append import UpperMismatch
from shardline.datasource.transactions.commit_loop import Committer
from shardline.datasource.transactions.rows import TRANSACTIONS
from shardline.datasource.write import WriteHandle
from support.models.shards import (
    SETTINGS,
    Crash,
    Effect,
    Mortal,
    World,
    dangling,
    rows,
    schema_of,
    table,
)
from support.profiles import some_of

BLOBS = dataclasses.replace(SETTINGS, inline_part_bytes=0)
OLD, NEW = table((1, "old")), table((2, "new"))
BOTH = ("a", "b")


def prepare(client: ShardClient) -> None:
    for name in BOTH:
        client.create(name, schema_of(), key=["id"])
    client.transactions().register(*BOTH)
    with client.transaction() as t:
        for name in BOTH:
            t.append(name, OLD)


def append(client: ShardClient) -> None:
    with client.transaction(writer="etl", sequence=1) as t:
        for name in BOTH:
            t.append(name, NEW)


def replace(client: ShardClient) -> None:
    with client.transaction(writer="etl", sequence=1, isolation="serializable") as t:
        for name in BOTH:
            if not t.done_before():
                assert t.read(name).num_rows == 1
            t.overwrite(name, NEW)


def upsert(client: ShardClient) -> None:
    with client.transaction(writer="etl", sequence=1) as t:
        for name in BOTH:
            t.upsert(name, table((1, "new")))


def sink(client: ShardClient) -> None:
    """A write of one shard, which does not know of transactions."""
    for name in BOTH:
        state = client.state(name)
        handle = WriteHandle(
            machine=client.machine(name),
            shard=state.shard,
            schema=schema_of(),
            schema_id=0,
            key=("id",),
            writer="query:1",
            durable=True,
            redirect=client.redirect(name),
        )
        handle.append_now(NEW, sequence=1)


def advance(client: ShardClient) -> None:
    client.transactions().advance()


def tidy(client: ShardClient) -> None:
    client.transactions().tidy()


def forget(client: ShardClient) -> None:
    assert not isinstance(client.transactions().forget(*BOTH), UpperMismatch)


def register_again(client: ShardClient) -> None:
    client.transactions().forget("b")
    client.transactions().register("b")


def drop(client: ShardClient) -> None:
    forget(client)
    client.drop(TRANSACTIONS)


def maintain(client: ShardClient) -> None:
    append(client)
    client.compact(TRANSACTIONS, force=True)
    client.collect_garbage(TRANSACTIONS)


KEPT = Counter({(1, "old"): 1})
ADDED = Counter({(1, "old"): 1, (2, "new"): 1})
DEEDS: dict[str, tuple[Callable[[ShardClient], None], Counter[Any], bool]] = {
    "append": (append, ADDED, True),
    "replace": (replace, Counter({(2, "new"): 1}), True),
    "upsert": (upsert, Counter({(1, "new"): 1}), True),
    "sink": (sink, ADDED, False),
    "advance": (advance, KEPT, True),
    "tidy": (tidy, KEPT, True),
    "forget": (forget, KEPT, True),
    "register again": (register_again, KEPT, True),
    "drop": (drop, KEPT, True),
    "maintain": (maintain, ADDED, True),
}


def look(client: ShardClient) -> list[Counter[Any]]:
    """Both shards at one time."""
    uppers = [state.upper.time or 0 for state in client.readable(*BOTH)]
    found = []
    for name in BOTH:
        with client.reader(name) as reader:
            found.append(rows(reader.snapshot(min(uppers) - 1)))
    return found


def check(world: World, deed: str) -> None:
    """What somebody sees who has seen nothing."""
    first = look(world.client(BLOBS))
    if DEEDS[deed][2]:
        assert first[0] == first[1], "half of a transaction"
    assert look(world.client(BLOBS)) == first


def finished(world: World, deed: str, expected: Counter[Any]) -> None:
    client = world.client(BLOBS)
    assert look(client) == [expected, expected]
    for name in (*BOTH, TRANSACTIONS):
        if client.exists(name):
            assert not dangling(client.machine(name)), name
    if deed == "drop":
        assert not client.exists(TRANSACTIONS)
    for name in BOTH:
        # A mark and a row go together, once all is over.
        marked = client.state(name).registered is not None
        assert marked == (name in client.transactions().registered())
        assert marked == (deed not in {"forget", "drop"})


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("deed", "effect"),
    some_of(
        [*((deed, "none") for deed in DEEDS), *((deed, "done") for deed in ("append", "forget"))],
        {"append", "maintain"},
    ),
)
def test_killed_anywhere_and_repeated(deed: str, effect: Effect) -> None:
    """The process dies; another one looks, and does the same again."""
    act, expected, _ = DEEDS[deed]
    prepared = World()
    prepare(prepared.client(BLOBS))
    for at in itertools.count():
        world = prepared.copy()
        mortal = Mortal(world.objects(), at, effect)
        try:
            act(world.client(BLOBS, mortal))
        except Crash:
            check(world, deed)
            act(world.client(BLOBS))
            finished(world, deed, expected)
            world.close()
        else:
            world.close()
            assert at > 3, "nothing was ever killed"
            break


@pytest.mark.exhaustive
@pytest.mark.parametrize("effect", ["none", "late"])
@pytest.mark.parametrize("deed", ["append", "sink"])
def test_failed_anywhere_and_repeated(deed: str, effect: Effect) -> None:
    """The store reports an error, once; the same process repeats what was not acknowledged."""
    act, expected, _ = DEEDS[deed]
    prepared = World()
    prepare(prepared.client(BLOBS))
    for at in itertools.count():
        world = prepared.copy()
        mortal = Mortal(world.objects(), at, effect, lasts=1)
        client = world.client(BLOBS, Mortal(world.objects()))
        try:
            client = world.client(BLOBS, mortal)
            act(client)
        except ShardError:
            check(world, deed)
            act(client)
        mortal.deliver()
        finished(world, deed, expected)
        world.close()
        if mortal.count <= at:
            break


def test_a_committer_that_dies_before_it_applies_has_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its acknowledgement is the append to the transactions shard, and readers do the rest."""
    prepare(world.client(BLOBS))

    def die(*_: object) -> None:
        raise Crash("right after the commit")

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_follow_up", die)
        with pytest.raises(Crash):
            append(world.client(BLOBS))
    client = world.client(BLOBS)
    assert client.state("a").upper == client.state("b").upper
    assert look(client) == [ADDED, ADDED]


@pytest.mark.parametrize("direct_first", [True, False])
def test_kept_exactly_once_through_registering_and_forgetting(
    world: World, direct_first: bool
) -> None:
    """A number that was written directly is not written again by a transaction, nor the reverse."""
    client = world.client(BLOBS)
    for name in BOTH:
        client.create(name, schema_of(), key=["id"])
    steps: list[Literal["sink", "register", "forget"]] = ["register", "sink", "forget", "sink"]
    for step in [*(["sink"] if direct_first else []), *steps, *steps]:
        match step:
            case "sink":
                sink(world.client(BLOBS))
            case "register":
                client.transactions().register(*BOTH)
            case "forget":
                client.transactions().forget(*BOTH)
    sink_of_two = Counter({(2, "new"): 1})
    assert look(client) == [sink_of_two, sink_of_two]


def test_rows_with_times_are_not_for_transactions(world: World) -> None:
    """Neither in one, nor in a write that would become one."""
    client = world.client(BLOBS)
    prepare(client)
    timed = NEW.append_column("_ts", [[5]])
    with pytest.raises(InvalidUsage, match="TIMES_IN_TRANSACTION"), client.transaction() as t:
        t.append("a", timed)
    assert not [
        key for key in client.location.blob.list("a/part/") if dangling(client.machine("a"))
    ]


def test_what_a_transaction_has_refused_is_no_part_of_it(world: World) -> None:
    """Though its caller goes on: rows would appear at a time that readers have seen, or never."""
    client = world.client(BLOBS)
    prepare(client)
    with client.transaction() as t:
        for column, code in (("_ts", "TIMES_IN_TRANSACTION"), ("_diff", "ENVELOPE_MISMATCH")):
            changes = NEW.append_column(column, [[-1]])
            with pytest.raises(InvalidUsage, match=code):
                (t.append if column == "_ts" else t.upsert)("a", changes)
        t.append("a", NEW)
    with client.reader("a") as reader:
        assert rows(reader.snapshot()) == ADDED
    assert not dangling(client.machine("a"))
