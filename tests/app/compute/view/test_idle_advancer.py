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
from shardline.datasource.background import PeriodicThread
from shardline.datasource.clock import SystemClock
from shardline.datasource.frontier import Frontier
from support.fakes.clock import ManualClock
from support.models.shards import World, schema_of
from support.waiting import wait_until

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient
    from shardline.datasource.shard.state import ShardState


class Seen:
    """Remembers the states that it was given."""

    def __init__(self, *inputs: str, fails: bool = False) -> None:
        self.name = "seen"
        self.inputs: Sequence[str] = inputs
        self.ticks: list[list[str]] = []
        self.came = threading.Event()
        self.fails = fails

    def tick(self, states: Sequence[ShardState]) -> None:
        self.ticks.append([state.name for state in states])
        self.came.set()
        if self.fails:
            raise RuntimeError("a follower failed")


class Copied:
    """Moves its output's upper to where its input is."""

    def __init__(self, client: ShardClient, name: str, of: str) -> None:
        self.name = name
        self.inputs: Sequence[str] = (of,)
        self._client = client

    def tick(self, states: Sequence[ShardState]) -> None:
        upper = self._client.state(self.name).upper
        if states[0].upper > upper:
            self._client.writer(self.name).compare_and_append(None, upper, states[0].upper)


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


def test_time_passes_all_layers_of_views_in_one_round(world: World) -> None:
    """Whatever the order in which they were added."""
    client = world.client()
    for name in ("c", "d"):
        client.create(name, schema_of())
    client.writer("a").compare_and_append(None, Frontier(0), Frontier(70))
    advancer = IdleAdvancer(client, ManualClock(), 1)
    views = [Copied(client, name, of) for name, of in (("d", "c"), ("b", "a"), ("c", "b"))]
    with ThreadPoolExecutor(2) as pool:
        for view in views:
            advancer.add(view)
        advancer.round(pool)
        for view in views:
            advancer.remove(view)
    assert [client.state(name).upper.time for name in ("b", "c", "d")] == [70, 70, 70]


def test_views_that_read_each_other_for_a_moment_are_followed(world: World) -> None:
    """An old view beside a new one, while definitions change: the round goes on."""
    one, other = Seen("b"), Seen("a")
    one.name, other.name = "a", "b"
    advancer = IdleAdvancer(world.client(), ManualClock(), 1)
    with ThreadPoolExecutor(2) as pool:
        for follower in (one, other):
            advancer.add(follower)
        advancer.round(pool)
        for follower in (one, other):
            advancer.remove(follower)
    assert (one.ticks, other.ticks) == ([["b"]], [["a"]])


def test_a_failure_does_not_stop_those_of_later_layers(world: World) -> None:
    """In the same round: a view of others would stand still as long as any one of them fails."""
    bad, above = Seen("a", fails=True), Seen("seen")
    above.name = "above"
    advancer = IdleAdvancer(world.client(), SystemClock(), 3_600_000)
    with ThreadPoolExecutor(2) as pool:
        advancer.add(bad)
        advancer.add(above)
        advancer.round(pool)
        for follower in (bad, above):
            advancer.remove(follower)
    assert (len(bad.ticks), len(above.ticks)) == (1, 1)


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


def test_a_thread_that_could_not_be_started_is_started_for_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked for it is not followed; those that come later have a thread all the same."""

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    refused, good, last = Seen("a"), Seen("a"), Seen("b")
    advancer = IdleAdvancer(world.client(), SystemClock(), 1)
    with monkeypatch.context() as patch:
        patch.setattr(PeriodicThread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            advancer.add(refused)
    for follower in (good, last):
        advancer.add(follower)
    assert all(follower.came.wait(30) for follower in (good, last))
    for follower in (good, last):
        advancer.remove(follower)
    advancer.join()
    assert refused.ticks == []


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
