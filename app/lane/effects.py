"""Threads for what takes long: effects run side by side, up to a bound, and nobody waits for them.

Threads are started when they are needed, and end with the process whatever they do: a stop that
never returns keeps its thread, not the process.

Invariants:
    What was handed over first begins first.
    An effect never raises into the pool: it tells of its outcome itself.
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
    """Runs effects, some time later."""

    def run(self, effect: Callable[[], None]) -> None:
        """Take `effect`; returns at once."""
        ...

    def close(self) -> None:
        """Let threads that are at rest end; those that work end with the process."""
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
