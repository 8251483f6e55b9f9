"""Relations for the screens of one object, of one shard and of the lane, by made events."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from shardline.app.execution.observations import GroupStepped, Started
from shardline.app.introspection.events import (
    Client,
    ClientsSeen,
    ControllerSeen,
    Phase,
    Polled,
    ProcessStarted,
    QueryIdle,
    QueryProgress,
    QueryStarted,
    QueryTerminated,
    RuntimeSeen,
    ServerSeen,
    SparkSeen,
    Wanted,
    WantedObject,
)
from shardline.app.introspection.listener import progress_of_step
from shardline.app.introspection.poll import ShardPoller
from shardline.app.lane.log import LANE_SHARD
from shardline.app.protocol.objects import SubscribeDescription, ViewDescription
from shardline.app.server.metrics import encode_metrics
from shardline.datasource.client import ShardClient
from shardline.datasource.followers import follow
from shardline.datasource.frontier import Frontier
from shardline.datasource.inspect.report import report_shard
from shardline.datasource.types.schema import ShardSchema
from support.fakes.introspection import DELAYS, FAST, FLIGHTS, OUT, World, progress
from support.models.shards import World as Shards

START = ProcessStarted(
    location="s3://bucket/x", version="1.2", data_folder="/d", checkpoints="/d/c", at_ms=5000
)


@pytest.fixture
def world() -> World:
    return World()


def runtime(at_ms: int, *controllers: ControllerSeen, **other: Any) -> RuntimeSeen:
    """A look at a runtime that holds its location."""
    values: dict[str, Any] = {
        "project": "flights",
        "holder": "shardline on host, process 7",
        "held_since_ms": 1000,
        "epoch": 3,
        "read_only": False,
        "queue": 4,
    }
    return RuntimeSeen(at_ms=at_ms, controllers=controllers, **{**values, **other})


# --- object_details ------------------------------------------------------------------------------


def test_details_say_how_an_object_is_kept_and_where_its_query_is(world: World) -> None:
    """A view has a strategy, what is on it has its columns; what keeps no checkpoint has none."""
    for one in (FLIGHTS, DELAYS, FAST, OUT):
        world.run(one)
    columns = (("carrier", "STRING"), ("delay", "DOUBLE"))
    world.tell(
        START,
        SparkSeen("http://127.0.0.1:4040"),
        Polled(id="delays", since=0, upper=9, columns=columns),
    )
    found = {row["object_id"]: row for row in world.rows("object_details")}
    of_delays = [{"name": "carrier", "type": "STRING"}, {"name": "delay", "type": "DOUBLE"}]
    assert found["delays"] == {
        "object_id": "delays",
        "strategy": "recompute",
        "reason": None,
        "schema": found["delays"]["schema"],
        "checkpoint": "/d/c/u2-2",
        "spark_ui": "http://127.0.0.1:4040/StreamingQuery/statistics/?id=r-delays-1",
        "view_group": None,
    }
    for name in ("delays", "fast", "out"):
        assert json.loads(str(found[name]["schema"])) == of_delays
    assert (found["flights"]["schema"], found["flights"]["strategy"]) == (None, None)
    assert [found[name]["checkpoint"] for name in ("flights", "fast", "out")] == [
        "/d/c/u1-1",
        None,
        "/d/c/u4-4",
    ]


def test_a_view_in_a_group_runs_as_part_of_the_groups_query(world: World) -> None:
    """It has no checkpoint; Spark shows the group's run; its steps are micro-batches of its own."""
    world.run(DELAYS)
    run = "g-run/delays:1"
    started = Started(id="delays", epoch=1, query="g-query", run=run, group="group:1")
    world.tell(START, SparkSeen("http://127.0.0.1:4040"), started)
    name, query, of_group = "group:1:1", "g-query", "g-run"
    world.tell(
        QueryStarted(query=query, run=of_group, name=name, at_ms=0),
        QueryProgress(query=query, run=of_group, name=name, micro_batch=0, at_ms=0, phases_ms={}),
        QueryTerminated(query=query, run=of_group, error=""),
        progress_of_step(
            GroupStepped(
                id="delays",
                epoch=1,
                query="g-query",
                run=run,
                name="delays:u2:1",
                number=7,
                at_ms=5,
                took_ms=40,
            )
        ),
    )
    (found,) = world.rows("object_details")
    assert (found["view_group"], found["checkpoint"]) == ("group:1", None)
    assert found["spark_ui"] == "http://127.0.0.1:4040/StreamingQuery/statistics/?id=g-run"
    steps = [(row["object_id"], row["batch"], row["took"]) for row in world.rows("step_phases")]
    assert steps == [("delays", 7, 40)]
    (told,) = world.rows("listener")
    assert told["foreign"] == 0, "events of the group's query are no strangers'"


def test_an_object_that_is_called_group_is_no_group(world: World) -> None:
    """Names of groups' queries have the same first part; Spark may tell of a query before we do."""
    name, run = "group:u1:1", "r-group-1"
    installed = world.installed(replace(DELAYS, name="group"))
    now = world.clock.now_ms()
    world.tell(START, installed, Phase(id="group", epoch=1, phase="running", at_ms=now))
    world.tell(
        QueryStarted(query="g", run="g-run", name="group:1a2b3c4d:1", at_ms=0),
        QueryStarted(query="q", run=run, name=name, at_ms=0),
        progress(name, run, addBatch=40),
    )
    assert {(row["object_id"], row["batch"]) for row in world.rows("step_phases")} == {("group", 0)}
    assert world.sink._facts.group_runs == {"g-run"}


def test_steps_of_an_incarnation_that_has_ended_are_no_steps_of_the_next(world: World) -> None:
    """A view in a group numbers them anew: the last one would be one of hours ago."""
    world.run(DELAYS)
    world.tell(
        progress("delays:u1:1", "r-delays-1", micro_batch=5, addBatch=40),
        progress("delays:u1:1", "r-delays-1", micro_batch=6, addBatch=40),
    )
    assert {row["batch"] for row in world.rows("step_phases")} == {5, 6}
    world.tell(
        Phase(id="delays", epoch=2, phase="running", at_ms=world.clock.now_ms()),
        Started(id="delays", epoch=2, query="q-delays", run="r-delays-2"),
    )
    assert world.rows("step_phases") == []
    world.tell(
        progress("delays:u1:1", "r-delays-2", micro_batch=0, addBatch=40),
        progress("delays:u1:1", "r-delays-2", micro_batch=1, addBatch=40),
    )
    assert {row["batch"] for row in world.rows("step_phases")} == {0, 1}


def test_runs_of_groups_that_have_ended_are_not_kept(world: World) -> None:
    """A group starts anew with each view that joins or leaves it; progress may come late."""
    world.run(DELAYS)
    for number in range(3):
        run, name = f"g-run-{number}", f"group:1:{number}"
        late = QueryProgress(query="g", run=run, name=name, micro_batch=0, at_ms=0, phases_ms={})
        world.tell(QueryStarted(query="g", run=run, name=name, at_ms=0))
        assert world.sink._facts.group_runs == {run}
        world.tell(QueryIdle(query="g", run=run, at_ms=0), late)
        world.tell(QueryTerminated(query="g", run=run, error=""), late)
    assert world.sink._facts.group_runs == set()
    (told,) = world.rows("listener")
    assert told["foreign"] == 0


def test_details_of_what_is_not_known_are_null(world: World) -> None:
    """Without Spark's UI there is no link; a view that waits to be created has its strategy."""
    world.run(DELAYS)
    linear = ViewDescription(
        name="late", query="SELECT 1", inputs=(), schema="", strategy="linear", reason=""
    )
    world.tell(Wanted((WantedObject(id="late", description=linear),), 0))
    assert [tuple(row.values()) for row in world.rows("object_details")] == [
        ("delays", "recompute", None, None, None, None, None),
        ("late", "linear", None, None, None, None, None),
    ]


# --- step_phases ---------------------------------------------------------------------------------


def test_phases_of_the_newest_micro_batches_are_in_their_order(world: World) -> None:
    """Sixty of each object; each row has the whole beside its part."""
    installed = world.run(DELAYS)
    query = f"delays:{installed.global_id}:1"
    for number in range(70):
        phases = {"addBatch": 20, "latestOffset": number, "later": 1, "triggerExecution": 30}
        world.tell(progress(query, "r-delays-1", micro_batch=number, **phases))
    rows = world.rows("step_phases", "delays")
    assert [row["batch"] for row in rows[::3]] == list(range(10, 70))
    last = [(row["phase"], row["elapsed"], row["took"]) for row in rows[-3:]]
    assert last == [("latestOffset", 69, 30), ("addBatch", 20, 30), ("later", 1, 30)]
    assert rows[-1]["started_at"] == "1970-01-01T00:00:00.001Z"


def test_a_new_definition_begins_without_phases(world: World) -> None:
    """Micro-batches of another query would be compared with those of this one."""
    installed = world.run(DELAYS)
    world.tell(progress(f"delays:{installed.global_id}:1", "r-delays-1", addBatch=3))
    assert world.rows("step_phases")
    world.run(DELAYS)
    assert world.rows("step_phases") == []


# --- shard_batches, shard_holds ------------------------------------------------------------------


def test_batches_are_those_of_the_state_and_at_most_five_hundred(world: World) -> None:
    """One after the other, without a gap; the newest of a shard that nobody maintains."""
    client = ShardClient.open("memory://details-batches", clock=world.clock)
    client.create("flights", ShardSchema.from_arrow(pa.schema([("a", pa.int64())])))
    writer = client.writer("flights")
    for number in range(3):
        world.clock.advance(10)
        writer.append_now(pa.table({"a": [number] * 2}))
    poller = ShardPoller(world.sink, client)
    poller.step()
    world.tell()
    state = client.state("flights")
    expected = [
        (
            batch.desc.lower,
            batch.desc.upper,
            batch.desc.since,
            None if batch.is_empty else batch.level,
            len(list(batch.parts)),
            batch.rows,
            batch.rows,
            batch.size_bytes,
        )
        for batch in state.trace.batches
    ]
    rows = world.rows("shard_batches", "flights")
    assert [tuple(row.values())[1:] for row in rows] == expected
    assert sum(int(str(row["records"])) for row in rows) == 6
    assert [row["upper"] for row in rows[:-1]] == [row["lower"] for row in rows[1:]]
    report = report_shard(state, 0, batches_max=2)
    assert report.newest_batches is not None
    assert [one.upper for one in report.newest_batches] == [row["upper"] for row in rows[-2:]]
    assert report_shard(state, 0, batches_max=0).newest_batches == ()


def test_the_upper_of_a_follower_is_told_as_readers_see_it(world: World) -> None:
    """Also right after a reader has come, whose lease is a record of the follower's own."""
    client = ShardClient.open("memory://details-follower", clock=world.clock)
    for name in ("errors", "flights"):
        client.create(name, ShardSchema.from_arrow(pa.schema([("a", pa.int64())])))
    follow(client, "errors", "flights")
    writer, told = client.writer("flights"), list[object]()
    poller = ShardPoller(world.sink, client)
    for upper in range(10_000, 60_000, 10_000):
        writer.compare_and_append(None, writer.upper(), Frontier(upper))
        client.reader("errors").close()
        poller.step()
        world.tell()
        told += [row["upper"] for row in world.rows("shards", "errors")]
        world.clock.advance(10_000)
    assert told == [*range(10_000, 60_000, 10_000)]


def test_a_shard_of_very_many_rows_hides_no_other(world: World) -> None:
    """Each of its batches has fewer than 2^63, and all together have more: columns have no more."""
    client = ShardClient.open("memory://details-many", clock=world.clock)
    client.create("delays", ShardSchema.from_arrow(pa.schema([("a", pa.int64())])))
    for number in range(3):
        rows = pa.table({"a": [number], "_diff": pa.array([2**62], pa.int64())})
        client.writer("delays").append_now(rows)
    world.run(DELAYS)
    ShardPoller(world.sink, client).step()
    world.tell()
    assert len(world.rows("shards")) == len(world.rows("verdicts")) == 1
    assert {row["records"] for row in world.rows("shard_batches") if row["parts"]} == {2**62}
    encode_metrics(world.relations)


def test_a_shard_names_who_keeps_most_of_its_history_alone(world: World) -> None:
    """By its object, or as it calls itself; not one beside whom another keeps the same."""
    client = ShardClient.open("memory://details-held", clock=world.clock)
    client.create("flights", ShardSchema.from_arrow(pa.schema([("a", pa.int64())])))
    poller = ShardPoller(world.sink, client)

    def appended() -> int:
        world.clock.advance(5_000)
        client.writer("flights").append_now(pa.table({"a": [1]}))
        upper = client.state("flights").upper.time
        assert upper is not None
        return upper

    def shown() -> tuple[object, ...]:
        poller.step()
        world.tell()
        (row,) = world.rows("shards", "flights")
        return row["holds"], row["held_back_by"], row["held_back"]

    world.run(DELAYS)
    since = appended() - 1
    assert shown() == (0, None, 0)
    first = client.hold("flights", "view:delays:2:0a1b2c3d", since=since, purpose="stream by h:7")
    upper = appended()
    assert shown() == (1, "delays", upper - 1 - since)
    client.hold("flights", "other", since=since, purpose="a report of mine")
    assert shown() == (2, None, 0)
    first.expire()
    assert shown() == (1, "a report of mine", upper - 1 - since)


def test_holds_name_their_object_and_all_bytes_that_they_keep(world: World) -> None:
    """Alone or with others; one of somebody else's has no object, whatever it is called."""
    shards = Shards()
    client = shards.client()
    client.create("flights", ShardSchema.from_arrow(pa.schema([("a", pa.int64())])))
    client.hold("flights", "view:delays:2:0a1b2c3d", purpose="stream by host:7")
    client.hold("flights", "view:gone:2:0a1b2c3d", purpose="an object of before")
    here, elsewhere = ("l" + 32 * digit for digit in "01")
    world.tell(replace(START, location_id=here))
    for place, who in ((here, "a source"), (elsewhere, "a source of another location")):
        client.hold("flights", f"source:delays:{place}", purpose=who)
    leases = [client.reader("flights", purpose=who) for who in ("index fast", "me")]
    for number in range(4):
        client.writer("flights").append_now(pa.table({"a": list(range(number, 3000))}))
    before = client.state("flights")
    client.compact("flights", force=True)
    for one in (DELAYS, FAST):
        world.run(one)
    ShardPoller(world.sink, client).step()
    world.tell()
    rows = {str(row["owner"]): row for row in world.rows("shard_holds", "flights")}
    assert {owner: row["object_id"] for owner, row in rows.items()} == {
        "stream by host:7": "delays",
        "an object of before": None,
        "a source": "delays",
        "a source of another location": None,
        "index fast": "fast",
        "me": None,
    }
    old = sum(part.size_bytes for batch in before.trace.batches for part in batch.parts)
    assert old > 0
    for owner in ("index fast", "me"):
        assert (rows[owner]["kept_size"], rows[owner]["only_size"]) == (old, 0)
    assert rows["an object of before"]["kept_size"] == 0, "it holds history, and no old state"
    for lease in leases:
        lease.close()
    shards.close()


# --- location, connections -----------------------------------------------------------------------


def test_the_location_is_one_row_once_it_is_known(world: World) -> None:
    """Not half a row: a location that nobody seems to hold would be an alarm."""
    world.tell(START)
    assert world.rows("location") == []
    world.tell(ServerSeen("http://127.0.0.1:4200"), runtime(9000))
    (row,) = world.rows("location")
    assert row == {
        "location": "s3://bucket/x",
        "project": "flights",
        "holder": "shardline on host, process 7",
        "held_since": "1970-01-01T00:00:01.000Z",
        "epoch": 3,
        "version": "1.2",
        "read_only": False,
        "started_at": "1970-01-01T00:00:05.000Z",
        "data_folder": "/d",
        "address": "http://127.0.0.1:4200",
        "queue": 4,
    }
    world.tell(runtime(9001, project="", holder="", held_since_ms=None, read_only=True))
    (row,) = world.rows("location")
    assert [row[name] for name in ("project", "holder", "held_since", "read_only")] == [
        None,
        None,
        None,
        True,
    ]


def test_everybody_who_is_connected_is_there_since_the_beginning(world: World) -> None:
    """A controller since it was seen first; another one in its place begins anew."""
    compute = ControllerSeen("compute 1f", is_reconciled=False)
    world.tell(runtime(2000, compute))
    world.tell(
        runtime(3000, ControllerSeen("compute 1f", is_reconciled=True)),
        ClientsSeen((Client("page", "127.0.0.1:5", 2500),)),
    )
    world.run(SubscribeDescription(name="t1", on="flights"))
    now = world.clock.now_ms()
    assert connections(world) == deque(
        [
            ("controller", "compute 1f", 2000, "connected"),
            ("page", "127.0.0.1:5", 2500, "connected"),
            ("subscriber", "t1", now, "running"),
        ]
    )
    world.tell(runtime(4000, ControllerSeen("compute 2a", is_reconciled=False)), ClientsSeen(()))
    assert connections(world)[0] == ("controller", "compute 2a", 4000, "connecting")
    assert "page" not in {kind for kind, *_ in connections(world)}


def test_followers_are_seen_by_the_leases_of_the_lane(world: World) -> None:
    """Not the holder, nor a hold of that name; one that is late is silent."""
    shards = Shards()
    client = shards.client()
    client.create(LANE_SHARD, ShardSchema.from_arrow(pa.schema([("a", pa.int64())])))
    leases = [
        client.reader(LANE_SHARD, purpose=who, lease_ms=ms)
        for who, ms in (("follower: b on x", 10), ("follower: c on x", 10**6), ("the runtime", 9))
    ]
    client.hold(LANE_SHARD, "h", purpose="follower: d on x")
    shards.clock.advance(1000)
    ShardPoller(world.sink, client).step()
    world.tell()
    rows = [(row["kind"], row["name"], row["since"]) for row in world.rows("connections")]
    assert sorted(rows, key=str) == [("follower", "b on x", None), ("follower", "c on x", None)]
    states = {row["name"]: row["state"] for row in world.rows("connections")}
    assert states == {"b on x": "silent", "c on x": "connected"}
    for lease in leases:
        lease.close()
    shards.close()


def connections(world: World) -> deque[tuple[object, ...]]:
    """Rows of `connections`, with times in ms."""
    table = world.relations.relation("connections")
    since = table["since"].cast(pa.int64()).to_pylist()
    rows = zip(table.to_pylist(), since, strict=True)
    return deque((row["kind"], row["name"], at // 1000, row["state"]) for row, at in rows)


def test_a_look_that_there_is_no_room_for_may_be_missed(world: World) -> None:
    """The next one says the same: it must not take the room of an end."""
    world.sink.inbox.capacity = 1
    for at_ms in (1, 2):
        world.sink.put(runtime(at_ms))
    world.sink.put(ClientsSeen(()))
    assert world.sink.inbox.dropped == 1
