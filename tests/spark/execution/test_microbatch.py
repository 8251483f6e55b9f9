"""A function of `foreachBatch` that raises: has its query failed, or was it stopped?"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from shardline.app.execution.batch_errors import MicroBatchFailed, micro_batch_error
from shardline.datasource.errors import Determinate
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

PATIENCE_S = 60.0


def started(
    spark: SparkSession, each: Callable[[DataFrame, int], None], folder: Path
) -> StreamingQuery:
    """A query that has micro-batches without end."""
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
    return frame.writeStream.foreachBatch(each).option("checkpointLocation", str(folder)).start()


@pytest.mark.parametrize("stopping", [True, False])
def test_a_query_that_is_stopped_has_not_failed(
    spark: SparkSession, tmp_path: Path, *, stopping: bool
) -> None:
    """In the middle of a micro-batch; one that does not know of it fails even then."""
    inside, go = threading.Event(), threading.Event()

    def each(_frame: DataFrame, _number: int) -> None:
        inside.set()
        assert go.wait(PATIENCE_S)
        raise micro_batch_error(ValueError("cut off"), stopping=stopping) from None

    query = started(spark, each, tmp_path)
    ending = threading.Thread(target=query.stop)
    try:
        assert inside.wait(PATIENCE_S)
        ending.start()
        wait_until("Spark ends the query", lambda: not query.isActive, PATIENCE_S)
    finally:
        go.set()
        ending.join()
    failure = query.exception()
    assert (failure is None) == stopping
    assert stopping or "ValueError: cut off" in str(failure)


def test_a_query_that_nobody_stops_fails_whatever_is_said(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark looks whether it was stopped: a failure is never taken for an end."""

    def each(_frame: DataFrame, _number: int) -> None:
        raise micro_batch_error(ValueError("cut off"), stopping=True) from None

    query = started(spark, each, tmp_path)
    wait_until("the query ends", lambda: not query.isActive, PATIENCE_S)
    assert query.exception() is not None


def test_what_goes_on_is_short() -> None:
    """Spark's expression overflows the stack on a long text."""
    failed = micro_batch_error(Determinate("x" * 100_000), stopping=False)
    assert isinstance(failed, MicroBatchFailed)
    assert len(str(failed)) == 1000
    assert str(failed).startswith("[STORE_UNAVAILABLE] xxx")
