"""The pool that the lane runs effects in, beside its own thread: starts and stops take long.

A lane has two `background.DaemonPool`s: one stop of Spark that hangs must not keep the process, and
keeps its thread and no other. A simulation has a pool of its own, and decides when an effect runs.

What the lane relies on:
    Effects begin in the order in which they were handed over.

What a pool may rely on:
    An effect never raises into it: it reports its outcome itself.
    At most one effect of an object is in its queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["Pool"]


class Pool(Protocol):
    """Runs effects later."""

    def run(self, effect: Callable[[], None], /) -> None:
        """Accept `effect`; returns at once."""
        ...

    def close(self) -> None:
        """Let idle threads end; those that work end with the process."""
        ...
