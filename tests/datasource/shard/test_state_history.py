"""States at older seqnos, and the pins that keep them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, MissingBlob
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.garbage_collection import give_up_states
from shardline.datasource.shard.commands.lifecycle import finalise, reinitialise
from shardline.datasource.shard.commands.readers import (
    Fencing,
    HoldMissing,
    Registered,
    SeqnoGone,
    downgrade_critical,
    pin_critical,
    register_critical,
)
from shardline.datasource.shard.state import ShardState, seqno_since
from shardline.datasource.shard.state_history import rebuild, state_at
from support.models.shards import SETTINGS, World, dangling, rows, schema_of, table
from support.strategies.commands import advance, first_state
from support.strategies.rows import bounded

SHARD = "orders"


def grown(world: World, rollup_every: int) -> tuple[ShardClient, dict[int, ShardState]]:
    """A shard after twelve appends, and the states it had, by seqno."""
    client = world.client(replace(SETTINGS, rollup_every=rollup_every, inline_part_bytes=0))
    client.create(SHARD, schema_of())
    machine = client.machine(SHARD)
    seen = {1: machine.state()}
    for number in range(12):
        client.writer(SHARD).append_now(table((number, "x")))
        state = machine.state()
        seen[state.seqno] = state
    return client, seen


@pytest.mark.parametrize("rollup_every", [2, 5, 1000])
def test_every_state_can_be_read_again(world: World, rollup_every: int) -> None:
    """From a rollup or from the first record, by somebody who has seen nothing."""
    _, seen = grown(world, rollup_every)
    machine = world.client().machine(SHARD)
    assert {seqno: state_at(machine, seqno) for seqno in seen} == seen


@pytest.mark.parametrize("rollup_every", [4, 1000])
def test_states_from_before_a_drop_are_found(world: World, rollup_every: int) -> None:
    """A whole state in the log does not hide those before it, rolled up or not."""
    client, seen = grown(world, rollup_every)
    machine = client.machine(SHARD)
    machine.apply(partial(finalise, shard=machine.state().shard, despite_holders=frozenset()))
    buried = machine.state()
    fresh = msgspec.structs.replace(first_state(), name=SHARD)
    machine.apply(partial(reinitialise, fresh=fresh))
    again = machine.state()
    client.writer(SHARD).append_now(None)
    # Finalising has given all of them up: what is asked is whether they could be collected.
    cold = world.client().machine(SHARD)
    with pytest.raises(InvalidUsage, match="SEQNO_GONE"):
        state_at(cold, max(seen))
    found = {seqno: rebuild(cold, cold.state(), seqno) for seqno in seen}
    assert found == seen
    assert state_at(cold, buried.seqno) == buried
    assert state_at(cold, again.seqno) == again


def test_what_is_given_up_or_unknown_is_refused(world: World) -> None:
    """The errors name the seqno and what is there in its place."""
    client, seen = grown(world, 4)
    client.machine(SHARD).apply(partial(give_up_states, seqno=6))
    cold = world.client().machine(SHARD)
    newest = cold.state().seqno
    assert state_at(cold, 6) == seen[6]
    with pytest.raises(InvalidUsage, match=r"SEQNO_GONE.*seqno 5 is not kept.*before 6 have"):
        state_at(cold, 5)
    with pytest.raises(InvalidUsage, match=f"SEQNO_UNKNOWN.*{newest + 1}: it is at {newest}"):
        state_at(cold, newest + 1)
    with pytest.raises(InvalidUsage, match="SEQNO_UNKNOWN"):
        state_at(cold, 0)


@pytest.mark.parametrize("kind", ["rollup", "log"])
def test_what_should_be_there_and_is_not_is_missing(world: World, kind: str) -> None:
    """A lost rollup or record is damage, and never another state."""
    grown(world, 4)
    machine = world.client().machine(SHARD)
    machine.state()
    objects = world.objects()
    for entry in list(objects.entries(f"{SHARD}/{kind}/")):
        objects.delete(entry.key)
    with pytest.raises(MissingBlob, match=r"MISSING_STATE.*seqno 10 cannot be rebuilt"):
        state_at(machine, 10)


# --- pins ----------------------------------------------------------------------------------------


def held(seqno: int, gc_seqno: int = 0) -> ShardState:
    """A shard at `seqno` with the hold `q`, owned under epoch `e1`."""
    state = msgspec.structs.replace(first_state(), seqno=seqno - 1, gc_seqno=gc_seqno)
    take = partial(
        register_critical, reader="q", epoch="e1", since=None, purpose="", confirmed=True
    )
    return advance(state, take, 1)


def test_a_pin_holds_its_seqno_until_it_is_cleared() -> None:
    """It is not moved by downgrades, nor by another owner, and lets go at once when cleared."""
    state = held(9)
    pinned = pin_critical(state, 2, reader="q", epoch="e1", seqno=7)
    assert pinned == replace(pinned, result=Registered(Frontier(0), 7, "e1"))
    state = advance(state, lambda s, now: pin_critical(s, now, reader="q", epoch="e1", seqno=7), 2)
    assert seqno_since(state) == 7
    move = partial(
        downgrade_critical, reader="q", expected_epoch="e1", epoch="e1", since=Frontier(0)
    )
    take = partial(
        register_critical, reader="q", epoch="e2", since=None, purpose="", confirmed=True
    )
    for step in (move, take):
        state = advance(state, step, 3)
        assert state.critical["q"].seqno == 7
    state = advance(
        state, lambda s, now: pin_critical(s, now, reader="q", epoch="e2", seqno=None), 4
    )
    assert state.critical["q"].seqno is None
    assert seqno_since(state) == state.seqno


def test_a_pin_that_is_there_already_changes_nothing() -> None:
    """Repeating it after a crash writes no record, also once GC has reached it."""
    state = held(9)
    state = advance(state, lambda s, now: pin_critical(s, now, reader="q", epoch="e1", seqno=7), 2)
    state = advance(state, partial(give_up_states, seqno=7), 3)
    again = pin_critical(state, 4, reader="q", epoch="e1", seqno=7)
    assert again.state is None
    assert again.result == Registered(Frontier(0), 7, "e1")
    clear = pin_critical(held(9), 4, reader="q", epoch="e1", seqno=None)
    assert clear.state is None


def test_a_pin_comes_too_late_for_what_is_given_up() -> None:
    """The answer says what can still be pinned; that can."""
    state = held(9, gc_seqno=6)
    assert pin_critical(state, 2, reader="q", epoch="e1", seqno=5).result == SeqnoGone(6)
    assert pin_critical(state, 2, reader="q", epoch="e1", seqno=6).state is not None


def test_only_the_owner_pins_and_only_what_was() -> None:
    """Anybody else is fenced, and the future cannot be pinned."""
    state = held(9)
    assert pin_critical(state, 2, reader="q", epoch="e0", seqno=7).result == Fencing("e1")
    assert pin_critical(state, 2, reader="r", epoch="e1", seqno=7).result == HoldMissing()
    for seqno in (0, 10):
        with pytest.raises(InvalidUsage, match="SEQNO_UNKNOWN"):
            pin_critical(state, 2, reader="q", epoch="e1", seqno=seqno)


@bounded
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=8))
def test_a_pin_and_a_collector_never_both_win(moves: list[tuple[bool, int]]) -> None:
    """Whatever the order: nothing that is pinned is given up, nor the other way round."""
    state = held(9)
    for pinning, seqno in moves:
        number = min(seqno, state.seqno)
        step = (
            partial(pin_critical, reader="q", epoch="e1", seqno=number)
            if pinning
            else partial(give_up_states, seqno=number)
        )
        state = advance(state, step, 2)
        pin = state.critical["q"].seqno
        assert pin is None or state.gc_seqno <= pin


def test_a_pinned_state_is_whole_after_any_collection(world: World) -> None:
    """Its owner plans from it again after restarts, merges and collections, and finds all parts."""
    client, seen = grown(world, 3)
    pinned = max(seen)
    hold = client.hold(SHARD, "query:1")
    machine = client.machine(SHARD)
    machine.apply(partial(pin_critical, reader="query:1", epoch=hold.epoch, seqno=pinned))
    for number in range(20):
        client.writer(SHARD).append_now(table((number, "y")))
        assert client.compact(SHARD, force=True) == 1
        client.collect_garbage(SHARD)
        world.clock.advance(3_600_000)
    cold = world.client().machine(SHARD)
    assert cold.state().gc_seqno == pinned
    assert state_at(cold, pinned) == seen[pinned]
    assert dangling(cold, msgspec.structs.replace(seen[pinned], rollups={})) == []
    machine.apply(partial(pin_critical, reader="query:1", epoch=hold.epoch, seqno=None))
    assert client.collect_garbage(SHARD) >= 12
    with world.client().reader(SHARD) as reader:
        assert sum(rows(reader.snapshot()).values()) == 32
