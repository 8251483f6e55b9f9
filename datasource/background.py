"""Background threads do work beside their owner, once or again and again, until they are stopped.

    thread = BackgroundThread("feed", run)                                   runs once
    thread = PeriodicThread("poll", step, clock)                             runs until stopped
    thread.start()
    thread.wake.set()                                                        run now
    thread.stop()
    pool = DaemonPool("starts", 4)
    pool.run(act)                                                    when a thread is free

A thread that is made by hand needs a flag that ends it, a signal that wakes it, a join that its own
function may call, and an answer to the question of what an exception does. Where the last one is
forgotten, the thread ends, nobody hears of it, and the lease that it renewed runs out later. Here
each of these has one answer.

What a caller relies on:
    A run that raises is logged with its cause, kept in `error` and given to `on_error`. It ends a
        `BackgroundThread`, whose work cannot be begun again from the outside; a `PeriodicThread`
        goes on after a pause, because a lease, a poll or a round is due whatever the last one met.
    `stop` sets the flag, then the signal, then waits. It may be repeated, before the start too, and
        called by the thread itself, which then does not wait.
    Once `stop` has returned True nothing of the thread runs any more, its last run included.

Threads are daemons, those of a pool too: one that hangs in a store or in Spark must not keep the
process. The standard library's executor waits for its threads when the interpreter ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

from shardline.datasource.clock import Clock
from shardline.datasource.errors import ShardError

__all__ = ["BackgroundThread", "DaemonPool", "PeriodicThread"]

_log = logging.getLogger(__name__)


_RETRY_MS: Final = 1000.0
"""The pause of a periodic thread after a step that met something unforeseen."""


class BackgroundThread:
    """A thread that runs a function once.

    Attributes:
        name: Of the thread, for people.
        stopping: Set once it is to end; the function looks at it, or waits for it.
        wake: Set when there is something to do, and by `stop`.
        error: What its last run raised; None if it did not.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[], None],
        *,
        stopping: threading.Event | None = None,
        wake: threading.Event | None = None,
        on_error: Callable[[Exception], object] = lambda _: None,
        make: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        """Make a thread that `start` starts.

        Args:
            name: Of the thread, for people.
            run: Called once, in the thread. What it raises ends the thread.
            stopping: Its flag, if the owner has one; it must not be set yet.
            wake: Its signal, if the owner has one.
            on_error: Called in the thread with what a run raised, after it was logged.
            make: Makes the thread: another class than the standard one, such as Spark's own.
        """
        self.name: Final = name
        self.stopping: Final = stopping or threading.Event()
        self.wake: Final = wake or threading.Event()
        self.error: Exception | None = None
        self._run = run
        self._on_error = on_error
        options: dict[str, Any] = {"target": self._main, "name": name, "daemon": True}
        self._thread = make(**options)

    @property
    def was_started(self) -> bool:
        """True from its start on, also after its end."""
        return self._thread.ident is not None

    @property
    def is_running(self) -> bool:
        """True from its start to its end."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    def cancel(self) -> None:
        """Ask the thread to end; does not wait."""
        # In this order: a thread that is woken looks at the flag.
        self.stopping.set()
        self.wake.set()

    def stop(self, timeout_ms: float | None = None) -> bool:
        """Ask the thread to end and wait for it; may be repeated, and called before `start`.

        Args:
            timeout_ms: How long to wait; None for as long as it takes.

        Returns:
            True if it has ended. False after `timeout_ms`, or if the thread itself asks.
        """
        self.cancel()
        return self.join(timeout_ms)

    def join(self, timeout_ms: float | None = None) -> bool:
        """Wait until the thread has ended, as `stop` does, without asking it to."""
        if not self.was_started:
            return True
        # Not by a thread for itself: it would wait for its own end.
        if self._thread is not threading.current_thread():
            self._thread.join(None if timeout_ms is None else timeout_ms / 1000)
        return not self._thread.is_alive()

    def _main(self) -> None:
        self._attempt(self._run)

    def _attempt(self, act: Callable[[], None]) -> None:
        """Call `act`; log, keep and report what it raises."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and reported
            self.error = error
            # Errors of ours are the world's: a store that does not answer. Others are bugs.
            level = logging.WARNING if isinstance(error, ShardError) else logging.ERROR
            context = {"thread": self.name}
            _log.log(level, "a background run failed", exc_info=error, extra={"context": context})
            try:
                self._on_error(error)
            except Exception:  # noqa: BLE001 - who listens must not end a thread that goes on
                _log.exception("an error was not taken", extra={"context": context})


class PeriodicThread(BackgroundThread):
    """A thread that runs a step, waits, and runs it again, until it is stopped or the step ends it.

    The pause after a step ends early when `wake` is set. It is cleared before each step: what sets
    it while a step goes on causes another step.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        clock: Clock,
        *,
        retry_ms: float = _RETRY_MS,
        first_ms: float = 0.0,
        last: Callable[[], object] | None = None,
        stopping: threading.Event | None = None,
        wake: threading.Event | None = None,
        on_error: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        """Make a thread that `start` starts.

        Args:
            name: Of the thread, for people.
            step: Called in the thread. Returns for how many ms to wait before the next call; None
                ends the thread.
            clock: Waits.
            retry_ms: The pause after a step that raised, > 0. 1 s.
            first_ms: The pause before the first step.
            last: Called once in the thread when it is stopped, after the last step, to finish what
                is left over; not if a step ended it.
            stopping: As of `BackgroundThread`.
            wake: As of `BackgroundThread`.
            on_error: As of `BackgroundThread`; called for each step that raised.
        """
        assert retry_ms > 0, name
        super().__init__(name, self._repeat, stopping=stopping, wake=wake, on_error=on_error)
        self._step = step
        self._clock = clock
        self._retry_ms = retry_ms
        self._first_ms = first_ms
        self._last = last
        self._pause_ms: float | None = None

    def _repeat(self) -> None:
        pause_ms: float | None = self._first_ms
        # Asked before each wait: a step may clear the signal, and with it one that `stop` set.
        while pause_ms is not None and not self.stopping.is_set():
            if pause_ms > 0:
                self._clock.wait(self.wake, pause_ms)
            # Before the flag is looked at: the signal of a `stop` that comes after this stays.
            self.wake.clear()
            if self.stopping.is_set():
                break
            self._pause_ms = self._retry_ms
            self._attempt(self._take_step)
            pause_ms = self._pause_ms
        if self._last is not None and pause_ms is not None:
            self._last()

    def _take_step(self) -> None:
        self._pause_ms = self._step()
        self.error = None


class DaemonPool:
    """Threads that are started when they are needed, and run what is handed over, in its order."""

    def __init__(self, name: str, threads: int) -> None:
        """A pool without threads.

        Args:
            name: Of its threads, for people.
            threads: How many at most.
        """
        self._name = name
        self._threads = threads
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._started = self._pending = 0

    def run(self, act: Callable[[], None]) -> None:
        """Call `act` in a thread of the pool; what it raises is logged.

        Raises:
            RuntimeError: The pool has no thread, and none can be started; `act` is not called.
        """
        with self._lock:
            if self._pending >= self._started < self._threads:
                try:
                    self._start_one()
                except RuntimeError:
                    if not self._started:
                        raise
                    _log.warning("a pool has fewer threads than it wants", exc_info=True)
            self._pending += 1
            self._queue.put(act)

    def grow(self) -> None:
        """Start a thread for what waits, where that was not possible when it was handed over."""
        with self._lock:
            if self._pending > self._started < self._threads:
                with suppress(RuntimeError):
                    self._start_one()

    def begin(self) -> None:
        """Start the first thread now, if there is none: later it might not be possible.

        Raises:
            RuntimeError: No thread can be started.
        """
        with self._lock:
            if not self._started:
                self._start_one()

    def wait_until_done(self, timeout_s: float) -> bool:
        """Wait for all that was handed over; False if it is not done in time."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._pending, timeout_s)

    def close(self) -> None:
        """Let idle threads end; those that work end when they are done, or with the process."""
        with self._lock:
            started = self._started
        for _ in range(started):
            self._queue.put(None)

    def _start_one(self) -> None:
        BackgroundThread(f"{self._name}-{self._started + 1}", self._work).start()
        # Behind the start: one that did not start would be counted on for ever.
        self._started += 1

    def _work(self) -> None:
        while (act := self._queue.get()) is not None:
            try:
                act()
            except Exception:  # noqa: BLE001 - what is broken must not cost a thread
                _log.exception("what a pool runs has raised", extra={"context": {"of": self._name}})
            finally:
                with self._idle:
                    self._pending -= 1
                    if not self._pending:
                        self._idle.notify_all()
