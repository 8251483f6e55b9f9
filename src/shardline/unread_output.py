"""A command whose output nobody reads any more ends silently, as if SIGPIPE had ended it.

    shardline help | head -1

Python ignores SIGPIPE, so that each command would end with a traceback, or with a status that
means something else. The signal itself stays ignored: it would end a runtime at once, also for a
connection that a client has closed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, TextIO

__all__ = ["UNREAD", "end_unread", "ends_when_unread"]

UNREAD: Final = 128 + signal.SIGPIPE
"""The exit status, which a shell shows for a program that SIGPIPE has ended."""


@contextmanager
def ends_when_unread() -> Iterator[None]:
    """End the process silently if a write to its output fails because nobody reads that.

    Raises:
        SystemExit: With the status `UNREAD`.
    """
    try:
        try:
            yield
        finally:
            # Here and not when Python ends, where it would complain by itself.
            _flush(sys.stdout)
    except BrokenPipeError:
        # Any connection may break like that, and what is to be said of those must not be lost.
        if not _is_unread():
            raise
        end_unread()


def _flush(output: TextIO | None) -> None:
    """Flush standard output; None if the process was started without one (`>&-`)."""
    if output is not None:
        output.flush()


def end_unread() -> NoReturn:
    """End the process silently, with the status `UNREAD`."""
    # What is left in the buffer would fail once more, and be complained about, at Python's end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(UNREAD)


def _is_unread() -> bool:
    """True if standard output is a pipe or a socket whose other end is closed."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
