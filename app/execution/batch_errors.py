"""Batch errors leave a `foreachBatch` function short enough for Spark, and recognisable as a stop.

Spark 4.3 looks for an interruption in the text of a `Py4JJavaError` with a regular expression that
overflows the stack of a query's thread when the text is long, as stack traces are. So the error
that leaves the function is of our own class, with one line.

By the same expression Spark tells a query that was stopped from one that failed, which it logs with
a stack trace. A query that we stop is meant to end, whatever its function was doing just then: so
its error contains the text that Spark looks for.
"""

from __future__ import annotations

from typing import Final

from shardline.app.execution.spark_errors import error_line

__all__ = ["MicroBatchFailed", "micro_batch_error"]

_LENGTH: Final = 1000

_INTERRUPTED: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling foreachBatch: "
    "java.lang.InterruptedException"
)


class MicroBatchFailed(Exception):
    """A micro-batch failed; the object that started the query keeps the error itself."""


def micro_batch_error(error: BaseException, *, stopping: bool) -> MicroBatchFailed:
    """Make the error to raise in the place of `error`, with `from None`.

    Args:
        error: The error of the micro-batch.
        stopping: True if the query is being stopped. Spark checks its own state as well before it
            takes the error for a stop.
    """
    return MicroBatchFailed(_INTERRUPTED if stopping else error_line(error)[:_LENGTH])
