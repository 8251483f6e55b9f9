"""Ticks move the uppers of all sources of a process with the clock while no rows arrive.

Without them a view over a quiet source would wait for its next row before it could answer at the
present time. A thread for each source would be hundreds of threads that sleep: one thread waits for
all of them.

    stop = ticking(clock, 1000, source.tick)
    stop()

A source whose tick could not be made yet returns "again", and is called again within the interval.

What a caller relies on:
    `tick` is called soon after each multiple of its interval, and again after "again", by a few
    threads that all sources share, and never twice at a time for one source: a slow call misses
    the next tick.
    Once `stop` has returned it is not called again; a call under way may still be.

Invariants:
    There is a thread only while there is a source that ticks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeAlias

from shardline.datasource.background import PeriodicThread
from shardline.datasource.clock import Clock

__all__ = ["TickOutcome", "ticking"]

_log = logging.getLogger(__name__)

_THREADS: Final = 8
"""Ticks at once: each waits for a few requests of a store."""

_AGAIN_MS: Final = 50
"""Pause before a tick that could not be made yet is tried again."""

TickOutcome: TypeAlias = Literal["done", "again"]
"""The outcome of a tick; "again" if it could not be made yet and may be in a moment."""


@dataclass(slots=True, eq=False)
class _TickedSource:
    """One source's ticks."""

    clock: Clock
    interval_ms: int
    tick: Callable[[], TickOutcome]
    wake: Callable[[], None]
    due_ms: int = 0
    busy: threading.Lock = field(default_factory=threading.Lock)
    ended: bool = False

    def run(self) -> None:
        """Tick, unless the source has ended."""
        try:
            if not self.ended and self.tick() == "again":
                self.due_ms = self.clock.now_ms() + min(_AGAIN_MS, self.interval_ms)
                self.wake()
        except Exception:  # noqa: BLE001 - the others go on
            _log.exception("a tick failed")
        finally:
            self.busy.release()


class _Ticker:
    """The thread, and the sources that tick."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[_TickedSource] = []
        self._thread: PeriodicThread | None = None

    def add(self, ticking: _TickedSource) -> None:
        with self._lock:
            self._all.append(ticking)
            if self._thread is None:
                pool = ThreadPoolExecutor(_THREADS, "tick")
                self._thread = PeriodicThread(
                    "ticks of sources",
                    partial(self._round, pool),
                    ticking.clock,
                )
                self._thread.start()
            self._thread.wake.set()

    def wake(self) -> None:
        """Look again at what is due."""
        with self._lock:
            if self._thread is not None:
                self._thread.wake.set()

    def remove(self, ticking: _TickedSource) -> None:
        ticking.ended = True
        with self._lock:
            if ticking in self._all:
                self._all.remove(ticking)
            if self._thread is not None:
                self._thread.wake.set()

    def _round(self, pool: ThreadPoolExecutor) -> float | None:
        with self._lock:
            everybody = list(self._all)
            if not everybody:
                # Under the lock: a source that comes after this gets another thread.
                self._thread = None
        if not everybody:
            pool.shutdown()
            return None
        return min(self._visit(pool, each) for each in everybody)

    @staticmethod
    def _visit(pool: ThreadPoolExecutor, ticking: _TickedSource) -> int:
        """Start a tick if it is due, and return the time until the next one, in ms."""
        now_ms = ticking.clock.now_ms()
        following_ms = now_ms // ticking.interval_ms * ticking.interval_ms + ticking.interval_ms
        # A clock that was set back must not stop the ticks.
        due = now_ms >= ticking.due_ms or ticking.due_ms > following_ms
        if due:
            # Also if the last one goes on still, which then misses this one: a time that is over
            # would have the ticker look again and again until it ends.
            ticking.due_ms = following_ms
            if ticking.busy.acquire(blocking=False):
                pool.submit(ticking.run)
        return max(1, min(following_ms, ticking.due_ms) - now_ms)


_TICKER: Final = _Ticker()


def ticking(clock: Clock, interval_ms: int, tick: Callable[[], TickOutcome]) -> Callable[[], None]:
    """Call `tick` after each multiple of `interval_ms`; call the function returned to end that.

    Args:
        clock: Of the driver.
        interval_ms: At least 1.
        tick: Called without arguments; what it raises is logged.
    """
    mine = _TickedSource(clock, interval_ms, tick, _TICKER.wake)
    _TICKER.add(mine)
    return lambda: _TICKER.remove(mine)
