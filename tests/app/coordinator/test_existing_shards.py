"""A plan is told of the shards that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.app.coordinator.existing_shards import read_existing_shards
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import SinkDescription, SourceDescription, ViewDescription
from shardline.app.storage.reclock import Origin, Remap
from shardline.app.storage.sinks.interval import Interval
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import ManualClock
from support.spark.sinks import SCHEMA


def test_a_sink_that_has_written_nothing_has_no_accounts(tmp_path: Path) -> None:
    """The input that it has noted is nothing that a new input could contradict."""
    client = ShardClient.open(str(tmp_path / "lake"))
    client.create("in", ShardSchema.from_arrow(SCHEMA))
    view = ViewDescription(name="in", query="SELECT 1 AS k", inputs=(), schema="k INT")
    sink = SinkDescription(name="out", on="in", format="memory")
    wanted: dict[str, ObjectDescription] = {"in": view, "out": sink}
    progress = SinkProgress.open(client, sink)
    progress.note_input()
    assert read_existing_shards(client, wanted, {}).keys() == {"in"}
    progress.record(Interval(0, Frontier(11)), 1)
    assert read_existing_shards(client, wanted, {}).keys() == {"in", "out_progress"}


def bound(client: ShardClient, name: str) -> None:
    """What a source has left that has read two micro-batches."""
    remap = Remap.open(client, name, Origin("csv", 0))
    bindings = remap.read()
    for number in range(2):
        found = remap.bind(bindings, number=number, offset="{}", files=(), at=1_000 * (number + 1))
        assert found is not None
        bindings = found


def test_a_new_sink_cannot_take_the_bindings_of_a_source(tmp_path: Path) -> None:
    """They stand where its progress would; one that runs has progress of its own there."""
    client = ShardClient.open(str(tmp_path / "lake"))
    client.create("s", ShardSchema.from_arrow(SCHEMA))
    sink = SinkDescription(name="s", on="in", format="memory")
    source = SourceDescription(name="s", format="csv")
    bound(client, "s")
    no_source: dict[str, ObjectDescription] = {}
    for running in (no_source, {"s": source}):
        with pytest.raises(InvalidUsage, match=r"NAME_TAKEN.*'s_progress' is there.*`drop s`"):
            read_existing_shards(client, {"s": sink}, running)
    client.drop("s_progress")
    SinkProgress.open(client, sink)
    assert read_existing_shards(client, {"s": sink}, {}) == {}
    assert read_existing_shards(client, {"s": sink}, {"s": sink}) == {}


def test_the_progress_of_a_sink_is_nobody_s_bindings(tmp_path: Path) -> None:
    """A source takes the name of a sink, whose name was a view's before: the view's shard stays."""
    client = ShardClient.open(str(tmp_path / "lake"))
    client.create("s", ShardSchema.from_arrow(SCHEMA))
    sink = SinkDescription(name="s", on="in", format="memory")
    SinkProgress.open(client, sink)
    source = SourceDescription(name="s", format="csv")
    assert read_existing_shards(client, {"s": source}, {"s": sink})["s"].source_format == ""


def test_bindings_that_outlived_their_shard_are_not_those_of_a_view_s(tmp_path: Path) -> None:
    """Else a source that comes after the view would go on behind its old offsets."""
    clock = ManualClock()
    client = ShardClient.open(str(tmp_path / "lake"), clock=clock)
    schema = ShardSchema.from_arrow(SCHEMA)
    client.create("s", schema, times_by="view s")
    clock.advance(2)
    bound(client, "s")
    source = SourceDescription(name="s", format="csv")
    found = read_existing_shards(client, {"s": source}, {})["s"]
    assert found.source_format == "csv", "the view made the shard, and the source has filled it"
    client.drop("s")
    clock.advance(2)
    client.create("s", schema, times_by="view s")
    assert read_existing_shards(client, {"s": source}, {})["s"].source_format == ""


def test_each_state_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read is a request to a store: of hundreds of sources, some would take minutes."""
    client = ShardClient.open(str(tmp_path / "lake"))
    client.create("s", ShardSchema.from_arrow(SCHEMA))
    bound(client, "s")
    read: list[str] = []
    refresh = Machine._refresh

    def noted(machine: Machine) -> ShardState | None:
        if machine is client.machine(machine.name):
            read.append(machine.name)
        return refresh(machine)

    monkeypatch.setattr(Machine, "_refresh", noted)
    source = SourceDescription(name="s", format="csv")
    sink = SinkDescription(name="out", on="t", format="memory")
    found = read_existing_shards(client, {"s": source, "out": sink}, {"s": source})
    assert found["s"].source_format == "csv"
    assert sorted(read) == ["out_progress", "s", "s_progress"]
