"""Rows of Spark may be staged by the driver if their Arrow is the shard's."""

from __future__ import annotations

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

from shardline.datasource.spark_native.small_results import has_same_arrow_types
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
