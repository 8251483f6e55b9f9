"""Collects a query's result as one Arrow table of bounded size, by jobs that can be cancelled.

`toArrow` has no bound: one large result exhausts the driver's memory, and every view of the runtime
ends with it. Here batches are counted as they arrive, and the jobs are cancelled
once there are too many bytes. Rows of a query with an order are fetched one range of the order
after the other, so that ranges beyond the bound are never computed.

    with job_group(spark, "peek-1", pool="peek-0", description="…"):
        table = collect(frame, limit_bytes, "peek-1")

Invariants:
    A returned table is the whole result, with the types of `toArrow`.
    Tasks end at so many rows that a larger result would not fit, each for itself if the query has
    an order. So at most one task's rows, or `spark.driver.maxResultSize`, are under way.
    Job tags are not used: PySpark 4.3 loses the listener's events of queries started under them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Final, cast

import pyarrow as pa
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.serializers import ArrowCollectSerializer, ArrowStreamSerializer
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _load_from_socket, _local_iterator_from_socket
from typing_extensions import override

from shardline.app.compute.results import relabel, too_large
from shardline.datasource.java_names import java_class

__all__ = ["cancel_group", "collect", "job_group"]

_LIMIT_MAX: Final = 2**31 - 1
_OFFSET_BITS: Final = 32
_SEE_THROUGH: Final = frozenset({"Project", "SubqueryAlias", "WithCTE"})
"""Operators of a plan that keep the order of the operator below."""

_POOL = "spark.scheduler.pool"
_GROUP = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


@contextmanager
def job_group(spark: SparkSession, group: str, *, pool: str, description: str) -> Iterator[None]:
    """Put jobs that this thread starts within the block into `group` and scheduler pool `pool`.

    Args:
        spark: The session.
        group: Their name for `cancel_group`; must never be used again, since a cancelled group
            stays cancelled.
        pool: Scheduler pool, which shares the cores fairly with other pools.
        description: Shown to people by Spark's UI.
    """
    context = spark.sparkContext
    context.setJobGroup(group, description, interruptOnCancel=True)
    context.setLocalProperty(_POOL, pool)
    try:
        yield
    finally:
        # Spark takes null for "not set", which the signature does not allow.
        for name in (*_GROUP, _POOL):
            context.setLocalProperty(name, cast("str", None))


def cancel_group(spark: SparkSession, group: str) -> None:
    """Cancel the jobs of `group`, also those that are started later; never raises."""
    with suppress(Exception):  # the session may be gone, and its jobs with it
        inside: Any = spark.sparkContext._jsc  # noqa: SLF001 - PySpark lacks this one
        inside.sc().cancelJobGroupAndFutureJobs(group)


def collect(frame: DataFrame, limit_bytes: int, group: str) -> pa.Table:
    """The rows of `frame`.

    Args:
        frame: A frame of a classic session.
        limit_bytes: Most bytes of Arrow memory.
        group: Job group of the calling thread.

    Raises:
        InvalidUsage: `RESULT_TOO_LARGE`: the rows exceed the limit.
        PySparkException: The query fails.
    """
    schema = to_arrow_schema(
        frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC"
    )
    least = sum(_least_bits(field.type) for field in schema)
    rows_max = min(limit_bytes * 8 // max(least, 1) + 1, _LIMIT_MAX)
    if _is_in_order(frame):
        return _in_order(frame, schema, rows_max, limit_bytes, group)
    inside: Any = frame.limit(rows_max)._jdf  # noqa: SLF001 - as `toArrow` does
    port, secret, serving = inside.collectAsArrowToPython()
    counted = _Counting(limit_bytes)
    try:
        with _load_from_socket(cast("Any", (port, secret)), counted) as stream:
            batches = list(stream)
    except _TooMuch:
        cancel_group(frame.sparkSession, group)
        with suppress(Exception):
            serving.getResult()
        raise too_large(limit_bytes) from None
    except Exception:
        # The jobs' error is the cause, and the broken socket its consequence: so it goes first.
        _finish(serving, limit_bytes)
        raise
    _finish(serving, limit_bytes)
    if not batches:
        return schema.empty_table()
    return relabel(pa.Table.from_batches(batches).columns, schema)


def _finish(serving: Any, limit_bytes: int) -> None:
    """Wait for the thread that serves a result; raises the error that its jobs have failed by."""
    try:
        with unwrap_spark_exception():
            serving.getResult()
    except Exception as error:
        if "spark.driver.maxResultSize" in str(error):
            raise too_large(limit_bytes) from error
        raise


def _is_in_order(frame: DataFrame) -> bool:
    """True if the query ends with an order; False with a limit after it, which bounds its rows.

    Such a query must not get another limit: Spark plans the first rows of an order in another way,
    which keeps as many rows in memory as the limit allows.
    """
    inside: Any = frame._jdf  # noqa: SLF001 - no public door to a plan
    plan = inside.queryExecution().analyzed()
    while (name := plan.nodeName()) in _SEE_THROUGH:
        plan = plan.plan() if name == "WithCTE" else plan.child()
    return bool(name == "Sort")


def _in_order(
    frame: DataFrame, schema: pa.Schema, rows_max: int, limit_bytes: int, group: str
) -> pa.Table:
    """The rows of a frame with an order: one job for each range of it, none beyond the bound.

    Raises:
        InvalidUsage: `RESULT_TOO_LARGE`: the rows exceed the limit.
        PySparkException: The query fails.
    """
    spark = frame.sparkSession
    limited: Any = frame.limit(rows_max)._jdf  # noqa: SLF001 - as `RDD.toLocalIterator` does
    records = int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") or 0)
    # Spark's limit is a global one over a local one of each partition. Only the local one is kept:
    # the global one would bring all rows into one partition first.
    each = limited.queryExecution().analyzed().child()
    bounded = java_class(spark, "org.apache.spark.sql.classic.Dataset").ofRows(
        limited.sparkSession(), each
    )
    batches, size = [], 0
    with unwrap_spark_exception():
        ranges = bounded.toArrowBatchRdd(records, "UTC", True, False)
        served = java_class(spark, "PythonRDD").toLocalIteratorAndServe(ranges, False)
        for message in _local_iterator_from_socket(served, NoOpSerializer()):
            batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
            size += batch.nbytes
            if size > limit_bytes:
                cancel_group(spark, group)
                raise too_large(limit_bytes)
            batches.append(batch)
    return pa.Table.from_batches(batches, schema)


def _least_bits(kind: pa.DataType) -> int:
    """Least memory of one value, in bits."""
    try:
        return int(kind.bit_width)
    except ValueError:  # of no fixed width: at least an offset, but for structs
        return 0 if pa.types.is_struct(kind) or pa.types.is_null(kind) else _OFFSET_BITS


class _TooMuch(Exception):
    """More bytes have arrived than the limit allows."""


class _Counted(ArrowStreamSerializer):
    """Loads batches until they exceed a limit of bytes."""

    limit_bytes: int

    @override
    def load_stream(self, stream: IO[bytes]) -> Iterator[pa.RecordBatch]:
        size = 0
        for batch in super().load_stream(stream):
            size += batch.nbytes
            if size > self.limit_bytes:
                raise _TooMuch
            yield batch


class _Counting(ArrowCollectSerializer, _Counted):
    """Spark's own serializer that puts batches in order, over batches that are counted."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
