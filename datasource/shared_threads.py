"""Shared threads do what many objects have to do now and then, or when they are woken.

    turn = Turn(clock, act)         act() -> for how many ms to wait; None for never again
    TURNS.add(turn)                 the first turn comes at once
    turn.set()                      the next one comes soon
    TURNS.remove(turn)

A thread of its own for each object would be hundreds of threads that sleep, each with a connection
to the JVM of its own. Whoever goes by other times than those of a turn says so in `Served.visit`,
and has shared threads of its own.

One thread does all that is due, and another one joins it whenever something has waited for a while.
On a disk, where an append takes a millisecond, hundreds are done soon by a thread or two; more of
them would only take Python's lock from one another, and eight took twice the processor. On an
object store all are soon at work.

What a caller relies on, of turns:
    `act` is called by one thread at a time. What it raises is logged, and it is called again.
    What sets a turn while `act` runs causes another turn.
    Once `remove` has returned no turn begins; one that is under way may still go on.

Invariants:
    There is a thread only while there is somebody to serve.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, wait
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, Protocol, TypeVar

from typing_extensions import override

from shardline.datasource.background import DaemonPool, PeriodicThread
from shardline.datasource.clock import Clock

__all__ = ["THREADS", "TURNS", "Served", "SharedThreads", "Turn", "in_few_threads"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS: Final = 8
"""Most objects that act at once: each waits for a few requests of a store, of 50 ms each."""

_JOIN_MS: Final = 50.0
"""Another thread joins those at work when something still waits after so long."""

_TOGETHER_MS: Final = 20.0
"""All that sets a turn within so long asks for one: news of one moment are looked at together."""

_AGAIN_MS: Final = 1000.0
"""Pause after a turn that has raised."""

_LONG_MS: Final = 3_600_000.0
"""Pause while nothing is due: whatever changes that wakes the thread."""


class Served(Protocol):
    """An object that has something to do now and then.

    Attributes:
        clock: By which it knows when.
        is_over: True once it has nothing to do any more.
    """

    clock: Clock
    is_over: bool

    def visit(self, run: Callable[[Callable[[], None]], None]) -> float:
        """Hand what is due to `run`, which calls it in another thread.

        Returns:
            The time until there is something to do again, in ms, as far as that is known: whatever
            changes it wakes the threads.
        """
        ...


class SharedThreads:
    """A thread that visits all objects that are served, and others that act for them."""

    def __init__(self, name: str) -> None:
        """Nobody is served; `name` is that of the threads, for people."""
        self._name = name
        self._lock = threading.Lock()
        self._all: list[Served] = []
        self._thread: PeriodicThread | None = None

    def add(self, one: Served) -> None:
        """Serve it from now on.

        Raises:
            RuntimeError: No thread can be started; it is not served.
        """
        with self._lock:
            if self._thread is None:
                workers = _Workers(self._name, one.clock)
                thread = PeriodicThread(self._name, partial(self._round, workers), one.clock)
                try:
                    thread.start()
                except RuntimeError:
                    workers.close()
                    raise
                # Not before: who comes later would wait for a thread that never runs.
                self._thread = thread
            self._all.append(one)
            self._thread.wake.set()

    def remove(self, one: Served) -> None:
        """Serve it no more; may be repeated."""
        one.is_over = True
        self.wake()

    def wake(self) -> None:
        """Visit everybody again."""
        # Without the lock: whoever wakes may hold locks of its own.
        thread = self._thread
        if thread is not None:
            thread.wake.set()

    def _round(self, workers: _Workers) -> float | None:
        with self._lock:
            self._all = [one for one in self._all if not one.is_over]
            everybody = list(self._all)
            if not everybody:
                # Under the lock: who comes after this gets another thread.
                self._thread = None
        if not everybody:
            workers.close()
            return None
        pause_ms = min(one.visit(workers.due.append) for one in everybody)
        return max(1.0, min(pause_ms, workers.hand_over()))


class _Workers:
    """Threads that do what is due, in its order: no more of them than it takes.

    Attributes:
        due: What is to be done; what is added is begun by `hand_over`.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        """Start the first thread.

        Raises:
            RuntimeError: It cannot be started.
        """
        self.due: deque[Callable[[], None]] = deque()
        self._name = name
        self._clock = clock
        self._pool = DaemonPool(name, THREADS)
        self._pool.begin()
        self._lock = threading.Lock()
        self._at_work = 0
        self._is_asked = False  # one more thread, which has not begun
        self._joined_ms = -inf

    def hand_over(self) -> float:
        """Have a thread begin, or another one join; for how many ms that is enough."""
        with self._lock:
            if not self.due or self._at_work == THREADS:
                return inf
            left_ms = self._joined_ms + _JOIN_MS - self._clock.elapsed_ms()
            if (self._at_work or self._is_asked) and left_ms > 0:
                return left_ms
            self._joined_ms = self._clock.elapsed_ms()
            was_asked, self._is_asked = self._is_asked, True
        if was_asked:
            # It has not come: no thread could be started then.
            self._pool.grow()
        else:
            self._pool.run(self._work)
        return _JOIN_MS

    def close(self) -> None:
        """Let the threads end when nothing is due."""
        self._pool.close()

    def _work(self) -> None:
        with self._lock:
            self._is_asked, self._at_work = False, self._at_work + 1
        while True:
            with self._lock:
                if not self.due:
                    self._at_work -= 1
                    return
                act = self.due.popleft()
            try:
                act()
            except Exception:  # noqa: BLE001 - the others go on
                _log.exception("what was due has raised", extra={"context": {"of": self._name}})


def in_few_threads(pool: Executor, act: Callable[[T], object], items: Iterable[T]) -> None:
    """Call `act` for each item, in a thread of `pool`, or in more if that takes long.

    Returns when all calls have ended, and raises the first error of one of them, if there is one.
    """
    left = deque(items)
    errors: list[Exception] = []

    def work() -> None:
        while True:
            try:
                item = left.popleft()
            except IndexError:
                return
            try:
                act(item)
            except Exception as error:  # noqa: BLE001 - raised once the others have had their turn
                errors.append(error)

    at_work = [pool.submit(work)]
    while wait(at_work, timeout=_JOIN_MS / 1000 if left else None).not_done:
        if left and len(at_work) < THREADS:
            # Where no thread can be started now, those at work do it.
            with suppress(RuntimeError):
                at_work.append(pool.submit(work))
    for one in at_work:
        one.result()
    if errors:
        raise errors[0]


class Turn(threading.Event):
    """One object's turns; a signal, for those who set one when there are news."""

    def __init__(self, clock: Clock, act: Callable[[], float | None]) -> None:
        """A turn that nobody gives yet."""
        super().__init__()
        self.clock = clock
        self._act = act
        self._due_ms = -inf
        self._lock = threading.Lock()
        self._busy = threading.Lock()
        self.is_over = False

    @override
    def set(self) -> None:
        """Ask for a turn soon."""
        super().set()
        with self._lock:
            self._due_ms = min(self._due_ms, self.clock.elapsed_ms() + _TOGETHER_MS)
        TURNS.wake()

    def visit(self, run: Callable[[Callable[[], None]], None]) -> float:
        """Begin a turn that is due; see `Served`."""
        left_ms = self._due_ms - self.clock.elapsed_ms()
        if left_ms > 0:
            return min(left_ms, _LONG_MS)
        if self._busy.acquire(blocking=False):
            with self._lock:
                # What asks for a turn from now on asks for the one after this.
                self._due_ms = inf
            run(self._take)
        # The end of the turn tells when the next one is due.
        return _LONG_MS

    def _take(self) -> None:
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
            self._busy.release()
            TURNS.wake()


TURNS: Final = SharedThreads("turns")
"""Those of this process."""
