"""Counts the plain reads of this process by the path that was planned for them, and why.

A read is one `load()` of a batch, or one range of a stream: what the planner is asked for once,
however often its rows are read. Without native reads nothing is asked, and nothing counted.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Final, Literal

from shardline.datasource.clock import Clock, SystemClock

__all__ = ["READ_COUNTS", "CountedReads", "ReadCounts", "ReadPath"]

ReadPath = Literal["native", "python workers", "not installed"]
"""The path of a read; or that it was asked for and none of the session's reads can be native."""


@dataclass(frozen=True, slots=True)
class CountedReads:
    """Reads of one kind.

    Attributes:
        path: Their path.
        reason: Why it is not the native one; "" of native reads.
        number: How many there were.
        last_ms: When the last one was planned, in ms.
    """

    path: ReadPath
    reason: str
    number: int
    last_ms: int


class ReadCounts:
    """Counts; safe for threads."""

    def __init__(self, clock: Clock) -> None:
        """Begin with none."""
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[tuple[ReadPath, str], CountedReads] = {}

    def add(self, path: ReadPath, reason: str = "", *, was_native: bool = False) -> None:
        """Count a read.

        Args:
            path: Its path.
            reason: Why it is not the native one.
            was_native: True takes back that the same read was counted as native.
        """
        with self._lock:
            native = self._found.get(("native", ""))
            if was_native and native is not None:
                self._found["native", ""] = replace(native, number=native.number - 1)
            before = self._found.get((path, reason))
            number = 1 if before is None else before.number + 1
            self._found[path, reason] = CountedReads(path, reason, number, self._clock.now_ms())

    def all(self) -> list[CountedReads]:
        """The counts, in the order in which a kind was first seen."""
        with self._lock:
            return [counted for counted in self._found.values() if counted.number]


READ_COUNTS: Final = ReadCounts(SystemClock())
"""Those of this process."""
