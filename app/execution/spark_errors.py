"""What to tell a person when Spark fails: our own error inside it, or its first line.

    told(error)               printed as a sentence; the exit status of a job
    explain(error)            a sentence, and an exit status
    sentence(error, "CODE")   a sentence with a code, for who asked; `CODE` where it has none
    gist(error)               the one line of a foreign error that says what went wrong
    unreadable_part(error)    a sentence, if a part of a shard is missing or damaged

An error of a shard crosses from Python to the JVM and back as text inside a stack trace; the code
in brackets at its head is what survives (`shardline.datasource.errors`).
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
    "explain",
    "gist",
    "sentence",
    "told",
    "unreadable_part",
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
"""What to do about a part that cannot be read."""

LOGGED_HINT: Final = "the log has all of it"
"""Where to look if one line does not say enough."""


def told(error: BaseException) -> int:
    """Print what ended a job, in a sentence; its exit status: 130 for Ctrl-C, else as `explain`."""
    if isinstance(error, KeyboardInterrupt):
        sys.stdout.write("\nStopped. Start again to go on.\n")
        sys.stdout.flush()
        return 130
    if isinstance(error, ShardError):
        code, text = (2 if isinstance(error, InvalidUsage) else 1), str(error)
    else:
        code, text = explain(error)
    sys.stderr.write(f"error: {text}\n")
    return code


def unreadable_part(error: BaseException) -> str | None:
    """Which part of a shard a read could not read, in a sentence; None for every other error.

    A read whose lease was lost is another one: done again, it finds other parts.
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


def explain(error: BaseException) -> tuple[int, str]:
    """An exit status and one sentence for `error`, which is logged in full.

    Returns:
        2 if what was asked for cannot work, otherwise 1; and the sentence.
    """
    _log.error("the job failed", exc_info=error)
    found = _OURS.findall(str(error))
    if found:
        kind, message = found[-1]
        return (2 if kind == "InvalidUsage" else 1), _STATE.sub("", message)
    return 1, f"{gist(error)} — hint: {LOGGED_HINT}"


def sentence(error: BaseException, code: str) -> str:
    """One sentence with a code in brackets: our own error's, Spark's, or else `code`."""
    if isinstance(error, ShardError):
        return str(error)
    text = str(error)
    ours = [message for _, message in _OURS.findall(text)]
    found = ours or _SPARK.findall(text)[:1]
    if found:
        return str(_STATE.sub("", found[-1])).strip().rstrip(";")
    return f"[{code}] {gist(error)} — hint: {LOGGED_HINT}"


def gist(error: BaseException) -> str:
    """Class and message of a foreign error, in one line.

    What a Python function has raised in a worker of Spark's is at the end of a stack trace, and
    the line before it says only that something was raised; so does Py4J's first line, with a
    number that is another one each time.
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
