"""Claims of merges: they keep others away, run out with their owner, and never decide anything."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

import shardline.datasource.maintenance.compact
from shardline.datasource.errors import Determinate, ShardError
from shardline.datasource.maintenance.compaction_claim import CLAIM_LEASE_MS, MergeClaim, Superseded
from shardline.datasource.shard.commands.claims import (
    Claimed,
    InputsGone,
    Taken,
    live_claims,
    release_claim,
    take_claim,
)
from shardline.datasource.shard.commands.merge import apply_merge
from shardline.datasource.stores.faulty import Fault, Faulty
from support.models.merging import SHARD, contents, filled, sizes
from support.models.shards import SETTINGS, Crash, Mortal, World, dangling, schema_of, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.client import ShardClient
    from support.models.shards import Effect

BLOBS = replace(SETTINGS, inline_part_bytes=0, compact_factor=4, compact_inline_bytes=0)


@pytest.fixture(autouse=True)
def every_merge_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shardline.datasource.maintenance.compact, "_CLAIM_BYTES", 1)


def batches(world: World, appends: int = 4) -> ShardClient:
    """A shard of so many small batches."""
    return filled(world.client(BLOBS), appends)


def claimed_by_the_dead(world: World, start: int, end: int) -> MergeClaim:
    """A claim on batches `[start, end)` whose owner has died."""
    machine = world.client(BLOBS).machine(SHARD)
    dead = MergeClaim.on(machine, machine.state().trace.batches[start:end], "one that is dead")
    dead.__enter__()
    assert dead.held
    return dead


# --- as commands ---------------------------------------------------------------------------------


def test_a_range_has_one_claim_at_a_time(world: World) -> None:
    """Another one that shares a batch is refused, one beside it is not, and its own renews it."""
    state = batches(world, 6).state(SHARD)
    there = state.trace.batches
    take = partial(take_claim, lease_ms=100, purpose="somebody")
    mine = take(state, 1000, name="a", inputs=there[1:3])
    assert mine.state is not None
    assert isinstance(mine.result, Claimed)
    for shared in (there[0:2], there[2:4], there[:]):
        refused = take(mine.state, 1000, name="b", inputs=shared)
        assert (refused.state, refused.result) == (None, Taken(mine.state.claims["a"]))
    both = take(mine.state, 1000, name="b", inputs=there[3:5]).state
    assert both is not None
    assert sorted(both.claims) == ["a", "b"]
    renewed = take(both, 1050, name="a", inputs=there[1:3]).state
    assert renewed is not None
    assert renewed.claims["a"].heartbeat_ms == 1050
    free = release_claim(renewed, 1060, name="a").state
    assert free is not None
    assert sorted(free.claims) == ["b"]
    assert release_claim(free, 1060, name="a").state is None


def test_a_claim_that_is_not_renewed_runs_out(world: World) -> None:
    """Whoever comes then has it; the one that comes back is told."""
    state = batches(world).state(SHARD)
    take = partial(take_claim, inputs=state.trace.batches, lease_ms=100, purpose="somebody")
    first = take(state, 1000, name="a").state
    assert first is not None
    assert [len(live_claims(first, at)) for at in (1100, 1101)] == [1, 0]
    assert isinstance(take(first, 1100, name="b").result, Taken)
    second = take(first, 1101, name="b").state
    assert second is not None
    assert sorted(second.claims) == ["b"]
    assert isinstance(take(second, 1102, name="a").result, Taken)
    # Nobody came: it is taken again.
    assert isinstance(take(first, 5000, name="a").result, Claimed)


def test_what_is_not_there_cannot_be_claimed(world: World) -> None:
    """Somebody has merged it already."""
    client = batches(world)
    before = client.state(SHARD)
    client.compact(SHARD, force=True)
    inputs = before.trace.batches
    result = take_claim(
        client.state(SHARD), 1, name="a", inputs=inputs, lease_ms=9, purpose=""
    ).result
    assert result == InputsGone()


def test_a_dropped_shard_has_no_claims(world: World) -> None:
    """Nor has the one that is made in its place."""
    client = batches(world)
    claimed_by_the_dead(world, 0, 4)
    client.drop(SHARD)
    assert client.machine(SHARD).state().claims == {}
    client.create(SHARD, schema_of())
    assert client.state(SHARD).claims == {}


def test_a_merge_is_applied_with_or_without_its_claim(world: World) -> None:
    """A claim of somebody else does not keep it out either: its inputs are still there."""
    client = batches(world)
    claimed_by_the_dead(world, 0, 4)
    machine = client.machine(SHARD)
    state = machine.state()
    assert shardline.datasource.maintenance.compact._merge_and_apply(
        machine, state, state.trace.batches, None, may_inline=False
    )
    assert sizes(client) == [8]


def test_an_output_that_a_sweep_may_have_taken_is_refused(world: World) -> None:
    """It was begun longer ago than staged parts are kept."""
    client = batches(world)
    state = client.state(SHARD)
    inputs = state.trace.batches
    day = 24 * 3600 * 1000
    merge = partial(apply_merge, inputs=inputs[:1], output=inputs[0], staged_ms=1000)
    assert merge(state, 1000 + day).result
    with pytest.raises(Determinate, match="STAGED_TOO_LONG"):
        merge(state, 1001 + day)


# --- as mergers hold them ------------------------------------------------------------------------


def test_what_others_have_claimed_is_left_alone(world: World) -> None:
    """By size, the rest is merged; by force, nothing is; and once it ran out, all of it is."""
    batches(world, 12)
    claimed_by_the_dead(world, 0, 4)
    other = world.client(BLOBS)
    before = contents(other)
    assert other.compact(SHARD) == 1
    assert sizes(other) == [2, 2, 2, 2, 16]
    assert other.compact(SHARD, force=True) == 0
    world.clock.advance(CLAIM_LEASE_MS + 1)
    assert other.compact(SHARD, force=True) == 1
    assert (sizes(other), contents(other)) == ([24], before)
    assert other.state(SHARD).claims == {}


def test_a_merge_gives_its_claim_up_with_the_record_that_applies_it(world: World) -> None:
    """One record to claim, one to apply; nothing is left."""
    client = batches(world)
    before = client.state(SHARD).seqno
    assert client.compact(SHARD) == 1
    state = client.state(SHARD)
    assert (state.seqno - before, state.claims) == (2, {})


def test_a_small_merge_takes_no_claim(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would cost as much as the merge."""
    monkeypatch.undo()
    client = batches(world)
    before = client.state(SHARD).seqno
    assert client.compact(SHARD) == 1
    assert client.state(SHARD).seqno - before == 1


def test_a_claim_lives_as_long_as_its_work_goes_on(world: World) -> None:
    """It is renewed as pieces are read, at a quarter of its lease, with the time of that moment."""
    client = batches(world)
    machine = client.machine(SHARD)
    with MergeClaim.on(machine, machine.state().trace.batches, "a merge") as held:
        for _ in range(10):
            world.clock.advance(CLAIM_LEASE_MS / 3)
            held.keep()
            held.keep()
            [other] = world.client().state(SHARD).claims.values()
            assert other.heartbeat_ms == pytest.approx(world.clock.now_ms(), abs=1)
    assert client.state(SHARD).claims == {}
    assert client.state(SHARD).seqno == 5 + 1 + 10 + 1


class Paused(Faulty):
    """A store on which something happens before the part is put."""

    def __init__(self, world: World, act: Callable[[], object]) -> None:
        super().__init__(world.objects(), clock=world.clock, ids=world.ids)
        self._act: Callable[[], object] | None = act

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()
        super().put(key, value)


def test_a_merger_that_was_suspended_finds_its_work_done(world: World) -> None:
    """Its claim ran out, another one merged the same batches; nothing of its own is left behind."""
    batches(world)

    def meanwhile() -> None:
        world.clock.advance(CLAIM_LEASE_MS + 1)
        assert world.client(BLOBS).compact(SHARD) == 1

    late = world.client(BLOBS, Paused(world, meanwhile))
    before = contents(late)
    inputs = {p.key for b in late.state(SHARD).trace.batches for p in b.parts}
    assert late.compact(SHARD) == 0
    fresh = world.client()
    stored = {entry.key for entry in world.objects().entries(f"{SHARD}/part/")}
    named = {p.key for b in fresh.state(SHARD).trace.batches for p in b.parts}
    assert stored == named | inputs
    assert contents(fresh) == before


def test_a_claim_of_a_clock_that_was_ahead_ends_when_it_is_right(world: World) -> None:
    """A merger died while its clock was years ahead: its batches are free, and soon all merged."""
    client = batches(world)
    years_ms = 10 * 365 * 86_400_000
    world.clock.advance(years_ms)
    claimed_by_the_dead(world, 0, 4)
    world.clock.advance(-years_ms)

    assert live_claims(client.state(SHARD), world.clock.now_ms()) == ()
    assert client.compact(SHARD, force=True) == 1
    assert client.state(SHARD).claims == {}
    assert contents(client) == contents(batches(World()))


def test_a_claim_of_a_clock_that_is_a_little_ahead_counts(world: World) -> None:
    """Clocks differ: one that is ahead by less than a lease keeps its range, and no longer."""
    client = batches(world)
    world.clock.advance(CLAIM_LEASE_MS)
    dead = claimed_by_the_dead(world, 0, 4)
    world.clock.advance(-CLAIM_LEASE_MS)

    claims = client.state(SHARD).claims
    assert live_claims(client.state(SHARD), world.clock.now_ms()) == tuple(claims.values())
    assert dead.held
    assert live_claims(client.state(SHARD), world.clock.now_ms() - 1) == ()


def test_a_merger_stops_when_somebody_else_is_at_it(world: World) -> None:
    """It ran out of time, and the other one has not finished yet: two would make the same."""
    client = batches(world)
    machine = client.machine(SHARD)
    with MergeClaim.on(machine, machine.state().trace.batches, "a merge") as held:
        world.clock.advance(CLAIM_LEASE_MS + 1)
        theirs = claimed_by_the_dead(world, 0, 4)
        with pytest.raises(Superseded, match="one that is dead"):
            held.keep()
    assert list(client.state(SHARD).claims) == [theirs.name]


def test_a_store_that_does_not_answer_costs_the_claim_and_not_the_merge(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A claim saves work: failing for it would waste some."""
    store = Faulty(world.objects(), clock=world.clock, ids=world.ids)
    batches(world)
    machine = world.client(BLOBS, store).machine(SHARD)
    with (
        caplog.at_level(logging.INFO),
        MergeClaim.on(machine, machine.state().trace.batches, "a merge") as held,
    ):
        world.clock.advance(CLAIM_LEASE_MS / 2)
        for operation in ("create", "get", "list"):
            store.fail(operation, *[Fault.BEFORE] * 2000)
        held.keep()
        assert held.held
    assert {r.message for r in caplog.records} >= {"claim not renewed", "claim left to run out"}
    assert len(world.client().state(SHARD).claims) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("lasts", [None, 1], ids=["killed", "failed"])
@pytest.mark.parametrize("effect", ["none", "done", "late"])
def test_killed_at_any_operation_the_work_is_taken_up(effect: Effect, lasts: int | None) -> None:
    """The shard is right at once; and when the claim has run out, somebody else merges."""
    for at in itertools.count():
        world = World()
        batches(world)
        before = contents(world.client())
        store = Mortal(world.objects(), at, effect, lasts=lasts)
        try:
            world.client(BLOBS, store).compact(SHARD)
        except (Crash, ShardError):
            assert store.failed
        store.deliver()
        assert contents(world.client()) == before
        assert dangling(world.client().machine(SHARD)) == []
        world.clock.advance(CLAIM_LEASE_MS + 1)
        other = world.client(BLOBS)
        other.compact(SHARD)
        assert (sizes(other), contents(other)) == ([8], before)
        other.writer(SHARD).append_now(table((9, "z")))
        assert other.state(SHARD).claims == {}
        world.close()
        if not store.failed:
            assert at > 8
            return
