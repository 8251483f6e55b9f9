"""History of a view begins at the first step that has appended, whatever was tried before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shardline.app.compute.view.next_step import Recompute
from shardline.app.compute.view.output import ViewSink
from shardline.app.protocol.objects import ViewDescription, errors_shard
from shardline.datasource.frontier import Frontier
from support.models.shards import World, schema_of

VIEW = ViewDescription(name="v", query="SELECT 1", inputs=("a",), schema="id BIGINT, v STRING")


@pytest.mark.parametrize("at", [0, 5])
def test_an_attempt_at_a_later_time_leaves_no_since_behind(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The next definition reads something older: what it appends first must be readable."""
    for module in ("compute.view.output", "execution.object_shards"):
        monkeypatch.setattr(f"shardline.app.{module}.parse_ddl_schema", lambda _: schema_of())
    world = World()
    client = world.client()
    failed = ViewSink(client, VIEW, ["x"], lambda: None)
    failed.make()
    failed.prepare_begin(Recompute(1000, 0, 1001))
    sink = ViewSink(client, replace(VIEW, query="SELECT 2"), ["y"], lambda: None)
    sink.make()
    step = Recompute(at, 0, at + 1)
    sink.prepare_begin(step)
    assert sink.append(step, None, None)
    sink.begin(step)
    for one in ("v", errors_shard("v")):
        state = client.state(one)
        assert (state.critical, state.since) == ({}, Frontier(at)), one
    with client.reader("v") as reader:
        assert reader.snapshot(at).num_rows == 0
    world.close()
