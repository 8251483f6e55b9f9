"""Fetches the parts of a native frame that Spark cannot read, as `format("shard")` would.

Inline parts are decoded at once, in the driver: they are tiny and few. All others are fetched by
tasks, with the very function that `format("shard")` runs there, so that the rows are the same.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from shardline.datasource.shard_source.fetch_task import ShardPartition, read_partition
from shardline.datasource.spark_native.jvm import (
    LivenessToken,
    create_frame,
    empty_frame,
    local_relation,
)

__all__ = ["fetch_by_tasks", "fetch_in_driver"]

_PICKLED: Final = StructType([StructField("partition", BinaryType())])


def fetch_by_tasks(
    spark: SparkSession, partitions: Sequence[InputPartition], schema: StructType
) -> tuple[DataFrame, LivenessToken]:
    """The rows of any `partitions`, read by Python workers when the frame is run; and its token."""
    pickled = [(pickle.dumps(partition),) for partition in partitions]
    source = create_frame(spark, pickled, _PICKLED)
    return source.mapInArrow(_read, schema), LivenessToken.of_source(source)


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for pickled in batch.column(0):
            yield from read_partition(pickle.loads(pickled.as_py()))  # noqa: S301 - our own


def fetch_in_driver(
    spark: SparkSession, partitions: Sequence[ShardPartition], schema: StructType
) -> DataFrame:
    """The rows of `partitions`, read now by this process, as a local relation."""
    batches = [batch for partition in partitions for batch in read_partition(partition)]
    if not batches:
        return empty_frame(spark, schema)
    return local_relation(spark, batches, schema)
