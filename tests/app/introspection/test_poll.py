"""The poller looks up in the states of shards what nobody reports."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

from shardline.app.introspection.events import Dropped
from shardline.app.introspection.poll import ShardPoller
from shardline.app.protocol.objects import IndexDescription, errors_shard
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard.machine import Machine
from shardline.datasource.types.schema import ShardSchema
from support.fakes.introspection import DELAYS, FLIGHTS, World

SCHEMA = ShardSchema.from_arrow(pa.schema([("a", pa.int64())]))


class Place:
    """A location in memory, and the process that looks into it."""

    def __init__(self, name: str) -> None:
        self.world = World()
        self.client = ShardClient.open(f"memory://{name}", clock=self.world.clock)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.node.name)


def test_frontiers_errors_and_shards_are_looked_up(place: Place) -> None:
    """What nobody reports is found in the shards' states; what is gone is forgotten."""
    client, world = place.client, place.world
    for name in ("flights", errors_shard("flights")):
        client.create(name, SCHEMA)
        client.writer(name).append_now(pa.table({"a": [1, 2, 3]}))
    poller = ShardPoller(world.sink, client)
    world.run(FLIGHTS)
    for _ in range(3):
        poller.step()
    world.tell()
    state = client.state("flights")
    assert world.rows("frontiers") == [
        {
            "object_id": "flights",
            "read_frontier": state.since.time,
            "write_frontier": state.upper.time,
        }
    ]
    assert world.rows("error_counts") == [
        {"export_id": "flights", "count": 3, "own": 3, "erring_ids": ["flights"]}
    ]
    assert {row["name"]: row["records"] for row in world.rows("shards")} == {
        "flights": 3,
        "flights_errors": 3,
    }
    (seen,) = world.rows("verdicts", "flights")
    assert (seen["records"], seen["size"]) == (3, world.rows("shards", "flights")[0]["size"])
    client.writer("flights").append_now(pa.table({"a": [4]}))
    poller.step()
    world.tell()
    assert world.rows("verdicts", "flights")[0]["records"] == 4, "looked at in each round"
    with client.reader("flights", purpose="a test"):
        for _ in range(2):
            poller.step()
        world.tell()
        (hold,) = world.rows("shard_holds", "flights")
        assert (hold["kind"], hold["owner"]) == ("lease", "a test")
    client.drop("flights")
    for _ in range(2):
        poller.step()
    world.tell()
    assert [row["name"] for row in world.rows("shards")] == ["flights_errors"]


def test_shards_of_objects_are_seen_when_the_objects_are(place: Place) -> None:
    """Their states are read anyway: of hundreds the list would else be minutes old."""
    client, world = place.client, place.world
    names = ["delays", "delays_errors", "flights", "flights_errors"]
    for name in (*names, *(f"a_{number}" for number in range(40))):
        client.create(name, SCHEMA)
    for description in (FLIGHTS, DELAYS):
        world.run(description)
    poller = ShardPoller(world.sink, client)

    def seen() -> dict[str, object]:
        world.tell()
        return {row["name"]: row["records"] for row in world.rows("shards") if row["name"] in names}

    poller.step()
    assert seen() == dict.fromkeys(names, 0)
    for name in names:
        client.writer(name).append_now(pa.table({"a": [1]}))
    for _ in range(12):
        poller.step()
    assert seen() == dict.fromkeys(names, 1)


def test_what_was_read_of_a_dropped_object_is_not_said_of_the_next_one_of_its_name(
    place: Place,
) -> None:
    """The look was under way while it was dropped, and an index made of that name."""
    world = place.world
    world.run(FLIGHTS)
    old = world.run(DELAYS)
    place.client.create("delays", SCHEMA)
    place.client.writer("delays").append_now(pa.table({"a": [1]}))
    poller = ShardPoller(world.sink, place.client)
    poller.step()
    world.sink.inbox.drain()
    world.tell(Dropped(id="delays", at_ms=world.clock.now_ms(), global_id=old.global_id))
    world.run(IndexDescription(name="delays", on="flights", key=("carrier",)))
    poller._objects.append(("delays", old.dataflow))
    poller.step()
    world.tell()
    assert world.rows("verdicts", "delays")[0]["records"] is None
    assert world.rows("listener")[0]["stale"] == 1


def looked_into(place: Place, poller: ShardPoller, steps: int) -> list[int]:
    """How many shards were looked into for the first time in each of some steps."""
    found = [0]
    for _ in range(steps):
        poller.step()
        place.world.tell()
        found.append(len(place.world.rows("shards")))
    return [after - before for before, after in pairwise(found)]


def test_shards_of_no_object_are_looked_into_some_at_a_time(place: Place) -> None:
    """Of hundreds what is known would else be minutes old."""
    for number in range(40):
        place.client.create(f"a_{number}", SCHEMA)
    assert looked_into(place, ShardPoller(place.world.sink, place.client), 4) == [16, 16, 8, 0]


@pytest.mark.parametrize(("look_ms", "each"), [(30, 4), (50, 2), (5_000, 1)])
def test_a_slow_store_is_asked_for_less_at_a_time(
    place: Place, monkeypatch: pytest.MonkeyPatch, look_ms: int, each: int
) -> None:
    """Objects are looked at in between; and one at least is looked into in each step."""
    for number in range(12):
        place.client.create(f"a_{number}", SCHEMA)
    place.world.clock.advance(1_000)  # what was written a moment ago is not asked for
    refresh = Machine.refresh

    def slow(machine: Machine) -> object:
        if machine.clock is place.world.clock:
            place.world.clock.advance(look_ms)
        return refresh(machine)

    monkeypatch.setattr(Machine, "refresh", slow)
    assert looked_into(place, ShardPoller(place.world.sink, place.client), 3) == [each] * 3


def test_what_this_process_has_just_written_is_not_asked_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that move once a second by its own appends cost no requests.

    One that others write is read in the next tick, and so is one of a clock that is ahead.
    """
    for number in range(4):
        place.client.create(f"a_{number}", SCHEMA)
    asked: list[str] = []
    refresh = Machine.refresh

    def counted(machine: Machine) -> object:
        if machine.clock is place.world.clock:
            asked.append(machine.name)
        return refresh(machine)

    monkeypatch.setattr(Machine, "refresh", counted)
    poller = ShardPoller(place.world.sink, place.client)
    poller.step()
    assert asked == []
    place.world.clock.advance(1_000)
    poller.step()
    assert asked == ["a_0", "a_1", "a_2", "a_3"]
    asked.clear()
    place.client.writer("a_0").append_now(None)
    asked.clear()
    place.world.clock.set_back(2_000)
    poller.step()
    assert "a_0" in asked


def test_a_shard_that_is_not_there_yet_is_passed_over(place: Place) -> None:
    """An object exists before its shard does: there is no row, and no error."""
    place.world.run(FLIGHTS)
    poller = ShardPoller(place.world.sink, place.client)
    poller.step()
    place.world.tell()
    assert place.world.rows("frontiers") == []
    with pytest.raises(InvalidUsage):
        place.client.state("flights")
