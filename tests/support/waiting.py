"""Waits for something that another thread or process does."""

from __future__ import annotations

import threading
from collections.abc import Callable

from shardline.datasource.clock import SystemClock

__all__ = ["wait_until"]


def wait_until(what: str, happened: Callable[[], bool], timeout_s: float) -> None:
    """Wait for something another process does; fail by name when it does not come."""
    clock, never = SystemClock(), threading.Event()
    deadline = clock.elapsed_ms() + timeout_s * 1000
    while True:
        began = clock.elapsed_ms()
        if happened():
            return
        ended = clock.elapsed_ms()
        assert ended < deadline, f"not within {timeout_s} s: {what}"
        # Looks that take long are made less often: who is waited for needs the cores.
        clock.wait(never, min(max(20, 4 * (ended - began)), 1000))
