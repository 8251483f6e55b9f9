"""The cached frame of an index has the rows of its object, each as often as it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from shardline.app.compute.index import runs
from shardline.app.compute.index.index import IndexRegistry, IndexSettings, run_index
from shardline.app.execution.observations import Hydrated
from shardline.app.protocol.objects import IndexDescription
from support.fakes.reads import Place, incarnation
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
