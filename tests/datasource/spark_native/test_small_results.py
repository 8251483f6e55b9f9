"""Rows of Spark may be staged by the driver if their Arrow is the shard's."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DataType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    YearMonthIntervalType,
)

from shardline.datasource.spark_native.small_results import collect_few, has_same_arrow_types
from shardline.datasource.types.schema import ShardSchema

SHARD = ShardSchema.from_arrow(
    pa.schema([("who", pa.string()), ("made", pa.timestamp("us", "UTC"))])
)


def rows(who: DataType, *more: str) -> StructType:
    found = StructType().add("who", who).add("made", TimestampType())
    for name in more:
        found = found.add(name, LongType(), nullable=False)
    return found


@pytest.mark.parametrize("more", [(), ("_diff",), ("_ts", "_diff")])
def test_the_shards_own_types_are_taken(more: tuple[str, ...]) -> None:
    """Whatever times and diffs come with them."""
    assert has_same_arrow_types(rows(StringType(), *more), SHARD)


@pytest.mark.parametrize("other", [LongType(), YearMonthIntervalType()])
def test_other_types_are_left_to_spark(other: DataType) -> None:
    """Also those that Spark has no Arrow for: they are no error here."""
    assert not has_same_arrow_types(rows(other, "_diff"), SHARD)


def collected(found: Any) -> pa.Table | None:
    """What is collected of a frame of which Spark gives `found`."""
    frame = mock.Mock()
    frame.limit.return_value.toArrow = mock.Mock(side_effect=[found])
    return collect_few(frame, 2, bytes_max=16)


def test_what_is_many_or_large_is_not_collected() -> None:
    """Spark refuses what would fill the driver: that is no error, but much. All else is one."""
    few, many = pa.table({"n": [1, 2]}), pa.table({"n": [1, 2, 3]})
    assert collected(few) is few
    assert collected(many) is None
    assert collected(pa.table({"n": ["a" * 20]})) is None
    assert collected(RuntimeError("is bigger than spark.driver.maxResultSize")) is None
    with pytest.raises(RuntimeError, match="a defect"):
        collected(RuntimeError("a defect"))
