"""Reads Spark's errors about a text: a message, a hint, and an offset in the text.

Spark's own message carries plans, codes and stack traces, and its place refers to the text after
names were replaced. A user needs one sentence and the place in the file.

    problem = read_spark_error(error, text)      problem.message, problem.hint, problem.offset

Spark names places in three ways: a query context with indices, `line 2 pos 7` after the message,
`(line 2, pos 7)` after it. All count from the text that it was given, positions and indices from 0,
lines from 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from shardline.app.execution.causes import find_cause
from shardline.app.logs import LOGGED_HINT
from shardline.datasource.errors import nearest_name

__all__ = ["SparkProblem", "read_spark_error"]

_PLACE: Final = re.compile(r"\(line (\d+), pos (\d+)\)|; line (\d+) pos (\d+)")
_OURS: Final = re.compile(
    r"shardline\.datasource\.errors\.\w+: \[([A-Z_]+)\] ([^\n]*?)"
    r"(?: — hint: ([^\n]*?))?(?: SQLSTATE: \w+)?$",
    re.MULTILINE,
)
"""An error of our own data source, inside of the stack trace that Spark has made of it."""
_JAVA: Final = re.compile(r"An error occurred while calling \S+\n: ")
"""The beginning of an error that is not about a text: files that were looked at, for example."""

_CODE: Final = re.compile(r"\[([A-Z][A-Z0-9_.]*)\] ")
_END: Final = re.compile(r"\s*(SQLSTATE: \w+|; line \d+ pos \d+|\(line \d+, pos \d+\)|\n|$)")
_SUGGESTED: Final = re.compile(r"\s*Did you mean one of the following\? \[[^\]]*\]\.?")

_HINTS: Final = {
    "AMBIGUOUS_REFERENCE": "put the name or alias of an input in front of the column",
    "DATATYPE_MISMATCH": "cast one side to the type of the other",
    "MISSING_AGGREGATION": "add it to GROUP BY, or take one value of the group: min(…), max(…)",
    "MISSING_GROUP_BY": "add GROUP BY with the columns that are not aggregated",
    "NUM_COLUMNS_MISMATCH": "give both sides the same columns",
    "PATH_NOT_FOUND": "make the folder or file, or correct the path",
    "PARSE_SYNTAX_ERROR": "this is not Spark's SQL",
    "UNBOUND_SQL_PARAMETER": "write the value, or ${name} for one that --set name=value gives",
    "UNRESOLVED_ROUTINE": "no function has this name; register those of your own in this session",
    "UNSUPPORTED_DATATYPE": "types are those of Spark's SQL, such as INT, STRING, DECIMAL(10, 2)",
    "UNSUPPORTED_TIME_TYPE": "set spark.sql.timeType.enabled to true where the session is made",
}


@dataclass(frozen=True, slots=True)
class SparkProblem:
    """An error of Spark, for a person.

    Attributes:
        code: Spark's error condition; "SPARK" if it has none.
        message: Its first sentence, without codes and plans.
        hint: Advice for a repair.
        offset: Its place in the text; None if Spark names none.
    """

    code: str
    message: str
    hint: str
    offset: int | None


def read_spark_error(error: Exception, text: str) -> SparkProblem:
    """Read an error about `text`, the query or the columns that were given to Spark."""
    whole = str(error)
    ours = _OURS.findall(whole)
    if ours:
        code, message, hint = ours[-1]
        return SparkProblem(code, message, hint, None)
    if _JAVA.match(whole):
        cause = find_cause(error)
        return SparkProblem(cause.code or "SPARK", cause.message, cause.hint, None)
    found = _CODE.search(whole)
    code = found[1] if found else "SPARK"
    rest = whole[found.end() :] if found else whole.strip()
    message = _SUGGESTED.sub("", rest[: _end_of(rest)]).strip().rstrip(".")
    if message[1:2].islower():
        message = message[:1].lower() + message[1:]
    hint = _suggestion(error) or _HINTS.get(code.split(".")[0]) or _known_hint(error)
    return SparkProblem(code, message, hint, _offset(error, whole, text))


def _known_hint(error: Exception) -> str:
    """The hint for this condition while something runs; "" if none is known."""
    hint = find_cause(error).hint
    return "" if hint == LOGGED_HINT else hint


def _end_of(message: str) -> int:
    found = _END.search(message)
    return found.start() if found else len(message)


def _suggestion(error: Exception) -> str:
    """A hint with the nearest of the names that Spark proposes, or with all of them."""
    parameters: dict[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    if "routineName" in parameters:
        function = nearest_name(_last_part(parameters["routineName"]), _functions())
        return f"did you mean {function}?" if function else ""
    proposed = re.findall(r"(?:`[^`]*`\.?)+", parameters.get("proposal", ""))
    if not proposed:
        return ""
    wanted = str(parameters.get("objectName", ""))
    near = nearest_name(wanted, proposed) or nearest_name(wanted.rsplit(".", 1)[-1], proposed)
    return (
        f"did you mean {near.replace('`', '')}?"
        if near
        else ("known: " + ", ".join(proposed).replace("`", ""))
    )


def _last_part(name: str) -> str:
    return name.replace("`", "").rsplit(".", 1)[-1].lower()


def _functions() -> list[str]:
    """Names of Spark's functions, as far as Python has them."""
    from pyspark.sql.functions import builtin  # noqa: PLC0415 - whoever has such an error has it

    return [name for name in dir(builtin) if name.islower() and not name.startswith("_")]


def _offset(error: Exception, whole: str, text: str) -> int | None:
    for context in getattr(error, "getQueryContext", list)() or []:
        if context.contextType().name == "SQL" and not context.objectName():
            start = int(context.startIndex())
            if 0 <= start <= len(text):
                return start
    found = _PLACE.search(whole)
    if found is None:
        return None
    line, position = (int(number) for number in found.groups() if number is not None)
    starts = [0, *(newline.end() for newline in re.finditer("\n", text))]
    return min(starts[min(line, len(starts)) - 1] + position, len(text))
