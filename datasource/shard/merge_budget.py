"""The merge budget limits how much the writers of a process merge after their appends.

Writers merge batches as they append, so that a shard stays fast to read without a separate process.
Without a limit, one unlucky commit would pay for all merging that others have left undone. So each
commit adds to the budget in proportion to what it appended, and a merge takes out what it reads:
merging costs a writer a fixed multiple of its own writing, and no single commit more than the
budget's capacity. (Differential dataflow calls this fuel.) A process starts with a full budget: one
that appends once and ends does its share, too.

Invariants:
    -capacity <= left <= capacity; a negative budget is a debt that later commits pay off.
    At most one thread of a process merges on a budget at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["MergeBudget"]


@dataclass(slots=True)
class MergeBudget:
    """The merge budget for one shard in one process, in bytes of merged input."""

    _left: int | None = None  # None: full; the capacity is not known before the first `add`
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def add(self, more: int, capacity: int) -> None:
        """Add `more` bytes, up to `capacity`."""
        with self._lock:
            held = capacity if self._left is None else self._left
            self._left = min(held + more, capacity)

    @property
    def left(self) -> int:
        """The bytes that are left; negative if they are owed."""
        with self._lock:
            return self._left or 0

    def use(self, spent: int) -> None:
        """Take `spent` bytes out; more than are left makes a debt."""
        with self._lock:
            self._left = (self._left or 0) - spent

    def penalise(self, capacity: int) -> None:
        """Set the debt to `capacity`, after a failed merge: not every commit should repeat it."""
        with self._lock:
            self._left = -capacity

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """True inside of the `with` if this thread may merge; others get False and do not wait."""
        mine = self._turn.acquire(blocking=False)
        try:
            yield mine
        finally:
            if mine:
                self._turn.release()
