"""Finds the merges that are due after each append, without looking at every batch again.

A writer asks after each of its commits. Between two commits a trace mostly gets one batch more, and
a merge changes the newest ones: so the walk over the batches (`trace.DueWalk`) goes on from where
it was, or from a mark a little before. What remains proportional to the number of batches is to see
that they are the same ones, which costs nanoseconds for each and not a microsecond.

Invariant: the answer is that of `trace.due_merges` for the same trace, whatever was asked before,
and wherever that was interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.trace import Due, DueWalk, Trace

__all__ = ["MergeFinder"]

_NEWEST: Final = 256
"""Batches before the end at which a mark is made: merges after appends change fewer than that."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A walk that has looked at `batches`."""

    batches: tuple[Batch, ...]
    walk: DueWalk

    def is_start_of(self, batches: tuple[Batch, ...]) -> bool:
        # By identity mostly: a tuple compares its elements so before it asks them.
        return batches[: len(self.batches)] == self.batches


@dataclass(slots=True)
class MergeFinder:
    """The walk over the batches of one shard; safe for threads."""

    _factor: int = 0
    _early: _Mark | None = None
    _last: _Mark | None = None
    _totals: list[int] = field(default_factory=lambda: [0])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(
        self, trace: Trace, factor: int, weigh: Callable[[Batch], int]
    ) -> Sequence[tuple[Due, int]]:
        """The merges that are due, as `due_merges` has them, each with its weight.

        Args:
            trace: The shard's trace.
            factor: As for `due_merges`.
            weigh: The weight of a batch; the same function each time.
        """
        with self._lock:
            return self._found(trace.batches, factor, weigh)

    def _found(
        self, batches: tuple[Batch, ...], factor: int, weigh: Callable[[Batch], int]
    ) -> Sequence[tuple[Due, int]]:
        # A batch at the end that is empty may grow, and is another one then.
        end = len(batches)
        while end and batches[end - 1].is_empty:
            end -= 1
        walk = self._resumed(batches[:end], factor)
        del self._totals[walk.seen + 1 :]
        mark_at = end - _NEWEST
        if walk.seen >= mark_at or (self._early and mark_at < self._early.walk.seen + 4 * _NEWEST):
            mark_at = -1
        for batch in batches[walk.seen : end]:
            if walk.seen == mark_at:
                self._early = _Mark(batches[:mark_at], walk.copy())
            self._totals.append(self._totals[-1] + weigh(batch))
            walk.step(batch)
        self._last = _Mark(batches[:end], walk)
        totals = self._totals
        return [(due, totals[due.end] - totals[due.start]) for due in walk.due()]

    def _resumed(self, batches: tuple[Batch, ...], factor: int) -> DueWalk:
        """The walk over as many of the first batches as were looked at before."""
        # Taken out before its walk goes on, in place: an interrupt on the way, or a weigher that
        # raises, would leave a mark whose walk is ahead of its batches, and wrong answers for ever.
        last, self._last = self._last, None
        if factor != self._factor:
            last = self._early = None
            self._factor = factor
        if last is not None and last.is_start_of(batches):
            return last.walk
        if self._early is not None and self._early.is_start_of(batches):
            return self._early.walk.copy()
        self._early = None
        return DueWalk(factor)
