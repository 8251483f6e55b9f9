"""The cached frame of an index has the rows of its object, each as often as it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from shardline.app.compute.index import runs
from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.index.index import Index, IndexRegistry, IndexSettings, run_index
from shardline.app.execution.observations import Hydrated
from shardline.app.protocol.objects import IndexDescription
from shardline.datasource import frames
from shardline.datasource.frontier import Frontier
from shardline.datasource.read import history_gone_error
from shardline.datasource.schema import ShardSchema
from support.fakes.reads import Place, incarnation, updates_of
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CARRIERS = pa.schema([("carrier", pa.string()), ("name", pa.string())])


def test_rows_that_came_twice_at_one_time_are_there_twice(
    location: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arrangement of many rows that differ does not add equal ones up: they come one by one."""
    monkeypatch.setattr(runs, "_SAMPLE", 0)
    monkeypatch.setattr(runs, "_many_are_equal", lambda *_: False)
    place, indexes = Place(location, spark), IndexRegistry()
    place.put("carriers", [((f"c{n}", f"name {n}"), 11, 1) for n in range(40)], 20, CARRIERS)
    on = IndexDescription(name="i", on="carriers", key=("carrier",))
    settings = IndexSettings(poll_ms=2, frame_every_ms=0)
    running = run_index(place.host, incarnation("i", 12), on, indexes, settings)
    place.next(Hydrated)
    (index,) = indexes.of(place.client.location.url, "carriers")
    base = index.frame(15)
    assert base is not None
    place.put("carriers", [(("zz", "zz"), 25, 1)] * 2, 30, CARRIERS)
    wait_until("the index has them", lambda: index.is_readable(29), 30)
    added = index.frame(26)
    assert added is not None
    assert added is not base
    assert added.where("carrier = 'zz'").count() == 2
    assert added.count() == 42
    running.stop()


def test_a_base_that_the_shard_has_gone_past_is_made_anew(
    location: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what came since and its read: the time that was asked for is there."""
    place = Place(location, spark)
    rows = [((f"c{n}", f"name {n}"), 11, 1) for n in range(40)]
    place.put("carriers", rows, 20, CARRIERS)
    on = IndexDescription(name="i", on="carriers", key=("carrier",))
    arranged = Arrangement(ShardSchema.from_arrow(CARRIERS), on.key, 12)
    arranged.append(updates_of([(row, 12, 1) for row, _, _ in rows], CARRIERS), Frontier(20))
    client = place.client
    index = Index(place.host, on, client.state("carriers").shard, arranged, IndexSettings())
    base = index.frame(15)
    new = [(("zz", "zz"), 25, 1)]
    place.put("carriers", new, 30, CARRIERS)
    arranged.append(updates_of(new, CARRIERS), Frontier(30))

    def compacted(*_: object, **asked: int) -> DataFrame:
        raise history_gone_error(client.state("carriers"), asked["start"] - 1, Frontier(20))

    with monkeypatch.context() as patch:
        patch.setattr(frames, "changes", compacted)
        found = index.frame(26)
    assert found is not None
    assert found is not base
    assert found.count() == 41
    # And the next time is made of it.
    assert index.frame(28) is found
    index.close()
