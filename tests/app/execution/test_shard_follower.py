"""A shard follower reads from states that its lease protects, and from no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from shardline.app.execution.shard_follower import ShardFollower
from shardline.datasource.errors import Determinate, InvalidUsage, LeaseExpired
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.state import ShardState
from shardline.datasource.types.schema import ShardSchema
from support.fakes.reads import Place

SCHEMA = pa.schema([("k", pa.int64())])
WIDER = pa.schema([("k", pa.int64()), ("v", pa.string())])

Reading = Callable[[ShardFollower, ShardState], object]


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place()
    found.put("t", [((1,), 2, 1), ((2,), 4, 1)], 10, SCHEMA)
    yield found
    found.close()


def follow(place: Place, since: int | None = 3) -> closing[ShardFollower]:
    return closing(ShardFollower.open(place.client, "t", since=since, purpose="test"))


@pytest.mark.parametrize(
    "read",
    [
        lambda shard, state: list(shard.contents(state, 5)),
        lambda shard, state: shard.plan(state, 5, None),
        lambda shard, state: list(shard.changes(state, 5, None)),
    ],
    ids=["contents", "plan", "changes"],
)
def test_a_state_without_the_lease_is_not_read(place: Place, read: Reading) -> None:
    """Its parts may be deleted at any moment: nothing that the state says keeps them."""
    before = place.client.state("t")
    with follow(place) as shard:
        read(shard, shard.look())
        with pytest.raises(LeaseExpired):
            read(shard, before)


def test_history_that_is_gone_is_not_read(place: Place) -> None:
    """Its changes were advanced to the since: they would come at a time that they are not of."""
    with follow(place) as shard:
        place.client.hold("t", "h").downgrade(Frontier(8))
        shard.release_before(8, shard.look())
        place.put("t", [], 20, SCHEMA)
        state = shard.look()
        assert state.since == Frontier(8)
        with pytest.raises(InvalidUsage, match="HISTORY_GONE"):
            list(shard.contents(state, 5))
        with pytest.raises(InvalidUsage, match="HISTORY_GONE"):
            list(shard.changes(state, 8, None))
        assert list(shard.changes(state, 9, None)) == []
        assert [batch.num_rows for batch in shard.contents(state, 8)] == [2]


def test_changes_from_the_beginning_need_no_time_before_it(place: Place) -> None:
    """There is no time before 0, so there is nothing that could be gone."""
    with follow(place, since=0) as shard:
        batches = list(shard.changes(shard.look(), 0, 3))
    assert [time for batch in batches for time in batch.column("_ts").to_pylist()] == [2]


def test_a_shard_that_was_dropped_is_not_reported_as_a_lost_lease(place: Place) -> None:
    """The reader would start again, after a shard that is gone for good."""
    with follow(place) as shard:
        place.client.drop("t", despite_holders=list(place.client.state("t").leased))
        with pytest.raises(InvalidUsage, match="SHARD_DROPPED"):
            shard.look()


def test_other_columns_end_it(place: Place) -> None:
    """Who keeps its rows in memory has to begin again."""
    with follow(place) as shard:
        place.client.evolve("t", ShardSchema.from_arrow(WIDER))
        with pytest.raises(Determinate, match="SCHEMA_CHANGED"):
            shard.look()
