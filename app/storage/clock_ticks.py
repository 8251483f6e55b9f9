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
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from shardline.datasource.clock import Clock
from shardline.datasource.shared_threads import SharedThreads

__all__ = ["TickOutcome", "ticking"]

_log = logging.getLogger(__name__)

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
    is_over: bool = False

    def visit(self, run: Callable[[Callable[[], None]], None]) -> float:
        """Start a tick if it is due, and return the time until the next one, in ms."""
        now_ms = self.clock.now_ms()
        following_ms = now_ms // self.interval_ms * self.interval_ms + self.interval_ms
        # A clock that was set back must not stop the ticks.
        due = now_ms >= self.due_ms or self.due_ms > following_ms
        if due:
            # Also if the last one goes on still, which then misses this one: a time that is over
            # would have the ticker look again and again until it ends.
            self.due_ms = following_ms
            if self.busy.acquire(blocking=False):
                run(self._run)
        return max(1, min(following_ms, self.due_ms) - now_ms)

    def _run(self) -> None:
        """Tick, unless the source has ended."""
        try:
            if not self.is_over and self.tick() == "again":
                self.due_ms = self.clock.now_ms() + min(_AGAIN_MS, self.interval_ms)
                self.wake()
        except Exception:  # noqa: BLE001 - the others go on
            _log.exception("a tick failed")
        finally:
            self.busy.release()


_TICKER: Final = SharedThreads("ticks of sources")


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
