"""Relations: what they say of a small project, and of what has not been observed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from msgspec.structs import replace

from shardline.app.execution.observations import (
    Failed,
    Health,
    Hydrated,
    Measured,
    Progress,
    Started,
)
from shardline.app.introspection.events import (
    Dropped,
    Event,
    Harvested,
    Maintenance,
    PeekEnded,
    PeekStarted,
    Phase,
    Polled,
    QueryStarted,
    QueryTerminated,
    Recorded,
    ShardSeen,
    StateProgress,
)
from shardline.app.protocol.objects import SubscribeDescription, ViewDescription
from shardline.app.protocol.storage import StatusUpdate
from shardline.datasource.errors import InvalidUsage
from support.fakes.introspection import DELAYS, FAST, FLIGHTS, OUT, World, progress


@pytest.fixture
def world() -> World:
    return World()


def test_storage_and_compute_are_in_the_same_relations(world: World) -> None:
    """A source, a view, an index and a sink are dataflows alike, with ids from one allocator."""
    events = [world.run(d) for d in (FLIGHTS, DELAYS, FAST, OUT)]
    ids = [event.dataflow for event in events]
    assert [row["id"] for row in world.rows("dataflows")] == ids
    assert [row["global_id"] for row in world.rows("dataflow_global_ids")] == [
        "u1",
        "u2",
        "u3",
        "u4",
    ]
    assert [r["export_id"] for r in world.rows("storage_exports")] == ["flights", "out"]
    assert [r["export_id"] for r in world.rows("compute_exports")] == ["delays", "fast"]
    numbers = [row["id"] for row in world.rows("dataflow_operators")]
    assert numbers == list(range(1, world.operators))


def test_addresses_parents_and_channels_describe_one_graph(world: World) -> None:
    """An address extends the parent's; a channel's ends are operators of one dataflow."""
    for description in (FLIGHTS, DELAYS):
        world.run(description)
    address = {row["id"]: row["address"] for row in world.rows("dataflow_addresses")}
    for row in world.rows("dataflow_operator_parents"):
        child, parent = address[row["id"]], address[row["parent_id"]]
        assert isinstance(child, list)
        assert child[:-1] == parent
    assert len({tuple(a) for a in address.values() if isinstance(a, list)}) == len(address)
    ends = world.rows("dataflow_channel_operators")
    home = {row["id"]: row["dataflow_id"] for row in world.rows("dataflow_operator_dataflows")}
    assert ends
    assert all(home[e["from_operator_id"]] == home[e["to_operator_id"]] for e in ends)
    by_id = {row["id"]: row for row in world.rows("dataflow_channels")}
    assert len(by_id) == len(ends)
    for end in ends:
        sender, receiver = address[end["from_operator_id"]], address[end["to_operator_id"]]
        assert isinstance(sender, list)
        assert isinstance(receiver, list)
        assert by_id[end["id"]]["from_index"] == sender[-1]
        assert by_id[end["id"]]["to_index"] == receiver[-1]


def test_plan_nodes_are_mapped_to_the_operators_that_stand_for_them(world: World) -> None:
    """A view's nodes are those of its query, in order, between its sources and its shard."""
    world.run(DELAYS)
    names = [row["operator"] for row in world.rows("lir_mapping")]
    assert names == ["Source", "Aggregate", "Project", "Correction", "Persist"]
    operators = {row["id"]: row["name"] for row in world.rows("dataflow_operators")}
    assert all(
        operators[r["operator_id_start"]] == r["operator"] for r in world.rows("lir_mapping")
    )


def test_what_was_not_observed_has_no_row(world: World) -> None:
    """An object of which nothing is known yet is in no relation of observations."""
    world.tell(world.installed(DELAYS, epoch=0))
    for name in (
        "frontiers",
        "import_frontiers",
        "wallclock_lag",
        "materialization_lag",
        "hydration_statuses",
        "hydration_times",
        "scheduling_elapsed",
        "message_counts",
        "arrangement_sizes",
        "error_counts",
        "source_statistics",
    ):
        assert world.rows(name) == [], name


def test_the_empty_frontier_is_null(world: World) -> None:
    """A finished object has a row with NULL, and no lag at all."""
    world.run(DELAYS)
    world.tell(Polled(id="delays", since=None, upper=None))
    assert world.rows("frontiers") == [
        {"object_id": "delays", "read_frontier": None, "write_frontier": None}
    ]
    assert world.rows("wallclock_lag") == [{"object_id": "delays", "lag": 0}]


def test_a_shard_that_was_never_written_has_an_unknown_lag(world: World) -> None:
    """Its upper is 0, which is no time that anything could be behind."""
    world.run(FLIGHTS)
    world.tell(Polled(id="flights", since=0, upper=0))
    assert world.rows("wallclock_lag") == [{"object_id": "flights", "lag": None}]


def test_lag_grows_while_everything_stands_still(world: World) -> None:
    """No event is needed for it."""
    world.run(DELAYS)
    now = world.clock.now_ms()
    world.tell(Polled(id="delays", since=0, upper=now - 200))
    assert world.rows("wallclock_lag") == [{"object_id": "delays", "lag": 200}]
    world.clock.advance(5000)
    assert world.rows("wallclock_lag") == [{"object_id": "delays", "lag": 5200}]


def test_frontiers_never_go_back(world: World) -> None:
    """A late event with an earlier frontier changes nothing."""
    world.run(DELAYS)
    world.tell(
        Polled(id="delays", since=5, upper=20),
        Progress(id="delays", epoch=1, write=30, inputs={"flights": 40}),
        Polled(id="delays", since=3, upper=10),
    )
    assert world.rows("frontiers") == [
        {"object_id": "delays", "read_frontier": 5, "write_frontier": 30}
    ]
    assert world.rows("import_frontiers") == [
        {"export_id": "delays", "import_id": "flights", "time": 40}
    ]


def test_the_slowest_input_is_to_blame(world: World) -> None:
    """Local lag is behind the slowest direct input, global lag behind the slowest source."""
    other = ViewDescription(name="other", query="SELECT 1", inputs=("flights",), schema="a INT")
    both = ViewDescription(
        name="both", query="SELECT 1", inputs=("delays", "other"), schema="a INT"
    )
    for description in (FLIGHTS, DELAYS, other, both):
        world.run(description)
    uppers = {"flights": 1000, "delays": 700, "other": 900, "both": 500}
    world.tell(*(Polled(id=name, since=0, upper=upper) for name, upper in uppers.items()))
    assert world.rows("materialization_lag", "both") == [
        {
            "object_id": "both",
            "local_lag": 200,
            "global_lag": 500,
            "slowest_local_input_id": "delays",
            "slowest_global_input_id": "flights",
        }
    ]


def test_an_input_that_is_finished_is_never_the_slowest(world: World) -> None:
    """The empty frontier is after every time, and nothing can be behind it by so much."""
    world.run(FLIGHTS)
    world.run(DELAYS)
    world.tell(Polled(id="flights", since=0, upper=None), Polled(id="delays", since=0, upper=100))
    (row,) = world.rows("materialization_lag")
    assert (row["local_lag"], row["slowest_local_input_id"]) == (None, "flights")
    both = ViewDescription(
        name="both", query="SELECT 1", inputs=("flights", "delays"), schema="a INT"
    )
    world.run(both)
    world.tell(Polled(id="both", since=0, upper=60))
    (row,) = world.rows("materialization_lag", "both")
    assert (row["local_lag"], row["slowest_local_input_id"]) == (40, "delays")


def test_a_view_is_hydrated_once_its_output_is_past_its_as_of(world: World) -> None:
    """Or once it says so; the time that it took stays."""
    event = world.run(DELAYS)
    assert world.rows("hydration_statuses") == [{"object_id": "delays", "hydrated": False}]
    assert event.as_of is not None
    world.tell(Progress(id="delays", epoch=1, write=event.as_of))
    assert world.rows("hydration_statuses") == [{"object_id": "delays", "hydrated": False}]
    world.tell(Progress(id="delays", epoch=1, write=event.as_of + 1))
    assert world.rows("hydration_statuses") == [{"object_id": "delays", "hydrated": True}]
    world.tell(Hydrated(id="delays", epoch=1, took_ms=42))
    assert world.rows("hydration_times") == [{"object_id": "delays", "hydration_time": 42}]


def test_an_index_has_to_hydrate_again_in_each_incarnation(world: World) -> None:
    """What it had in memory is gone; how long it took the last time is still known."""
    world.run(FAST)
    world.tell(
        Progress(id="fast", epoch=1, write=world.clock.now_ms() + 10),
        Hydrated(id="fast", epoch=1, took_ms=42),
        Phase(id="fast", epoch=2, phase="starting", at_ms=0),
    )
    assert world.rows("hydration_statuses") == [{"object_id": "fast", "hydrated": False}]
    assert world.rows("compute_frontiers") == []
    assert world.rows("hydration_times") == [{"object_id": "fast", "hydration_time": 42}]


def test_time_is_summed_by_phase(world: World) -> None:
    """The dataflow has the whole time, its phases their own; times are counted in powers of two."""
    event = world.run(FLIGHTS)
    name = "flights:u1:1"
    world.tell(
        progress(name, "r-flights-1", triggerExecution=10, addBatch=7),
        progress(name, "r-flights-1", triggerExecution=20, addBatch=8),
    )
    first = event.operators[0]
    names = {row["id"]: row["name"] for row in world.rows("dataflow_operators")}
    elapsed = {row["id"]: row["elapsed_ns"] for row in world.rows("scheduling_elapsed")}
    assert elapsed.pop(first) == 30_000_000
    assert {names[number]: ns for number, ns in elapsed.items()} == {"addBatch": 15_000_000}
    histogram = {
        (row["id"], row["duration_ns"]): row["count"]
        for row in world.rows("operator_durations_histogram")
    }
    assert histogram[first, 2**24] == 1  # 10 ms
    assert histogram[first, 2**25] == 1  # 20 ms
    assert sum(count for (number, _), count in histogram.items() if number != first) == 2  # type: ignore[misc]


def test_rows_on_edges_are_those_that_the_object_counts(world: World) -> None:
    """Not Spark's counts, which double when a micro-batch is read twice."""
    for description in (FLIGHTS, DELAYS, OUT):
        world.run(description)
    world.tell(
        progress("flights:u1:1", "r-flights-1", triggerExecution=1),
        Measured(id="flights", epoch=1, added={"messages_received": 5, "updates_staged": 4}),
        Measured(id="flights", epoch=1, added={"messages_received": 5}),
        Measured(id="delays", epoch=1, added={"updates_out": 3}),
        Measured(id="out", epoch=1, added={"messages_staged": 2, "messages_committed": 1}),
    )
    by_id = {row["channel_id"]: row for row in world.rows("message_counts")}
    ends = {row["id"]: row for row in world.rows("dataflow_channel_operators")}
    homes = {row["id"]: row for row in world.rows("dataflow_operator_dataflows")}
    counted = {
        (home["dataflow_name"], home["name"]): (row["sent"], row["batch_sent"])
        for number, row in by_id.items()
        if (home := homes[ends[number]["from_operator_id"]])
    }
    assert counted == {
        ("Dataflow: flights", "Source"): (10, 1),
        ("Dataflow: flights", "Reclock"): (10, 1),
        ("Dataflow: flights", "Envelope"): (4, 1),
        ("Dataflow: delays", "Correction"): (3, 0),
        ("Dataflow: out", "Envelope"): (2, 0),
    }


def test_a_micro_batch_whose_rows_are_not_known_is_told(world: World) -> None:
    """Whoever makes a rate of the sums can tell that they stand still from that nobody knows."""
    world.run(FLIGHTS)
    world.run(DELAYS)
    channels = {r["id"]: r for r in world.rows("dataflow_channel_operators")}
    named = {r["id"]: r["name"] for r in world.rows("dataflow_operator_dataflows")}
    (found,) = (
        one for one in world.sink.read(lambda f, _: list(f.watched())) if one.id == "delays"
    )
    into = next(at for at, one in enumerate(found.plan) if one.name == "Aggregate")

    def harvested(micro_batch: int, *rows: tuple[int, int, int]) -> Harvested:
        return Harvested(query="q", run="r", name="delays:u2:1", micro_batch=micro_batch, rows=rows)

    world.tell(harvested(0, (into, 0, 9)), harvested(1), harvested(2, (into, 0, 4)))
    world.tell(Measured(id="flights", epoch=1, added={"messages_received": 5}))
    world.tell(progress("flights:u1:1", "r-flights-1", triggerExecution=1))
    counts = {
        named[channels[row["channel_id"]]["to_operator_id"]]: (
            row["received"],
            row["batch_received"],
            row["batch_observed"],
        )
        for row in world.rows("message_counts")
    }
    assert counts["Aggregate"] == (13, 2, 3)
    assert counts["Reclock"] == (5, 1, 1), "an object that counts itself counts all"


def test_what_is_kept_is_summed_by_dataflow(world: World) -> None:
    """An index reports its size; Spark's state is that of the last micro-batch."""
    index, source = world.run(FAST), world.run(FLIGHTS)
    told = progress("flights:u2:1", "r-flights-1", triggerExecution=1)
    states = (StateProgress("dedupe", 7, 70, 2), StateProgress("join", 3, 30, 2))
    world.tell(
        Measured(id="fast", epoch=1, now={"records": 11, "size": 220, "batches": 3}),
        type(told)(**{f: getattr(told, f) for f in told.__struct_fields__} | {"states": states}),
    )
    kept = [(r["id"], r["records"], r["size"]) for r in world.rows("records_per_dataflow")]
    assert kept == [(index.dataflow, 11, 220), (source.dataflow, 10, 100)]
    assert [r["batches"] for r in world.rows("arrangement_sizes")] == [3, 4]


def test_events_of_an_earlier_incarnation_are_discarded(world: World) -> None:
    """What an object's last run still says does not overwrite what its next one has said."""
    world.run(DELAYS)
    world.tell(
        Started(id="delays", epoch=2, query="q-delays", run="second"),
        Health(id="delays", epoch=1, namespace="compute", status="stalled", error="old"),
        Failed(id="delays", epoch=1, error="old"),
        progress("delays:u1:1", "r-delays-1", triggerExecution=5),
    )
    (row,) = world.rows("objects")
    assert (row["status"], row["epoch"], row["run_id"]) == ("running", 2, "second")
    assert world.rows("scheduling_elapsed") == []
    (listener,) = world.rows("listener")
    assert listener["stale"] == 3


def test_progress_is_attributed_without_any_started_event(world: World) -> None:
    """Spark may never tell of a start, and the object's own report may come later: names do."""
    world.tell(world.installed(DELAYS))
    world.tell(progress("delays:u1:1", "some run", triggerExecution=5))
    (row,) = world.rows("objects")
    assert row["run_id"] == "some run"
    assert len(world.rows("scheduling_elapsed")) == 1


def test_progress_of_another_incarnation_is_not_taken_by_name(world: World) -> None:
    """The next one is installed and has not started: what comes late is still the last one's."""
    world.tell(world.installed(DELAYS, epoch=2))
    world.tell(progress("delays:u1:1", "late", triggerExecution=5))
    (row,) = world.rows("objects")
    assert row["run_id"] is None
    assert world.rows("scheduling_elapsed") == []
    (listener,) = world.rows("listener")
    assert listener["stale"] == 1


def test_a_query_that_spark_never_told_of_is_counted(world: World) -> None:
    """The lane's word is checked against the listener's."""
    world.run(DELAYS)
    (row,) = world.rows("listener")
    assert row["unheard_queries"] == 1
    world.tell(QueryStarted(query="q-delays", run="r-delays-1", name="delays:u1:1", at_ms=1))
    (row,) = world.rows("listener")
    assert row["unheard_queries"] == 0


def test_queries_of_others_are_not_ours(world: World) -> None:
    """A user's own streaming query in the session changes nothing but a count."""
    world.tell(
        QueryStarted(query="x", run="y", name="theirs", at_ms=1),
        progress("theirs", "y", triggerExecution=5),
        QueryTerminated(query="x", run="y"),
    )
    (row,) = world.rows("listener")
    assert row["foreign"] == 3
    assert world.rows("scheduling_elapsed") == []


def test_a_dropped_object_is_gone_from_everywhere_but_histories(world: World) -> None:
    """Whatever was known of it is retracted at once."""
    for description in (FLIGHTS, DELAYS, FAST, OUT):
        world.run(description)
        world.tell(
            Polled(id=description.name, since=0, upper=5, errors=1),
            Measured(id=description.name, epoch=1, added={"messages_received": 1}),
            Hydrated(id=description.name, epoch=1, took_ms=1),
            progress("", f"r-{description.name}-1", triggerExecution=1),
        )
        world.tell(Dropped(id=description.name, at_ms=world.clock.now_ms()))
    left = {
        name: world.rows(name)
        for name, relation in world.relations.declared.items()
        if not relation.histories and name not in ("listener", "verdict_summary")
    }
    assert {name: rows for name, rows in left.items() if rows} == {}
    history = world.rows("status_history")
    assert [r["status"] for r in history if r["object_id"] == "out"] == [
        "created",
        "running",
        "dropped",
    ]


def test_a_late_drop_takes_nothing_of_a_successor_of_the_name(world: World) -> None:
    """It names the object that is gone; that one's global id is never given out again."""
    world.run(DELAYS)
    late = Dropped(id="delays", at_ms=world.clock.now_ms(), global_id="u99")
    world.tell(late)
    assert [row["id"] for row in world.rows("objects")] == ["delays"]
    world.tell(replace(late, global_id="u1"))
    assert world.rows("objects") == []


def test_late_events_of_a_dropped_object_do_not_bring_it_back(world: World) -> None:
    """They are counted, that is all."""
    world.run(DELAYS)
    world.tell(Dropped(id="delays", at_ms=0))
    late: list[Event] = [
        Progress(id="delays", epoch=1, write=7),
        Phase(id="delays", epoch=1, phase="stopped", at_ms=0),
        Polled(id="delays", since=0, upper=7),
        StatusUpdate(id="delays", status="running", at_ms=0),
        progress("delays:u1:1", "r-delays-1", triggerExecution=5),
    ]
    world.tell(*late)
    assert world.rows("objects") == []
    (row,) = world.rows("listener")
    assert (row["foreign"], row["failed"]) == (len(late), 0)


def test_another_definition_starts_from_nothing(world: World) -> None:
    """A dataflow with another number is another one: no sums, no frontiers of the old one."""
    world.run(DELAYS)
    world.tell(
        Polled(id="delays", since=0, upper=9),
        progress("delays:u1:1", "r-delays-1", triggerExecution=5),
    )
    world.run(DELAYS, epoch=2)
    assert world.rows("frontiers") == []
    assert world.rows("scheduling_elapsed") == []
    assert len(world.rows("dataflows")) == 1


def test_peeks_are_active_until_they_end(world: World) -> None:
    """Then they are in the histogram, by where the answer came from."""
    world.tell(PeekStarted(uuid="p", inputs=("a", "b"), time=5, at_ms=0, path="index"))
    assert [(r["id"], r["object_id"]) for r in world.rows("active_peeks")] == [
        ("p", "a"),
        ("p", "b"),
    ]
    world.tell(PeekEnded(uuid="p", took_ms=1.0))
    assert world.rows("active_peeks") == []
    assert world.rows("peek_durations_histogram") == [
        {"type": "index", "duration_ns": 2**20, "count": 1}
    ]


def test_subscriptions_commands_and_maintenance_are_told(world: World) -> None:
    """Each has its relation."""
    world.run(SubscribeDescription(name="t1", on="delays"))
    world.tell(
        Recorded(index=3, producer="compute", at_ms=0, kind="create_dataflow", object_id="delays"),
        Maintenance(shard="delays", at_ms=0, took_ms=2.5, merges=1, failed=("sweep",)),
    )
    (subscription,) = world.rows("subscriptions")
    assert subscription["referenced_object_ids"] == ["delays"]
    (command,) = world.rows("command_history", "delays")
    assert (command["index"], command["kind"]) == (3, "create_dataflow")
    (round_,) = world.rows("maintenance")
    assert (round_["merges"], round_["collected"], round_["failed"]) == (1, None, ["sweep"])


def test_an_unknown_relation_is_refused_with_the_nearest(world: World) -> None:
    """And so is a filter by object where rows are about none."""
    with pytest.raises(InvalidUsage, match="did you mean 'frontiers'"):
        world.relations.relation("frontier")
    with pytest.raises(InvalidUsage, match="NO_OBJECT_COLUMN"):
        world.rows("dataflows", "delays")


def test_every_relation_has_its_declared_columns_when_it_is_empty(world: World) -> None:
    """Types do not depend on what is there."""
    for name, relation in world.relations.declared.items():
        table = world.relations.relation(name)
        assert isinstance(table, pa.Table)
        assert table.schema == relation.schema, name
        if relation.object:
            assert relation.object in table.schema.names
        assert all(c.comment and not c.comment.endswith(".") for c in relation.columns)


def test_an_event_that_cannot_be_applied_does_not_stop_the_next(world: World) -> None:
    """A defect of ours costs one event, is counted, and is logged."""
    broken = ShardSeen(report=None, at_ms=0)  # type: ignore[arg-type]
    world.tell(broken, world.installed(DELAYS))
    (row,) = world.rows("listener")
    assert row["failed"] == 1
    assert len(world.rows("objects")) == 1
