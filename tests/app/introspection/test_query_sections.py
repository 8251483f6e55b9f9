"""Spark's UI says of an object what `/metrics` says of it: made events, and both of them read."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardline.app.execution.observations import Measured, Progress, Started
from shardline.app.introspection.events import (
    Polled,
    ProcessStarted,
    RuntimeSeen,
    ServerSeen,
)
from shardline.app.introspection.poll import ShardPoller
from shardline.app.introspection.query_sections import QuerySections
from shardline.app.protocol.storage import StatisticsUpdates
from shardline.app.server.metrics import encode_metrics
from shardline.datasource.frontier import Frontier
from shardline.datasource.offsets import ShardOffset
from shardline.datasource.spark_native.query_statistics import SeenQuery, StatisticsSection
from shardline.datasource.types.schema import ShardSchema
from support.fakes.introspection import DELAYS, FAST, FLIGHTS, OUT, World
from support.models.shards import World as Shards

START = ProcessStarted(
    location="memory://x", version="1", data_folder="/d", checkpoints="/c", at_ms=1
)
RUNTIME = RuntimeSeen(
    at_ms=1,
    project="",
    holder="h",
    held_since_ms=1,
    epoch=1,
    read_only=False,
    queue=0,
    controllers=(),
)


@pytest.fixture
def world() -> World:
    made = World()
    for one in (FLIGHTS, DELAYS, FAST, OUT):
        made.run(one)
    made.tell(
        Polled(id="delays", since=0, upper=900, rows=7, size_bytes=70, errors=2),
        Progress(id="delays", epoch=1, write=900, read=900, inputs={"flights": 900}),
        Measured(id="delays", epoch=1, added={"updates_out": 3.0}),
        StatisticsUpdates(sources={"flights": {"messages_received": 1234.0}}, sinks={}),
    )
    return made


@pytest.fixture
def shards(world: World) -> Shards:
    """Shards of two of the objects, with a hold on each, and a look at them."""
    made = Shards()
    client = made.client()
    for name, hold in (("flights", "view:delays:2:0a1b2c3d"), ("delays", "sink:out")):
        client.create(name, ShardSchema.from_arrow(pa.schema([("a", pa.int64())])))
        client.hold(name, hold, purpose="a test")
    poller = ShardPoller(world.sink, client)
    for _ in range(2):  # it looks into one shard at a time
        poller.step()
    world.tell()
    return made


def sections(
    world: World, run: str, name: str = "", reads: tuple[str, ...] = ()
) -> list[StatisticsSection]:
    """Those of a query that reads these shards."""
    offset = ShardOffset(reads, "a hold", 17, Frontier(18)).json() if reads else None
    query = SeenQuery(run, name, {"sources": [{"endOffset": offset, "latestOffset": None}]})
    return QuerySections(world.relations).describe(query)


def samples(section: StatisticsSection) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What the tables of a section say, by the name of the metric and the labels that it has."""
    found = {}
    single, *several = section.tables
    for name, value, _ in single.rows:
        found[name, frozenset[tuple[str, str]]()] = number(value)
    for table in several:
        names = [name for name, _ in table.columns]
        for row in table.rows:
            cells = dict(zip(names, row, strict=True))
            metrics = {name for name in names if name.startswith("shardline_")}
            labels = frozenset((k, v) for k, v in cells.items() if k not in metrics)
            found |= {(name, labels): number(cells[name]) for name in metrics if cells[name]}
    return found


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("name", ["delays", "flights"])
def test_a_query_has_the_metrics_of_its_object(world: World, name: str) -> None:
    """All that `/metrics` has under its name, and nothing of another one."""
    (found,) = sections(world, f"r-{name}-1")
    families = text_string_to_metric_families(encode_metrics(world.relations).decode())
    declared = {
        f"shardline_{column.metric.name}"
        for relation in world.relations.declared.values()
        for column in relation.columns
        if column.metric is not None
    }
    expected = {
        (
            sample.name,
            frozenset((k, v) for k, v in sample.labels.items() if k not in {"object", "kind"}),
        ): sample.value
        for family in families
        for sample in family.samples
        if family.name in declared and sample.labels.get("object") == name
    }
    assert samples(found) == pytest.approx(expected, abs=0.001)


def test_numbers_are_in_the_units_of_their_names(world: World) -> None:
    """Seconds, where the relation has ms; and sums have the ending of Prometheus."""
    (view,) = sections(world, "r-delays-1")
    (source,) = sections(world, "r-flights-1")
    measured = ("shardline_object_measurement", frozenset({("name", "updates_out")}))
    assert samples(view)["shardline_object_upper_seconds", frozenset()] == 0.9
    assert samples(view)[measured] == 3
    assert samples(source)["shardline_source_messages_received_total", frozenset()] == 1234


def test_its_shard_and_holds_on_others_are_with_the_object(world: World, shards: Shards) -> None:
    """Its own shard needs no name there; a hold has that of the shard, if some are on others."""
    (found,) = sections(world, "r-delays-1")
    values = samples(found)
    assert values["shardline_shard_seqno", frozenset()] == shards.client().state("delays").seqno
    held = {labels for (name, labels) in values if name == "shardline_hold_behind_seconds"}
    assert held == {
        frozenset({("shard", "delays"), ("holder", "sink:out"), ("kind", "hold")}),
        frozenset({("shard", "flights"), ("holder", "view:delays:2:0a1b2c3d"), ("kind", "hold")}),
    }
    (found,) = sections(world, "r-flights-1")
    held = {labels for (name, labels) in samples(found) if "hold_behind" in name}
    assert held == {frozenset({("holder", "view:delays:2:0a1b2c3d"), ("kind", "hold")})}


def test_a_query_of_somebody_else_has_the_shards_that_it_reads(
    world: World, shards: Shards
) -> None:
    """By their names where they are known; one of another location by its id."""
    known = shards.client().state("flights").shard
    assert [one.title for one in sections(world, "else", reads=(known, "s9"))] == [
        "reads shards flights, s9"
    ]
    titles = [one.title for one in sections(world, "r-out-1", reads=(known,))]
    assert titles == ["sink out", "reads shard flights"]


def test_it_leads_back_to_the_page_of_its_object(world: World) -> None:
    """Where the application is served, and to nowhere else."""
    (found,) = sections(world, "r-delays-1")
    assert (found.title, found.link) == ("view delays", "")
    world.tell(START, RUNTIME, ServerSeen("http://127.0.0.1:4200"))
    (found,) = sections(world, "r-delays-1")
    assert found.link == "http://127.0.0.1:4200/object/delays"


def test_a_groups_query_has_a_section_for_each_of_its_views(world: World) -> None:
    """Those of other groups, and objects without a query, have none."""
    run = "g-run/delays:1"
    world.tell(Started(id="delays", epoch=1, query="g", run=run, group="group:1"))
    assert [one.title for one in sections(world, "g-run", "group:1:1")] == ["view delays"]
    assert sections(world, "g-run-of-before", "group:1:0") == []


def test_a_run_that_has_ended_shows_how_its_object_is_now(world: World) -> None:
    """Found by the name of the query; somebody else's query, named or not, has no section."""
    (found,) = sections(world, "r-delays-0", "delays:u2:0")
    assert found.title == "view delays"
    for name in ("", "delays", "delays:u1:1", "delay:u2:1", "group:1:1"):
        assert sections(world, "another", name) == []


def test_only_numbers_names_and_a_word_are_shown(world: World) -> None:
    """Spark's UI asks for no token; errors may quote the data."""
    (found,) = sections(world, "r-delays-1")
    assert re.fullmatch(r"[a-z ]+, [\d,]+\.\d s behind the clock", found.state)
    single, *several = found.tables
    assert all(re.fullmatch(r"-?[\d,]+(\.\d+)?", value) for _, value, _ in single.rows)
    assert [[name for name, _ in table.columns] for table in several] == [
        ["name", "shardline_object_measurement"]
    ]
