"""Following idle inputs: every follower, every round, and no thread without one."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from shardline.app.compute.view.idle_advancer import IdleAdvancer, get_advancer
from shardline.datasource.clock import SystemClock
from support.fakes.clock import ManualClock
from support.models.shards import World, schema_of
from support.waiting import wait_until

if TYPE_CHECKING:
    from shardline.datasource.shard.state import ShardState


class Seen:
    """Remembers the states that it was given."""

    def __init__(self, *inputs: str, fails: bool = False) -> None:
        self.inputs: Sequence[str] = inputs
        self.ticks: list[list[str]] = []
        self.came = threading.Event()
        self.fails = fails

    def tick(self, states: Sequence[ShardState]) -> None:
        self.ticks.append([state.name for state in states])
        self.came.set()
        if self.fails:
            raise RuntimeError("a follower failed")


@pytest.fixture
def world() -> World:
    world = World()
    for name in ("a", "b"):
        world.client().create(name, schema_of())
    return world


def test_each_follower_gets_its_inputs_in_order(world: World) -> None:
    """States come in the order of the inputs; none at all if one of them is not there."""
    one, two, gone = Seen("b", "a"), Seen("a"), Seen("a", "absent")
    advancer = IdleAdvancer(world.client(), SystemClock(), 1)
    with ThreadPoolExecutor(2) as pool:
        for follower in (one, two, gone):
            advancer.add(follower)
        advancer.round(pool)
        for follower in (one, two, gone):
            advancer.remove(follower)
    assert one.ticks[0] == ["b", "a"]
    assert two.ticks[0] == ["a"]
    assert gone.ticks[0] == []


def test_a_failure_stops_nobody_else(world: World) -> None:
    """The thread lives on after a follower has failed, and ends with the last follower."""
    bad, good = Seen("a", fails=True), Seen("a")
    advancer = IdleAdvancer(world.client(), SystemClock(), 1)
    advancer.add(bad)
    assert bad.came.wait(30)
    advancer.add(good)
    assert good.came.wait(30)
    good.came.clear()
    assert good.came.wait(30)
    advancer.remove(bad)
    advancer.remove(good)
    advancer.join()


def test_a_runtime_has_one(world: World) -> None:
    """Who has the same client shares an advancer."""
    client, other = world.client(), world.client()
    first = get_advancer(client, ManualClock(), 1000)
    assert get_advancer(client, ManualClock(), 1000) is first
    assert get_advancer(other, ManualClock(), 1000) is not first


def test_an_advancer_goes_with_its_runtime(world: World) -> None:
    """It and the client, with all states that this has cached, are freed with the last view."""
    client = world.client()
    advancer = get_advancer(client, SystemClock(), 1)
    follower = Seen("a")
    advancer.add(follower)
    assert follower.came.wait(30)
    advancer.remove(follower)
    advancer.join()
    wait_until("its threads have ended", lambda: not threads_of_advancers(), 30)
    left: list[weakref.ref[object]] = [weakref.ref(client), weakref.ref(advancer)]
    del client, advancer
    gc.collect()
    assert [one() for one in left] == [None, None]


def threads_of_advancers() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("advancer")]
