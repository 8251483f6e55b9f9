"""An effect pool runs what takes long, starts and stops of objects, beside the lane's thread.

The standard library's executor joins its threads when the interpreter ends: one stop of Spark that
hangs would keep the process for ever. These threads are daemons, are started when they are needed,
and end with the process: a stop that never returns keeps its thread, not the process.

Invariants:
    Effects begin in the order in which they were handed over.
    An effect never raises into the pool: it reports its outcome itself.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol

__all__ = ["EffectPool", "Pool"]

_log = logging.getLogger(__name__)


class Pool(Protocol):
    """Runs effects later; a simulation decides when."""

    def run(self, effect: Callable[[], None]) -> None:
        """Accept `effect`; returns at once."""
        ...

    def close(self) -> None:
        """Let idle threads end; those that work end with the process."""
        ...


class EffectPool:
    """At most `threads` effects at a time. The queue holds one effect per object at most."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._threads = threads
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._pending = 0

    def run(self, effect: Callable[[], None]) -> None:
        with self._lock:
            self._pending += 1
            fresh = self._started < min(self._threads, self._pending)
            self._started += fresh
            number = self._started
        self._queue.put(effect)
        if fresh:
            name = f"{self._name}-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def close(self) -> None:
        with self._lock:
            started = self._started
        for _ in range(started):
            self._queue.put(None)

    def _work(self) -> None:
        while (effect := self._queue.get()) is not None:
            try:
                effect()
            except Exception:  # noqa: BLE001 - one broken effect must not cost a thread
                _log.exception("an effect of the lane has raised")
            finally:
                with self._lock:
                    self._pending -= 1
