"""Steps of views take turns: as many at once as there are cores, first come, first served.

    with turn(clock):
        …                    a step

Views of one source all have news at the same moment. Run side by side on two cores, eight of them
all end late; one after the other, most end early and the last no later. So a step waits for its
turn. What is blocked must not block others: a step that has run for longer than `_PATIENCE_MS` is
no longer counted, and one that has waited for so long goes on without a turn.

Invariants:
    Nobody waits for longer than `_PATIENCE_MS`, whatever others do.
    Turns are given in the order in which they were asked for.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from datasource.clock import Clock

__all__ = ["Turns", "turn"]

_PATIENCE_MS: Final = 1_000.0
"""Longer than nearly all steps of little data, for which alone the order matters."""


class Turns:
    """Who may go ahead. May be shared between threads."""

    def __init__(self, at_once: int) -> None:
        """Let so many go ahead at once."""
        self._at_once = at_once
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._since: dict[threading.Event, float] = {}

    @contextmanager
    def turn(self, clock: Clock) -> Iterator[None]:
        """A turn, or the end of patience."""
        mine = threading.Event()
        with self._lock:
            self._waiting.append(mine)
            self._hand_out(clock.elapsed_ms())
        clock.wait(mine, _PATIENCE_MS)
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)
                self._since[mine] = clock.elapsed_ms()
        try:
            yield
        finally:
            with self._lock:
                del self._since[mine]
                self._hand_out(clock.elapsed_ms())

    def _hand_out(self, now_ms: float) -> None:
        counted = sum(now_ms - since_ms < _PATIENCE_MS for since_ms in self._since.values())
        while self._waiting and counted < self._at_once:
            first = self._waiting.popleft()
            self._since[first] = now_ms
            first.set()
            counted += 1


_TURNS: Final = Turns(max(os.cpu_count() or 1, 2))


def turn(clock: Clock) -> AbstractContextManager[None]:
    """A turn among all steps of this process, whose cores they share."""
    return _TURNS.turn(clock)
