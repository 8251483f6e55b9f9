"""Little data costs little: no file opened for it, nothing exchanged, nothing compiled anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardline import datasource
from shardline.app.compute.view.one_task import OneTask
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.batch import Volume
from shardline.datasource.spark_native import frames
from shardline.datasource.spark_native.read import times_of_changes, updates_in_driver
from shardline.datasource.types.schema import ShardSchema
from support.spark.native import client_at, plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from shardline.datasource.client import ShardClient

pytestmark = pytest.mark.spark

TIMES = (10, 20, 20, 30, 40)
"""Of the rows 0 to 4, all in one part."""


@pytest.fixture
def client(tmp_path: Path) -> ShardClient:
    """With a shard whose one part, a file, spans several times."""
    made = client_at(str(tmp_path), inline_part_bytes=0)
    made.create("in", ShardSchema.from_arrow(pa.schema([("id", pa.int64())])))
    rows = pa.table({"id": range(len(TIMES)), "_ts": pa.array(TIMES, pa.int64())})
    made.writer("in").compare_and_append(rows, Frontier(0), Frontier(50))
    return made


def changes(spark: SparkSession, client: ShardClient, **given: int) -> DataFrame:
    return datasource.changes(
        spark,
        location=client.location.url,
        shard="in",
        start=given["start"],
        end=given["end"],
        by_driver=given.get("by_driver", 0),
    )


def updates(frame: DataFrame) -> list[tuple[int, int, int]]:
    return sorted((row["id"], row["_ts"], row["_diff"]) for row in frame.collect())


def expected(start: int, end: int) -> list[tuple[int, int, int]]:
    return [(place, time, 1) for place, time in enumerate(TIMES) if start <= time < end]


def test_little_travels_as_rows(spark: SparkSession, client: ShardClient) -> None:
    """Up to the bound the driver reads it; beyond, Spark reads the file. The rows are the same."""
    here = changes(spark, client, start=20, end=40, by_driver=5)
    there = changes(spark, client, start=20, end=40, by_driver=4)
    assert "LocalTableScan" in plan_of(here)
    assert "FileScan" not in plan_of(here)
    assert "FileScan" in plan_of(there)
    assert updates(here) == updates(there) == expected(20, 40)
    assert here.schema == there.schema


def test_little_that_is_large_is_read_by_spark(
    spark: SparkSession, client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few rows they are: the driver would have them in memory several times."""
    [state] = client.readable("in")
    [part] = [part for batch in state.trace.batches for part in batch.parts]
    for less, reads in ((0, False), (1, True)):
        monkeypatch.setattr(frames, "_BYTES_HERE", part.size_bytes - less)
        frame = changes(spark, client, start=20, end=40, by_driver=5)
        assert ("FileScan" in plan_of(frame)) == reads
        assert updates(frame) == expected(20, 40)


def test_other_times_are_the_same_code(spark: SparkSession, client: ShardClient) -> None:
    """Bounds are values that compiled code is given: a later step compiles nothing."""
    metrics: Any = spark._jvm
    metrics = getattr(metrics.org.apache.spark.metrics.source, "CodegenMetrics$")
    compiled = getattr(metrics, "MODULE$").METRIC_COMPILATION_TIME
    assert updates(changes(spark, client, start=10, end=20)) == expected(10, 20)
    before = compiled().getCount()
    for start, end in ((11, 21), (20, 30), (25, 45), (0, 11)):
        assert updates(changes(spark, client, start=start, end=end)) == expected(start, end)
    assert compiled().getCount() == before


@pytest.mark.parametrize(("start", "end"), [(0, 50), (20, 40), (21, 30), (40, None)])
def test_times_are_read_without_spark(client: ShardClient, start: int, end: int | None) -> None:
    """Each once; and nothing is said where too much would have to be looked at."""
    found = times_of_changes(client, "in", start=start, end=end, rows_max=5)
    wanted = (time for time in TIMES if time >= start and (end is None or time < end))
    assert found == frozenset(wanted)
    if found:
        assert times_of_changes(client, "in", start=start, end=end, rows_max=4) is None


def test_little_input_is_one_task(spark: SparkSession) -> None:
    """No exchange and no adaptive planning; with much, all is as Spark does it."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "true")
    frames = {"t": session.range(0, 1000, 1, 4).toDF("id")}
    one = OneTask()
    for volume, little in ((Volume(200_000, 1 << 24), True), (Volume(200_001, 0), False)) * 2:
        (frame,) = one.inputs(session, frames, volume).values()
        summed = frame.groupBy(frame["id"] % 7).count()
        assert sum(row["count"] for row in summed.collect()) == 1000
        assert ("Exchange" not in plan_of(summed)) == little
        assert ("AdaptiveSparkPlan" not in plan_of(summed)) == little
    assert session.conf.get("spark.sql.adaptive.enabled") == "true"


def test_what_was_before_is_known_or_refused(client: ShardClient) -> None:
    """Once it may be merged into the first time that is asked for, there is no right answer."""

    def read(start: int | None, end: int | None) -> list[tuple[int, int]] | None:
        found = updates_in_driver(client, "in", start=start, end=end, rows_max=9)
        assert found is not None
        rows = found.sort_by([("_ts", "ascending"), ("id", "ascending")]).to_pylist()
        return [(row["_ts"], row["id"]) for row in rows]

    client.set_retention("in", None)
    client.hold("in", "test").downgrade(Frontier(20))
    assert client.state("in").since == Frontier(20)
    assert read(21, 35) == [(30, 3)]
    assert read(21, None) == [(30, 3), (40, 4)]
    whole = read(None, 21)
    assert whole is not None
    assert [row for _, row in whole] == [0, 1, 2]
    for start, end in ((20, 35), (11, None), (None, 20), (0, 20)):
        with pytest.raises(InvalidUsage, match="HISTORY_GONE"):
            updates_in_driver(client, "in", start=start, end=end, rows_max=9)
