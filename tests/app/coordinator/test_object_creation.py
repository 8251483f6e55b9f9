"""Creation of objects against controllers that nobody answers: holds on former inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from shardline.app.controller.compute import ComputeController
from shardline.app.controller.storage import StorageController
from shardline.app.coordinator.object_creation import ObjectCreator
from shardline.app.coordinator.start_holds import StartHolds
from shardline.app.lane.state import LaneObject, Life
from shardline.app.protocol.compute import Frontiers
from shardline.app.protocol.objects import SinkDescription, ViewDescription, progress_shard
from shardline.app.protocol.storage import RunSink
from shardline.app.storage.sinks.interval import Interval
from shardline.app.storage.sinks.progress import SinkProgress, read_progress
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import Determinate, Fenced
from shardline.datasource.frontier import Frontier
from shardline.datasource.maintenance.retention import apply_retention
from support.fakes.reads import Place
from support.fakes.sites import SCHEMA

OWN = "view:v:1:0a1b2c3d"
"""The hold of the definition that runs."""


def view(*inputs: str) -> ViewDescription:
    return ViewDescription(name="v", query="SELECT 1", inputs=inputs, schema="k BIGINT, s STRING")


def running(description: ViewDescription, as_of: int) -> dict[str, LaneObject]:
    """A lane that keeps a view running."""
    known = LaneObject(
        description=description,
        as_of=as_of,
        global_id="u1",
        dataflow=1,
        operators=(1, 1),
        epoch=1,
        created=1,
    )
    return {"v": known}


@pytest.fixture
def place() -> Iterator[Place]:
    """The inputs `a` and `b` have begun; `c` and `d` are there."""
    found = Place()
    for name in "ab":
        found.put(name, [((1, "x"), 5, 1)], 10, SCHEMA)
    for name in "cd":
        found.put(name, [], 0, SCHEMA)
    yield found
    found.close()


def never() -> NoReturn:
    raise AssertionError("nothing connects, and no sink begins")


def storage_controller() -> StorageController:
    """A controller of sources and sinks that has none, and never connects."""
    return StorageController(never, SystemClock(), as_of=lambda _: never())


def made(
    place: Place,
    check_fence: Callable[[], None] = lambda: None,
    storage: StorageController | None = None,
) -> tuple[ObjectCreator, ComputeController]:
    """A creator, and its controller of views, which never connects."""
    start_holds = StartHolds(place.client)
    compute = ComputeController(never, SystemClock(), SystemIds(), hold=start_holds.hold)
    storage = storage or storage_controller()
    creator = ObjectCreator(place.client, compute, storage, start_holds, check_fence)
    return creator, compute


def sinks_of(place: Place) -> StorageController:
    """A controller of sinks, which never connects."""
    as_of = StartHolds(place.client).sink_as_of
    return StorageController(never, SystemClock(), as_of=as_of)


def tell_of_progress(compute: ComputeController) -> None:
    """The present definition of `v` has read beyond its as_of."""
    creation = compute._desired["v"].command.creation
    compute._on_response(Frontiers(id="v", input=11, creation=creation))


def held(place: Place, name: str) -> list[str]:
    return sorted(place.client.state(name).critical)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_former_input_is_held_until_the_new_definition_reads(
    place: Place, restarted: bool
) -> None:
    """The former one runs until then, and would fail; after that nobody else ends its holds."""
    creator, compute = made(place)
    if restarted:
        creator.adopt(running(view("a"), 7), {"v": view("c")})
    else:
        creator.run([view("a")])
    place.client.hold("a", OWN, since=7)
    creator.run([view("c")])
    creator.retry()
    assert OWN in held(place, "a"), "its new input has not begun: it runs as it was"
    place.put("c", [((1, "x"), 5, 1)], 10, SCHEMA)
    creator.retry()
    assert OWN in held(place, "a"), "nothing has shown that the former one has ended"
    assert creator.has_left()
    tell_of_progress(compute)
    creator.retry()
    assert (held(place, "a"), creator.has_left()) == ([], False)


def test_a_former_input_that_another_runtime_has_taken_over_is_held_on(place: Place) -> None:
    """Behind this runtime's look it runs the former definition, under the same name."""

    def take_over() -> None:
        place.client.hold("a", OWN, since=7)

    creator, compute = made(place, take_over)
    creator.run([view("a")])
    place.client.hold("a", OWN, since=7)
    place.put("c", [((1, "x"), 5, 1)], 10, SCHEMA)
    creator.run([view("c")])
    tell_of_progress(compute)
    creator.retry()
    assert held(place, "a") == [OWN]


def test_a_change_that_fails_leaves_the_holds_of_what_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is tried: the store does not answer for an input, and then it does."""
    creator, compute = made(place)
    creator.run([view("a")])
    tell_of_progress(compute)
    place.client.hold("a", OWN, since=7)
    hold = ShardClient.hold

    def fail_for_b(self: ShardClient, shard: str, *given: Any, **named: Any) -> Any:
        if shard == "b":
            raise Determinate("no answer")
        return hold(self, shard, *given, **named)

    place.put("c", [((1, "x"), 5, 1)], 10, SCHEMA)
    with monkeypatch.context() as patch:
        patch.setattr(ShardClient, "hold", fail_for_b)
        creator.run([view("c", "b")])
        creator.retry()
        creator.retry()
    assert held(place, "a") == [OWN]
    creator.retry()
    assert compute.desired() == {"v": view("c", "b")}
    tell_of_progress(compute)
    creator.retry()
    assert held(place, "a") == []


def test_inputs_of_changes_that_follow_each_other_are_let_go_together(place: Place) -> None:
    """The second change comes before the first one's definition has read anything."""
    creator, compute = made(place)
    creator.run([view("a")])
    for name in "ab":
        place.client.hold(name, OWN, since=7)
    for name in "cd":
        place.put(name, [((1, "x"), 5, 1)], 10, SCHEMA)
    creator.run([view("b", "c")])
    creator.run([view("b", "d")])
    tell_of_progress(compute)
    creator.retry()
    assert (held(place, "a"), held(place, "c")) == ([], [])
    assert OWN in held(place, "b"), "it reads this one still"


def test_a_follower_leaves_the_holds_of_the_beginning_to_the_holder(place: Place) -> None:
    """They go by the view's name: one that it took over it would end, and the other needs it."""
    holder, _ = made(place)
    holder.run([view("a")])
    before = place.client.state("a").critical
    assert len(before) == 1
    follower, compute = made(place)
    follower.adopt(running(view("a"), 7), {"v": view("a")}, follows=True)
    assert compute.desired() == {"v": view("a")}
    assert place.client.state("a").critical == before
    compute.stop()
    assert place.client.state("a").critical == before


def test_a_runtime_that_was_fenced_takes_no_hold(place: Place) -> None:
    """An input begins behind the take-over: what waits for it is the successor's to create."""

    def fenced() -> None:
        raise Fenced("another runtime has taken over")

    creator, compute = made(place, fenced)
    creator.run([view("c")])
    place.put("c", [((1, "x"), 5, 1)], 10, SCHEMA)
    creator.retry()
    assert compute.desired() == {}
    assert held(place, "c") == []
    assert "taken over" in creator.waiting()["v"]


SINK = SinkDescription(name="out", on="a", format="memory", snapshot=False)


def test_a_sink_without_snapshot_keeps_its_input_before_its_first_start(place: Place) -> None:
    """It may be paused by then for longer than history is kept, and nobody has the changes."""
    storage = sinks_of(place)
    creator, _ = made(place, storage=storage)
    creator.run([SINK, replace(SINK, name="contents", on="b", snapshot=True)])
    assert [*storage.desired()] == ["out", "contents"]
    assert (held(place, "a"), held(place, "b")) == (["sink:out"], [])
    row = read_progress(place.client, "out")
    assert row is not None
    assert (row.input, row.definition) == ("a", ""), "whoever drops the sink finds the hold"
    assert not place.client.exists(progress_shard("contents"))
    place.client.set_retention("a", 1)
    place.put("a", [((1, "y"), 15, 1)], 1000, SCHEMA)
    apply_retention(place.client.machine("a"))
    wanted = storage._desired["out"]
    assert isinstance(wanted, RunSink)
    assert place.client.state("a").since <= Frontier(wanted.as_of)


def test_the_hold_and_the_accounts_of_a_sink_that_is_changed_stay_its_own(place: Place) -> None:
    """Its former definition runs until the new one is created."""
    storage = sinks_of(place)
    creator, _ = made(place, storage=storage)
    creator.run([SINK])
    hold = place.client.hold("a", "sink:out")
    progress = SinkProgress.open(place.client, SINK)
    for changed in (replace(SINK, options={"interval": "1s"}), replace(SINK, on="b")):
        creator.run([changed])
        assert storage.desired() == {"out": changed}
    hold.confirm()
    progress.record(Interval(0, Frontier(9)), 0)
    assert (held(place, "a"), held(place, "b")) == (["sink:out"], [])


def test_a_runtime_that_was_fenced_takes_no_hold_for_a_sink(place: Place) -> None:
    """The successor runs one of this name."""

    def fenced() -> None:
        raise Fenced("another runtime has taken over")

    storage = sinks_of(place)
    creator, _ = made(place, fenced, storage)
    creator.run([SINK])
    assert (storage.desired(), held(place, "a")) == ({}, [])
    assert not place.client.exists(progress_shard("out"))


def test_of_a_beginning_that_is_gone_no_hold_is_left(place: Place) -> None:
    """One input has history there and the other has not: the caller gets no handles."""
    place.client.set_retention("b", 1)
    apply_retention(place.client.machine("b"))
    creator, compute = made(place)
    creator.adopt(running(view("a", "b"), 7), {"v": view("a", "b")})
    assert compute.desired() == {"v": view("a", "b")}
    assert held(place, "a") == []


def test_what_runs_is_named_as_it_runs(place: Place) -> None:
    """With its own as_of, which nobody looks up; history there may be gone, as it has begun."""
    creator, compute = made(place)
    creator.adopt(running(view("gone", "a"), 3), {"v": view("gone", "a")})
    creator.run([view("gone", "a")])
    assert compute.desired() == {"v": view("gone", "a")}
    assert creator.waiting() == {}
    lives: list[tuple[Life, dict[str, ViewDescription]]] = [
        ("dropping", {"v": view("a")}),
        ("live", {}),
    ]
    for life, wanted in lives:
        other, nobody = made(place)
        (known,) = running(view("a"), 3).values()
        other.adopt({"v": replace(known, life=life)}, wanted)
        assert nobody.desired() == {}, life


def test_what_was_dropped_for_a_successor_is_named_until_that_is_there(place: Place) -> None:
    """A crash between the two, and an input that is away: nobody may take it for given up."""
    creator, compute = made(place)
    (known,) = running(view("a"), 3).values()
    creator.adopt({"v": replace(known, life="dropping", replaced=True)}, {"v": view("c")})
    assert compute.desired() == {"v": view("a")}


def test_a_name_that_is_now_of_the_other_controller_is_dropped_by_the_first(place: Place) -> None:
    """As long as it named its own, that one would not end, nor the holds of it."""
    creator, compute = made(place)
    creator.run([view("a")])
    creator.keep_only({"v": view("b")})
    assert set(compute.desired()) == {"v"}
    creator.keep_only({"v": SinkDescription(name="v", on="a", format="parquet")})
    assert compute.desired() == {}
    assert held(place, "a") == []
