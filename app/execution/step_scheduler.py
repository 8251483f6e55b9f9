"""The step scheduler runs as many view steps at once as there are cores, the shortest first.

Views of one source all get new data at the same moment. Run at the same time on two cores, eight of
them all end late; one after the other, most end early and the last no later, the more so if long
ones come last (shortest job first). A blocked step must not block others: one that has run for
longer than `_PATIENCE_MS` is no longer counted, and one that has waited for so long goes on without
a slot.

    with STEP_SCHEDULER.turn(clock, threading.Event(), expected_ms=120):
        …                                            a step
    STEP_SCHEDULER.busy_ms(clock.elapsed_ms())       how long steps have kept all cores busy

Invariants:
    No step waits for longer than `_PATIENCE_MS`, whatever others do.
    Among steps of the same expected length, slots are given in the order of asking.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from shardline.datasource.clock import Clock

__all__ = ["STEP_SCHEDULER", "StepScheduler"]

_PATIENCE_MS: Final = 1_000.0
"""Longer than nearly all steps with little data; only for those does the order matter."""


class StepScheduler:
    """Slots for steps. May be shared between threads."""

    def __init__(self, at_once: int) -> None:
        """Make a scheduler with `at_once` slots."""
        self._at_once = at_once
        self._lock = threading.Lock()
        self._waiting: dict[threading.Event, float] = {}
        self._since: dict[threading.Event, float] = {}
        self._ended_ms = 0.0

    @contextmanager
    def turn(
        self, clock: Clock, given: threading.Event, expected_ms: float = 0.0
    ) -> Iterator[None]:
        """Wait for a slot, for at most `_PATIENCE_MS`, and keep it for the block.

        Args:
            clock: Clock of the wait.
            given: A new event; set when the slot is given. The caller may set it to end the wait.
            expected_ms: Expected duration of the step.
        """
        with self._lock:
            self._waiting[given] = expected_ms
            self._hand_out(clock.elapsed_ms())
        clock.wait(given, _PATIENCE_MS)
        with self._lock:
            # Still in the queue: it goes on without a slot, but its time counts like any other.
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
        """Time for which all slots have been taken so far; half of them for 2 s count as 1 s.

        A step that may be blocked counts for at most `_PATIENCE_MS`.

        Args:
            now_ms: Elapsed time of the clock that the steps use.
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


STEP_SCHEDULER: Final = StepScheduler(max(os.cpu_count() or 1, 2))
"""The one scheduler of this process: all its steps share the same cores."""
