"""Finds the cause of an error: the innermost one that a person can act on, with a hint.

    find_cause(error) -> Cause("DIVIDE_BY_ZERO", 'Division by zero, in "10 / id"', "use try_…")

Spark reports a damaged file as a failed task of an aborted job, and the error of a user's function
as that of a call. Of all that is in the text (`error_texts`) the first of these decides:

    an error of ours, with its code and hint
    an exception of Python, with the user's function, file and line
    a condition of Spark, with the file or the piece of the query
    an exception of Java, most often of the file system, with the path
    the error itself

Invariants:
    Equal errors have equal causes: nothing in one differs between two attempts. A status that says
    the same again is no new line of a history.
    A cause has no secrets, as far as `protocol.redaction` knows them, and is one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote

from shardline.app.execution.error_texts import (
    Condition,
    Raised,
    Thrown,
    called_frames,
    conditions,
    crossed,
    describe_frame,
    frames_of,
    last_frames,
    raised,
    thrown,
    users_frame,
)
from shardline.app.logs import LOGGED_HINT
from shardline.app.protocol.error_kinds import KINDS, class_of, kind_of
from shardline.app.protocol.redaction import redact_option
from shardline.datasource.errors import Corrupt, Determinate, InvalidUsage, ShardError
from shardline.extras import MissingPackage

__all__ = [
    "Cause",
    "encodable",
    "find_cause",
    "whole_text",
    "without_run_ids",
    "without_state",
]

_LENGTH_MAX: Final = 600
"""Longest sentence of a cause, in characters: a message can quote whole rows."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of an error.

    Attributes:
        code: Ours or Spark's, without brackets; "" for an error that has none.
        message: What is wrong, in one line, with the file, the function or the piece of the query.
        hint: What to do about it.
        kind: What is to be done next, one of `error_kinds.KINDS`.
    """

    code: str
    message: str
    hint: str
    kind: str = "determinate"

    @property
    def is_usage(self) -> bool:
        """True if the request cannot work as it is, whatever the moment."""
        return self.kind == "invalid_usage"

    @property
    def sentence(self) -> str:
        """The code in brackets, if there is one, and what is wrong; no hint."""
        return f"[{self.code}] {self.message}" if self.code else self.message


def find_cause(error: BaseException) -> Cause:
    """Find the cause of an error of ours, of Spark, of Python or of the operating system.

    Its texts are encodable: they are recorded.
    """
    cause = _find_cause(error)
    return replace(cause, message=encodable(cause.message), hint=encodable(cause.hint))


def encodable(text: str) -> str:
    """The text with escapes for what has no encoding: bytes of a file's name that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _find_cause(error: BaseException) -> Cause:
    one: BaseException | None = error
    while one is not None:
        if isinstance(one, ShardError):
            return Cause(one.code, one.detail, one.hint, _kind_of_ours(one.code, type(one)))
        one = one.__cause__
    text = whole_text(error)
    # Not cleaned: it is our own sentence, and the same as where its class is still known.
    return _of_ours(text) or _cleaned(
        _of_micro_batch(text)
        or _in_python(text)
        or _in_spark(text, error)
        or _in_java(text)
        or _in_worker(text)
        or _of_itself(error, text)
    )


def whole_text(error: BaseException) -> str:
    """The text of an error, with the causes that Spark has not put into its message."""
    # Spark's Python side keeps the causes of the JVM in this attribute, and shows them only if
    # `spark.sql.pyspark.jvmStacktrace.enabled` is set. There is no public way to them.
    trace = getattr(error, "_stackTrace", "") or ""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the text is the JVM's, which may be gone: that is no cause
        text = ""
    return f"{text}\nJVM stacktrace:\n{trace}" if trace else text


# -- errors of ours --------------------------------------------------------------------------------

_OURS: Final = re.compile(
    r"datasource\.errors\.(?P<kind>\w+): \[(?P<code>[A-Z_]+)\] (?P<message>[^\n]*)"
    r"|\[USER_RAISED_EXCEPTION\] \[(?P<raised>[A-Z_]+)\] (?P<text>[^\n]*)"
)
"""An error of ours as a class of Python, or raised at a row by an expression that we have made."""

_CLASSES: Final = {made.__name__: made for kind in KINDS if (made := class_of(kind)) is not None}
_RAISED: Final[dict[str, type[ShardError]]] = {
    "DIFF_OVERFLOW": InvalidUsage,
    "NEGATIVE_MULTIPLICITY": Corrupt,
}
"""The class of Python that an error would have which is raised at a row (`rows.updates`)."""


def _of_ours(text: str) -> Cause | None:
    every = list(_OURS.finditer(text))
    if not every:
        return None
    found = every[-1]
    message, _, hint = without_state(found["message"] or found["text"] or "").partition(" — hint: ")
    code = found["code"] or found["raised"]
    made = _CLASSES.get(found["kind"]) or _RAISED.get(code, Determinate)
    return Cause(code, message, hint, _kind_of_ours(code, made))


def _kind_of_ours(code: str, made: type[ShardError]) -> str:
    """The kind of an error of ours, by its class."""
    # A part that is not there since the read's lease was lost: a read anew plans other parts.
    return "determinate" if code == "LEASE_LOST" else kind_of(made)


_MICRO_BATCH: Final = re.compile(
    r"\bMicroBatchFailed: (?:\[(?P<code>[A-Z_.0-9]+)\] )?(?P<message>[^\n]*)"
)
"""The line of a cause with which a micro-batch of ours has failed (`batch_errors`)."""


def _of_micro_batch(text: str) -> Cause | None:
    found = _MICRO_BATCH.search(text)
    return None if found is None else Cause(found["code"] or "", found["message"], LOGGED_HINT)


# -- errors of Python ------------------------------------------------------------------------------

_CODED: Final = re.compile(r"\[(?P<code>[A-Z][A-Z_0-9.]*)\] (?P<message>[^\n]*)")
_FUNCTION_HINT: Final = "correct the function, and start the application again"
_MODULE_HINT: Final = "install the module for Spark's Python processes, or send it with --py-files"
_MODULE_HERE_HINT: Final = "install the module in the environment that this program runs in"


def _in_python(text: str) -> Cause | None:
    found = raised(text)
    return _of_exception(found[-1]) if found else None


def _in_worker(text: str) -> Cause | None:
    """An error of Spark's own part of a Python process, by its code if it has one."""
    found = crossed(text)
    if not found:
        return None
    coded = _CODED.match(found[-1].message)
    if coded is None:
        return _of_exception(found[-1])
    return Cause(coded["code"], coded["message"].rstrip(". "), LOGGED_HINT)


def _of_exception(error: Raised) -> Cause:
    frame = users_frame(error.frames)
    name = error.kind.rpartition(".")[2]
    system = _of_system(name, error.message)
    message = f"{name}: {error.message}" if error.message else name
    if name in ("ModuleNotFoundError", "ImportError"):
        return Cause("", message + describe_frame(frame), _MODULE_HINT)
    if system is not None:
        return Cause("", system.message + describe_frame(frame), system.hint)
    return Cause(
        "", message + describe_frame(frame), LOGGED_HINT if frame is None else _FUNCTION_HINT
    )


def _users_place(error: BaseException, text: str) -> str:
    """The user's function that we or Spark have called, and that met an error of Spark."""
    frames = frames_of(error.__traceback__) or last_frames(text)
    return describe_frame(users_frame(called_frames(frames)))


# -- errors of Spark -------------------------------------------------------------------------------

_UNREADABLE: Final = "FAILED_READ_FILE"
_MALFORMED: Final = "MALFORMED_RECORD_IN_PARSING"
_REASON_MAX: Final = 120
_FILE: Final = re.compile(
    r"reading file (?P<file>.+?)\.\s*(?=\Z|\n|Could not|Data type|File does not|It is|The file)",
    re.DOTALL,
)
_MISMATCH: Final = re.compile(
    r"column \[(?P<column>[^\]]*)\]\. Expected Spark type (?P<wanted>.+), "
    r"actual Parquet type (?P<found>\S+?)\.?\Z",
    re.DOTALL,
)
_ADVICE: Final = re.compile(
    r"(?<=[.?])\s+(?=(?:Use|If|Correct|Please|To|You|Set|Consider|It is possible|Did you)\b)"
)
_SETTINGS: Final = re.compile(r"spark\.sql\.|'REFRESH TABLE")
"""Advice that would change more than this query, or that has no meaning here."""

_PROPOSED: Final = re.compile(r"Did you mean one of the following\? \[([^\]]*)\]")

_CONDITION_HINTS: Final = {
    "AVRO_DATA_SOURCE_NOT_ENABLED": "start with the package of this format (--packages)",
    "DATA_SOURCE_NOT_FOUND": "look at the format's name, or start with its package (--packages)",
    "DIVIDE_BY_ZERO": "use try_divide, which gives NULL, or leave out rows with a zero",
    "KAFKA_DATA_SOURCE_NOT_ENABLED": "start with the package of this format (--packages)",
    "PARSE_SYNTAX_ERROR": "correct the query",
    "PATH_NOT_FOUND": "make the folder, or correct the path",
    "USER_RAISED_EXCEPTION": "the query raises it itself: correct the rows or the query",
}

_USAGE_STATES: Final = ("0A", "21", "22", "42", "54", "P0")
"""Classes of SQLSTATE by which a statement cannot work as it is: it is not supported, has a wrong
number of rows, meets wrong data, is misspelt, exceeds a limit of the program, or raises the error
itself. The others are about a moment or a system."""

_REASONS: Final = (
    (re.compile(r"is not a Parquet file"), "it is not a Parquet file"),
    (re.compile(r"Malformed ORC file"), "it is not an ORC file"),
    (
        re.compile(r"not in gzip|not a gzip|incorrect header check", re.IGNORECASE),
        "it is not compressed by gzip",
    ),
    (re.compile(r"EOFException"), "it ends too early"),
)
"""Reasons for which a file cannot be read, by class and message of the innermost exception."""

_LOCAL: Final = re.compile(r"\bfile:(?://)?(?=/)")
"""The scheme of local paths, which nobody writes."""

_FILE_HINT: Final = "repair the file, or put a good one in its place"
_GONE_HINT: Final = "put the file back"
_TYPE_HINT: Final = "declare the type that the file has, or put a file with this type in its place"


def _in_spark(text: str, error: BaseException) -> Cause | None:
    found, place = conditions(text), _users_place(error, text)
    for number, condition in enumerate(found):
        if condition.code.partition(".")[0] == _UNREADABLE:
            return _of_file(condition, found[number + 1 :], thrown(text), place)
    if not found:
        return None
    condition = found[-1]
    message, *advice = _ADVICE.split(_LOCAL.sub("", condition.message))
    fragment = condition.fragment or _fragment(error, condition.code)
    message = message.rstrip(". ")
    # Errors of an analysis quote the name that they are about.
    if fragment and fragment not in message:
        message += f', in "{fragment}"'
    useful = [one for one in advice if not _SETTINGS.search(one)]
    hint = _CONDITION_HINTS.get(condition.code.partition(".")[0]) or _as_hint(" ".join(useful))
    kind = "invalid_usage" if condition.state.startswith(_USAGE_STATES) else "determinate"
    return Cause(condition.code, message + place, hint or LOGGED_HINT, kind)


def _as_hint(advice: str) -> str:
    advice = _PROPOSED.sub(r"did you mean \1?", advice)
    return (advice[:1].lower() + advice[1:]).rstrip(". ")


def _fragment(error: BaseException, code: str) -> str:
    """The piece of a query that failed, as Spark's Python side tells it of its own errors."""
    with suppress(Exception):  # the JVM may be gone
        if getattr(error, "getCondition", str)() == code:
            for context in getattr(error, "getQueryContext", list)():
                if context.contextType().name == "SQL":
                    return str(context.fragment())
    return ""


def _of_file(condition: Condition, inner: list[Condition], java: list[Thrown], place: str) -> Cause:
    """The cause of a file that Spark could not read: which one, and why."""
    named = _FILE.search(condition.message)
    file = _path(named["file"]) if named else "a file"
    match condition.code.rpartition(".")[2]:
        case "FILE_NOT_EXIST":
            return Cause(_UNREADABLE, f"file {file} is not there{place}", _GONE_HINT)
        case "PARQUET_COLUMN_DATA_TYPE_MISMATCH":
            types = _MISMATCH.search(condition.message)
            reason, hint = "a column has another type", _TYPE_HINT
            if types:
                reason = f"column '{types['column']}' is {types['found']}, not {types['wanted']}"
        case _:
            reason, hint = _reason(inner, java), _FILE_HINT
    return Cause(_UNREADABLE, f"file {file} cannot be read: {reason}{place}", hint)


def _reason(inner: list[Condition], java: list[Thrown]) -> str:
    malformed = next((one for one in inner if one.code.startswith(_MALFORMED)), None)
    if malformed is not None:
        record = malformed.message.partition("\n")[0].partition(": ")[2].rstrip(". ")
        return f"it has a malformed record{'' if record == '[null]' else f' {record}'}"
    for one in reversed(java):
        for pattern, reason in _REASONS:
            if pattern.search(f"{one.kind}: {one.message}"):
                return reason
    last = next((one for one in reversed(java) if one.message), None)
    return "it is damaged" if last is None else f"it is damaged ({_first_line(_named(last))})"


def _first_line(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= _REASON_MAX else f"{line[: _REASON_MAX - 1]}…"


# -- errors of Java and of the operating system ----------------------------------------------------

_SPACE: Final = re.compile(
    r"No space left on device|Disk quota exceeded|not enough space", re.IGNORECASE
)
_RIGHT: Final = re.compile(r"Permission denied|AccessDenied|AccessControl|Operation not permitted")
_READ_ONLY: Final = re.compile(r"Read-only file system")
_NO_FOLDER: Final = re.compile(
    r"Parent path is not a directory|[Nn]ot a directory|NotADirectory",
)
_NOT_MADE: Final = re.compile(r"Mkdirs failed to create")
_NOT_THERE: Final = re.compile(
    r"No such file|FileNotFound|NoSuchFile|does not exist|No FileSystem for scheme"
)
_NO_ANSWER: Final = re.compile(
    r"Connection refused|UnknownHost|Connection reset|timed out|Name or service not known"
    r"|Temporary failure in name resolution"
)
_LATE: Final = re.compile(r"Python worker failed to connect")
_ENDED: Final = re.compile(r"Python worker exited unexpectedly")
_MEMORY: Final = re.compile(r"OutOfMemoryError|MemoryError|GC overhead limit")

_PATH_PATTERNS: Final = (
    re.compile(r'inode="([^"\n]+)"'),
    re.compile(r"'(/[^'\n]+|[\w+.-]+:/[^'\n]+)'"),
    re.compile(
        r"(?:File |directory: |create |^|: )((?:[\w+.-]+:)?/[^\n]*?)"
        r"(?= does not exist| \(|: |\Z)"
    ),
)
"""A path in a message of Python's, or of Java's."""

_SYSTEM: Final[tuple[tuple[re.Pattern[str], str, str, str], ...]] = (
    (_SPACE, "no space is left on the disk of {}", "no space is left on the disk",
     "free some space, or give the application a larger disk"),
    (_READ_ONLY, "{} cannot be written: its file system is read-only", "",
     "mount it for writing, or choose another path"),
    (_RIGHT, "no permission for {}", "",
     "give the application's user the right to read and write it"),
    (_NO_FOLDER, "{} is a file, and a folder is needed there", "",
     "choose another path, or move the file away"),
    (_NOT_MADE, "folder {} cannot be made", "",
     "look at the path, and give the application's user the right to write there"),
    (_LATE, "", "Spark's Python process did not start in time",
     "look whether the machine has enough processors and memory for what runs on it"),
    (_ENDED, "", "Spark's Python process ended while it ran a function",
     "look whether it runs out of memory, or what native code the function calls"),
    (_MEMORY, "", "", "give the process more memory (spark.driver.memory)"),
    (_NO_ANSWER, "", "", "look whether the service runs, and whether it can be reached from here"),
)  # fmt: skip
"""By a pattern: a sentence with the path, one without, and what to do. Where there is no sentence
it is the error's own class and message."""

_NOT_THERE_HINT: Final = "put it back, or correct the path"


_PATTERN: Final = "at java.base/java.util.regex.Pattern$"
_PATTERN_TOO_DEEP: Final = Cause(
    "",
    "StackOverflowError: a regular expression repeats a choice, such as (a|b)*, more often than"
    " Java's stack has room for, on a long text",
    "write [ab]* or (a|b)*+ in its place, or limit the text before",
)
_TOO_DEEP: Final = Cause(
    "",
    "StackOverflowError: an expression or a value is nested more deeply than Java's stack has"
    " room for",
    "make a query of fewer nested expressions, or give threads a larger stack"
    " (-Xss16m in spark.driver.extraJavaOptions)",
)


def _of_system(kind: str, message: str) -> Cause | None:
    """The cause of an error of the operating system or of a service; None for any other."""
    text = f"{kind}: {message}" if message else kind
    path = next((_path(m[1]) for p in _PATH_PATTERNS if (m := p.search(message))), "")
    for pattern, with_path, without, hint in _SYSTEM:
        if pattern.search(text):
            sentence = with_path.format(path) if path and with_path else without
            return Cause("", sentence or text, hint)
    # Only with a path: columns and tables of other systems "do not exist", too.
    if path and _NOT_THERE.search(text):
        return Cause("", f"{path} is not there", _NOT_THERE_HINT)
    return None


def _in_java(text: str) -> Cause | None:
    found = [one for one in thrown(text) if one.message] or thrown(text)
    if not found:
        return None
    if any(one.kind.endswith(".StackOverflowError") for one in found):
        return _PATTERN_TOO_DEEP if _PATTERN in text else _TOO_DEEP
    # Outwards: the innermost may be the end of a stream, and one around it name the path.
    for one in reversed(found):
        cause = _of_system(one.kind.rpartition(".")[2], one.message)
        if cause is not None:
            return cause
    return Cause("", _named(found[-1]), LOGGED_HINT)


def _named(error: Thrown) -> str:
    name = error.kind.rpartition(".")[2]
    message = _LOCAL.sub("", error.message)
    return f"{name}: {message}" if message else name


# -- any other -------------------------------------------------------------------------------------


def _of_itself(error: BaseException, text: str) -> Cause:
    """An error of this process, by its own class and message."""
    if isinstance(error, MissingPackage):
        return Cause("", text, "", "invalid_usage")
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    coded = _CODED.match(line)
    if coded is not None:
        return Cause(coded["code"], without_state(coded["message"]).rstrip(";. "), LOGGED_HINT)
    frames = tuple(called_frames(frames_of(error.__traceback__)))
    cause = _of_exception(Raised(type(error).__name__, line, frames))
    return replace(cause, hint=_MODULE_HERE_HINT) if cause.hint == _MODULE_HINT else cause


# -- the text --------------------------------------------------------------------------------------

_VARYING: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(r" at 0x[0-9a-fA-F]+"), ""),
    (re.compile(r"/(?:_temporary|\.staging-\d+|\.spark-staging-[\w-]+)(?:/[^\s'\",;:)]*)?"), ""),
    (re.compile(r"\b(tmp|temp|blockmgr-|spark-)(?:[a-z0-9_]{8}|[0-9a-f]{8}-[0-9a-f-]{27})\b"),
     r"\1…"),
    (re.compile(r"\s*\[(?:id|queryId) = [\w-]+, (?:runId|run) = [\w-]+\]"), ""),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "…"),
    (re.compile(r"@[0-9a-f]{5,16}\b"), ""),
    (re.compile(r"\bcalling (?:o\d+|z:[\w.]+)\.(?=\w)"), "calling "),
    (re.compile(r"\b(task|stage|attempt|TID) \d+(?:\.\d+)?"), r"\1 …"),
    (re.compile(r"\battempt_\d+_\w+"), "attempt…"),
)  # fmt: skip
"""Pieces of a text that differ between two attempts, and their replacements."""


def without_run_ids(text: str) -> str:
    """The text without what differs from one attempt to the next though the error is the same.

    That is: ids of queries and runs, numbers of stages and tasks, addresses of objects, names of
    temporary files.
    """
    for pattern, place in _VARYING:
        text = pattern.sub(place, text)
    return text


def _cleaned(cause: Cause) -> Cause:
    message = redact_option("", without_run_ids(" ".join(cause.message.split())))
    if len(message) > _LENGTH_MAX:
        message = message[: _LENGTH_MAX - 1] + "…"
    return Cause(cause.code, message, redact_option("", cause.hint), cause.kind)


def _path(path: str) -> str:
    """A path in quotes; Spark writes local ones as URLs, with `%20` for a space."""
    path = path.strip()
    if path.startswith("file:///"):
        path = unquote(path.removeprefix("file://"))
    return f"'{path.removeprefix('file:')}'"


def without_state(message: str) -> str:
    """A message without the SQLSTATE that Spark puts at its end."""
    return re.sub(r"\s*SQLSTATE: \w+\s*$", "", message)
