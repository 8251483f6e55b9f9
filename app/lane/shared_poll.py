"""A shared look reads the store once for all threads that ask at the same time.

Every object checks the fence before each of its commits; with a read of the store each, hundreds of
views would mostly read. (The same idea as a group commit in a database, for a read.)

    look = SharedPoll(lambda: …)       the read; an error is an answer, too
    look.fresh()                       one of the waiting threads reads, for all of them

Invariants:
    An answer is no older than the question: it is that of a read which began after the call.
    One read is under way at a time, and nobody waits for more than two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from shardline.datasource.errors import Indeterminate, ShardError

__all__ = ["SharedPoll"]


class SharedPoll:
    """See the module. Safe to use from any thread."""

    def __init__(self, look: Callable[[], None]) -> None:
        """Make a look that was not taken yet; `look` reads, and raises if that fails."""
        self._look = look
        self._changed = threading.Condition()
        self._begun = 0
        self._done = 0
        self._error: ShardError | None = None

    def fresh(self) -> None:
        """Read, or wait for the answer of another thread's read that began after this call.

        Raises:
            ShardError: The error of the read.
        """
        with self._changed:
            # Not the read that is under way: it may have seen the store before this call.
            wanted = self._begun + 1
            while self._done < wanted and self._begun > self._done:
                self._changed.wait()
            if self._done >= wanted:
                if self._error is not None:
                    raise self._error
                return
            self._begun += 1
        # The answer for the other threads if an error of another class is raised below: without it
        # they would take a read that broke off for one that succeeded.
        error: ShardError | None = Indeterminate("a look at the store broke off")
        try:
            self._look()
            error = None
        except ShardError as found:
            error = found
            raise
        finally:
            with self._changed:
                self._done, self._error = self._begun, error
                self._changed.notify_all()
