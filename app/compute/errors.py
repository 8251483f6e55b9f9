"""Errors of a view's query are of two classes: caused by rows, or of the moment.

A query that fails because of a value in a row (a division by zero, text that is no number, an
overflow) fails for everybody who runs it over these rows, and works again when they are gone.
Restarting it would change nothing. So the error is data: a row in the view's errors shard, from the
time at which the query fails to the first at which it works (Materialize's `err` collection). All
other failures are of the moment, and the view is restarted.

Spark distinguishes them by SQLSTATE: class 22 is about data, 21 about the number of rows (a scalar
subquery that returns several), P0 is raised by the query itself. Some conditions that depend on
rows share their SQLSTATE with others that do not, and are listed by name. An exception of a Python
function has one condition with everything else that ends its process, and many exceptions of
Spark's own expressions have none: there the stack trace decides (`user_functions` and
`expression_errors` of `shardline.app.compute`).

Invariants:
    The kept text of an error is the same for the same rows and the same functions, wherever and
    whenever the query runs.
    An error of the moment is never kept as data: it would stay although no row is wrong.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from shardline.app.compute.expression_errors import error_thrown_at_row
from shardline.app.compute.user_functions import error_raised_at_row
from shardline.app.execution.error_texts import describe_frame, raised, users_frame
from shardline.app.execution.host import Incarnation
from shardline.app.execution.observations import Failed
from shardline.app.execution.spark_errors import describe_failure
from shardline.datasource.errors import Fenced, ShardError
from shardline.datasource.schema import Atomic, Field, Record, ShardSchema

__all__ = [
    "BEGINS_ANEW_HINT",
    "ERRORS_SCHEMA",
    "UNUSABLE_CHECKPOINT",
    "data_error_text",
    "failure_report",
]

_log = logging.getLogger(__name__)

ERRORS_SCHEMA: Final = ShardSchema(Record((Field("error", Atomic("string"), nullable=False),)))
"""Columns of a view's errors shard; it has one row, the reason, while the query fails."""

UNUSABLE_CHECKPOINT: Final = (
    "[FOREIGN_OFFSET]",
    "[NEWER_OFFSET]",
    "[OFFSET_WENT_BACK]",
    "[HOLD_EXPIRED]",
    "[HISTORY_GONE]",
)
"""Beginnings of errors after which a checkpoint can never be continued."""

BEGINS_ANEW_HINT: Final = "nothing: the view begins anew by itself, with what its inputs have now"
"""Advice for such an error: its own is for users' queries, who have to begin anew by hand."""

_CLASSES: Final = ("22", "21", "P0")

_BY_NAME: Final = frozenset(
    {
        "COLLECTION_SIZE_LIMIT_EXCEEDED",  # an array whose length is a value of a row
        "DUPLICATED_MAP_KEY",
        "EXCEED_LIMIT_LENGTH",
        "FAILED_EXECUTE_UDF",  # a function of the JVM
        "INCONSISTENT_BEHAVIOR_CROSS_VERSION",  # a date that older versions read otherwise
        "RECURSION_LEVEL_LIMIT_EXCEEDED",
        "RECURSION_ROW_LIMIT_EXCEEDED",
        "WINDOW_FUNCTION_PARTITION_SIZE_EXCEEDS_LIMIT",
    }
)
"""Conditions that depend on rows although their SQLSTATE is not of `_CLASSES`."""

_TRANSIENT: Final = re.compile(r"failed due to: java\.(?:io|net|nio)\.|OutOfMemoryError")
"""Resources that a function of the JVM lacked: nothing about rows follows from that."""

_DECIDED: Final = (*_CLASSES, "XX")
"""Beginnings of SQLSTATEs that decide alone: those about data, and Spark's own mistakes."""

_PYTHON: Final = "PYTHON_EXCEPTION"

_EXPRESSION: Final = "EXPRESSION_FAILED"
"""Our code for an exception of Java at a row, which has none of its own."""

_OURS: Final = ("[NEGATIVE_MULTIPLICITY]", "[DIFF_OVERFLOW]", "[NULL_VALUE]")
"""Errors of our own reads and writes inside of Spark: damage or a race, not caused by the query."""

_BYPASS: Final = re.compile(r' If necessary set "[^"]*" to "[^"]*" to bypass this error\.')
"""Advice of Spark's that nobody can follow here: a query does not say how it is to be executed."""

_LENGTH_MAX: Final = 1000
"""Longest kept text of an error, in characters: a message can quote whole rows."""

_CONDITION: Final = re.compile(
    r"\[(?P<code>[A-Z_0-9.]+)\] (?P<text>.*?)\s*SQLSTATE: (?P<state>\w{5})", re.DOTALL
)


def data_error_text(error: BaseException) -> str | None:
    """The text to keep of an error that rows have caused; None for any other error.

    It is the same for the same rows: the place in the query and the stack, which Spark adds, are
    left out. Of a function of Python there is its name, with file and line.
    """
    text = str(error)
    # Before the conditions: a trace may quote one in a message of the user's own.
    raised_text = error_raised_at_row(text)
    if raised_text is not None:
        return _kept_text(_PYTHON, raised_text + _place(text))
    found = list(_CONDITION.finditer(text))
    for match in found:
        if _is_about_rows(match) and not match["text"].startswith(_OURS):
            return _kept_text(match["code"], match["text"])
    if any(match["state"].startswith(_DECIDED) or _name_of(match) in _BY_NAME for match in found):
        return None  # one of ours, or of a function that lacked something
    thrown_text = error_thrown_at_row(error)
    if thrown_text is None:
        return None
    condition = _CONDITION.search(thrown_text)
    if condition is not None:
        return _kept_text(condition["code"], condition["text"])
    return _kept_text(_EXPRESSION, thrown_text)


def _place(text: str) -> str:
    """The user's function that has raised, with its file and line."""
    found = raised(text)
    return describe_frame(users_frame(found[-1].frames)) if found else ""


def _is_about_rows(match: re.Match[str]) -> bool:
    if match["state"].startswith(_CLASSES):
        return True
    return _name_of(match) in _BY_NAME and _TRANSIENT.search(match["text"]) is None


def _name_of(match: re.Match[str]) -> str:
    return match["code"].partition(".")[0]


def _kept_text(code: str, message: str) -> str:
    return _BYPASS.sub("", " ".join(f"[{code}] {message}".split()))[:_LENGTH_MAX]


def failure_report(incarnation: Incarnation, error: BaseException | None) -> Failed:
    """The report of an incarnation that has ended by `error`; None for an unknown cause."""
    message, hint = "the streaming query has ended", ""
    if error is not None:
        message, hint = describe_failure(error)
        if not isinstance(error, ShardError):
            context = {"object": incarnation.id, "epoch": incarnation.epoch}
            _log.error("a dataflow failed", exc_info=error, extra={"context": context})
    return Failed(
        id=incarnation.id,
        epoch=incarnation.epoch,
        error=message,
        hint=hint,
        fenced=isinstance(error, Fenced),
    )
