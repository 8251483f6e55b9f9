"""An error of a micro-batch, short enough for Spark.

Spark 4.3 looks for an interruption in the text of a `Py4JJavaError` with a regular expression that
overflows the stack of a query's thread when the text is long, as stack traces are. So what leaves a
function of `foreachBatch` is an error of our own class, with the first line of the text.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MicroBatchFailed", "briefly"]

_LENGTH: Final = 1000


class MicroBatchFailed(Exception):
    """A micro-batch failed; whoever started the query has the error itself."""


def briefly(error: BaseException) -> MicroBatchFailed:
    """What to raise in the place of `error`, with `from None`."""
    text = next((line for line in str(error).splitlines() if line.strip()), "no message")
    return MicroBatchFailed(f"{type(error).__name__}: {text.strip()[:_LENGTH]}")
