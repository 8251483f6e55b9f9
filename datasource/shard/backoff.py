"""How long the loser of a race for the next record waits before it tries again."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from shardline.datasource.clock import Clock, IdGenerator

__all__ = ["Backoff"]


@dataclass(slots=True)
class Backoff:
    """Jittered pauses, only once two races in a row are lost; short, so that nobody starves.

    The winner of a race goes on at once. A loser that doubles its pauses would meet it ever more
    seldom; one whose pause is at most a few commits long gets its turn.
    """

    clock: Clock
    ids: IdGenerator
    longest_ms: int
    losses: int = 0

    def lost(self, took_ms: float) -> bool:
        """Pause after a lost race that took `took_ms`; whether there was a pause at all."""
        self.losses += 1
        if self.losses == 1:
            return False
        pause_ms = min(took_ms * min(self.losses, 8), self.longest_ms) * self.ids.jitter()
        self.clock.wait(threading.Event(), pause_ms)
        return True
