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


_Note: TypeAlias = tuple[int, float]
"""A value that was noted, and when."""


@dataclass(slots=True)
class Trend:
    """The values of the last minute, one a second at most.

    Each note costs the same however many there are: hundreds of objects are noted each second.
    """

    _newest: float | None = None
    _notes: deque[_Note] = field(default_factory=lambda: deque(maxlen=_NOTES_MAX))
    """Since the value was zero the last time."""

    _peaks: deque[_Note] = field(default_factory=deque)
    """The notes that no later one is as great as: the first is the peak, the last of equal ones.
    Values fall from one to the next, so each note is added and removed once."""

    def note(self, at_ms: int, value: float | None) -> None:
        """Add the present value; None if it is not known, which forgets those before."""
        # The clock was set back: the old times mean nothing.
        is_back = bool(self._notes) and at_ms < self._notes[-1][0]
        self._newest = value
        if value is None or value <= 0 or is_back:
            self._notes.clear()
            self._peaks.clear()
        if value is None or value <= 0:
            return
        self._notes.append((at_ms, value))
        while self._notes[0][0] < at_ms - _WINDOW_MS:
            self._notes.popleft()
        while self._peaks and self._peaks[-1][1] <= value:
            self._peaks.pop()
        self._peaks.append((at_ms, value))
        while self._peaks[0][0] < self._notes[0][0]:
            self._peaks.popleft()

    @property
    def value(self) -> float | None:
        """The newest value."""
        return self._newest

    def direction(self) -> Direction:
        """The direction of the value, as far as the last minute tells.

        From its peak on, and not from a minute ago: files that arrive all at once are a peak, and
        what counts is whether they get fewer from then on.
        """
        notes = self._notes
        if not notes or notes[-1][0] - notes[0][0] < _ENOUGH_MS:
            return "unknown"
        (began_ms, first), (now_ms, last) = notes[0], notes[-1]
        peak_ms, peak = self._peaks[0]
        still = _STEADY * peak
        if now_ms - peak_ms >= _ENOUGH_MS:
            return "shrinking" if peak - last > still else "steady"
        if last - first <= still:
            return "steady" if peak - last <= still else "unknown"
        return "growing" if now_ms - began_ms >= 2 * _ENOUGH_MS else "unknown"

    def remaining_ms(self) -> int | None:
        """When it will be zero, in ms from now, at the speed since its peak; None for never."""
        if self.direction() != "shrinking":
            return None
        (peak_ms, peak), (now_ms, last) = self._peaks[0], self._notes[-1]
        return round(last * (now_ms - peak_ms) / (peak - last))
