"""One application with every kind of object, run once; then every relation is asked by SQL.

What relations say is compared with what does not come through introspection: the rows that were put
into files, what DuckDB makes of them, the lane's own numbers, and the shards' own states.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardline.app.coordinator.application import Application
from shardline.app.introspection.spark_plan.operators import PHASES
from shardline.app.lane.state import LaneObject
from shardline.app.server.metrics import encode_metrics
from shardline.app.settings.config import Duration, RuntimeSettings
from shardline.datasource.errors import ShardError
from shardline.datasource.shard.state import ShardState
from support.models.shards import schema_of, table
from support.spark.projects import QUERIES, Place
from support.tree import ROOT
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_S = 120
CONF = ROOT / "conf"

KINDS = {
    "orders": ("source", "storage"),
    "customers": ("source", "storage"),
    "spent": ("view", "compute"),
    "large": ("view", "compute"),
    "best": ("view", "compute"),
    "spent_by_name": ("index", "compute"),
    "large_out": ("sink", "storage"),
}
ORDERS, CUSTOMERS = 5, 2
"""Rows put into the files of each source."""

EMPTY = {"wallclock_lag_history"}
"""Relations that may have nothing to say of a run of less than a minute."""


@dataclass
class Seen:
    """What was asked while everything ran.

    Attributes:
        rows: Of each relation, by SQL.
        objects: As the lane has them.
        before: States of the shards just before the relations were asked.
        after: And just after.
        subscription: Name of the subscription that was open.
        metrics: Names of all samples of `/metrics`.
    """

    place: Place
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    objects: dict[str, LaneObject] = field(default_factory=dict)
    before: dict[str, ShardState] = field(default_factory=dict)
    after: dict[str, ShardState] = field(default_factory=dict)
    subscription: str = ""
    metrics: set[str] = field(default_factory=set)

    def one(self, relation: str, **values: object) -> dict[str, Any]:
        """The one row of a relation that has `values`."""
        (row,) = self.of(relation, **values)
        return row

    def of(self, relation: str, **values: object) -> list[dict[str, Any]]:
        """All rows of a relation that have `values`."""
        return [
            row
            for row in self.rows[relation]
            if all(row[name] == value for name, value in values.items())
        ]

    def operator(self, of: str, name: str, place: int = 0) -> int:
        """The number of an operator of an object, by the lane's numbers."""
        found = self.of("dataflow_operator_dataflows", dataflow_id=self.objects[of].dataflow)
        return int(sorted(row["id"] for row in found if row["name"] == name)[place])

    def sent(self, of: str, sender: str, receiver: str) -> int:
        """Rows that went from one operator of an object to another."""
        ends = {
            "from_operator_id": self.operator(of, sender),
            "to_operator_id": self.operator(of, receiver),
        }
        channel = self.one("dataflow_channel_operators", **ends)["id"]
        messages = self.one("message_counts", channel_id=channel)
        assert messages["received"] == messages["sent"]
        return int(messages["sent"])


def settled(application: Application, place: Place) -> None:
    wait_until(
        "all views hold what the files say",
        lambda: application.running().keys() >= QUERIES.keys() and place.agrees(),
        PATIENCE_S,
    )


def said(application: Application, relation: str, **values: object) -> bool:
    """Whether a relation has a row with these values."""
    assert application.observing is not None
    return any(
        all(row[name] == value for name, value in values.items())
        for row in application.observing.relations.rows(relation)
    )


def states(place: Place) -> dict[str, ShardState]:
    client = place.client()
    return {name: client.state(name) for name in client.shards()}


@pytest.fixture(scope="module")
def seen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A run of the project: two files of orders, a subscription, reads of all kinds."""
    place = Place(tmp_path_factory.mktemp("relations"))
    settings = RuntimeSettings(interval_ms=500, query_timeout=Duration("180s"))
    with Application(spark, place.client(), settings, data=place.folder / "data") as application:
        application.apply(place.project().check(spark))
        settled(application, place)
        place.put("orders", "b", "id,customer,price\n4,2,500\n5,9,5\n")
        settled(application, place)
        return asked(application, place)


def asked(application: Application, place: Place) -> Seen:
    """Everything that is known once all of it has been heard of."""
    assert application.observing is not None
    found = Seen(place)
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
    client.create("scratch", schema_of())
    for number in range(80):
        client.writer("scratch").append_now(table((number, "x")))
    merged = partial(said, application, "maintenance", shard="scratch")
    wait_until("a writer has merged", merged, PATIENCE_S)
    ended, waiting = threading.Event(), ahead(application)
    reader = threading.Thread(target=read_later, args=(application, waiting, ended), daemon=True)
    reader.start()
    wait_until("a read waits", lambda: said(application, "active_peeks", time=waiting), PATIENCE_S)
    found.before = states(place)
    for name in application.observing.relations.declared:
        found.rows[name] = ask(f"SELECT * FROM introspection.{name}").to_pylist()  # noqa: S608 - a declared name
    found.after = states(place)
    text = encode_metrics(application.observing.relations).decode()
    families = list(text_string_to_metric_families(text))
    found.metrics = {sample.name for family in families for sample in family.samples}
    ended.set()
    found.objects = dict(application.runtime.lane.state.objects)
    (found.subscription,) = found.objects.keys() - KINDS.keys()
    subscription.close()
    reader.join(PATIENCE_S)
    return found


def hydrated(application: Application) -> bool:
    return all(said(application, "hydration_times", object_id=name) for name in KINDS)


def has_moved(application: Application, of: str, sender: str, rows: int) -> bool:
    """Whether so many rows have left an operator of an object's dataflow."""
    assert application.observing is not None
    ask = application.observing.relations.rows
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
    assert application.observing is not None
    return application.observing.sink.clock.now_ms() + 45_000


def read_later(application: Application, as_of: int, ended: threading.Event) -> None:
    """Ask for a time to come until that has been seen."""
    with pytest.raises(ShardError):
        application.sql(f"SELECT * FROM large AS OF {as_of}", cancelled=ended)  # noqa: S608 - a number


def test_every_relation_has_rows(seen: Seen) -> None:
    """What an application with all kinds of objects can fill is filled."""
    assert {name for name, rows in seen.rows.items() if not rows} <= EMPTY


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


def test_time_is_told_by_phase_and_by_operator(seen: Seen) -> None:
    """Phases are within their dataflow's time, and each micro-batch is in the histogram once."""
    elapsed = {row["id"]: row["elapsed_ns"] for row in seen.rows["scheduling_elapsed"]}
    for name in ("orders", "customers", "spent", "large", "best", "large_out"):
        first, count = seen.objects[name].operators
        phases = [elapsed.get(first + 1 + place, 0) for place in range(len(PHASES))]
        assert 0 < sum(phases) <= elapsed[first]
        assert any(elapsed.get(number) for number in range(first + 1 + len(PHASES), first + count))
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


def levels(seen: Seen, shard: str) -> tuple[int, int]:
    """Batches and bytes of a shard in all its levels."""
    found = seen.of("shard_levels", shard=shard)
    return sum(row["batches"] for row in found), sum(row["size"] for row in found)


def test_shards_are_as_their_states_say(seen: Seen) -> None:
    """Identity, contents, levels, and what readers hold back."""
    for row in seen.rows["shards"]:
        state = seen.after[row["name"]]
        assert row["shard_id"] == state.shard
        assert row["seqno"] <= state.seqno
    # One shard a second is looked into anew, also while the two relations are asked.
    sizes = {
        row["name"]: (row["batches"] - row["empty_batches"], row["size"])
        for row in seen.rows["shards"]
    }
    agreed = [name for name, size in sizes.items() if size == levels(seen, name)]
    assert len(agreed) >= len(sizes) - 3
    large = seen.one("shards", name="large")
    assert large["records"] == len(seen.place.expected("large"))
    held = {(row["shard"], row["kind"]) for row in seen.rows["shard_holds"]}
    assert ("large", "hold") in held, "the sink's"
    owners = {row["name"] for row in seen.of("shard_holds", shard="large")}
    before = seen.before["large"]
    assert owners & {*before.critical, *before.leased}


def test_maintenance_is_told(seen: Seen) -> None:
    """What writers merge by themselves is there, too."""
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


ONE_OF_EACH = """
CREATE SOURCE orders USING csv OPTIONS (path '${in}/orders', header 'true')
  SCHEMA (id INT, customer INT, price INT);
CREATE MATERIALIZED VIEW large AS SELECT id, price FROM orders WHERE price > 50;
"""


def test_with_a_session_each_storage_is_not_seen(spark: SparkSession, tmp_path: Path) -> None:
    """`--no-unified-runtime`: the view's dataflow takes time, the source's seems to take none."""
    place = Place(tmp_path)
    settings = RuntimeSettings(interval_ms=500, unified=False)
    with Application(spark, place.client(), settings, data=tmp_path / "data") as application:
        application.apply(place.project(ONE_OF_EACH).check(spark))
        wait_until(
            "the view holds what the files say",
            lambda: place.contents("large") == place.expected("large"),
            PATIENCE_S,
        )
        wait_until(
            "the view's micro-batch was heard of",
            lambda: said(application, "measurements", object_id="large", name="micro_batches"),
            PATIENCE_S,
        )
        assert application.observing is not None
        ask = application.observing.relations.rows
        homes = {row["id"]: row["dataflow_name"] for row in ask("dataflow_operator_dataflows")}
        assert {homes[row["id"]] for row in ask("scheduling_elapsed")} == {"Dataflow: large"}
        # It has run all the same, and says so itself.
        assert said(
            application, "measurements", object_id="orders", name="messages_received", value=3.0
        )
