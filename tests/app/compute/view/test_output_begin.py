"""History of a view begins at the first step that has appended, whatever was tried before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from shardline.app.compute.view.next_step import Recompute
from shardline.app.compute.view.output import ViewSink
from shardline.app.execution.object_shards import drop_object_shard
from shardline.app.protocol.objects import ViewDescription, errors_shard
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from support.models.shards import World, schema_of

VIEW = ViewDescription(name="v", query="SELECT 1", inputs=("a",), schema="id BIGINT, v STRING")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardClient]:
    for module in ("compute.view.output", "execution.object_shards"):
        monkeypatch.setattr(f"shardline.app.{module}.parse_ddl_schema", lambda _: schema_of())
    world = World()
    yield world.client()
    world.close()


def begin(sink: ViewSink, at: int) -> None:
    step = Recompute(at, 0, at + 1)
    sink.prepare_begin(step)
    assert sink.append(step, None, None)
    sink.begin(step)


@pytest.mark.parametrize("at", [0, 5])
def test_an_attempt_at_a_later_time_leaves_no_since_behind(client: ShardClient, at: int) -> None:
    """The next definition reads something older: what it appends first must be readable."""
    failed = ViewSink(client, VIEW, ["x"], lambda: None)
    failed.make()
    failed.prepare_begin(Recompute(1000, 0, 1001))
    sink = ViewSink(client, replace(VIEW, query="SELECT 2"), ["y"], lambda: None)
    sink.make()
    begin(sink, at)
    for one in ("v", errors_shard("v")):
        state = client.state(one)
        assert (state.critical, state.since) == ({}, Frontier(at)), one
    with client.reader("v") as reader:
        assert reader.snapshot(at).num_rows == 0


@pytest.mark.parametrize("at", [499, 550])
def test_errors_of_a_dropped_output_stay_readable_where_the_next_begins(
    client: ShardClient, at: int
) -> None:
    """They have an upper already when a start that appends nothing is killed."""
    former = ViewSink(client, VIEW, ["x"], lambda: None)
    former.make()
    begin(former, 499)
    drop_object_shard(client, "v", lambda: None)
    failed = ViewSink(client, VIEW, ["y"], lambda: None)
    failed.make()
    failed.prepare_begin(Recompute(600, 0, 601))
    sink = ViewSink(client, VIEW, ["z"], lambda: None)
    sink.make()
    begin(sink, at)
    for one in ("v", errors_shard("v")):
        state = client.state(one)
        assert (state.critical, state.since) == ({}, Frontier(at)), one


def test_a_runtime_that_is_too_late_leaves_no_since_behind_what_another_has_begun(
    client: ShardClient,
) -> None:
    """It has looked before the other one appended, and is killed behind that."""
    late, sink = (ViewSink(client, VIEW, ["x"], lambda: None) for _ in range(2))
    late.make()
    sink.make()
    begin(sink, 5)
    late.prepare_begin(Recompute(600, 0, 601))
    sink.make()
    for one in ("v", errors_shard("v")):
        state = client.state(one)
        assert (state.critical, state.since) == ({}, Frontier(5)), one
