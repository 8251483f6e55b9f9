"""A description states the times of a batch of updates, and how far its history is compacted.

Readers rely on descriptions alone to read every update of a shard once (differential dataflow:
`Description`). A description `(lower, upper, since)` of a batch says three things:

    every update of the shard at a time `t` with `lower <= t < upper` is in this batch;
    nothing else is: rows of its parts at other times are not part of the batch, and a reader drops
    them (an append may cut a batch to a tighter interval than its parts were written for);
    times before `since` have been advanced to `since`: contents at any `as_of >= since` are exact,
    and finer history than that is gone.

It may not be concluded that there is any update in the interval, or that two batches with equal
descriptions hold the same rows. Only the consolidated contents are equal.
"""

from __future__ import annotations

import msgspec

from shardline.datasource.frontier import Frontier

__all__ = ["Description"]


class Description(msgspec.Struct, frozen=True, array_like=True):
    """An interval of times, and the since up to which its history is compacted.

    Attributes:
        lower: First time, inclusive.
        upper: First time after it, exclusive; None if nothing can come after (the empty frontier).
        since: Times before this one are advanced to it; None if the contents are gone.
    """

    lower: int
    upper: int | None
    since: int | None = 0

    @property
    def upper_frontier(self) -> Frontier:
        """`upper` as a frontier."""
        return Frontier(self.upper)

    @property
    def is_empty_interval(self) -> bool:
        """True if no time at all lies in the interval."""
        return self.upper is not None and self.upper <= self.lower

    def covers(self, time: int) -> bool:
        """True if `time` lies in the interval."""
        return self.lower <= time and (self.upper is None or time < self.upper)

    def overlaps(self, lower: int, upper: int | None) -> bool:
        """True if some time lies in both this interval and `[lower, upper)`."""
        below = upper is None or self.lower < upper
        above = self.upper is None or lower < self.upper
        return below and above
