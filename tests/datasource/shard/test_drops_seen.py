"""It claims of transitions that they dropped no part, and what it claims is true."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.frontier import Frontier
from shardline.datasource.overwrite import overwrite
from shardline.datasource.shard.codec import CODE_VERSION, Diff, Record
from shardline.datasource.shard.drops_seen import DropsSeen
from shardline.datasource.shard.references import dropped
from shardline.datasource.shard.state_history import states_from
from support.models.shards import SETTINGS, World, schema_of, table
from support.strategies.commands import first_state

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient

SHARD = "in"
BLOBS = replace(SETTINGS, inline_part_bytes=0, compact_inline_bytes=0, rollup_every=10_000)


def rest(client: ShardClient, ticks: int) -> None:
    """Move the upper so often, by appends without rows."""
    writer = client.writer(SHARD)
    for _ in range(ticks):
        upper = client.state(SHARD).upper.time
        assert upper is not None
        writer.compare_and_append(None, Frontier(upper), Frontier(upper + 1))


def dropping(client: ShardClient) -> set[int]:
    """The seqnos of all known transitions that dropped a part, by the states themselves."""
    machine = client.machine(SHARD)
    states = list(states_from(machine, machine.state(), 1))
    pairs = itertools.pairwise(states)
    return {after.seqno for before, after in pairs if dropped(before, after)}


def act(client: ShardClient, deed: str, number: int) -> None:
    """One thing that a process does to the shard."""
    match deed:
        case "rows":
            client.writer(SHARD).append_now(table((number, "x")))
        case "rest":
            rest(client, 2)
        case "merge":
            client.compact(SHARD, force=True)
        case "overwrite":
            writer = client.writer(SHARD, "etl")
            staged = writer.stager().stage([table((number, "z"))])
            overwrite(writer, staged, sequence=number, attempt=f"t{number}")
        case "look":
            client.machine(SHARD).refresh()


@pytest.mark.parametrize("seed", range(12))
def test_what_it_claims_is_true(world: World, seed: int) -> None:
    """Of two processes that append, merge, overwrite and rest, and look at each other or not."""
    chosen = random.Random(seed)
    first = world.client(BLOBS)
    first.create(SHARD, schema_of(), key=("id",))
    clients = [first, world.client(BLOBS)]
    claimed, truth = 0, set[int]()
    for number in range(40):
        client = chosen.choice(clients)
        act(client, chosen.choice(["rows", "rows", "rest", "merge", "overwrite", "look"]), number)
        if chosen.random() < 0.1:
            clients[1] = world.client(BLOBS)  # it is started anew
        if chosen.random() < 0.1:
            client.collect_garbage(SHARD)  # it searches
        truth = dropping(world.client(BLOBS))
        for one in clients:
            for after, until in claims(one):
                claimed += 1
                assert truth.isdisjoint(range(after + 1, until + 1)), (after, until)
    assert truth
    assert claimed


def claims(client: ShardClient) -> list[tuple[int, int]]:
    machine = client.machine(SHARD)
    seqnos = range(machine.state().seqno + 1)
    pairs = itertools.combinations(seqnos, 2)
    return [pair for pair in pairs if machine.drops.none_between(*pair)]


def test_of_its_own_records_a_process_reads_none_to_collect(world: World) -> None:
    """Nor those of another one that it has followed; what it was not there for it reads once."""
    client, other = world.client(BLOBS), world.client(BLOBS)
    client.create(SHARD, schema_of(), key=("id",))
    client.writer(SHARD).append_now(table((1, "x")))
    rest(client, 40)
    rest(other, 40)
    client.machine(SHARD).refresh()

    def records_read(by: ShardClient) -> int:
        def scanned() -> int:
            found = by.location.statistics().operations
            return sum(one.calls for one in found if one.operation == "get")

        before = scanned()
        assert by.collect_garbage(SHARD) == 0
        return scanned() - before

    few = 15  # the log's end, and what else is looked at each time
    assert records_read(client) <= few
    late = world.client(BLOBS)
    late.machine(SHARD).state()
    assert records_read(late) > 80
    rest(late, 40)
    assert records_read(late) <= few


def test_what_is_dropped_later_is_collected(world: World) -> None:
    """A merge that comes after a long rest leaves no part behind."""
    client = world.client(BLOBS)
    client.create(SHARD, schema_of(), key=("id",))
    for number in range(3):
        client.writer(SHARD).append_now(table((number, "x")))
    rest(client, 40)
    assert client.collect_garbage(SHARD) == 0
    assert client.compact(SHARD, force=True) == 1
    rest(client, 3)
    assert client.collect_garbage(SHARD) == 3


@dataclass(frozen=True)
class Followed:
    """The transition to this seqno is followed."""

    seqno: int


@dataclass(frozen=True)
class Searched:
    """The records after one seqno, up to another, are read."""

    after: int
    until: int


END = 12
DEEDS = st.one_of(
    st.builds(Followed, st.integers(2, END)),
    st.builds(Searched, st.integers(0, END), st.integers(0, END)),
)


def follow(seen: DropsSeen, seqno: int, *, drops: bool = False) -> None:
    """A record that only a whole state, which may lack any part, makes a drop."""
    state = first_state()
    record = Record(
        seqno=seqno,
        token="",
        walltime_ms=seqno,
        version=CODE_VERSION,
        diff=None if drops else Diff(),
        state=state if drops else None,
    )
    seen.follow(msgspec.structs.replace(state, seqno=seqno - 1), record)


def test_to_see_one_again_changes_nothing() -> None:
    """An interrupted thread's record may be followed once more by the next one."""
    seen = DropsSeen()
    for seqno in (2, 3, 4, 3):
        follow(seen, seqno)
    assert seen.none_between(0, 4)


@given(st.frozensets(st.integers(2, END), max_size=4), st.lists(DEEDS, max_size=20))
def test_it_claims_nothing_that_it_has_not_seen(
    truth: frozenset[int], deeds: list[Followed | Searched]
) -> None:
    """In whatever order transitions are followed and records searched."""
    seen, known = DropsSeen(), {1}
    for deed in deeds:
        match deed:
            case Followed(seqno):
                follow(seen, seqno, drops=seqno in truth)
                known.add(seqno)
            case Searched(after, until) if truth.isdisjoint(range(after + 1, until + 1)):
                seen.note_searched(after, until)
                known.update(range(after + 1, until + 1))
        for after, until in itertools.combinations(range(END + 1), 2):
            if seen.none_between(after, until):
                between = set(range(after + 1, until + 1))
                assert between <= known
                assert between.isdisjoint(truth)
