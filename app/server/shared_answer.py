"""Computes an answer once for all who ask for it at the same time.

    answer = SharedAnswer(compute)
    await answer.get()

What takes seconds of the processor must not be asked for a hundred times at once: whoever comes
while it is computed waits for the next computation, which all who have come by then share.

Invariants:
    An answer was computed after it was asked for: it is never older than the question.
    At most one computation runs, in one thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["SharedAnswer"]

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """See the module; for one event loop."""

    def __init__(self, compute: Callable[[], T]) -> None:
        """Compute nothing yet.

        Args:
            compute: Called in a thread; may raise, which all who share the answer get.
        """
        self._compute = compute
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The answer, computed from now on at the earliest."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
        # Shielded: a client that goes away must not take the answer from the others.
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await asyncio.to_thread(self._compute)
