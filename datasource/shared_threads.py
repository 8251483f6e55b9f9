"""Turns let a few threads do what many objects have to do now and then, or when they are woken.

    turn = Turn(clock, act)         act() -> for how many ms to wait; None for never again
    TURNS.add(turn)                 the first turn comes at once
    turn.set()                      the next one comes soon
    TURNS.remove(turn)

A thread of its own for each object would be hundreds of threads that sleep, each with a connection
to the JVM of its own.

What a caller relies on:
    `act` is called by one thread at a time. What it raises is logged, and it is called again.
    What sets a turn while `act` runs causes another turn.
    Once `remove` has returned no turn begins; one that is under way may still go on.

Invariants:
    There is a thread only while there is somebody to serve.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import Final

from typing_extensions import override

from shardline.datasource.background import BackgroundThread, PeriodicThread
from shardline.datasource.clock import Clock

__all__ = ["TURNS", "Turn"]

_log = logging.getLogger(__name__)

_THREADS: Final = 8
"""Turns at once: each waits for a few requests of a store."""

_TOGETHER_MS: Final = 20.0
"""What sets a turn within so long is one turn: what happens at one moment is looked at together."""

_AGAIN_MS: Final = 1000.0
"""Pause after a turn that has raised."""


class Turn(threading.Event):
    """One object's turns; a signal, for those who set one when there are news."""

    def __init__(self, clock: Clock, act: Callable[[], float | None]) -> None:
        """A turn that nobody gives yet."""
        super().__init__()
        self.clock: Final = clock
        self._act = act
        self._due_ms = -inf
        self._lock = threading.Lock()
        self.busy: Final = threading.Lock()
        self.is_over = False

    @override
    def set(self) -> None:
        """Ask for a turn soon."""
        super().set()
        with self._lock:
            self._due_ms = min(self._due_ms, self.clock.elapsed_ms() + _TOGETHER_MS)
        TURNS.wake()

    @property
    def due_ms(self) -> float:
        """When the next turn is due, by the clock's `elapsed_ms`."""
        return self._due_ms

    def begin(self) -> None:
        """Count from now on what asks for the turn after this one."""
        with self._lock:
            self._due_ms = inf

    def take(self) -> None:
        """Act, and note when to act again."""
        pause_ms: float | None = _AGAIN_MS
        try:
            if not self.is_over:
                pause_ms = self._act()
        except Exception:  # noqa: BLE001 - the others go on
            _log.exception("a turn has failed")
        finally:
            with self._lock:
                if pause_ms is None:
                    self.is_over = True
                else:
                    self._due_ms = min(self._due_ms, self.clock.elapsed_ms() + pause_ms)
            self.busy.release()
            TURNS.wake()


class _Workers:
    """The threads that act; daemons, as one that hangs must not keep the process."""

    def __init__(self) -> None:
        """One thread at least, or there is nobody to act at all.

        Raises:
            RuntimeError: No thread can be started.
        """
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = self._waiting = 0
        self._lock = threading.Lock()
        self._start_one()

    def submit(self, act: Callable[[], None]) -> None:
        """Call `act` soon; it must not raise."""
        self._queue.put(act)
        with self._lock:
            if self._queue.qsize() <= self._waiting or self._started == _THREADS:
                return
        try:
            self._start_one()
        except RuntimeError:
            _log.warning("no more threads can be started: others act later", exc_info=True)

    def close(self) -> None:
        """Let threads end that have nothing to do."""
        for _ in range(self._started):
            self._queue.put(None)

    def _start_one(self) -> None:
        BackgroundThread(f"turn-{self._started}", self._work).start()
        with self._lock:
            self._started += 1

    def _work(self) -> None:
        while (act := self._next()) is not None:
            act()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            self._waiting += 1
        try:
            return self._queue.get()
        finally:
            with self._lock:
                self._waiting -= 1


class _Turns:
    """The thread, and those whom it serves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Turn] = []
        self._thread: PeriodicThread | None = None

    def add(self, turn: Turn) -> None:
        """Give turns from now on.

        Raises:
            RuntimeError: No thread can be started; it is not added.
        """
        with self._lock:
            if self._thread is None:
                workers = _Workers()
                thread = PeriodicThread("turns", partial(self._round, workers), turn.clock)
                try:
                    thread.start()
                except RuntimeError:
                    workers.close()
                    raise
                # Not before: who comes later would wait for a thread that never runs.
                self._thread = thread
            self._all.append(turn)
            self._thread.wake.set()

    def remove(self, turn: Turn) -> None:
        """Let no turn begin any more; may be repeated."""
        turn.is_over = True
        self.wake()

    def wake(self) -> None:
        """Look again at what is due."""
        # Without the lock: whoever sets a turn may hold locks of its own.
        thread = self._thread
        if thread is not None:
            thread.wake.set()

    def _round(self, workers: _Workers) -> float | None:
        with self._lock:
            self._all = [turn for turn in self._all if not turn.is_over]
            everybody = list(self._all)
            if not everybody:
                # Under the lock: who comes after this gets another thread.
                self._thread = None
        if not everybody:
            workers.close()
            return None
        return max(1.0, min(self._visit(workers, turn) for turn in everybody))

    @staticmethod
    def _visit(workers: _Workers, turn: Turn) -> float:
        """Begin a turn that is due; returns the time until the next one, in ms."""
        left_ms = turn.due_ms - turn.clock.elapsed_ms()
        if left_ms <= 0 and turn.busy.acquire(blocking=False):
            turn.begin()
            workers.submit(turn.take)
            return _LONG_MS
        # Of one that is busy its end tells.
        return _LONG_MS if left_ms <= 0 else min(left_ms, _LONG_MS)


_LONG_MS: Final = 3_600_000.0
"""Pause while nothing is due: whatever changes that wakes the thread."""

TURNS: Final = _Turns()
"""Those of this process."""
