"""Backoff makes the loser of a race for the next record wait before it tries again.

Without it, writers of one shard that retry at once would keep making each other fail. With pauses
that double, as is usual, a slow writer would never win against a fast one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from shardline.datasource.clock import Clock, IdGenerator

__all__ = ["Backoff"]


@dataclass(slots=True)
class Backoff:
    """Jittered pauses, only once two races in a row are lost; short, so that nobody starves.

    The winner of a race goes on at once. A loser that doubles its pauses would try ever more
    seldom, and lose ever more; one whose pause is at most eight commits long wins some day.

    Attributes:
        clock: Waits.
        ids: Where the jitter comes from.
        longest_ms: No pause is longer.
        losses: How many races in a row were lost.
    """

    clock: Clock
    ids: IdGenerator
    longest_ms: int
    losses: int = 0

    def lost(self, took_ms: float) -> bool:
        """Pause after a lost race that took `took_ms`; True if there was a pause at all."""
        self.losses += 1
        if self.losses == 1:
            return False
        pause_ms = min(took_ms * min(self.losses, 8), self.longest_ms) * self.ids.jitter()
        self.clock.wait(threading.Event(), pause_ms)
        return True
