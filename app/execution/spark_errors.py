"""Spark errors are reduced to one sentence for people: our own error inside of Spark's, or a line.

An error of a shard crosses from Python to the JVM and back as text inside a stack trace of hundreds
of lines; the code in brackets at its head is what survives (`shardline.datasource.errors`).

    told(error)               prints a sentence; returns the exit status of a job
    explain(error)            an exit status and a sentence; logs the whole error
    sentence(error, "CODE")   a sentence with a code, `CODE` if the error has none
    gist(error)               the one line of a foreign error that names the cause
    unreadable_part(error)    a sentence, if a part of a shard is missing or damaged
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Final

from shardline.datasource.errors import Corrupt, InvalidUsage, MissingBlob, ShardError

__all__ = [
    "LOGGED_HINT",
    "UNREADABLE_HINT",
    "error_line",
    "error_sentence",
    "explain_error",
    "find_unreadable_part",
    "print_job_error",
]

_log = logging.getLogger(__name__)

_OURS = re.compile(r"shardline\.datasource\.errors\.(\w+): (\[[A-Z_]+\] [^\n]*)")
_SPARK = re.compile(r"\[[A-Z][A-Z_0-9.]*\] [^\n]*")
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n|\n)*(\w[^\n]*)")
_JAVA = re.compile(r"An error occurred while calling \S+\n: ([^\n]+)")

_PARTS = re.compile(
    r"shardline\.datasource\.errors\.(?:MissingBlob|Corrupt): \[([A-Z_]+)\] ([^\n]*)"
)
_FILE = re.compile(r"\[FAILED_READ_FILE\.(\w+)\] [^\n]*?((?:file|[\w.+-]+):/[^\n]*?\.parquet)")
_LEASE_LOST = "LEASE_LOST"

UNREADABLE_HINT: Final = "put the part back, or repair the shard with fsck: nothing was skipped"
"""Hint for a part that cannot be read."""

LOGGED_HINT: Final = "the log has all of it"
"""Hint for an error that was cut to one line."""


def print_job_error(error: BaseException) -> int:
    """Print the error that ended a job, in a sentence, and return the job's exit status.

    The status is 130 for Ctrl-C, and that of `explain_error` otherwise.
    """
    if isinstance(error, KeyboardInterrupt):
        sys.stdout.write("\nStopped. Start again to go on.\n")
        sys.stdout.flush()
        return 130
    if isinstance(error, ShardError):
        code, text = (2 if isinstance(error, InvalidUsage) else 1), str(error)
    else:
        code, text = explain_error(error)
    sys.stderr.write(f"error: {text}\n")
    return code


def find_unreadable_part(error: BaseException) -> str | None:
    """Name the part of a shard that could not be read, in a sentence; None for any other error.

    A read whose lease was lost does not count: repeated, it plans other parts.
    """
    if isinstance(error, MissingBlob | Corrupt):
        return None if error.code == _LEASE_LOST else error.detail
    text = str(error)
    for code, said in reversed(_PARTS.findall(text)):
        if code != _LEASE_LOST:
            return str(_STATE.sub("", said).partition(" — hint: ")[0])
    found = _FILE.search(text)
    if found is None:
        return None
    what = "is not there" if found[1] == "FILE_NOT_EXIST" else "is damaged"
    return f"part '{found[2]}' {what}"


def explain_error(error: BaseException) -> tuple[int, str]:
    """Return an exit status and one sentence for `error`, and log it in full.

    Returns:
        2 if the request cannot work as it is, otherwise 1; and the sentence.
    """
    _log.error("the job failed", exc_info=error)
    found = _OURS.findall(str(error))
    if found:
        kind, message = found[-1]
        return (2 if kind == "InvalidUsage" else 1), _STATE.sub("", message)
    return 1, f"{error_line(error)} — hint: {LOGGED_HINT}"


def error_sentence(error: BaseException, code: str) -> str:
    """Return one sentence with a code in brackets: our own error's, Spark's, or else `code`."""
    if isinstance(error, ShardError):
        return str(error)
    text = str(error)
    ours = [message for _, message in _OURS.findall(text)]
    found = ours or _SPARK.findall(text)[:1]
    if found:
        return str(_STATE.sub("", found[-1])).strip().rstrip(";")
    return f"[{code}] {error_line(error)} — hint: {LOGGED_HINT}"


def error_line(error: BaseException) -> str:
    """Return class and message of a foreign error, in one line.

    The error of a Python function in one of Spark's workers is at the end of a stack trace; the
    lines before it only say that something was raised. So does Py4J's first line, with a number
    that is another one each time, which would make equal errors look different.
    """
    text = str(error)
    raised = _PYTHON.findall(text)
    if raised:
        return str(_STATE.sub("", raised[-1]))
    thrown = _JAVA.match(text)
    if thrown is not None:
        return thrown[1]
    first = next((line for line in text.splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {first.strip()}"
