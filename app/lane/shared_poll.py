"""One look at the store for all who ask for one at the same time.

    look = SharedLook(lambda: …)       what it does; an error is an answer too
    look.fresh()                       done by one of those who wait, for all of them

Invariants:
    An answer is no older than the question: it is that of a look which has begun after the call.
    One look is under way at a time, and nobody waits for more than two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from shardline.datasource.errors import Indeterminate, ShardError

__all__ = ["SharedLook"]


class SharedLook:
    """See the module. Safe to use from any thread."""

    def __init__(self, look: Callable[[], None]) -> None:
        """Nothing is looked at yet."""
        self._look = look
        self._changed = threading.Condition()
        self._begun = 0
        self._done = 0
        self._error: ShardError | None = None

    def fresh(self) -> None:
        """Look, or take the answer of somebody's look that has begun since.

        Raises:
            ShardError: What the look has raised.
        """
        with self._changed:
            wanted = self._begun + 1
            while self._done < wanted and self._begun > self._done:
                self._changed.wait()
            if self._done >= wanted:
                if self._error is not None:
                    raise self._error
                return
            self._begun += 1
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
