"""Fuel: what the writers of a process may still spend on merging after their appends.

A commit adds fuel in proportion to what it appended, and a merge uses up what it reads. So merging
costs a writer a fixed multiple of its own writing, however much others have left undone, and no
single commit more than the tank holds. A process starts with a full tank: one that appends once and
ends does its share, too.

Invariants:
    -capacity <= fuel <= capacity; what is less than zero is owed.
    At most one thread of a process has the tank.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Tank"]


@dataclass(slots=True)
class Tank:
    """The fuel for one shard in one process, in bytes of merged input."""

    _fuel: int | None = None  # None: full, whatever it holds
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def add(self, more: int, capacity: int) -> None:
        """Fill in `more`, up to `capacity`."""
        with self._lock:
            held = capacity if self._fuel is None else self._fuel
            self._fuel = min(held + more, capacity)

    @property
    def fuel(self) -> int:
        """What is left."""
        with self._lock:
            return self._fuel or 0

    def use(self, spent: int) -> None:
        """Take `spent` out."""
        with self._lock:
            self._fuel = (self._fuel or 0) - spent

    def penalise(self, capacity: int) -> None:
        """Owe a whole tank: after a failure, so that it is not repeated at every commit."""
        with self._lock:
            self._fuel = -capacity

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Whether this thread is the one that merges; the others do not wait for it."""
        mine = self._turn.acquire(blocking=False)
        try:
            yield mine
        finally:
            if mine:
                self._turn.release()
