"""Errors of running objects become sentences: what has failed, where, and what to do about it.

    print_job_error(error)          prints a sentence; returns the exit status of a job
    explain_error(error)            an exit status and a sentence; logs the whole error
    describe_failure(error)         a sentence, and a hint, for a status
    error_sentence(error, "CODE")   a sentence with a code, `CODE` if the error has none
    full_sentence(error)            a sentence with its hint, in one text
    error_line(error)               a sentence without a hint
    find_unreadable_part(error)     a sentence, if a part of a shard is missing or damaged

All but the last are of the error's cause (`causes`): the innermost error that a person can act on,
out of the stack traces of hundreds of lines in which Spark hands it over.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Final

from shardline.app.execution.causes import find_cause, whole_text, without_state
from shardline.app.logs import LOGGED_HINT, log_hint
from shardline.app.printable import printable
from shardline.datasource.errors import Corrupt, MissingBlob, ShardError

__all__ = [
    "UNREADABLE_HINT",
    "describe_failure",
    "error_line",
    "error_sentence",
    "explain_error",
    "find_unreadable_part",
    "full_sentence",
    "print_job_error",
]

_log = logging.getLogger(__name__)

_PARTS = re.compile(
    r"shardline\.datasource\.errors\.(?:MissingBlob|Corrupt): \[([A-Z_]+)\] ([^\n]*)"
)
_FILE = re.compile(
    r"\[FAILED_READ_FILE\.(\w+)\] [^\n]*?((?:file|[\w.+-]+):/[^\n]*?/part/[^\n]*?\.parquet)"
)
"""A part that Spark's own code has read: a user's function may read other files of Parquet."""

_LEASE_LOST = "LEASE_LOST"

UNREADABLE_HINT: Final = (
    "put the part back from a backup; fsck names all that are gone: nothing was skipped"
)
"""Hint for a part that cannot be read."""


def print_job_error(error: BaseException) -> int:
    """Print the error that ended a job, in a sentence, and return the job's exit status.

    The status is 130 for Ctrl-C, and that of `explain_error` otherwise.
    """
    if isinstance(error, KeyboardInterrupt):
        sys.stdout.write("\nStopped. Start again to go on.\n")
        sys.stdout.flush()
        return 130
    # Ours are sentences by themselves, and no news for the log.
    code, text = _sentence(error) if isinstance(error, ShardError) else explain_error(error)
    shown = printable(text, keep="\n\t")
    sys.stderr.write(f"error: {shown}\n")
    return code


def find_unreadable_part(error: BaseException) -> str | None:
    """Name the part of a shard that could not be read, in a sentence; None for any other error.

    A read whose lease was lost does not count: repeated, it plans other parts.
    """
    if isinstance(error, MissingBlob | Corrupt):
        return None if error.code == _LEASE_LOST else error.detail
    text = whole_text(error)
    for code, message in reversed(_PARTS.findall(text)):
        if code != _LEASE_LOST:
            return without_state(message).partition(" — hint: ")[0]
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
    return _sentence(error)


def _sentence(error: BaseException) -> tuple[int, str]:
    cause = find_cause(error)
    return (2 if cause.is_usage else 1), _with_hint(cause.sentence, cause.hint)


def describe_failure(error: BaseException) -> tuple[str, str]:
    """Return one sentence for `error`, and a hint what to do about it, which may be empty."""
    cause = find_cause(error)
    return cause.sentence, _named(cause.hint)


def error_sentence(error: BaseException, code: str) -> str:
    """Return one sentence with a code in brackets: our own error's, Spark's, or else `code`."""
    cause = find_cause(error)
    return _with_hint(f"[{cause.code or code}] {cause.message}", cause.hint)


def full_sentence(error: BaseException) -> str:
    """Return one sentence for `error`, with its hint."""
    return _sentence(error)[1]


def error_line(error: BaseException) -> str:
    """Return one sentence for `error`, without a hint."""
    return find_cause(error).sentence


def _with_hint(sentence: str, hint: str) -> str:
    return f"{sentence} — hint: {_named(hint)}" if hint else sentence


def _named(hint: str) -> str:
    """The hint; one that refers to the log names its file."""
    return log_hint() if hint == LOGGED_HINT else hint
