"""Converts rows of a shard to rows of a read: `shard_source.row_shape` as Spark expressions."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructType

from shardline.datasource.shard_source.row_shape import INPUT, RowShape
from shardline.datasource.spark_native.consolidate import repeat_rows
from shardline.datasource.spark_native.types import quoted
from shardline.datasource.types.schema import DIFF, TS

__all__ = ["apply_row_shape"]

_LAST_TIMESTAMP_MS = 253_402_300_799_999
"""The end of the year 9999, up to which Spark's timestamps and Python's agree."""


def apply_row_shape(frame: DataFrame, shape: RowShape, index: int) -> DataFrame:
    """Rows of one input as rows of the read.

    Args:
        frame: The input's wanted columns; and `_ts`, `_diff` unless the feed is "rows".
        shape: Columns and types of the read's rows.
        index: Index of the input.
    """
    own = list(shape.columns(index))
    if shape.feed == "cdf":
        frame = _as_changes(frame, own)
    if not shape.names:
        return frame
    added = [quoted(name) for name in frame.columns if name not in own]
    kinds = shape.struct
    inputs = [
        (
            F.struct([quoted(column) for column in own]) if number == index else _null(kinds, name)
        ).alias(name)
        for number, name in enumerate(shape.names)
    ]
    return frame.select(F.lit(shape.names[index]).alias(INPUT), *added, *inputs)


def _null(kinds: StructType, name: str) -> Column:
    return F.lit(None).cast(kinds[name].dataType)


def _as_changes(frame: DataFrame, own: list[str]) -> DataFrame:
    """Updates as changes: one row per copy, added or removed."""
    columns = [quoted(name) for name in own]
    times = F.col(TS)
    stamp = F.when(times <= _LAST_TIMESTAMP_MS, F.timestamp_millis(times))
    kind = F.when(F.col(DIFF) > 0, F.lit("insert")).otherwise(F.lit("delete"))
    return repeat_rows(
        frame.where(F.col(DIFF) != 0).select(
            *columns,
            kind.alias("_change_type"),
            stamp.alias("_commit_timestamp"),
            times.alias("_commit_version"),
            F.abs(F.col(DIFF)).alias(DIFF),
        )
    )
