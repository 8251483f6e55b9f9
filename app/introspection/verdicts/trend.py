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
"""A change by less than this share of the peak is none."""

_NOTES_MAX: Final = 64


@dataclass(slots=True)
class Trend:
    """The values of the last minute, one a second at most."""

    _notes: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_NOTES_MAX))
    _found: tuple[Direction, int | None] | None = None

    def note(self, at_ms: int, value: float | None) -> None:
        """Add the present value; None if it is not known, which forgets those before."""
        self._found = None
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
        """The direction of the value, as far as the last minute tells.

        From its peak on, and not from a minute ago: files that arrive all at once are a peak, and
        what counts is whether they get fewer from then on.
        """
        return self._look()[0]

    def remaining_ms(self) -> int | None:
        """When it will be zero, in ms from now, at the speed since its peak; None for never."""
        return self._look()[1]

    def _look(self) -> tuple[Direction, int | None]:
        """Both answers, found once for each note: verdicts ask for them several times a second."""
        if self._found is None:
            notes = self._since_zero()
            direction = self._direction_of(notes)
            remaining = self._remaining_of(notes) if direction == "shrinking" else None
            self._found = direction, remaining
        return self._found

    def _direction_of(self, notes: list[tuple[int, float]]) -> Direction:
        if not notes or notes[-1][0] - notes[0][0] < _ENOUGH_MS:
            return "unknown"
        (began_ms, first), (now_ms, last) = notes[0], notes[-1]
        peak_ms, peak = self._peak(notes)
        still = _STEADY * peak
        if now_ms - peak_ms >= _ENOUGH_MS:
            return "shrinking" if peak - last > still else "steady"
        if last - first <= still:
            return "steady" if peak - last <= still else "unknown"
        return "growing" if now_ms - began_ms >= 2 * _ENOUGH_MS else "unknown"

    def _remaining_of(self, notes: list[tuple[int, float]]) -> int:
        (peak_ms, peak), (now_ms, last) = self._peak(notes), notes[-1]
        return round(last * (now_ms - peak_ms) / (peak - last))

    def _since_zero(self) -> list[tuple[int, float]]:
        """The notes since the value was zero the last time."""
        found: list[tuple[int, float]] = []
        for note in reversed(self._notes):
            if note[1] <= 0:
                break
            found.append(note)
        return found[::-1]

    @staticmethod
    def _peak(notes: list[tuple[int, float]]) -> tuple[int, float]:
        """The greatest value; the last of equal ones."""
        return max(notes, key=lambda note: (note[1], note[0]))
