"""Shows a refusal of `format("shard")` as its one sentence, without the frames of our own code.

Spark reports an error of a Python source as text, as the Python process that raised it has
formatted it: a stack trace first, and what is wrong in the last line. A refusal such as a misspelt
option has nothing in its frames that its reader could act on, and PySpark formats an error without
them where `SPARK_HIDE_TRACEBACK` is set in that process. Spark's own setting for it,
`spark.sql.execution.pyspark.udf.hideTraceback.enabled`, would hide the frames of users' functions,
too; so the variable is set here, by the one error that ends the process.

    @as_one_sentence
    def schema(self): ...

Invariants:
    Only in a process that Spark has started for this: a program's own environment stays as it is.
    An error that has a cause of another kind keeps its frames: a failure of a store, say, or bytes
    that are damaged. They are for whoever repairs it. So does any error that is not ours.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from shardline.datasource.errors import InvalidUsage, ShardError

__all__ = ["as_one_sentence", "error_text"]

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark reads it when it formats an error that has ended a worker or a planner."""

P = ParamSpec("P")
T = TypeVar("T")


def as_one_sentence(hook: Callable[P, T]) -> Callable[P, T]:
    """Make Spark show refusals of `hook`, which it calls in a process of its own, without frames.

    The process ends by the error: PySpark uses neither a worker nor a planner again that failed. So
    no later error is formatted in the same way by mistake.
    """

    @functools.wraps(hook)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return hook(*args, **kwargs)
        except ShardError as error:
            if _is_refusal(error) and _is_process_of_spark():
                os.environ[_HIDE] = "1"
            raise

    return call


def error_text(error: ShardError) -> str:
    """The text of an error as a process of Spark would report it: a refusal without its frames."""
    if _is_refusal(error):
        return "".join(traceback.format_exception_only(error))
    return "".join(traceback.format_exception(error))


def _is_refusal(error: ShardError) -> bool:
    # A text that could not be parsed is the cause of many a refusal, and is in its sentence.
    return isinstance(error, InvalidUsage) or error.__cause__ is None


def _is_process_of_spark() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return str(getattr(spec, "name", "")).startswith("pyspark.")
