"""Collecting garbage after a long time, and of a shard that is dropped."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import ShardError
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS
from shardline.datasource.shard.commands.readers import pin_critical
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import Claim, ShardState, is_tombstone
from shardline.datasource.shard.state_history import state_at
from support.faults.leftovers import BLOBS, HOUR_MS, SHARD, contents, filled, named, stored
from support.models.shards import Crash, Effect, Mortal, World, dangling, table

# --- a long way ----------------------------------------------------------------------------------


def aged(world: World) -> tuple[ShardClient, set[str]]:
    """A shard that was written and merged for long and never collected; and the keys it dropped."""
    client = filled(world, replace(BLOBS, rollup_every=4), appends=1)
    seen: set[str] = set()
    for number in range(24):
        client.writer(SHARD).append_now(table((number, "z")))
        seen |= named(client.machine(SHARD).state())
        if number % 3 == 2:
            client.compact(SHARD, force=True)
        seen |= named(client.machine(SHARD).state())
    return client, seen - named(client.machine(SHARD).state())


def test_a_long_way_is_gone_in_rounds_that_are_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector that dies on the way is followed by one that begins where it was."""
    monkeypatch.setattr("shardline.datasource.maintenance.garbage_collection._ROUND_RECORDS", 6)
    client, dropped = aged(world)
    reached, marks = 0, []
    for at in itertools.count(4, 3):
        store = Mortal(world.objects(), at)
        with suppress(Crash):
            world.client(replace(BLOBS, rollup_every=4), store).collect_garbage(SHARD)
        assert client.machine(SHARD).state().cleaned_seqno >= reached
        reached = client.machine(SHARD).state().cleaned_seqno
        marks.append(reached)
        if not store.failed:
            break
    assert len(set(marks)) > 3
    assert stored(world.objects(), "part") == named(client.machine(SHARD).state())
    assert dropped
    assert contents(world).total() == 25


def test_a_very_long_backlog_is_left_to_the_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector begins at the newest rollup; what was dropped before is found by listing."""
    monkeypatch.setattr("shardline.datasource.maintenance.garbage_collection._BACKLOG_RECORDS", 10)
    client, dropped = aged(world)
    deleted = client.collect_garbage(SHARD)
    state = client.machine(SHARD).state()
    left = stored(world.objects(), "part") - named(state)
    assert left
    assert left < dropped
    assert deleted < len(dropped) + 8
    assert client.usage(SHARD).staged.count == len(left)
    for _ in range(3):
        client.collect_garbage(SHARD)
        world.clock.advance(HOUR_MS)
    world.clock.advance(SWEEP_AGE_MS)
    assert set(client.sweep(SHARD).keys) == left
    assert stored(world.objects(), "part") == named(client.machine(SHARD).state())
    assert dangling(world.client().machine(SHARD)) == []
    assert contents(world).total() == 25


def test_a_backlog_that_is_held_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is: what a hold needs begins at its seqno."""
    monkeypatch.setattr("shardline.datasource.maintenance.garbage_collection._BACKLOG_RECORDS", 10)
    client, _ = aged(world)
    machine = client.machine(SHARD)
    held = machine.state()
    hold = client.hold(SHARD, "q")
    pin = partial(pin_critical, reader="q", epoch=hold.epoch, seqno=held.seqno)
    machine.apply(pin)
    for number in range(12):
        client.writer(SHARD).append_now(table((number, "w")))
        client.compact(SHARD, force=True)
        client.collect_garbage(SHARD)
    cold = world.client().machine(SHARD)
    assert dangling(cold, state_at(cold, held.seqno)) in ([], [*dangling_rollups(held, cold)])


def dangling_rollups(held: ShardState, machine: Machine) -> list[str]:
    """Whole states that `held` knew of and nobody needs any more: it is made from another one."""
    return [ref.key for ref in held.rollups.values() if machine.location.blob.get(ref.key) is None]


# --- the end of a shard --------------------------------------------------------------------------


@pytest.mark.parametrize("lasts", [None, 1], ids=["killed", "failed"])
@pytest.mark.parametrize("effect", ["none", "done", "late"])
def test_a_drop_stopped_anywhere_leaves_one_record_in_the_end(
    effect: Effect, lasts: int | None
) -> None:
    """And neither policy, claims nor readers in it."""
    for at in itertools.count():
        world = World()
        client = filled(world, replace(BLOBS, rollup_every=3))
        client.set_retention(SHARD, 5)
        client.machine(SHARD).apply(claimed)
        store = Mortal(world.objects(), at, effect, lasts=lasts)
        try:
            world.client(replace(BLOBS, rollup_every=3), store).drop(SHARD)
        except (Crash, ShardError):
            assert store.failed
        world.client().drop(SHARD)
        store.deliver()
        for _ in range(4):
            world.client().collect_garbage(SHARD)
            world.clock.advance(2 * HOUR_MS)
        left = {entry.key for entry in world.objects().entries(f"{SHARD}/")}
        assert len(left - stored(world.objects(), "floor")) == 1, store.failed
        state = world.client().machine(SHARD).state()
        assert is_tombstone(state)
        assert (state.retain_ms, state.claims, state.writers) == (None, {}, {})
        assert world.client().usage(SHARD).records.count == 1
        world.close()
        if not store.failed:
            assert at > 5
            return


def claimed(state: ShardState, now_ms: int) -> Transition[None]:
    claim = Claim(0, 1, now_ms, 10**9, "a merge")
    return Transition(msgspec.structs.replace(state, claims={"c": claim}), None)
