"""The sweep against those who commit, collect, merge, drop and sweep at the same time."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate
from shardline.datasource.parts.stage import Staged
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS
from shardline.datasource.shard.state import STAGE_LIFE_MS
from shardline.datasource.stores.objects import Objects
from support.fakes.clock import SkewedClock
from support.faults.leftovers import (
    BLOBS,
    HOUR_MS,
    LEAKS,
    SHARD,
    Overtaken,
    contents,
    filled,
    litter,
    stored,
)
from support.models.shards import Crash, Mortal, World, dangling, table
from support.strategies.rows import bounded

MINUTE_MS = HOUR_MS // 60
FILLED = Counter({(number, "x"): 1 for number in range(4)})


def stage(client: ShardClient) -> Staged:
    return client.writer(SHARD).stager().stage([table((77, "late"))])


def client_of(world: World, clock: SkewedClock, objects: Objects) -> ShardClient:
    """A client of a process with this clock, which tries for weeks and makes every part a blob."""
    plain = world.client(replace(BLOBS, commit_timeout_ms=1000 * HOUR_MS), objects)
    return ShardClient(plain.location, plain.settings, clock, world.ids)


@dataclass
class Sleeper:
    """A process that sleeps in the middle of a request.

    If its whole machine is paused, its clocks stand still meanwhile.
    """

    world: World
    clocks_stand_still: bool

    def __post_init__(self) -> None:
        self.clock = SkewedClock(self.world.clock)

    def sleep(self, ms: int) -> None:
        self.world.clock.advance(ms)
        if self.clocks_stand_still:
            self.clock.ahead_ms -= ms

    def client(self, objects: Objects) -> ShardClient:
        return client_of(self.world, self.clock, objects)


@pytest.fixture(params=[False, True], ids=["suspended", "clocks-stand-still"])
def sleeper(request: pytest.FixtureRequest, world: World) -> Sleeper:
    return Sleeper(world, bool(request.param))


# --- against commits -----------------------------------------------------------------------------


def test_regression_a_commit_that_sleeps_in_its_request_is_swept_under(
    world: World, sleeper: Sleeper
) -> None:
    """It read its clock in time and wrote its record hours later: the fence makes it look again."""
    filled(world)
    staged = stage(sleeper.client(world.objects()))
    sleeper.sleep(STAGE_LIFE_MS - 1)

    def sleep() -> None:
        sleeper.sleep(SWEEP_AGE_MS - STAGE_LIFE_MS + 2)
        assert world.client().sweep(SHARD).parts.count == 1

    store = Overtaken(world.objects(), sleep, create="/log/")
    with pytest.raises(Determinate, match="STAGED_TOO_LONG"):
        sleeper.client(store).writer(SHARD, "etl").commit(staged)
    assert store.act is None
    assert dangling(world.client().machine(SHARD)) == []
    assert contents(world) == FILLED


def in_flight(world: World, staged: Staged) -> Mortal:
    """The store of a process that died while its commit was on the way."""
    for at in itertools.count():
        store = Mortal(world.objects(), at, "late")
        with suppress(Crash):
            world.client(BLOBS, store).writer(SHARD).commit(staged)
        if store.failed.startswith(f"create {SHARD}/log/"):
            return store
    raise AssertionError


def test_a_commit_in_flight_is_fenced_off_before_anything_is_deleted() -> None:
    """Its request arrives at any operation of a sweep, after its process died waiting for it."""
    for at in itertools.count():
        world = World()
        client = filled(world)
        staged = stage(client)
        world.clock.advance(STAGE_LIFE_MS - 1)
        flight = in_flight(world, staged)
        world.clock.advance(SWEEP_AGE_MS - STAGE_LIFE_MS + 2)
        store = Overtaken(world.objects(), flight.deliver, at)
        patient = replace(BLOBS, commit_timeout_ms=10 * HOUR_MS)
        world.client(patient, store).sweep(SHARD)
        assert dangling(world.client().machine(SHARD)) == [], at
        world.close()
        if store.act is not None:
            assert at > 8
            return


def test_a_sweep_that_sleeps_takes_nothing_that_was_committed_meanwhile() -> None:
    """It goes by the time before it looked: what becomes old while it sleeps is another sweep's."""
    for at in itertools.count():
        world = World()
        client = filled(world)
        litter(world)
        world.clock.advance(2 * HOUR_MS)
        staged = stage(client)
        world.clock.advance(STAGE_LIFE_MS - 1)

        def interrupt(client: ShardClient = client, staged: Staged = staged) -> None:
            client.writer(SHARD).commit(staged)
            client.clock.wait(threading.Event(), 3 * HOUR_MS)

        store = Overtaken(world.objects(), interrupt, at)
        patient = replace(BLOBS, commit_timeout_ms=10 * HOUR_MS)
        world.client(patient, store).sweep(SHARD)
        assert dangling(world.client().machine(SHARD)) == [], at
        world.close()
        if store.act is not None:
            assert at > 8
            return


def test_a_merge_that_sleeps_before_it_is_applied_is_not_applied(
    world: World, sleeper: Sleeper
) -> None:
    """Its output may be gone; the inputs are still there."""
    client = filled(world)
    before = stored(world.objects(), "part")

    def sleep() -> None:
        if stored(world.objects(), "part") == before:
            store.act = sleep  # not yet: this record is a claim on the work
            return
        sleeper.sleep(SWEEP_AGE_MS + 1)
        assert world.client().sweep(SHARD).parts.count == 1

    store = Overtaken(world.objects(), sleep, create="/log/")
    with pytest.raises(Determinate, match="STAGED_TOO_LONG"):
        sleeper.client(store).compact(SHARD, force=True)
    assert stored(world.objects(), "part") == before
    assert dangling(client.machine(SHARD)) == []
    assert contents(world) == FILLED


def test_a_rollup_that_sleeps_before_it_is_recorded_is_not_recorded(
    world: World, sleeper: Sleeper
) -> None:
    """A recorded rollup that is gone would make the shard unreadable."""
    client = filled(world)
    state = client.machine(SHARD).state()

    def sleep() -> None:
        sleeper.sleep(SWEEP_AGE_MS + 1)
        assert world.client().sweep(SHARD).rollups.count == 1

    store = Overtaken(world.objects(), sleep, create="/log/")
    assert not sleeper.client(store).machine(SHARD).write_rollup(state)
    assert store.act is None
    assert world.client().machine(SHARD).state().rollups == {}
    assert dangling(world.client().machine(SHARD)) == []


_quarter = st.integers(-15 * MINUTE_MS, 15 * MINUTE_MS)
_half = st.integers(-30 * MINUTE_MS + 1, 30 * MINUTE_MS - 1)
_pause = st.one_of(
    st.sampled_from([0, HOUR_MS, 2 * HOUR_MS]),
    st.integers(0, 3 * HOUR_MS),
)


@bounded
@given(
    ahead=st.tuples(_quarter, _quarter, _half),
    waits=st.integers(STAGE_LIFE_MS - HOUR_MS, SWEEP_AGE_MS + HOUR_MS),
    first=st.sampled_from(["commit", "sweep"]),
    at=st.integers(0, 14) | st.just(1000),
    pauses=st.tuples(_pause, _pause),
)
@example(  # the worst that the margin allows
    ahead=(15 * MINUTE_MS, -15 * MINUTE_MS, 30 * MINUTE_MS - 1),
    waits=STAGE_LIFE_MS + 30 * MINUTE_MS,
    first="sweep",
    at=1000,
    pauses=(0, 0),
)
def test_a_sweep_and_a_commit_never_both_win(
    ahead: tuple[int, int, int],
    waits: int,
    first: Literal["commit", "sweep"],
    at: int,
    pauses: tuple[int, int],
) -> None:
    """Whatever the ages, the clocks within the margin, who is interrupted where, and for how long.

    Either the commit is refused or its part is there. The store's clock is the world's.
    """
    stager, committer, sweeper = ahead
    pause, sleep = pauses
    world = World()
    filled(world)
    staged = stage(client_of(world, SkewedClock(world.clock, stager), world.objects()))
    world.clock.advance(waits)

    def commit(objects: Objects) -> None:
        with suppress(Determinate):
            writer = client_of(world, SkewedClock(world.clock, committer), objects).writer(
                SHARD, "etl"
            )
            writer.commit(staged, sequence=1, attempt="t1")

    def swept(objects: Objects) -> None:
        client_of(world, SkewedClock(world.clock, sweeper), objects).sweep(SHARD)

    outer, inner = (commit, swept) if first == "commit" else (swept, commit)

    def interrupt() -> None:
        world.clock.advance(pause)
        inner(world.objects())
        world.clock.advance(sleep)

    outer(Overtaken(world.objects(), interrupt, at))
    inner(world.objects())
    assert dangling(world.client().machine(SHARD)) == []
    world.close()


# --- side by side --------------------------------------------------------------------------------


def collected(world: World) -> None:
    world.client().collect_garbage(SHARD)
    world.clock.advance(HOUR_MS)
    world.client().collect_garbage(SHARD)


@pytest.mark.parametrize("rival", ["sweep", "collect", "drop", "merge"])
def test_side_by_side_with_anything_nothing_needed_goes(rival: str) -> None:
    """Another sweeper, a collector, a merge or the end of the shard at every store operation."""
    acts: dict[str, Callable[[World], object]] = {
        "sweep": lambda world: world.client().sweep(SHARD),
        "collect": collected,
        "drop": lambda world: world.client().drop(SHARD),
        "merge": lambda world: world.client(BLOBS).compact(SHARD, force=True),
    }
    for at in itertools.count():
        world = World()
        client = filled(world, replace(BLOBS, rollup_every=3))
        client.compact(SHARD, force=True)
        client.writer(SHARD).append_now(table((9, "z")))
        litter(world)
        world.clock.advance(SWEEP_AGE_MS + 1)
        act = partial(acts[rival], world)
        store = Overtaken(world.objects(), act, at)  # type: ignore[arg-type]
        patient = replace(BLOBS, commit_timeout_ms=100 * HOUR_MS)
        world.client(patient, store).sweep(SHARD)
        machine = world.client().machine(SHARD)
        assert not stored(world.objects(), "part") & set(LEAKS)
        assert dangling(machine) == []
        if rival != "drop":
            assert contents(world) == FILLED + Counter([(9, "z")])
        world.close()
        if store.act is not None:
            assert at > 5
            return
