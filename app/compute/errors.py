"""Errors of a view: which are data and how they are kept, and what is told of all others.

A query that fails because of what is in a row (a division by zero, text that is no number, an
overflow) fails for everybody who runs it over these rows, and works again when they are gone. That
is part of the view's contents: a row in the view's errors shard, from the time at which it fails
to the first one at which it works. All other failures are of the moment: the view is restarted.

Spark tells them apart by SQLSTATE: class 22 is about data, 21 about the number of rows (a scalar
subquery with several), P0 is what a query raises itself. Some that depend on rows have a state that
others share, and are known by name. What a Python function raises has one condition with whatever
else ends its process: its stack trace decides (`shardline.app.compute.user_functions`).
"""

from __future__ import annotations

import re
from typing import Final

from shardline.app.compute.user_functions import raised_at_rows
from shardline.app.execution.host import Incarnation
from shardline.app.execution.observations import Failed
from shardline.app.execution.spark_errors import explain
from shardline.datasource.errors import Fenced, ShardError
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import Atomic, Field, Record

__all__ = ["ERRORS_SCHEMA", "data_error", "failure"]

ERRORS_SCHEMA: Final = ShardSchema(Record((Field("error", Atomic("string"), nullable=False),)))
"""Of the errors shard of a view: one row for the reason for which its query fails."""

_CLASSES: Final = ("22", "21", "P0")

_BY_NAME: Final = frozenset(
    {
        "COLLECTION_SIZE_LIMIT_EXCEEDED",  # an array as long as a row says
        "DUPLICATED_MAP_KEY",
        "EXCEED_LIMIT_LENGTH",
        "FAILED_EXECUTE_UDF",  # a function of the JVM
        "INCONSISTENT_BEHAVIOR_CROSS_VERSION",  # a date that older versions read otherwise
        "RECURSION_LEVEL_LIMIT_EXCEEDED",
        "RECURSION_ROW_LIMIT_EXCEEDED",
        "WINDOW_FUNCTION_PARTITION_SIZE_EXCEEDS_LIMIT",
    }
)
"""Conditions that rows decide although their SQLSTATE does not say so."""

_OF_THE_MOMENT: Final = re.compile(r"failed due to: java\.(?:io|net|nio)\.|OutOfMemoryError")
"""What a function of the JVM lacks: says nothing about rows."""

_PYTHON: Final = "PYTHON_EXCEPTION"

_OURS: Final = ("[NEGATIVE_MULTIPLICITY]", "[DIFF_OVERFLOW]", "[NULL_VALUE]", "[REFRESHED]")
"""What reads and writes of shards raise inside of Spark: damage, and nothing that a query did."""

_LENGTH_MAX: Final = 1000
"""Characters of an error that are kept: a message can quote whole rows."""

_CONDITION: Final = re.compile(
    r"\[(?P<code>[A-Z_0-9.]+)\] (?P<text>.*?)\s*SQLSTATE: (?P<state>\w{5})", re.DOTALL
)


def data_error(error: BaseException) -> str | None:
    """What to keep of an error of Spark that is about data; None if it is of another kind.

    The same for the same rows: without the place in the query and the stack, which Spark adds.
    """
    text = str(error)
    raised = raised_at_rows(text)
    if raised is not None:
        return _kept(_PYTHON, raised)
    for match in _CONDITION.finditer(text):
        if _is_about_rows(match) and not match["text"].startswith(_OURS):
            return _kept(match["code"], match["text"])
    return None


def _is_about_rows(match: re.Match[str]) -> bool:
    if match["state"].startswith(_CLASSES):
        return True
    name = match["code"].partition(".")[0]
    return name in _BY_NAME and _OF_THE_MOMENT.search(match["text"]) is None


def _kept(code: str, said: str) -> str:
    return " ".join(f"[{code}] {said}".split())[:_LENGTH_MAX]


def failure(incarnation: Incarnation, error: BaseException | None) -> Failed:
    """What to report of an incarnation that has ended by `error`; None if nobody knows by what."""
    if error is None:
        sentence = "the streaming query has ended"
    elif isinstance(error, ShardError):
        sentence = str(error)
    else:
        sentence = explain(error)[1]
    said, _, hint = sentence.partition(" — hint: ")
    return Failed(
        id=incarnation.id,
        epoch=incarnation.epoch,
        error=said,
        hint=hint,
        fenced=isinstance(error, Fenced),
    )
