"""An error of a micro-batch, short enough for Spark.

Spark 4.3 looks for an interruption in the text of a `Py4JJavaError` with a regular expression that
overflows the stack of a query's thread when the text is long, as stack traces are. So what leaves a
function of `foreachBatch` is an error of our own class, with the one line that says what happened.

By the same expression Spark tells the end of a query that was stopped from a failure, which it logs
with a stack trace. A query that we stop is meant to end, whatever its function was doing just then:
so it says what Spark looks for.
"""

from __future__ import annotations

from typing import Final

from shardline.app.execution.spark_errors import gist

__all__ = ["MicroBatchFailed", "briefly"]

_LENGTH: Final = 1000

_INTERRUPTED: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling foreachBatch: "
    "java.lang.InterruptedException"
)


class MicroBatchFailed(Exception):
    """A micro-batch failed; whoever started the query has the error itself."""


def briefly(error: BaseException, *, stopping: bool) -> MicroBatchFailed:
    """What to raise in the place of `error`, with `from None`.

    Args:
        stopping: Whether the query is being stopped; Spark asks itself, too, before it believes it.
    """
    return MicroBatchFailed(_INTERRUPTED if stopping else gist(error)[:_LENGTH])
