"""The range that a number covers is part of a commit, in a shard and in transactions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from shardline.datasource.errors import Indeterminate, InvalidUsage
from shardline.datasource.shard.commands.append import (
    AlreadyCommitted,
    Append,
    Appended,
    OtherRange,
)
from shardline.datasource.shard.commands.append import compare_and_append as transition
from shardline.datasource.shard.covered_range import may_cover_same, of_interval, of_query, of_text
from shardline.datasource.shard.machine import Machine
from support.models.shards import SETTINGS, World, dangling, rows, schema_of, table
from support.strategies.commands import first_state

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient
    from shardline.datasource.shard.state import ShardState

SHARD = "orders"
BLOBS = replace(SETTINGS, inline_part_bytes=0)
SOME = table((1, "a"), (2, "b"))

HERE = of_query("q", ["a", "to", "b"])
"""What the writer's last commit covers."""

OTHER = [
    of_query("q", ["a", "to", "c"]),
    of_query("q", ["a", "to", "b", ""]),
    of_query("q", ["at", "o", "b"]),
    of_query("r", ["a", "to", "b"]),
    of_query("r", None),
]
SAME_OR_UNKNOWN = [
    HERE,
    of_query("q", None),
    of_query("", ["a", "to", "c"]),
    of_text("a to c"),
    of_text(""),
    of_interval(0, 7),
]

APPEND = Append(
    shard=first_state().shard,
    runs=(),
    writer="w",
    sequence=5,
    durable=True,
    lease_ms=1,
    attempt="t5",
    covers=HERE,
)


@pytest.fixture
def client(world: World) -> ShardClient:
    """A client of a world with one shard, whose parts are blobs."""
    made = world.client(BLOBS)
    made.create(SHARD, schema_of())
    return made


def committed() -> ShardState:
    state = transition(first_state(), 1000, append=APPEND).state
    assert state is not None
    return state


@pytest.mark.parametrize("sequence", [5, 4, 0])
def test_a_number_that_is_not_new_and_its_range(sequence: int) -> None:
    """The same range, or one that nobody knows, has been committed; another one is refused."""
    state = committed()
    again = replace(APPEND, sequence=sequence, attempt="t6")
    done_by = "t5" if sequence == 5 else ""
    for covers in SAME_OR_UNKNOWN:
        found = transition(state, 1001, append=replace(again, covers=covers))
        assert found.result == AlreadyCommitted(state.upper, done_by), covers
        assert found.state is None
    for covers in OTHER:
        found = transition(state, 1001, append=replace(again, covers=covers))
        assert found.result == OtherRange(5, state.upper, done_by), covers
        assert found.state is None


def test_the_attempt_itself_is_never_another_range() -> None:
    """A commit whose acknowledgement was lost is found, whatever it says of itself then."""
    state = committed()
    again = replace(APPEND, covers=OTHER[0])
    assert transition(state, 1001, append=again).result == AlreadyCommitted(state.upper, "t5")


def test_a_new_number_may_cover_anything() -> None:
    """A batch without rows may follow one with the same range; a new range, of course, too."""
    for covers in (*OTHER, *SAME_OR_UNKNOWN):
        append = replace(APPEND, sequence=6, attempt="t6", covers=covers)
        found = transition(committed(), 1001, append=append)
        assert isinstance(found.result, Appended)
        assert found.state is not None
        assert found.state.writers["w"].covers == covers


def test_state_of_older_code_goes_on() -> None:
    """A writer's entry without a range was committed for whatever is said now."""
    state = committed()
    entry = msgspec.structs.replace(state.writers["w"], covers="")
    old = msgspec.structs.replace(state, writers={"w": entry})
    for covers in (*OTHER, *SAME_OR_UNKNOWN):
        append = replace(APPEND, attempt="t6", covers=covers)
        assert transition(old, 1001, append=append).result == AlreadyCommitted(old.upper, "t5")


def test_ranges_are_compared_both_ways() -> None:
    """It does not matter which of two was first."""
    for other in (*OTHER, *SAME_OR_UNKNOWN):
        assert may_cover_same(HERE, other) == may_cover_same(other, HERE) == (other not in OTHER)
    assert not may_cover_same(of_interval(0, 7), of_interval(0, None))
    assert not may_cover_same(of_interval(0, 7), of_interval(1, 7))
    assert not may_cover_same(of_text("a"), of_text("b"))
    assert may_cover_same(of_text("a:b"), of_text("a:b"))


# --- handles -------------------------------------------------------------------------------------


def test_a_refused_number_leaves_no_parts(world: World, client: ShardClient) -> None:
    """The parts of a replay with another range go; those that are in use stay."""
    writer = client.writer(SHARD, "query")
    writer.covers = HERE
    writer.append_now(SOME, sequence=5)
    late = world.client(BLOBS).writer(SHARD, "query")
    late.covers = OTHER[0]
    for sequence in (5, 4):
        with pytest.raises(InvalidUsage, match=rf"\[OTHER_RANGE\] number {sequence} of .*'query'"):
            late.append_now(table((9, "z")), sequence=sequence)
        assert dangling(client.machine(SHARD)) == []
    stored = {e.key for e in world.objects().entries(f"{SHARD}/part/")}
    used = {p.key for b in client.state(SHARD).trace.batches for p in b.parts}
    # Of a number that was passed nobody knows whose parts are in use: they are the sweeper's.
    assert used < stored
    assert len(stored - used) == 1
    with pytest.raises(InvalidUsage, match="OTHER_RANGE"):
        late.committed(5)
    assert late.committed(6) is None
    late.covers = HERE
    assert late.committed(5) is not None
    with world.client().reader(SHARD) as reader:
        assert rows(reader.snapshot()) == rows(SOME)


def test_an_unknown_outcome_stays_unknown(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It landed unheard, another driver went on, and the repetition is refused: nobody deletes."""
    late = client.writer(SHARD, "query")
    late.covers = HERE
    apply, calls = Machine.apply, list[str]()

    def unheard(self: Machine, command: Any) -> Any:
        outcome: object = apply(self, command)
        # Leases that earlier tests have left behind are renewed by threads of their own.
        if self is not late.machine or calls:
            return outcome
        calls.append(self.name)
        other = world.client(BLOBS).writer(SHARD, "query")
        other.covers = OTHER[0]
        other.append_now(table((3, "c")), sequence=6)
        raise Indeterminate("nobody heard", code="OUTCOME_UNKNOWN", hint="repeat it")

    monkeypatch.setattr(Machine, "apply", unheard)
    with pytest.raises(Indeterminate, match="OUTCOME_UNKNOWN"):
        late.append_now(SOME, sequence=5)
    monkeypatch.undo()
    with world.client().reader(SHARD) as reader:
        assert rows(reader.snapshot()) == rows(SOME) + rows(table((3, "c")))


# --- transactions --------------------------------------------------------------------------------


def test_a_transaction_is_committed_for_its_range_only(world: World, client: ShardClient) -> None:
    """Asked before anything is staged, and at the commit."""

    def run(covers: str, sequence: int) -> bool:
        with world.client(BLOBS).transaction(
            writer="query", sequence=sequence, covers=covers
        ) as transaction:
            transaction.append(SHARD, SOME)
        return transaction.was_committed_before

    assert not run(HERE, 5)
    assert run(HERE, 5)
    assert run(of_query("q", None), 4)
    for sequence in (5, 4):
        with pytest.raises(InvalidUsage, match=r"\[OTHER_RANGE\]"):
            run(OTHER[0], sequence)
    with world.client().reader(SHARD) as reader:
        assert rows(reader.snapshot()) == rows(SOME)
    assert dangling(client.machine(SHARD)) == []


def test_a_range_is_known_across_registering_and_forgetting(
    world: World, client: ShardClient
) -> None:
    """Committed directly or by a transaction, refused by the other one."""

    def append(covers: str, sequence: int, added: pa.Table | None = SOME) -> object:
        mine = world.client(BLOBS)
        writer = mine.writer(SHARD, "query")
        writer.redirect = mine.redirect(SHARD)
        writer.covers = covers
        return writer.append_now(added, sequence=sequence)

    txns = client.transactions()
    for number in range(4):
        assert isinstance(append(HERE, number), Appended)
        if number % 2:
            txns.forget(SHARD)
        else:
            txns.register(SHARD)
        assert isinstance(append(HERE, number), AlreadyCommitted)
        with pytest.raises(InvalidUsage, match=r"\[OTHER_RANGE\]"):
            append(OTHER[0], number)
    txns.register(SHARD)
    # Without rows it is known to the transactions shard alone.
    assert isinstance(append(HERE, 4, None), Appended)
    assert isinstance(append(HERE, 4), AlreadyCommitted)
    with pytest.raises(InvalidUsage, match=r"\[OTHER_RANGE\]"):
        append(OTHER[0], 4)
    with world.client().reader(SHARD) as reader:
        assert rows(reader.snapshot()) == Counter({row: 4 * n for row, n in rows(SOME).items()})
