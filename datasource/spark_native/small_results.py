"""Collects results of few rows into the driver, and stages them there without a write job.

    rows = collect_small(saving, rows_max) one Spark job; None: there is too much
    collect_few(rows, …, may_be_large=True) two, of which the first keeps the rows where tasks are
    save.stage_in_driver(…, rows)          no job: a part in the state, or one blob

To write a handful of rows as Parquet takes Spark about twice as long as to send them to the driver,
and leaves a file that the next reader has to open. So a caller that expects few rows collects them
first.

Invariants:
    The rows are all of the frame's, as Spark's own write would have them, or there is no result.
    No more than `rows_max` rows and one are collected, and no more than `BYTES_MAX` are kept. How
    large they are is known once they are here, all of them. So rows that may be large are counted
    where the tasks are, which write to disk what memory does not hold.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkTypeError, UnsupportedOperationException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.storagelevel import StorageLevel

from shardline.datasource.spark_native.save import NativeWrite
from shardline.datasource.types.schema import DIFF, TS, ShardSchema

__all__ = [
    "BYTES_MAX",
    "ROWS_MAX",
    "collect_few",
    "collect_small",
    "has_same_arrow_types",
    "to_arrow",
]

ROWS_MAX: Final = 16_384
"""Rows of a result that is small: bounds memory and the driver's time; no measured optimum."""

BYTES_MAX: Final = 4 << 20
"""Bytes of Arrow of a result that is small."""

_TOO_LARGE: Final = "spark.driver.maxResultSize"


def collect_small(
    saving: NativeWrite,
    rows_max: int,
    bytes_max: int = BYTES_MAX,
    *,
    may_be_large: bool = False,
) -> pa.Table | None:
    """Collect the rows to write: the shard's columns, `_ts` if the frame has it, and `_diff`.

    None if there are more than `rows_max`, if they are too large, or if their Arrow types differ
    from the shard's.
    """
    if not has_same_arrow_types(saving.rows.schema, saving.schema):
        return None
    return collect_few(saving.rows, rows_max, bytes_max, may_be_large=may_be_large)


def collect_few(
    rows: DataFrame, rows_max: int, bytes_max: int = BYTES_MAX, *, may_be_large: bool = False
) -> pa.Table | None:
    """The rows of a frame; None if there are more than `rows_max`, or if they are too large.

    Args:
        rows: The frame.
        rows_max: How many are not too many.
        bytes_max: As much of Arrow.
        may_be_large: True if `rows_max` of them may be more than this process can hold.
    """
    few = rows.limit(rows_max + 1)
    if may_be_large:
        return _collect_counted(few, rows_max, bytes_max)
    try:
        table = to_arrow(few)
    except Exception as error:
        if _TOO_LARGE in str(error):
            return None
        raise
    return table if table.num_rows <= rows_max and table.nbytes <= bytes_max else None


def _collect_counted(few: DataFrame, rows_max: int, bytes_max: int) -> pa.Table | None:
    """As `collect_few`, after a job that computes the rows, keeps them and counts their bytes."""
    kept = few.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        if kept.count() > rows_max:
            return None
        # Of a plan that is made now: what Spark says of one from before the job is a guess.
        made: Any = kept.select("*")._jdf  # noqa: SLF001 - no public door to a plan
        size = int(made.queryExecution().withCachedData().stats().sizeInBytes())
        # In Spark's cache rows take no less than in Arrow, but for some bytes of each batch.
        return None if size > bytes_max else collect_few(kept, rows_max, bytes_max)
    finally:
        kept.unpersist()


def to_arrow(rows: DataFrame) -> pa.Table:
    """The rows of a frame, whose types are those of its columns."""
    try:
        return rows.toArrow()
    except pa.ArrowInvalid:
        # By PySpark's cast to the types that the rows have already: Arrow refuses it for a struct
        # that is NULL and has fields that never are.
        collect: Any = rows._collect_as_arrow  # noqa: SLF001 - no public door
        return pa.Table.from_batches(collect(empty_list_if_zero_records=False))


def has_same_arrow_types(rows: StructType, schema: ShardSchema) -> bool:
    """True if Spark's Arrow types of `rows` are the shard's, apart from `_ts` and `_diff`."""
    try:
        given = to_arrow_schema(rows, timezone="UTC")
    except (PySparkTypeError, UnsupportedOperationException):
        return False
    own = [field for field in given if field.name not in (TS, DIFF)]
    return [(f.name, f.type) for f in own] == [(f.name, f.type) for f in schema.arrow]
