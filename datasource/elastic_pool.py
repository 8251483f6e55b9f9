"""An elastic pool runs calls in one thread, and in more while that one waits for something.

    pool = ElasticPool("advancer", 8, clock)
    pool.submit(call)
    results = pool.map(look, names)
    pool.shutdown()

Most calls here are requests of a store. One in the cloud takes 50 ms and no processor, so many at
once are needed; one on a disk answers in the time of a system call, and then a second thread makes
all of them slower: each request lets the interpreter's lock go, and the threads hand it to each
other dozens of times for each call. A pool of a fixed size is right for one of the two only. Here a
thread joins when all others have been at their calls for longer than `_WAITS_MS`, and stays while
its own take that long.

Invariants:
    A call that hangs delays all others together by `_WAITS_MS`, until as many hang as there may be
        threads.
    While a call is in the queue, there is a thread that watches it, or as many as there may be are
        at their calls.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from shardline.datasource.background import BackgroundThread
from shardline.datasource.clock import Clock

__all__ = ["ElasticPool"]

_log = logging.getLogger(__name__)

_WAITS_MS: Final = 10.0
"""A call that takes longer than this waits: a disk answers in less, nothing in the cloud does. More
than the 5 ms after which the interpreter takes its lock from a thread that computes."""

_IDLE_MAX: Final = 2
"""Threads that stay when there is nothing to do: one to work and one to watch it."""

A = TypeVar("A")
B = TypeVar("B")


class ElasticPool:
    """See the module. May be shared between threads."""

    def __init__(self, name: str, most: int, clock: Clock) -> None:
        """Make a pool without threads.

        Args:
            name: Of its threads, for people.
            most: Most calls under way at once.
            clock: Tells how long calls take.
        """
        self._name = name
        self._most = most
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[Callable[[], object]] = deque()
        self._threads: dict[str, BackgroundThread] = {}
        self._begun_ms: dict[str, float] = {}
        self._made = self._watching = self._idle = 0
        self._is_closed = False

    def submit(self, call: Callable[[], object]) -> None:
        """Run `call` soon, in a thread of the pool; what it raises is logged.

        Raises:
            RuntimeError: The pool was shut down.
        """
        with self._changed:
            if self._is_closed:
                raise RuntimeError(f"the pool '{self._name}' was shut down")
            self._queue.append(call)
            self._ensure_watched()

    def map(self, function: Callable[[A], B], given: Iterable[A]) -> list[B]:
        """Results of `function`, in the order of what is given; waits for all.

        Raises:
            Exception: What a call has raised, the first in that order.
        """
        items = list(given)
        results: list[Any] = [None] * len(items)
        errors: dict[int, BaseException] = {}
        left, lock, done = len(items), threading.Lock(), threading.Event()

        def run(number: int) -> None:
            nonlocal left
            try:
                results[number] = function(items[number])
            except BaseException as error:  # noqa: BLE001 - the caller's
                errors[number] = error
            with lock:
                left -= 1
                if not left:
                    done.set()

        for number in range(len(items)):
            self.submit(lambda number=number: run(number))  # type: ignore[misc]
        if items:
            done.wait()
        if errors:
            raise errors[min(errors)]
        return results

    def shutdown(self) -> None:
        """End the threads once the queue is empty; waits for that, but not for its own thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            threads = list(self._threads.values())
        for thread in threads:
            thread.join()

    def _ensure_watched(self) -> None:
        """See to it that a thread takes what is queued, or watches whoever is to take it."""
        if self._watching:
            return
        if self._idle:
            self._changed.notify()
        elif len(self._threads) < self._most:
            self._made += 1
            name = f"{self._name}_{self._made}"
            self._threads[name] = BackgroundThread(name, partial(self._run, name))
            self._threads[name].start()

    def _run(self, name: str) -> None:
        took_ms = 0.0
        with self._changed:
            while self._is_needed():
                if not self._queue:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                    took_ms = 0.0
                    continue
                ahead_ms = 0.0
                # A call that waits is followed at once by the next: the others do not wait for it.
                if self._begun_ms and took_ms <= _WAITS_MS:
                    newest_ms = max(self._begun_ms.values())
                    ahead_ms = newest_ms + _WAITS_MS - self._clock.elapsed_ms()
                if ahead_ms > 0:
                    self._watching += 1
                    self._changed.wait(ahead_ms / 1000)
                    self._watching -= 1
                else:
                    took_ms = self._take(name)
            del self._threads[name]

    def _is_needed(self) -> bool:
        return bool(self._queue) or not (self._is_closed or self._idle >= _IDLE_MAX)

    def _take(self, name: str) -> float:
        """Run the first call, without the lock; returns how long it took, in ms."""
        call = self._queue.popleft()
        self._begun_ms[name] = self._clock.elapsed_ms()
        if self._queue:
            # Before the call, which may hang.
            self._ensure_watched()
        self._changed.release()
        try:
            call()
        except BaseException:  # noqa: BLE001 - as if it had a thread of its own
            _log.exception("a call of the pool '%s' failed", self._name)
        finally:
            self._changed.acquire()
            begun_ms = self._begun_ms.pop(name)
        return self._clock.elapsed_ms() - begun_ms
