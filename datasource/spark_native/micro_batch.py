"""Reads the rows of a stream's micro-batch natively, inside of `foreachBatch`.

    def each(frame, batch_id):
        updates = shardline.micro_batch(frame, batch_id)

The frame that Spark passes is not executed, so the source's own tasks, which decode in Python,
never run. The result is made of the partitions that the stream has planned for this micro-batch:
the same range, pieces, filters and times, after a restart as well, and under the stream's own
holds, which stay where they are until the micro-batch has been committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard_sink.micro_batch_range import covered_by_micro_batch
from shardline.datasource.shard_source.fetch_task import ShardPartition
from shardline.datasource.shard_source.options import SourceOptions, parse_source
from shardline.datasource.spark_native.classic_session import check_classic
from shardline.datasource.spark_native.frames import make_native_frame
from shardline.datasource.spark_native.running_batch import (
    MicroBatch,
    current_micro_batch,
    micro_batch_sources,
)
from shardline.datasource.types.schema import ShardSchema

__all__ = ["columns_since_load", "covers_of", "micro_batch", "source_of"]


def micro_batch(frame: DataFrame, batch_id: int, *, shard: str | None = None) -> DataFrame:
    """Read the rows of this micro-batch's source by Spark's own Parquet reader.

    With `readChangeFeed=true` the first one is the snapshot as updates at its `as_of`, and the
    others are the changes since the one before: the shard's columns, `_ts`, `_diff`. They are the
    source's rows: transformations of the query before `foreachBatch` are in `frame` only. Use it
    before `foreachBatch` returns, and in the thread that it runs in; afterwards the stream no
    longer protects its parts.

    Args:
        frame: The frame that `foreachBatch` passed.
        batch_id: The number that `foreachBatch` passed.
        shard: A shard that the wanted source reads, if the query has several sources.

    Raises:
        InvalidUsage: This is not the frame of a micro-batch over `format("shard")` under way, or
            there are several sources.
    """
    source = source_of(frame, batch_id, shard)
    partitions = source.partitions()
    filtered = any(isinstance(p, ShardPartition) and p.where is not None for p in partitions)
    # Fetching the options from the JVM costs as much as all the rest.
    loaded_with = _options(source) if filtered else None
    condition = None if loaded_with is None else loaded_with.where
    return make_native_frame(frame.sparkSession, partitions, source.schema, condition).frame


def columns_since_load(partitions: Iterable[InputPartition]) -> list[str]:
    """Columns that the inputs of a micro-batch have by now, and had not when its frame was loaded.

    The rows of the micro-batch are without them: a change of nothing else is two equal rows, one
    taken back and one added.

    Args:
        partitions: All of the micro-batch (`MicroBatch.partitions`), of a read of all columns.
    """
    found: dict[str, None] = {}
    for one in partitions:
        if isinstance(one, ShardPartition):
            loaded = one.row_shape.columns(one.index)
            now = ShardSchema.parse(one.schemas[one.schema_id]).names
            found |= dict.fromkeys(name for name in now if name not in loaded)
    return list(found)


def source_of(frame: DataFrame, batch_id: int, shard: str | None = None) -> MicroBatch:
    """The source's part in the micro-batch under way; arguments and errors as `micro_batch`."""
    check_classic(frame, "micro_batch", "the rows of the frame that foreachBatch was called with")
    found = micro_batch_sources(frame, batch_id)
    if shard is not None:
        loaded = [(source, _options(source)) for source in found]
        found = [source for source, given in loaded if given and shard in given.inputs]
    if len(found) != 1:
        raise InvalidUsage(
            f"the frame of micro-batch {batch_id} reads {len(found)} sources"
            + (f" of shard '{shard}'" if shard is not None else "")
            + " that could be meant",
            code="NOT_A_MICRO_BATCH",
            hint="pass on what foreachBatch was called with, in its thread and before it returns; "
            "of several sources name one by its shard",
        )
    return found[0]


def covers_of(spark: SparkSession) -> str:
    """The range of the micro-batch that runs in this thread (`shard.covered_range`).

    Empty outside of `foreachBatch`.
    """
    log = current_micro_batch(spark)
    return "" if log is None else covered_by_micro_batch(log.query, log.number, log.read)


def _options(source: MicroBatch) -> SourceOptions | None:
    """The options that the source was loaded with; None if it is another Python source."""
    try:
        return parse_source(source.options)
    except InvalidUsage:
        return None
