"""A view's sink knows what its query fails with, and asks the store no more than it must."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardline.app.compute.view.next_step import FollowChanges, Recompute, Unchanged
from shardline.app.compute.view.output import ViewSink
from shardline.app.protocol.objects import ViewDescription, errors_shard
from shardline.datasource.client import ShardClient
from support.models.shards import World

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

VIEW = ViewDescription(
    name="totals", query="SELECT 1 AS n", inputs=(), schema="n INT", strategy="recompute"
)


@pytest.fixture
def client() -> Iterator[ShardClient]:
    world = World()
    yield world.client()
    world.close()


@pytest.fixture
def sink(client: ShardClient) -> ViewSink:
    made = ViewSink(client, VIEW, [], lambda: None)
    made.make()
    return made


def records(client: ShardClient) -> int:
    """How often the errors shard's state has been written."""
    return client.state(errors_shard("totals")).seqno


def test_steps_that_work_take_no_lease_on_errors(client: ShardClient, sink: ViewSink) -> None:
    """Each would be two records, at every step of every view."""
    before = records(client)
    assert sink.append(Recompute(1, 0, 2), None, None)
    assert sink.append(FollowChanges(2, 3), None, None)
    assert sink.follow(Unchanged(3, 4))
    assert not sink.look().failing
    assert records(client) == before + 3


def test_errors_are_read_once_while_they_stay(client: ShardClient, sink: ViewSink) -> None:
    """And again by a sink that has just started, and once they are taken back."""
    assert sink.append(Recompute(1, 0, 2), None, "division by zero")
    assert sink.look().failing
    before = records(client)
    for upper in (3, 4, 5):
        assert sink.append(Recompute(upper - 1, upper - 1, upper), None, "division by zero")
        assert sink.look().failing
    assert records(client) == before + 3
    again = ViewSink(client, VIEW, [], lambda: None)
    again.make()
    assert again.look().failing
    assert again.append(Recompute(5, 5, 6), None, None)
    assert not again.look().failing
    assert not sink.look().failing
