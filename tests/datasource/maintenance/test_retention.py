"""Retention: a policy moves the since along with the upper, and past nobody."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.frontier import EMPTY, TIME_MAX, Frontier
from shardline.datasource.inspect.inspection import inspect_shard
from shardline.datasource.maintenance.retention import apply_retention
from shardline.datasource.shard.commands.lifecycle import finalise
from shardline.datasource.shard.commands.readers import (
    downgrade_critical,
    register_critical,
    register_leased,
)
from shardline.datasource.shard.commands.retention import apply_policy as retain_step
from shardline.datasource.shard.commands.retention import set_retention as set_step
from shardline.datasource.shard.state import ShardState, retained_since, since_bound
from support.models.shards import SETTINGS, Crash, Effect, Mortal, World, rows, schema_of, table
from support.strategies.commands import advance, first_state, steps
from support.strategies.rows import bounded

SHARD = "orders"
HOUR_MS = 3_600_000


def made(world: World, retain_ms: int | None = HOUR_MS) -> ShardClient:
    client = world.client()
    client.create(SHARD, schema_of(), retain_ms=retain_ms)
    return client


def append(client: ShardClient, at: int, upper: int | None = None) -> None:
    """Row `(at, x)` at time `at`; the upper right after it, or where it is said."""
    writer = client.writer(SHARD)
    end = Frontier(at + 1 if upper is None else upper)
    writer.compare_and_append(table((at, "x")), client.state(SHARD).upper, end)


def since(client: ShardClient) -> int | None:
    return client.state(SHARD).since.time


# --- what the policy means -----------------------------------------------------------------------


def test_the_since_follows_the_upper_at_the_distance_of_the_policy(world: World) -> None:
    """With no reader at all; to the ms, and no further when it is asked again."""
    client = made(world, 1000)
    machine = client.machine(SHARD)
    assert not apply_retention(machine)
    append(client, 999)
    assert not apply_retention(machine), "all of it is newer than the policy"
    append(client, 5000)
    assert apply_retention(machine)
    assert since(client) == 4000 == client.state(SHARD).upper.time - 1 - 1000  # type: ignore[operator]
    seqno = machine.state().seqno
    assert not apply_retention(machine)
    assert machine.state().seqno == seqno


def test_without_a_policy_only_readers_move_the_since(world: World) -> None:
    """As it always was."""
    client = made(world, None)
    append(client, 10 * HOUR_MS)
    assert not apply_retention(client.machine(SHARD))
    hold = client.hold(SHARD, "q")
    hold.downgrade(Frontier(HOUR_MS))
    assert not apply_retention(client.machine(SHARD))
    assert since(client) == HOUR_MS


def test_a_reader_opened_later_sees_the_since_and_one_opened_earlier_keeps_its_own(
    world: World,
) -> None:
    """History that somebody holds stays; what is gone is refused with what there is."""
    client = made(world, 1000)
    append(client, 500)
    append(client, 5000)
    early = client.reader(SHARD, since=600)
    hold = client.hold(SHARD, "q", since=700)
    assert apply_retention(client.machine(SHARD))
    assert since(client) == 600
    assert rows(early.snapshot(600)) == Counter([(500, "x")])
    early.close()
    assert apply_retention(client.machine(SHARD))
    assert since(client) == 700
    hold.downgrade(Frontier(5000))
    assert since(client) == 4000, "the policy keeps more than the last reader"
    with client.reader(SHARD) as late:
        assert rows(late.snapshot(4000)) == Counter([(500, "x")])
        assert rows(late.snapshot()) == Counter([(500, "x"), (5000, "x")])
    with pytest.raises(InvalidUsage, match="3999"):
        client.reader(SHARD, since=3999)


def test_a_lease_that_is_over_does_not_hold_the_policy_up(world: World) -> None:
    """Also when nobody has committed since it ran out."""
    client = made(world, 1000)
    append(client, 5000)
    client.reader(SHARD, lease_ms=1000)
    assert not apply_retention(client.machine(SHARD))
    world.clock.advance(1001)
    assert apply_retention(client.machine(SHARD))
    assert since(client) == 4000


def test_a_shard_that_is_written_all_the_time_moves_in_steps(world: World) -> None:
    """A sixteenth of the policy is worth a record; less is not."""
    client = made(world, 1600)
    machine = client.machine(SHARD)
    append(client, 1699)
    assert not apply_retention(machine)
    append(client, 1700)
    assert apply_retention(machine)
    assert since(client) == 100


def test_a_finished_shard_keeps_what_is_before_its_last_update(world: World) -> None:
    """There is no upper to count from, and all times are readable."""
    client = made(world, 1000)
    append(client, 5000)
    client.writer(SHARD).compare_and_append(None, Frontier(5001), EMPTY)
    assert apply_retention(client.machine(SHARD))
    assert since(client) == 4000


def test_a_policy_of_nothing_keeps_the_newest_contents(world: World) -> None:
    """Zero leaves one readable time: the one before the upper."""
    client = made(world, 0)
    append(client, 41)
    append(client, 42, upper=100)
    assert apply_retention(client.machine(SHARD))
    assert since(client) == 99
    with client.reader(SHARD) as reader:
        assert len(rows(reader.snapshot())) == 2
    assert client.compact(SHARD, force=True) == 1
    with client.reader(SHARD) as reader:
        assert rows(reader.snapshot(99)) == Counter([(41, "x"), (42, "x")])


def test_the_policy_is_set_changed_shown_and_taken_away(world: World) -> None:
    """At creation, later, and by nobody else's creation; a drop takes it along."""
    client = made(world, HOUR_MS)
    client.create(SHARD, schema_of(), retain_ms=5)
    assert client.state(SHARD).retain_ms == HOUR_MS
    assert not client.set_retention(SHARD, HOUR_MS)
    assert client.set_retention(SHARD, 7)
    (report,) = inspect_shard(client.location, world.clock, SHARD).shards
    assert report.retain_ms == 7
    assert client.set_retention(SHARD, None)
    assert world.client().state(SHARD).retain_ms is None
    client.set_retention(SHARD, 7)
    client.drop(SHARD)
    client.create(SHARD, schema_of())
    assert client.state(SHARD).retain_ms is None


@pytest.mark.parametrize("retain_ms", [-1, TIME_MAX + 1])
def test_a_policy_that_means_nothing_is_refused(world: World, retain_ms: int) -> None:
    """Before anything is written."""
    client = made(world)
    with pytest.raises(InvalidUsage, match=f"INVALID_RETENTION.*{retain_ms}"):
        client.set_retention(SHARD, retain_ms)
    with pytest.raises(InvalidUsage, match="INVALID_RETENTION"):
        client.create("other", schema_of(), retain_ms=retain_ms)
    assert not client.exists("other")


# --- as transitions ------------------------------------------------------------------------------


def test_a_dropped_shard_has_no_policy() -> None:
    """And takes none."""
    state = advance(first_state(), partial(set_step, retain_ms=5), 1)
    assert state.retain_ms == 5
    state = advance(state, partial(finalise, shard=state.shard, despite_holders=frozenset()), 2)
    assert state.retain_ms is None
    assert set_step(state, 3, retain_ms=5).state is None
    assert retain_step(state, 3).state is None


@bounded
@given(
    moves=st.lists(st.tuples(steps(), st.integers(0, 60)), max_size=20),
    retain_ms=st.integers(0, 40),
)
def test_the_since_never_passes_a_holder_or_the_policy_and_never_goes_back(
    moves: list[tuple[object, int]], retain_ms: int
) -> None:
    """After any commands, with a retain between any two of them."""
    state, now_ms = first_state(), 1000
    state = advance(state, partial(set_step, retain_ms=retain_ms), now_ms)
    for step, pause_ms in moves:
        now_ms += pause_ms
        for one in (step, retain_step):
            before = state
            state = advance(state, one, now_ms)  # type: ignore[arg-type]
            if state.shard != before.shard or state.since.is_empty:
                break
            assert state.since >= before.since
            if state.since > before.since:
                _check_moved(state, before, retain_ms)


def _check_moved(state: ShardState, before: ShardState, retain_ms: int) -> None:
    held = [reader.since for reader in state.leased.values()]
    held += [reader.since for reader in state.critical.values()]
    assert all(state.since <= Frontier(time) for time in held)
    if state.upper.time is not None and state.retain_ms is not None:
        assert state.since.time is not None
        assert state.since.time <= max(state.upper.time - 1 - retain_ms, before.since.time or 0)


def test_the_bound_is_the_meet_of_readers_and_policy() -> None:
    """None without either: nothing moves the since then."""
    state = first_state()
    assert since_bound(state) is retained_since(state) is None
    kept = msgspec.structs.replace(state, retain_ms=5)
    assert since_bound(kept) == Frontier(0)
    hold = partial(register_critical, reader="q", epoch="e", since=None, purpose="", confirmed=True)
    read = partial(register_leased, reader="r", since=None, lease_ms=9, purpose="")
    for step in (hold, read):
        state = advance(state, step, 1)
    move = partial(downgrade_critical, reader="q", expected_epoch="e", epoch="e", since=Frontier(7))
    assert since_bound(advance(state, move, 2)) == Frontier(0)


# --- stopped anywhere ----------------------------------------------------------------------------


@pytest.mark.parametrize("lasts", [None, 1], ids=["killed", "failed"])
@pytest.mark.parametrize("effect", ["none", "done", "late"])
def test_stopped_anywhere_it_is_done_once_more(effect: Effect, lasts: int | None) -> None:
    """Setting the policy and following it; repeated by another process they have one effect."""
    for at in itertools.count():
        world = World()
        append(made(world, None), 5000)
        store = Mortal(world.objects(), at, effect, lasts=lasts)
        try:
            dying = world.client(SETTINGS, store)
            dying.set_retention(SHARD, 1000)
            apply_retention(dying.machine(SHARD))
        except (Crash, ShardError):
            assert store.failed
        client = world.client()
        client.set_retention(SHARD, 1000)
        apply_retention(client.machine(SHARD))
        store.deliver()
        assert (since(client), client.state(SHARD).retain_ms) == (4000, 1000)
        with world.client().reader(SHARD) as reader:
            assert rows(reader.snapshot()) == Counter([(5000, "x")])
        world.close()
        if not store.failed:
            assert at > 3
            return
