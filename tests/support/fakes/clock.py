"""Time and chance under a test's control."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

from typing_extensions import override

__all__ = ["ManualClock", "RecordingClock", "SeededIds", "SharedClock", "SkewedClock"]


class ManualClock:
    """A clock that moves only when told to, or when a test waits: waiting takes no real time.

    It stands still for threads in the background (daemons, as all of the product are): their timers
    never fire, and a test calls what they would have called. If their waits let time pass, a lease
    would run out between two lines of a test, whenever its keeper's thread got a turn.

    Both readings move together; `set_back` lets the wall clock jump on its own.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Lock()
        self._elapsed_ms = 0.0
        self._offset_ms = now_ms

    def now_ms(self) -> int:
        with self._lock:
            return int(self._offset_ms + self._elapsed_ms)

    def elapsed_ms(self) -> float:
        with self._lock:
            return self._elapsed_ms

    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        if threading.current_thread().daemon:
            return signal.wait()
        return self._let_pass(signal, timeout_ms)

    def _let_pass(self, signal: threading.Event, timeout_ms: float) -> bool:
        if signal.is_set():
            return True
        self.advance(timeout_ms)
        return signal.is_set()

    def advance(self, milliseconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._elapsed_ms += milliseconds

    def set_back(self, milliseconds: int) -> None:
        """Let the wall clock jump back, as a correction of a wrong clock does."""
        with self._lock:
            self._offset_ms -= milliseconds


@dataclass
class SkewedClock:
    """The clocks of one process, ahead of those of all others by `ahead_ms`; time passes alike."""

    others: ManualClock
    ahead_ms: int = 0

    def now_ms(self) -> int:
        return self.others.now_ms() + self.ahead_ms

    def elapsed_ms(self) -> float:
        return self.others.elapsed_ms() + self.ahead_ms

    def wait(self, signal: object, timeout_ms: float) -> bool:
        del signal
        self.others.advance(timeout_ms)
        return False


class SharedClock(ManualClock):
    """A manual clock that stands still for no thread: whoever waits lets time pass for all.

    For a test of threads that it waits for itself.
    """

    @override
    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        return self._let_pass(signal, timeout_ms)


class RecordingClock(SharedClock):
    """A shared clock that keeps the length of each wait, in milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    @override
    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        self.waited.append(timeout_ms)
        return super().wait(signal, timeout_ms)


class SeededIds:
    """Tokens and jitter that one seed repeats."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(seed)

    def token(self) -> bytes:
        with self._lock:
            return self._random.randbytes(16)

    def jitter(self) -> float:
        with self._lock:
            return self._random.random()
