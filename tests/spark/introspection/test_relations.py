"""One application with every kind of object, run once; then every relation is asked by SQL.

What relations say is compared with what does not come through introspection: the rows that were put
into files, what DuckDB makes of them, the lane's own numbers, and the shards' own states.
"""

from __future__ import annotations

import json
import os
import re
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardline.app.coordinator.application import Application
from shardline.app.introspection.spark_plan.operators import PHASES
from shardline.app.server.application_server import serve_application
from shardline.app.server.metrics import encode_metrics
from shardline.app.settings.config import Duration, RuntimeSettings
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.shard.state import ShardState
from support.processes.prometheus import NEED, Judged, Prometheus, judge, panels, scraping
from support.spark.observed_run import (
    KINDS,
    PATIENCE_S,
    Seen,
    act,
    check_explained,
    check_explained_steps,
    compare,
    holds_of,
    hydrated,
    load,
    maintain,
    read_layout,
    said,
    settled,
)
from support.spark.projects import QUERIES, SQL, Place
from support.tree import ROOT
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CONF = ROOT / "conf"

ORDERS, CUSTOMERS = 5, 2
"""Rows put into the files of each source."""

EMPTY = {
    "wallclock_lag_history",
    "wallclock_lag_percentiles",
    "wallclock_lag_distribution",
    "native_reads",
    "self_check_history",
}
"""Relations that may have nothing to say of a short run, or where reads are not native."""


def states(place: Place) -> dict[str, ShardState]:
    client = place.client()
    return {name: client.state(name) for name in client.shards()}


@pytest.fixture(scope="module")
def seen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A run of the project: two files of orders, a subscription, reads of all kinds."""
    place = Place(tmp_path_factory.mktemp("relations"))
    # Patient: some fifty questions are asked while one read waits, and nobody takes a subscription.
    settings = RuntimeSettings(
        interval_ms=500, query_timeout=Duration("180s"), subscribe_patience=Duration("600s")
    )
    data = place.folder / "data"
    with ExitStack() as open_:
        application = open_.enter_context(Application(spark, place.client(), settings, data=data))
        application.apply(load(place, SQL).check(spark))
        settled(application, place)
        found = Seen(place)
        where = open_.enter_context(serve_application(application, settings, place.folder))
        found.address = where.url
        scraper = open_.enter_context(scraping(where.url, place.folder / "prometheus"))
        act(application, found)
        place.put("orders", "b", "id,customer,price\n4,2,500\n5,9,5\n")
        settled(application, place)
        ask_all(application, found, scraper)
        compare(application, found)
    with Application(spark, place.client(), settings, data=data) as application:
        look_back(application, found)
    return found


def look_back(application: Application, found: Seen) -> None:
    """Ask another application, whose own objects are other incarnations, for that moment."""
    assert application.feeds is not None
    rows = application.feeds.relations.rows
    wait_until("histories are loaded", lambda: bool(rows("verdict_history")), PATIENCE_S)

    def is_known() -> bool:
        try:
            return bool(rows("object_dependencies", as_of=found.moment))
        except InvalidUsage:
            return False

    wait_until("the moment is known", is_known, PATIENCE_S)
    for name in ("objects", "object_dependencies", "verdicts", "source_statuses"):
        found.past[name] = rows(name, as_of=found.moment)


def ask_all(application: Application, found: Seen, scraper: Prometheus | None) -> None:
    """Everything that is known once all of it has been heard of."""
    assert application.feeds is not None
    place = found.place
    large = len(place.expected("large"))
    ask = application.sql
    wait_until("all are hydrated", lambda: hydrated(application), PATIENCE_S)
    ask("SELECT * FROM spent WHERE name = 'ann'")
    ask("SELECT name, count(*) FROM spent GROUP BY name")
    ask("SELECT 1 AS one")
    subscription = application.subscribe("SUBSCRIBE large")
    for wanted in (
        ("sink_statistics", {"messages_committed": large}),
        ("shards", {"name": "large", "records": large}),
        ("objects", {"type": "subscribe", "status": "running"}),
    ):
        wait_until(str(wanted), partial(said, application, wanted[0], **wanted[1]), PATIENCE_S)
    wait_until(
        "plans were taken in", lambda: has_moved(application, "large", "Project", large), PATIENCE_S
    )
    client = place.client()
    client.hold("large", "reports", purpose="a report")
    maintain(application, place)
    ended, waiting = threading.Event(), ahead(application)
    reader = threading.Thread(target=read_later, args=(application, waiting, ended), daemon=True)
    reader.start()
    wait_until("a read waits", lambda: said(application, "active_peeks", time=waiting), PATIENCE_S)
    held = {"reports", "sink:large_out"}
    wait_until("holds were looked at", lambda: held <= holds_of(application, "large"), PATIENCE_S)
    found.before = states(place)
    for name in application.feeds.relations.declared:
        found.rows[name] = ask(f"SELECT * FROM introspection.{name}").to_pylist()  # noqa: S608 - a declared name
    read_layout(application, found)
    for name in ("spent", "large", "best"):
        found.explained[name] = ask(f"EXPLAIN VIEW {name}").to_pylist()
    found.after = states(place)
    found.moment = application.feeds.sink.clock.now_ms()
    text = encode_metrics(application.feeds.relations).decode()
    families = list(text_string_to_metric_families(text))
    found.metrics = {sample.name for family in families for sample in family.samples}
    ended.set()
    found.objects = dict(application.runtime.lane.state.objects)
    (found.subscription,) = found.objects.keys() - KINDS.keys()
    subscription.close()
    reader.join(PATIENCE_S)
    found.judged = None if scraper is None else judge(scraper)


def has_moved(application: Application, of: str, sender: str, rows: int) -> bool:
    """Whether so many rows have left an operator of an object's dataflow."""
    assert application.feeds is not None
    ask = application.feeds.relations.rows
    homes = {row["id"]: row for row in ask("dataflow_operator_dataflows")}
    starts = {
        row["id"]: homes[row["from_operator_id"]] for row in ask("dataflow_channel_operators")
    }
    return any(
        (start["dataflow_name"], start["name"], row["sent"]) == (f"Dataflow: {of}", sender, rows)
        for row in ask("message_counts")
        if (start := starts[row["channel_id"]])
    )


def ahead(application: Application) -> int:
    """A time that is not settled yet while the relations are asked."""
    assert application.feeds is not None
    return application.feeds.sink.clock.now_ms() + 150_000


def read_later(application: Application, as_of: int, ended: threading.Event) -> None:
    """Ask for a time to come until that has been seen."""
    with pytest.raises(ShardError):
        application.sql(f"SELECT * FROM large AS OF {as_of}", cancelled=ended)  # noqa: S608 - a number


def test_every_relation_has_rows(seen: Seen) -> None:
    """What an application with all kinds of objects can fill is filled."""
    assert {name for name, rows in seen.rows.items() if not rows} <= EMPTY


def test_a_view_that_runs_is_explained(seen: Seen) -> None:
    """Its operators with their rules, the sizes of what there is, and what its steps took."""
    check_explained(seen)
    for name in ("spent", "large", "best"):
        check_explained_steps(seen, name)


def test_another_application_knows_what_there_was(seen: Seen) -> None:
    """Objects, their graph and verdicts as of then, by the histories: all but subscriptions."""
    recorded = ("id", "global_id", "type", "domain", "status", "error", "as_of", "definition")
    assert {tuple(row[name] for name in recorded) for row in seen.past["objects"]} == {
        tuple(row[name] for name in recorded)
        for row in seen.rows["objects"]
        if row["id"] != seen.subscription
    }
    edges = seen.past["object_dependencies"]
    assert {tuple(row.values()) for row in edges} == {
        (row["object_id"], row["referenced_object_id"])
        for row in seen.rows["object_dependencies"]
        if row["object_id"] != seen.subscription
    }
    assert {row["object_id"] for row in seen.past["verdicts"]} >= KINDS.keys()
    assert {row["id"]: row["type"] for row in seen.past["source_statuses"]} == {
        "orders": "csv",
        "customers": "csv",
    }


def test_objects_are_those_of_the_lane(seen: Seen) -> None:
    """Storage and compute alike: ids, numbers and ranges come from the one allocator."""
    known = {row["id"]: row for row in seen.rows["objects"]}
    assert known.keys() == seen.objects.keys()
    assert {n: (known[n]["type"], known[n]["domain"]) for n in KINDS} == KINDS
    assert known[seen.subscription]["type"] == "subscribe"
    for name, lane in seen.objects.items():
        assert (known[name]["global_id"], known[name]["status"]) == (lane.global_id, "running")
        assert seen.one("dataflow_global_ids", id=lane.dataflow)["global_id"] == lane.global_id
        assert seen.one("dataflows", id=lane.dataflow)["name"] == f"Dataflow: {name}"
        first, count = lane.operators
        mine = seen.of("dataflow_operator_dataflows", dataflow_id=lane.dataflow)
        assert sorted(row["id"] for row in mine) == list(range(first, first + count))
        for node in seen.of("lir_mapping", global_id=lane.global_id):
            assert first <= node["operator_id_start"] < node["operator_id_end"] <= first + count
    exports = {row["export_id"]: row["dataflow_id"] for row in seen.rows["compute_exports"]}
    stored = {row["export_id"]: row["dataflow_id"] for row in seen.rows["storage_exports"]}
    assert exports | stored == {name: lane.dataflow for name, lane in seen.objects.items()}
    assert {name for name, (_, domain) in KINDS.items() if domain == "storage"} == stored.keys()


def test_the_structure_hangs_together(seen: Seen) -> None:
    """Parents, addresses and channels are about operators that are there."""
    operators = {row["id"] for row in seen.rows["dataflow_operators"]}
    assert {row["id"] for row in seen.rows["dataflow_addresses"]} == operators
    for row in seen.rows["dataflow_operator_parents"]:
        assert {row["id"], row["parent_id"]} <= operators
    ends = {row["id"]: row for row in seen.rows["dataflow_channel_operators"]}
    assert ends.keys() == {row["id"] for row in seen.rows["dataflow_channels"]}
    for row in ends.values():
        assert {row["from_operator_id"], row["to_operator_id"]} <= operators
    reads = {
        (row["object_id"], row["referenced_object_id"]) for row in seen.rows["object_dependencies"]
    }
    assert {("spent", "orders"), ("spent", "customers"), ("large_out", "large")} <= reads
    assert seen.one("subscriptions", id=seen.subscription)["referenced_object_ids"] == ["large"]


def test_frontiers_are_those_of_the_shards(seen: Seen) -> None:
    """Between what the shard's state said before and after; inputs are not read beyond them."""
    for name in ("orders", "customers", "spent", "large", "best"):
        row = seen.one("frontiers", object_id=name)
        upper = seen.after[name].upper.time
        assert upper is not None
        assert row["write_frontier"] <= upper
        # An idle object's upper is looked up each second.
        assert row["write_frontier"] >= (seen.before[name].upper.time or 0) - 10_000
        assert row["read_frontier"] <= (seen.after[name].since.time or 0)
    for row in seen.rows["import_frontiers"]:
        upper = seen.after[row["import_id"]].upper.time
        assert upper is not None
        assert row["time"] <= upper
    assert {row["export_id"] for row in seen.rows["compute_frontiers"]} >= {
        "spent",
        "spent_by_name",
    }


def test_lag_and_hydration_are_told_of_all(seen: Seen) -> None:
    """Everybody has caught up, and lag names an input that is read."""
    assert {
        row["object_id"]: row["hydrated"] for row in seen.rows["hydration_statuses"]
    } == dict.fromkeys(seen.objects, True)
    assert {row["object_id"] for row in seen.rows["hydration_times"]} >= KINDS.keys()
    assert {row["object_id"] for row in seen.rows["wallclock_lag"]} >= KINDS.keys()
    assert all(row["lag"] is None or row["lag"] >= 0 for row in seen.rows["wallclock_lag"])
    assert seen.one("materialization_lag", object_id="large")["slowest_local_input_id"] == "orders"
    best = seen.one("materialization_lag", object_id="best")
    assert best["slowest_local_input_id"] == "spent"
    assert best["slowest_global_input_id"] in {"orders", "customers"}


def test_rows_that_moved_are_those_that_were_put_in(seen: Seen) -> None:
    """Of sources and sinks as they count themselves, of a linear view as Spark's plans say."""
    assert seen.sent("orders", "Source", "Reclock") == ORDERS
    assert seen.sent("orders", "Envelope", "Persist") == ORDERS
    assert seen.sent("customers", "Envelope", "Persist") == CUSTOMERS
    large = len(seen.place.expected("large"))
    # Each order is taken once: as a part of the snapshot, or as a change.
    assert seen.sent("large", "Filter", "Project") == large
    assert seen.sent("large", "Project", "Correction") == large
    assert seen.sent("large", "Correction", "Persist") == large
    assert seen.sent("large_out", "Envelope", "Sink") == large


def test_a_view_of_a_join_has_rows_on_its_edges(seen: Seen) -> None:
    """The last run of the query alone gives all of them; there may have been others before."""
    joined = 4  # orders of customers that there are
    assert seen.sent("spent", "Join", "Aggregate") >= joined
    assert seen.sent("spent", "Aggregate", "Project") >= len(seen.place.expected("spent"))
    join = seen.operator("spent", "Join")
    into = [row["id"] for row in seen.of("dataflow_channel_operators", to_operator_id=join)]
    read = sorted(seen.one("message_counts", channel_id=channel)["sent"] for channel in into)
    assert read[0] >= CUSTOMERS
    assert read[1] >= ORDERS
    done = seen.one("measurements", object_id="spent", name="micro_batches")["value"]
    for count in (seen.one("message_counts", channel_id=channel) for channel in into):
        assert 0 < count["batch_sent"] <= count["batch_observed"] <= done


def test_time_is_told_by_phase_and_by_operator(seen: Seen) -> None:
    """Phases are within their dataflow's time, and each micro-batch is in the histogram once."""
    elapsed = {row["id"]: row["elapsed_ns"] for row in seen.rows["scheduling_elapsed"]}
    for name in ("orders", "customers", "spent", "large", "best", "large_out"):
        first, count = seen.objects[name].operators
        phases = [elapsed.get(first + 1 + place, 0) for place in range(len(PHASES))]
        assert 0 < sum(phases) <= elapsed[first]
        operators = range(first + 1 + len(PHASES), first + count)
        # What is left of a filter over a few rows may take no millisecond.
        least = 0 if name in {"large", "best"} else 1
        assert any(elapsed.get(number, -1) >= least for number in operators)
        micro_batches = seen.one("measurements", object_id=name, name="micro_batches")["value"]
        times = seen.of("operator_durations_histogram", id=first)
        # It is asked for a little later.
        assert 0 <= micro_batches - sum(row["count"] for row in times) <= 1
        assert all(row["duration_ns"].bit_count() == 1 for row in times)


def test_what_is_kept_is_what_there_is(seen: Seen) -> None:
    """An index has the rows of its object, an upsert source its keys."""
    spent = len(seen.place.expected("spent"))
    arranged = seen.one("arrangement_sizes", operator_id=seen.operator("spent_by_name", "Arrange"))
    # It keeps what has changed within a minute, too.
    assert arranged["records"] >= spent
    assert arranged["size"] > 0
    indexed = seen.one("arrangement_sizes", operator_id=seen.operator("customers", "Envelope"))
    assert indexed["records"] == CUSTOMERS
    dataflow = seen.objects["spent_by_name"].dataflow
    assert seen.one("records_per_dataflow", id=dataflow)["records"] >= spent


def test_statistics_count_what_came_and_went(seen: Seen) -> None:
    """Messages are rows of files, updates are rows of shards."""
    orders = seen.one("source_statistics", id="orders")
    assert (orders["messages_received"], orders["updates_committed"]) == (ORDERS, ORDERS)
    assert orders["snapshot_committed"] == 1
    assert orders["snapshot_records_staged"] == 3
    files = list((seen.place.folder / "orders").glob("*.csv"))
    assert orders["bytes_received"] == sum(file.stat().st_size for file in files)
    assert seen.one("source_statistics", id="customers")["records_indexed"] == CUSTOMERS
    out = seen.one("sink_statistics", id="large_out")
    large = len(seen.place.expected("large"))
    assert (out["messages_staged"], out["messages_committed"]) == (large, large)
    written = list((seen.place.folder / "out").glob("_upper=*/*.parquet"))
    assert out["bytes_committed"] == sum(file.stat().st_size for file in written)
    assert {row["export_id"]: row["count"] for row in seen.rows["error_counts"]} == dict.fromkeys(
        ("orders", "customers", "spent", "large", "best"), 0
    )


def test_statuses_have_a_history_that_ends_with_the_present(seen: Seen) -> None:
    """Of sources and sinks as of everything else."""
    for kind, relation in (("source", "source_statuses"), ("sink", "sink_statuses")):
        names = {name for name, (of, _) in KINDS.items() if of == kind}
        now = {row["id"]: row["status"] for row in seen.rows[relation]}
        assert now == dict.fromkeys(names, "running")
        history = seen.rows[f"{kind}_status_history"]
        assert {row[f"{kind}_id"] for row in history} == names
        for name in names:
            told = [row["status"] for row in history if row[f"{kind}_id"] == name]
            assert told[-1] == "running"
            assert told == [row["status"] for row in seen.of("status_history", object_id=name)]
    assert {row["object_id"] for row in seen.rows["status_history"]} >= KINDS.keys()


def test_reads_are_told_with_where_their_answers_come_from(seen: Seen) -> None:
    """A look-up from the index, a query from shards, a constant from neither; one still waits."""
    paths = {row["type"] for row in seen.rows["peek_durations_histogram"]}
    assert paths == {"index", "persist", "constant"}
    (waiting,) = [row for row in seen.rows["active_peeks"] if row["object_id"] == "large"]
    assert waiting["type"] is None, "it waits for its time, and nothing is decided before"


def test_the_lane_tells_its_commands(seen: Seen) -> None:
    """All of them, in order; each object was created once."""
    indexes = [row["index"] for row in seen.rows["command_history"]]
    assert indexes == sorted(set(indexes))
    created = [row["object_id"] for row in seen.of("command_history", kind="create_dataflow")]
    assert sorted(created) == sorted(seen.objects)
    created_at = {name: lane.created for name, lane in seen.objects.items()}
    for name, index in created_at.items():
        assert seen.one("command_history", index=index)["object_id"] == name


def made_of(seen: Seen, relation: str, shard: str) -> list[dict[str, Any]]:
    """The rows that a relation of the layout has of a shard, all as of one moment."""
    return [row for row in seen.layout[relation] if row["shard"] == shard]


def test_shards_are_as_their_states_say(seen: Seen) -> None:
    """Identity, contents, levels, and what readers hold back."""
    for row in seen.rows["shards"]:
        state = seen.after[row["name"]]
        assert row["shard_id"] == state.shard
        assert row["seqno"] <= state.seqno
    assert {row["name"] for row in seen.layout["shards"]} >= {*QUERIES, "orders", "customers"}
    for row in seen.layout["shards"]:
        levels = made_of(seen, "shard_levels", row["name"])
        assert sum(level["batches"] for level in levels) == row["batches"] - row["empty_batches"]
        assert sum(level["size"] for level in levels) == row["size"]
    large = seen.one("shards", name="large")
    assert large["records"] == len(seen.place.expected("large"))
    held = {(row["shard"], row["kind"]) for row in seen.rows["shard_holds"]}
    assert ("large", "hold") in held, "the sink's"
    owners = {row["name"] for row in seen.of("shard_holds", shard="large")}
    before = seen.before["large"]
    assert owners & {*before.critical, *before.leased}


def test_details_are_those_of_the_lane_and_the_disk(seen: Seen) -> None:
    """Strategies, columns, and folders that Spark has written to."""
    strategies = {name: row["strategy"] for name, row in by_object(seen).items()}
    for name, lane in seen.objects.items():
        assert strategies[name] == getattr(lane.description, "strategy", None)
    assert (strategies["large"], strategies["best"]) == ("linear", "incremental")
    columns = {
        name: [column["name"] for column in json.loads(by_object(seen)[name]["schema"])]
        for name in KINDS
    }
    assert columns["orders"] == ["id", "customer", "price"]
    assert columns["spent"] == columns["spent_by_name"] == ["name", "orders", "total"]
    assert columns["large"] == columns["large_out"] == ["id", "price"]
    for name, (kind, _) in KINDS.items():
        checkpoint = by_object(seen)[name]["checkpoint"]
        in_group = by_object(seen)[name]["view_group"] is not None
        assert not in_group or kind == "view"
        if kind == "index" or in_group:
            assert checkpoint is None
        else:
            assert (Path(checkpoint) / "offsets").is_dir(), name
    assert {row["spark_ui"] for row in seen.rows["object_details"]} == {None}, "it is off"


def by_object(seen: Seen) -> dict[str, dict[str, Any]]:
    return {row["object_id"]: row for row in seen.rows["object_details"]}


def test_phases_are_parts_of_their_micro_batch(seen: Seen) -> None:
    """Each with the time that it had: all of them are not longer than the whole."""
    spent: dict[tuple[str, int], int] = {}
    whole: dict[tuple[str, int], int] = {}
    for row in seen.rows["step_phases"]:
        assert row["phase"] in PHASES
        step = (row["object_id"], row["batch"])
        spent[step] = spent.get(step, 0) + row["elapsed"]
        whole[step] = row["took"]
    assert {name for name, _ in whole} == {n for n, (kind, _) in KINDS.items() if kind != "index"}
    # Spark rounds each of them to ms.
    assert all(spent[step] <= whole[step] + len(PHASES) for step in whole)


def test_batches_cover_their_shard(seen: Seen) -> None:
    """Without a gap, from the first time to the upper; holds name the object that they are for."""
    for shard in seen.layout["shards"]:
        batches = made_of(seen, "shard_batches", shard["name"])
        assert len(batches) == shard["batches"] > 0
        begins, ends = ([row[end] for row in batches] for end in ("lower", "upper"))
        assert [*begins, shard["upper"]] == [0, *ends], shard["name"]
        assert begins == sorted(set(begins))
    owners = {row["name"]: row["object_id"] for row in seen.of("shard_holds", kind="hold")}
    assert owners["sink:large_out"] == "large_out"
    assert owners["reports"] is None
    of_views = {name.split(":")[1]: of for name, of in owners.items() if name.startswith("view:")}
    assert of_views.keys() >= {"spent", "large", "best"}
    assert all(name == of for name, of in of_views.items())


def test_the_location_and_its_connections_are_told(seen: Seen) -> None:
    """Who holds it, and the controllers and the subscription of this process."""
    (row,) = seen.rows["location"]
    assert row["holder"].endswith(f", process {os.getpid()}")
    assert row["project"] == str(seen.place.folder / "project")
    assert row["location"] == seen.place.client().location.url
    assert (row["epoch"], row["read_only"], row["address"]) == (1, False, seen.address)
    assert row["started_at"] is not None
    found = {(r["kind"], r["name"].split()[0], r["state"]) for r in seen.rows["connections"]}
    assert found == {
        ("controller", "compute", "connected"),
        ("controller", "storage", "connected"),
        ("subscriber", seen.subscription, "running"),
    }


def test_upkeep_beside_what_runs_harms_nothing(seen: Seen) -> None:
    """Holds of objects are refused; rows that came afterwards have arrived (`settled`)."""
    assert set(seen.refused.values()) == {"HOLD_IN_USE"}
    assert {hold.split(":")[1] for hold in seen.refused} == {"spent", "large", "large_out"}
    assert seen.actions["expire_hold"] == ("Done: expired 1: reports.",)
    for name in ("compact", "collect", "sweep"):
        for shard in ("orders", "large"):
            assert seen.actions[f"{name} {shard}"][0].startswith("Done: ")


def test_the_project_is_compared_with_what_runs(seen: Seen) -> None:
    """By Spark's own checks: nothing differs, something does, and something is wrong."""
    same, changed, broken = seen.projects
    assert {one.change for one in same.changes} == {"none"}
    assert {one.object for one in same.changes} == KINDS.keys()
    assert same.folder == str(seen.place.folder / "project")
    differ = {one.object: one.change for one in changed.changes if one.change != "none"}
    assert differ == {"large": "change", "large_id_idx": "create", "spent_by_name": "drop"}
    (large,) = [one for one in changed.changes if one.object == "large"]
    assert "price > 50" in str(large.now)
    assert "price > 60" in str(large.wanted)
    assert (large.file, large.line) == ("all.sql", 9)
    assert broken.changes == ()
    (problem,) = broken.problems
    assert (problem.file, problem.line, problem.code) == (
        "all.sql",
        7,
        "UNRESOLVED_COLUMN.WITH_SUGGESTION",
    )
    assert problem.hint == "did you mean c.name?"


def test_maintenance_is_told(seen: Seen) -> None:
    """Rounds that did something, and how much writers have merged by themselves."""
    known = {row["shard"]: row for row in seen.rows["shard_maintenance"]}
    assert known["scratch"]["writer_merges"] > 0
    assert known["left"]["failed"] == 0
    assert "left" in {row["shard"] for row in seen.rows["maintenance"]}
    for row in seen.rows["maintenance"]:
        assert row["shard"] in seen.after
        assert row["merges"] or row["collected"] or row["swept"] is not None or row["failed"]
        assert row["took"] >= 0


def test_nothing_was_lost_on_the_way(seen: Seen) -> None:
    """All events were taken in, and all queries heard of."""
    (row,) = seen.rows["listener"]
    lost = ("dropped", "unconverted", "failed", "unheard_queries")
    assert {name: row[name] for name in lost} == dict.fromkeys(lost, 0)
    assert row["events"] > 0


def test_dashboards_and_alerts_name_metrics_that_there_are(seen: Seen) -> None:
    """Every metric of a panel or a rule is a sample of a running application's `/metrics`."""
    for file in ("grafana/shardline.json", "alerts.yml"):
        named = set(re.findall(r"\bshardline_\w+", (CONF / file).read_text(encoding="utf-8")))
        assert named
        assert named <= seen.metrics, file


def judged(seen: Seen) -> Judged:
    """What a Prometheus has made of the run's metrics."""
    if seen.judged is None:
        pytest.skip(NEED)
    return seen.judged


def test_each_panel_of_the_dashboard_has_what_its_legend_names(seen: Seen) -> None:
    """Each query, asked of a Prometheus that scrapes the application; sizes are of ten shards."""
    shown = judged(seen).panels
    assert shown.keys() == set(panels())
    for panel, series in shown.items():
        assert series, panel
        for labels, _ in series:
            assert {name for name in panel.labels if labels.get(name)} == panel.labels, panel
    (size,) = (series for panel, series in shown.items() if panel.title == "Size of shards")
    # Which are the largest depends on how long the run took: histories of introspection grow.
    largest = {labels["shard"] for labels, _ in size}
    assert len(largest) == 10
    assert largest <= set(seen.place.client().shards())


def test_each_alert_is_judged_and_looks_at_something(seen: Seen) -> None:
    """Nothing is chosen by a label, or a value of it, that metrics do not have."""
    rules = judged(seen).rules
    assert {name: (rule["health"], rule.get("lastError", "")) for name, rule in rules.items()} == (
        dict.fromkeys(rules, ("ok", ""))
    )
    assert len(rules) > 10
    chosen = judged(seen).chosen
    assert len(chosen) > 10
    assert {text for text, series in chosen.items() if not series} == set()
