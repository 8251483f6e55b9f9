"""The timestamp oracle chooses the time at which a query reads (Materialize: timestamp oracle).

Without it a user could write a row and not find it, because the view that is queried lags behind
its source; or could see a later state first and an earlier one after it.

    strict serializable   a read sees every write that was complete before it began, and no read
                          goes back behind one that ended before it began, whatever either reads
    serializable          a read sees one time, the latest that needs no waiting

A write to a source is complete once the source's upper is beyond its time. So a strict read is made
at the latest complete time of all sources that its objects depend on, or at that of the last strict
read if that was later; and it waits until what it reads has got there.

Invariants:
    Times given to strict reads never decrease.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from shardline.datasource.frontier import TIME_MIN, Frontier

__all__ = ["Oracle"]


class Oracle:
    """Chooses read times, for any thread. The last one is in memory only: see `Reads.begin`."""

    def __init__(self, last: int = TIME_MIN) -> None:
        """Begin at `last`: no strict read is made at an earlier time."""
        self._lock = threading.Lock()
        self._last = last

    def choose_strict(self, roots: Iterable[Frontier]) -> int:
        """A time at which everything that was written before this call is seen.

        Args:
            roots: Uppers of all sources that the read depends on, fetched after the query came:
                an older one could miss a write that was complete before it.
        """
        complete = [_latest(upper) for upper in roots]
        with self._lock:
            # A source that has ended (empty upper, None) has no latest time, and waits for nothing.
            self._last = max([self._last, *(time for time in complete if time is not None)])
            return self._last

    @staticmethod
    def choose_serializable(inputs: Iterable[Frontier]) -> int:
        """The latest time at which all of `inputs` can be read at once, given their uppers."""
        settled = [time for time in map(_latest, inputs) if time is not None]
        return min(settled, default=TIME_MIN)


def _latest(upper: Frontier) -> int | None:
    """The last time that is complete below `upper`; None if all times are."""
    return None if upper.time is None else max(upper.time - 1, TIME_MIN)
