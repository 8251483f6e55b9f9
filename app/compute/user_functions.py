"""Tells exceptions of a user's Python function at a row apart from failures of its process.

    error_raised_at_row(str(error)) -> "ValueError: no such city"     None: an error of another kind

Spark runs Python in processes beside its tasks: the user's functions, but also our own fetches and
writes of parts where Spark cannot do them. Every failure there reaches the driver as one condition
with a stack trace. A function that raises at a row does so for everybody who calls it with this
row, and that is data; a process that was killed, a part that is missing or a package that is not
installed says nothing about rows, and is tried again.

Invariants:
    An exception of our own code, of Spark's while it loads a function or talks to the JVM, or for
    want of memory, files, network or modules is never taken for a property of rows.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shardline import datasource

__all__ = ["error_raised_at_row"]

_END: Final = r"SQLSTATE: 38000|\n\s*at [\w.$]+\(|\n(?:JVM|Driver) stacktrace:|\nCaused by: |\Z"
"""The end of the Python process's own text, by the way on which it has reached the driver."""

_THROWN: Final = re.compile(
    rf"An exception was thrown from the Python worker:\s*(?P<trace>.*?)\s*(?={_END})", re.DOTALL
)
_FRAME: Final = re.compile(
    r'^ +File "(?P<file>[^"\n]+)", line \d+, in (?P<function>.+)$', re.MULTILINE
)
_RAISED: Final = re.compile(r"^(?P<kind>[^\W\d][\w.]*)(?:: (?P<message>[^\n]*))?$", re.MULTILINE)
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")

_TRANSIENT: Final = (
    GeneratorExit,
    ImportError,
    KeyboardInterrupt,
    MemoryError,
    OSError,
    SystemExit,
)
"""Exceptions of a process that lacks a resource or is ended: the same row may pass next time."""

_EVALUATION: Final = "process"
"""The function of Spark's worker in whose frames rows are evaluated; before it nothing is a row."""


def error_raised_at_row(text: str) -> str | None:
    """The class and message of an exception that a user's function raised at a row, or None.

    Args:
        text: The whole text of an error of Spark, with its stack traces.
    """
    for thrown in _THROWN.finditer(text):
        raised = _at_rows(thrown["trace"])
        if raised is not None:
            return raised
    return None


def _at_rows(trace: str) -> str | None:
    frames = [(found["file"], found["function"]) for found in _FRAME.finditer(trace)]
    raised = list(_exceptions(trace))
    # Any exception of the chain, not only the last: a user's function may wrap a lost connection.
    if not raised or any(_is_transient(kind) for kind, _ in raised):
        return None
    if any(kind.startswith("shardline.datasource.") for kind, _ in raised):
        return None
    if any(_is_ours(file) for file, _ in frames) or _is_of_worker(frames, raised[-1][0]):
        return None
    kind, message = raised[-1]
    return _ADDRESS.sub("", f"{kind}: {message}" if message else kind)


def _exceptions(trace: str) -> Iterator[tuple[str, str]]:
    """Class and first line of each exception of a chain, in the order of the text.

    An exception follows its frames, at the beginning of a line; its message may have more lines.
    """
    for piece in trace.split("Traceback (most recent call last):"):
        frames = list(_FRAME.finditer(piece))
        found = _RAISED.search(piece, frames[-1].end() if frames else 0)
        if found is not None:
            yield found["kind"], found["message"] or ""


def _is_transient(kind: str) -> bool:
    """True if the class of this name is one of those that say nothing about rows.

    Classes of modules that are not loaded in this process are unknown, and taken for a user's.
    """
    module, _, name = kind.rpartition(".")
    owner = sys.modules.get(module) if module else builtins
    found = getattr(owner, name, None)
    return isinstance(found, type) and issubclass(found, _TRANSIENT)


def _is_ours(file: str) -> bool:
    """True if a file is of our package, wherever that is installed on the executor's machine."""
    package = Path(datasource.__file__).parent
    _, inside, rest = file.rpartition(f"/{package.name}/")
    return bool(inside) and (package / rest).is_file()


def _is_of_worker(frames: list[tuple[str, str]], kind: str) -> bool:
    """True if Spark's own part of the process has failed: before it had rows, or at its socket."""
    if not frames:
        return False
    if frames[0][0].startswith("<frozen importlib") or any("pyarrow/ipc" in f for f, _ in frames):
        return True
    own = [(file, function) for file, function in frames if "/pyspark/" in file]
    if len(own) < len(frames):
        return bool(own) and own[0] == frames[0] and not _evaluates(own)
    return kind == "EOFError" or not _evaluates(own)


def _evaluates(own: list[tuple[str, str]]) -> bool:
    return any(file.endswith("/worker.py") and function == _EVALUATION for file, function in own)
