"""The shard of an object goes only as it was before a look at the fence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardline.app.compute.view.output import ViewSink
from shardline.app.execution.object_shards import drop_object_shard
from shardline.app.protocol.objects import ViewDescription
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, Fenced
from shardline.datasource.frontier import Frontier
from support.models.shards import World, schema_of, updates


def put(client: ShardClient, upper: int) -> None:
    """One more row, acknowledged."""
    written = updates((1, "a", upper - 1, 1))
    client.writer("t").compare_and_append(written, Frontier(upper - 1), Frontier(upper))


@pytest.fixture
def client() -> ShardClient:
    """A shard with a row, a reader and a hold."""
    client = World().client()
    client.create("t", schema_of())
    put(client, 1)
    client.hold("t", "view:v:1:aa")
    return client


def resting(client: ShardClient) -> Callable[[], None]:
    """A look at the fence that is good, behind which another runtime takes over and writes."""
    looks = list[int]()

    def check() -> None:
        looks.append(0)
        if len(looks) > 1:
            raise Fenced("another runtime")
        put(client, 2)

    return check


def test_rows_that_a_successor_has_acknowledged_stay(client: ShardClient) -> None:
    """The runtime that drops rests right behind its look; another one keeps the shard, and writes.

    The next look is refused.
    """
    with pytest.raises(Fenced):
        drop_object_shard(client, "t", resting(client))
    assert client.state("t").upper == Frontier(2)


def test_a_view_that_makes_its_output_anew_spares_that_of_its_successor(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its columns no longer fit, and it was fenced meanwhile."""
    monkeypatch.setattr("shardline.app.compute.view.output.parse_ddl_schema", lambda _: schema_of())
    monkeypatch.setattr(ViewSink, "_fits", lambda _self, _wanted: False)
    view = ViewDescription(name="t", query="SELECT 1", inputs=(), schema="any")
    looks: list[Callable[[], None]] = [lambda: None]
    last = resting(client)

    def gate() -> None:
        """The first look is at the begin; the next ones are right before the drop."""
        (looks.pop() if looks else last)()

    with pytest.raises(Fenced):
        ViewSink(client, view, [], gate).make()
    assert client.state("t").upper == Frontier(2)


def test_a_heartbeat_of_a_reader_keeps_no_shard(client: ShardClient) -> None:
    """It changes the state as well: the shard is looked at once more, and its readers cut off."""
    readers = [client.reader("t")]

    def check() -> None:
        if len(readers) < 4:
            readers.append(client.reader("t"))

    assert drop_object_shard(client, "t", check)
    assert not client.exists("t")
    assert not drop_object_shard(client, "t", check)


def test_a_shard_that_changes_all_the_time_stays(client: ShardClient) -> None:
    """It is said, and nothing is dropped."""
    readers = list[object]()
    with pytest.raises(Determinate, match="SHARD_CHANGED"):
        drop_object_shard(client, "t", lambda: readers.append(client.reader("t")))
    assert client.exists("t")


def test_a_shard_that_was_made_again_since_it_was_judged_stays(client: ShardClient) -> None:
    """It is not the one that the drop was decided on."""
    former = client.state("t").shard
    client.drop("t", despite_holders=["view:v:1:aa"])
    client.create("t", schema_of())
    assert not drop_object_shard(client, "t", lambda: None, shard=former)
    assert client.exists("t")
