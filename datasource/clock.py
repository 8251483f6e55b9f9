"""Clocks and id generators are the only source of time and randomness in the code.

Everything that needs the time, a pause or a fresh id takes a `Clock` or an `IdGenerator`. So a test
can move time, and one seed replays a whole simulated run; the linter bans `time.time`, `uuid4` and
their kin everywhere else.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Protocol

__all__ = ["Clock", "IdGenerator", "SystemClock", "SystemIds"]


class Clock(Protocol):
    """Time as one actor sees it. Clocks of two actors may disagree."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch; may jump in either direction."""
        ...

    def elapsed_ms(self) -> float:
        """Milliseconds since an arbitrary point; never goes back, and counts suspended time."""
        ...

    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        """Wait until `signal` is set or `timeout_ms` has passed; True if it was set."""
        ...


class IdGenerator(Protocol):
    """Source of everything random."""

    def token(self) -> bytes:
        """16 bytes that no other call, in any process, returns."""
        ...

    def jitter(self) -> float:
        """A number in [0, 1)."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000  # noqa: TID251 - this is the door

    def elapsed_ms(self) -> float:
        # CLOCK_MONOTONIC stops while a machine is suspended: a writer that slept for an hour would
        # believe that it has looked at the log's floor a moment ago, and not look again, though the
        # grace period that truncation gives it is over.
        return time.clock_gettime(_ELAPSED) * 1000.0  # noqa: TID251 - this is the door

    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        return signal.wait(timeout_ms / 1000.0)


_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemIds:
    """The operating system's randomness; safe to share between threads and across fork."""

    def token(self) -> bytes:
        return os.urandom(16)  # noqa: TID251 - this is the door

    def jitter(self) -> float:
        return random.random()  # noqa: S311, TID251 - this is the door; spreads retries
