"""Effects take long: starts and stops of objects, which run beside the lane's thread.

One stop of Spark that hangs must not keep the process: it keeps its thread, and no other
(`background.DaemonPool`). A simulation has a pool of its own, and decides when an effect runs.

Invariants:
    Effects begin in the order in which they were handed over.
    An effect never raises into the pool: it reports its outcome itself.
    At most one effect of an object is in a pool's queue.
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
