"""Steps of views take turns: as many at once as there are cores, the shortest first.

    with TURNS.turn(clock, threading.Event(), expected_ms=120):
        …                                  a step
    TURNS.busy_ms(clock.elapsed_ms())      for how long steps have kept all cores busy

Views of one source all have news at the same moment. Run side by side on two cores, eight of them
all end late; one after the other, most end early and the last no later, the more so if those that
take long come last. So a step waits for its turn. What is blocked must not block others: a step
that has run for longer than `_PATIENCE_MS` is no longer counted, and one that has waited for so
long goes on without a turn.

Invariants:
    Nobody waits for longer than `_PATIENCE_MS`, whatever others do.
    Of those that expect to take as long, turns are given in the order of asking.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from shardline.datasource.clock import Clock

__all__ = ["TURNS", "Turns"]

_PATIENCE_MS: Final = 1_000.0
"""Longer than nearly all steps of little data, for which alone the order matters."""


class Turns:
    """Who may go ahead. May be shared between threads."""

    def __init__(self, at_once: int) -> None:
        """Let so many go ahead at once."""
        self._at_once = at_once
        self._lock = threading.Lock()
        self._waiting: dict[threading.Event, float] = {}
        self._since: dict[threading.Event, float] = {}
        self._ended_ms = 0.0

    @contextmanager
    def turn(
        self, clock: Clock, given: threading.Event, expected_ms: float = 0.0
    ) -> Iterator[None]:
        """A turn, or the end of patience.

        Args:
            clock: Measures patience.
            given: New; is set when it is this one's turn. Who sets it ends the waiting.
            expected_ms: About how long the step takes.
        """
        with self._lock:
            self._waiting[given] = expected_ms
            self._hand_out(clock.elapsed_ms())
        clock.wait(given, _PATIENCE_MS)
        with self._lock:
            if self._waiting.pop(given, None) is not None:
                self._since[given] = clock.elapsed_ms()
        try:
            yield
        finally:
            with self._lock:
                now_ms = clock.elapsed_ms()
                self._ended_ms += _counted_ms(now_ms - self._since.pop(given))
                self._hand_out(now_ms)

    def busy_ms(self, now_ms: float) -> float:
        """How long all turns have been taken so far: two of two for a second are a second.

        Of a step that may be blocked only what it was counted for.

        Args:
            now_ms: By the clock of the turns.
        """
        with self._lock:
            going = (_counted_ms(now_ms - since_ms) for since_ms in self._since.values())
            return (self._ended_ms + sum(going)) / self._at_once

    def _hand_out(self, now_ms: float) -> None:
        counted = sum(now_ms - since_ms < _PATIENCE_MS for since_ms in self._since.values())
        while self._waiting and counted < self._at_once:
            first = min(self._waiting, key=self._waiting.__getitem__)
            del self._waiting[first]
            self._since[first] = now_ms
            first.set()
            counted += 1


def _counted_ms(took_ms: float) -> float:
    # Clocks of several runtimes need not agree.
    return min(max(took_ms, 0.0), _PATIENCE_MS)


TURNS: Final = Turns(max(os.cpu_count() or 1, 2))
"""Those of all steps of this process, whose cores they share."""
