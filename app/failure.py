"""What to tell a person when Spark fails: our own error inside it, or its first line.

An error of a shard crosses from Python to the JVM and back as text inside a stack trace; the code
in brackets at its head is what survives (`datasource.errors`).
"""

from __future__ import annotations

import logging
import re

__all__ = ["explain"]

_log = logging.getLogger(__name__)

_OURS = re.compile(r"datasource\.errors\.(\w+): (\[[A-Z_]+\] [^\n]*)")
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")


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
    first = next((line for line in str(error).splitlines() if line.strip()), "no message")
    return 1, f"{type(error).__name__}: {first.strip()} — hint: the log has all of it"
