"""The timestamp oracle: at which time a read is made.

    strict serializable   a read sees every write that was complete before it began, and no read
                          goes back behind one that ended before it began, whatever either reads
    serializable          a read sees one time, the latest that needs no waiting

A write to a source is complete once the source's upper is beyond its time. So a strict read is made
at the latest complete time of all sources that the objects rest on, or of the last read if that
was later; and waits until what it reads has got there.

Invariants:
    Times given to strict reads never decrease.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from shardline.datasource.frontier import TIME_MIN, Frontier

__all__ = ["Oracle"]


class Oracle:
    """Gives read times; shared between threads."""

    def __init__(self, last: int = TIME_MIN) -> None:
        """Begin at `last`: no strict read is made before it."""
        self._lock = threading.Lock()
        self._last = last

    def strict(self, roots: Iterable[Frontier]) -> int:
        """A time at which everything that was written before this call is seen.

        Args:
            roots: Uppers of all sources that the read rests on, no older than this call.
        """
        complete = [_latest(upper) for upper in roots]
        with self._lock:
            # A source that has ended says nothing about now.
            self._last = max([self._last, *(time for time in complete if time is not None)])
            return self._last

    @staticmethod
    def serializable(inputs: Iterable[Frontier]) -> int:
        """The latest time at which all of `inputs` can be read at once, given their uppers."""
        settled = [time for time in map(_latest, inputs) if time is not None]
        return min(settled, default=TIME_MIN)


def _latest(upper: Frontier) -> int | None:
    return None if upper.time is None else max(upper.time - 1, TIME_MIN)
