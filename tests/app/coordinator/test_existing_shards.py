"""A plan is told of the shards that are there."""

from __future__ import annotations

from pathlib import Path

from shardline.app.coordinator.existing_shards import read_existing_shards
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import SinkDescription, ViewDescription
from shardline.app.storage.sinks.interval import Interval
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
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
