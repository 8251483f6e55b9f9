"""Spark's hooks hand everything to the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
)

from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.read import current_schema
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard_source.options import parse_source
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.shard_source.stream import ShardStreamReader
from support.models.shards import schema_of, updates

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit


def reader(name: str, **options: str) -> ShardStreamReader:
    """A reader of five parts at the times 0 to 4, of two rows each."""
    url = f"memory://hooks-{name}"
    client = ShardClient.open(url, settings=ShardSettings(validate=True, inline_part_bytes=0))
    client.create("in", schema_of())
    for time in range(5):
        rows = updates((1, "a", time, 1), (2, "b", time, 1))
        client.writer("in").compare_and_append(rows, Frontier(time), Frontier(time + 1))
    given = {"readChangeFeed": "true", "startingTimestamp": "0", **options}
    parsed = parse_source({"path": f"{url}/in", **given})
    return ShardStreamReader(parsed, RowShape.now(parsed, [current_schema(client.state("in"))]))


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"maxBytesPerTrigger": "1"}, ReadMaxBytes(1)),
        ({"maxRowsPerTrigger": "2"}, ReadMaxRows(2)),
        ({"maxFilesPerTrigger": "1"}, ReadMaxFiles(1)),
        ({"maxFilesPerTrigger": "1", "maxRowsPerTrigger": "7"}, ReadMaxRows(7)),
    ],
)
def test_limits_are_given_to_spark_and_respected(
    request: pytest.FixtureRequest, options: dict[str, str], limit: ReadLimit
) -> None:
    """Each step reads one part; `Trigger.Once` asks for everything, and the limits do not count."""
    source = reader(request.node.name, **options)
    begun = source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
    step = source.latestOffset(begun, source.getDefaultReadLimit())
    everything = source.latestOffset(begun, ReadAllAvailable())

    assert source.getDefaultReadLimit() == limit
    assert (begun["frontier"], step["frontier"], everything["frontier"]) == (0, 1, 5)


def test_the_start_is_a_constant(request: pytest.FixtureRequest) -> None:
    """Asked again, in any process, it is the same text."""
    source = reader(request.node.name)
    assert source.initialOffset() == source.initialOffset() == {"v": 1, "init": True}


def test_progress_says_how_far_the_shard_is(request: pytest.FixtureRequest) -> None:
    """Nothing before the first look; then the upper."""
    source = reader(request.node.name)
    before = source.reportLatestOffset()
    source.latestOffset(source.initialOffset(), ReadAllAvailable())

    assert before is None
    assert source.reportLatestOffset() == {"upper": 5}
