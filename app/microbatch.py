"""An error of a micro-batch, short enough for Spark.

Spark 4.3 looks for an interruption in the text of a `Py4JJavaError` with a regular expression that
overflows the stack of a query's thread when the text is long, as stack traces are. So what leaves a
function of `foreachBatch` is an error of our own class, with the one line that says what happened.
"""

from __future__ import annotations

from typing import Final

from app.failure import gist

__all__ = ["MicroBatchFailed", "briefly"]

_LENGTH: Final = 1000


class MicroBatchFailed(Exception):
    """A micro-batch failed; whoever started the query has the error itself."""


def briefly(error: BaseException) -> MicroBatchFailed:
    """What to raise in the place of `error`, with `from None`."""
    return MicroBatchFailed(gist(error)[:_LENGTH])
