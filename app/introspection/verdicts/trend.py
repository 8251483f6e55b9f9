"""A trend tells whether something that should be small is getting smaller, and until when.

    lag = Trend()
    lag.note(now_ms, 42_000)          once a second; older notes are forgotten
    lag.remaining_ms()                 how long until it is zero, at this speed; None: never

A lag alone does not say if a person is needed: 10 minutes that shrink by two seconds in each second
are over in five minutes, and ten seconds that grow are not over at all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

__all__ = ["Direction", "Trend"]

Direction: TypeAlias = Literal["unknown", "shrinking", "steady", "growing"]

_WINDOW_MS: Final = 60_000
_ENOUGH_MS: Final = 8_000
"""Shortest time from which a speed is taken: micro-batches make steps of seconds."""

_STEADY: Final = 0.02
"""A change of less than this share, in the time that was looked at, is none."""

_NOTES_MAX: Final = 64


@dataclass(slots=True)
class Trend:
    """The values of the last minute, one a second at most."""

    _notes: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_NOTES_MAX))

    def note(self, at_ms: int, value: float | None) -> None:
        """Add the present value; None if it is not known, which forgets those before."""
        if value is None:
            self._notes.clear()
            return
        if self._notes and at_ms < self._notes[-1][0]:
            self._notes.clear()  # the clock was set back: the old times mean nothing
        self._notes.append((at_ms, value))
        while self._notes[0][0] < at_ms - _WINDOW_MS:
            self._notes.popleft()

    @property
    def value(self) -> float | None:
        """The newest value."""
        return self._notes[-1][1] if self._notes else None

    def direction(self) -> Direction:
        """Which way the value has gone within the last minute."""
        if not self._notes or self._passed_ms() < _ENOUGH_MS:
            return "unknown"
        first, last = self._notes[0][1], self._notes[-1][1]
        if abs(last - first) <= _STEADY * max(abs(first), abs(last)):
            return "steady"
        return "shrinking" if last < first else "growing"

    def remaining_ms(self) -> int | None:
        """When it will be zero, in ms from now, at the speed of the last minute; None for never."""
        if self.direction() != "shrinking":
            return None
        first, last = self._notes[0][1], self._notes[-1][1]
        return round(last * self._passed_ms() / (first - last))

    def _passed_ms(self) -> int:
        return self._notes[-1][0] - self._notes[0][0]
