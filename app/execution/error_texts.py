"""Takes texts of errors apart: Spark's conditions, tracebacks of Python, causes in Java.

An error crosses between Python and the JVM as text, often several times: a worker's traceback is in
an exception of the JVM, that is in a traceback of `foreachBatch`, that is in the exception of the
streaming query. Each crossing wraps it; none of them adds anything that a person could act on. So
the whole text is read for what is innermost.

    conditions(text)    [Condition("DIVIDE_BY_ZERO", "Division by zero. Use …", "10 / id")]
    raised(text)        [Raised("ValueError", "no such city", (Frame("prices.py", 7, "check"),))]
    thrown(text)        [Thrown("java.io.IOException", "No space left on device")]

All are in the order of the text, the innermost last. Pure.

Invariants:
    Wrappers are left out, and with them numbers that differ each time: of queries, tasks, calls.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Final

from shardline import datasource

__all__ = [
    "Condition",
    "Frame",
    "Raised",
    "Thrown",
    "called_frames",
    "conditions",
    "crossed",
    "describe_frame",
    "frames_of",
    "last_frames",
    "raised",
    "thrown",
    "users_frame",
]

_PACKAGE: Final = Path(datasource.__file__).parent.parent

_CODE: Final = re.compile(r"\[(?P<code>[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] ")
_STATE: Final = re.compile(r"\s*SQLSTATE: (\w{5})")
_CARETS: Final = re.compile(r"\n== SQL[^\n]*==\n(?P<line>[^\n]*)\n(?P<carets> *\^+)(?=\n|\Z)")
_PLAN: Final = re.compile(
    r"\n=== Streaming Query ===\n.*?(?=\nJVM stacktrace:|\n\s+at |\nCaused by: |\Z)", re.DOTALL
)
"""Spark's description of a failed query: its plan quotes the query's own text."""

_WRAPPING_CONDITIONS: Final = frozenset(
    {
        "FAILED_EXECUTE_UDF",
        "FOREACH_BATCH_USER_FUNCTION_ERROR",
        "FOREACH_USER_FUNCTION_ERROR",
        "PYTHON_DATA_SOURCE_ERROR",
        "PYTHON_EXCEPTION",
        "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR",
        "STREAM_FAILED",
        "TASK_WRITE_FAILED",
        "WRITING_JOB_ABORTED",
    }
)
"""Conditions that say only that something within has failed."""

_TRACEBACK: Final = "Traceback (most recent call last):\n"
_FRAME: Final = re.compile(
    r'^ +File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE
)
_RAISED: Final = re.compile(r"^(?P<kind>[^\W\d][\w.]*)(?:: (?P<message>[^\n]*))?$", re.MULTILINE)
_CROSSING: Final = ("py4j.", "pyspark.", "shardline.app.execution.batch_errors.")
"""Beginnings of the names of exceptions in which others cross over."""

_THROWN: Final = re.compile(
    r"^(?:Caused by: |: )?(?P<kind>(?:[a-z_]\w*\.)+[A-Z][\w$]*)"
    r"(?:: (?P<message>.*?))?(?=\n\s+at |\n\s*\.\.\. \d|\nCaused by: |\n\s*\n|\Z)",
    re.MULTILINE | re.DOTALL,
)
_LOST_TASK: Final = re.compile(r"Lost task [^\n(]*\(TID \d+\) \([^)\n]*\): ")
"""Comes before the exception of a task, inside of the message of a failed job."""

_WRAPPING_TEXT: Final = re.compile(
    r"Exception thrown in awaitResult|Job aborted|Task failed while writing rows"
    r"|Writing job aborted|Job \d+ cancelled|Lost task|\[[A-Z]"
    r"|An exception was raised by the Python Proxy"
)
_WRAPPING_KINDS: Final = (
    "CompletionException",
    "ExecutionException",
    "InvocationTargetException",
    "UncheckedExecutionException",
    "UndeclaredThrowableException",
)


@dataclass(frozen=True, slots=True)
class Condition:
    """An error by a condition of Spark.

    Attributes:
        code: Its name, without brackets.
        message: The message, without code and SQLSTATE; may have several lines.
        fragment: The piece of a query that has failed; "" if it is not known.
        state: Its SQLSTATE.
    """

    code: str
    message: str
    fragment: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in Python code: the file's path, its line from 1, and the function's name."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of Python: its class, the first line of its message, its frames."""

    kind: str
    message: str
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Thrown:
    """An exception of Java: the full name of its class, and its message, which may be empty."""

    kind: str
    message: str


def conditions(text: str) -> list[Condition]:
    """Spark's conditions in a text that are no wrappers.

    One counts if an SQLSTATE follows it, as it does for all of Spark's own: brackets with capital
    letters are in messages of others as well.
    """
    text = _PLAN.sub("", text)
    codes = list(_CODE.finditer(text))
    ends = [*(code.start() for code in codes), len(text)][1:]
    found = []
    for code, end in zip(codes, ends, strict=False):
        state = _STATE.search(text, code.end(), end)
        if state is not None and code["code"].partition(".")[0] not in _WRAPPING_CONDITIONS:
            message = text[code.end() : state.start()].strip()
            fragment = _fragment(text, state.end(), end)
            found.append(Condition(code["code"], message, fragment, state[1]))
    return found


def _fragment(text: str, start: int, end: int) -> str:
    """The piece of a query that Spark has marked with carets below it."""
    found = _CARETS.search(text, start, end)
    if found is None or found.start() > start + 2:
        return ""
    marked = slice(found["carets"].count(" "), len(found["carets"]))
    return found["line"][marked]


def raised(text: str) -> list[Raised]:
    """Exceptions of Python in a text's tracebacks, without those in which others cross over."""
    return [one for one in _every_raised(text) if not one.kind.startswith(_CROSSING)]


def crossed(text: str) -> list[Raised]:
    """Exceptions of Spark's own Python code in a text's tracebacks: some only carry others."""
    return [one for one in _every_raised(text) if one.kind.startswith("pyspark.")]


def last_frames(text: str) -> Sequence[Frame]:
    """The frames of the last traceback in a text, in whatever it has ended."""
    every = _every_raised(text)
    return every[-1].frames if every else ()


def _every_raised(text: str) -> list[Raised]:
    found = []
    for piece in text.split(_TRACEBACK)[1:]:
        frames = list(_FRAME.finditer(piece))
        last = _RAISED.search(piece, frames[-1].end() if frames else 0)
        if last is not None:
            message = _STATE.sub("", last["message"] or "").strip()
            places = tuple(Frame(f["file"], int(f["line"]), f["function"]) for f in frames)
            found.append(Raised(last["kind"], message, places))
    return found


def thrown(text: str) -> list[Thrown]:
    """Exceptions of Java in a text, without those that only wrap others."""
    found = []
    for one in _THROWN.finditer(_LOST_TASK.sub("\nCaused by: ", _PLAN.sub("", text))):
        message = (one["message"] or "").strip()
        wraps = one["kind"].endswith(_WRAPPING_KINDS) or _WRAPPING_TEXT.match(message)
        if not wraps and not one["kind"].startswith(_CROSSING):
            found.append(Thrown(one["kind"], message))
    return found


def frames_of(traceback: TracebackType | None) -> list[Frame]:
    """The frames of a traceback of this process, the innermost last."""
    return [Frame(f.filename, f.lineno or 0, f.name) for f in extract_tb(traceback)]


def users_frame(frames: Sequence[Frame]) -> Frame | None:
    """The user's own frame that is nearest to an error; None if there is none.

    A user's is neither Spark's nor ours; one of an installed package counts if there is no other,
    and none of Python itself: those are between ours and Spark's, too.
    """
    own = [frame for frame in frames if not (_is_machinery(frame) or _is_pythons(frame.file))]
    users = [frame for frame in own if not _is_package(frame.file)]
    return _last(users) or _last(own)


def called_frames(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames from the first one of ours or Spark's inwards.

    At the outer end of a traceback of this process are those who have called us: an error is not
    in their code.
    """
    first = next((n for n, frame in enumerate(frames) if _is_machinery(frame)), len(frames))
    return frames[first:]


def describe_frame(frame: Frame | None) -> str:
    """The function, file and line of a frame, to follow a message; "" for none."""
    if frame is None:
        return ""
    # Not the whole path: it is another one on each executor's machine.
    file = re.split(r"[/\\]", frame.file)[-1]
    place = f"{file}, line {frame.line}"
    if frame.function.startswith("<"):  # a lambda, a comprehension, or a module
        return f", in {place}"
    return f", in function '{frame.function}' ({place})"


def _last(frames: Iterable[Frame]) -> Frame | None:
    return next(reversed(list(frames)), None)


def _is_machinery(frame: Frame) -> bool:
    """True if a frame is Spark's or ours, wherever they are installed on an executor's machine."""
    file = frame.file
    if "/pyspark/" in file or "/py4j/" in file or file.startswith("<frozen"):
        return True
    if file.endswith((".pxi", ".pyx")):  # compiled: of pyarrow, most often
        return True
    _, inside, rest = file.rpartition(f"/{_PACKAGE.name}/")
    if inside and (_PACKAGE / rest).is_file():
        return True
    # In a clone the rooms are links: a job that is started by its path is not below the package.
    rooms = (_PACKAGE / room for room in ("app", "datasource", "jobs"))
    return any(Path(file).is_relative_to(room.resolve()) for room in rooms)


def _is_package(file: str) -> bool:
    """True if a file is of an installed package."""
    return re.search(r"[/\\](?:site|dist)-packages[/\\]", file) is not None


def _is_pythons(file: str) -> bool:
    """True if a file is of Python itself."""
    if _is_package(file):
        return False
    inside = re.search(r"/lib/python\d|\\Lib\\", file)
    return inside is not None or file.startswith(sysconfig.get_path("stdlib"))
