"""Tells exceptions that an expression has thrown at a row apart from all others of the JVM.

    error_thrown_at_row(error) -> "PatternSyntaxException: Unclosed group near index 1 ("

Not all that Spark's expressions say about a value is a condition of class 22: a pattern in a column
that is none is an exception of Java alone, the function "sequence" has one without a condition, and
"to_number" one of the class for wrong queries. A view that met such a row as a failure of the
moment would meet it again at each start, also when the row is long gone.

So the stack trace decides. The exception is of a row if it was thrown while a value was computed:
from where it was thrown outwards there are only functions without side effects (of Java's language
and texts, of Spark's expressions and what they call) until an expression or code that is generated
for expressions. What has touched files, sockets, memory, threads or a plan has other frames first.

Invariants:
    Nothing that depends on more than the row has the form of such a trace: no `Error` of the JVM,
    such as a lack of memory, no interrupt, no exception of input and output or of loading classes.
    The text is the same for the same row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["error_thrown_at_row"]

_FRAME: Final = re.compile(r"^\s+at (?:[\w.@]+/)*(?P<function>[\w.$<>]+)\(", re.ASCII)

_VALUES: Final = re.compile(
    r"java\.(?:lang|math|time|text)\.|java\.util\.(?!concurrent\b)|jdk\.internal\.(?:math|util)\."
    r"|javax\.xml\.|com\.sun\.org\.apache\.|jdk\.xml\.|org\.xml\.|scala\."
    r"|com\.fasterxml\.jackson\.|com\.univocity\.|org\.apache\.commons\."
    r"|org\.apache\.spark\.unsafe\.|org\.apache\.spark\.types\."
    r"|org\.apache\.spark\.sql\.(?:errors|types)\."
    r"|org\.apache\.spark\.sql\.catalyst\.(?:expressions|util|json|csv|xml)\."
)
"""Names of functions that compute a value from values."""

_ROWS: Final = re.compile(
    r"org\.apache\.spark\.sql\.catalyst\.expressions\."
    r"(?:GeneratedClass\$|.*\.(?:eval|nullSafeEval|evalInternal|evaluate|update|merge)$)"
)
"""Names of functions that are called with a row."""

_NEVER: Final = re.compile(
    r"Error$|Interrupt|TaskKilled|Cancel|NullPointerException$|ClassCastException$"
    r"|ClassNotFound|^java\.(?:io|net|nio)\.|^java\.util\.concurrent\."
)
"""Classes of exceptions that say nothing about a row, wherever they are thrown."""

_WRAPPED: Final = re.compile(
    r".*(?:^Caused by: |^: |Lost task [^\n]*?\(TID \d+\) \([^\n()]*\): )", re.DOTALL | re.MULTILINE
)
"""The text before the class of an exception: of a job, of a cause, of a call from Python."""

_THROWN: Final = re.compile(
    r"(?P<kind>(?:[a-z]\w*\.)+[A-Z][\w$]*)(?:: (?P<message>.*))?", re.DOTALL | re.ASCII
)
_ADDRESS: Final = re.compile(r"@[0-9a-f]{4,}\b")


class _Thrown(NamedTuple):
    """An exception in a text: the lines before its frames, and the frames, innermost first."""

    head: str
    frames: list[str]


def error_thrown_at_row(error: BaseException) -> str | None:
    """Class and message of an exception that an expression has thrown at a row, or None.

    The message may have a condition of Spark in brackets, and its SQLSTATE.
    """
    # PySpark puts the trace beside the text of exceptions whose class it knows.
    text = getattr(error, "_stackTrace", None) or str(error)
    for one in _exceptions(text):
        found = _THROWN.fullmatch(_WRAPPED.sub("", one.head).strip())
        if found is None or _NEVER.search(found["kind"]) or not _is_at_row(one.frames):
            continue
        kind = found["kind"].rpartition(".")[2]
        return _ADDRESS.sub("", f"{kind}: {found['message']}" if found["message"] else kind)
    return None


def _exceptions(text: str) -> Iterator[_Thrown]:
    head: list[str] = []
    frames: list[str] = []
    for line in text.split("\n"):
        found = _FRAME.match(line)
        if found is not None:
            frames.append(found["function"])
            continue
        if frames:
            yield _Thrown("\n".join(head), frames)
            head, frames = [], []
        head.append(line)
    if frames:
        yield _Thrown("\n".join(head), frames)


def _is_at_row(frames: list[str]) -> bool:
    for function in frames:
        if not _VALUES.match(function):
            return False
        if _ROWS.match(function):
            return True
    return False
