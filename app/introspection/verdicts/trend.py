"""A trend tells whether something that should be small is getting smaller, and until when.

    lag = Trend()
    lag.note(now_ms, 42_000)          once a second
    lag.remaining_ms()                 how long until it is zero, at this speed; None: never

A lag alone does not say if a person is needed: 10 minutes that shrink by two seconds in each second
are over in five minutes, and ten seconds that grow are not over at all.

Neither do two values of a lag: it is a saw-tooth. It grows with the clock until a step is done, and
falls by the length of that step then. So a view whose steps take a minute each is one to two
minutes late for good, and after each step there is less than before it. The values are cut into
spans at their falls, and spans are compared: their peaks, and the values that they fell to. A span
has one step at least, so that this works for steps of a second and of an hour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, TypeAlias

__all__ = ["Direction", "Trend"]

Direction: TypeAlias = Literal["unknown", "shrinking", "steady", "growing"]

_ENOUGH_MS: Final = 8_000
"""Shortest time from which a speed is taken, and shortest span: micro-batches make steps of
seconds."""

_QUIET_MS: Final = 60_000
"""A lag that has not fallen for so long does not shrink, unless its steps take longer."""

_STEADY: Final = 0.02
"""A change by less than this share of the peak is none."""

_VARIES: Final = 0.2
"""A change by less than this share of what a step takes away is none: no two take equally long."""

_SPANS_MAX: Final = 8
"""Spans that are compared: so many of the shortest ones are a minute."""

_SPANS_MIN: Final = 2
"""One that is older and one that is newer."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The values from one fall up to another one.

    Attributes:
        took_ms: From its first value to the fall that ends it.
        peak: Its greatest value.
        ended_ms: When it fell.
        fallen_to: The value after that fall.
        trough: The least value from which it rose again; infinite if it never did.
    """

    took_ms: int
    peak: float
    ended_ms: int
    fallen_to: float
    trough: float


@dataclass(frozen=True, slots=True)
class _Past:
    """All that is needed of the spans that are over; made anew when one ends, and not by each note.

    Attributes:
        spans: The newest ones.
        older: The lowest peak of their older half.
        newer: The highest peak of their newer half.
        peak: The highest of all.
        fall: The greatest fall at the end of one.
        trough: The lowest trough of all.
        patience_ms: From which time without a fall on the next one is overdue.
    """

    spans: tuple[_Span, ...] = ()
    older: float = 0.0
    newer: float = 0.0
    peak: float = 0.0
    fall: float = 0.0
    trough: float = inf
    patience_ms: int = _QUIET_MS

    def followed_by(self, span: _Span) -> _Past:
        spans = (*self.spans, span)[-_SPANS_MAX:]
        half = len(spans) // 2
        newer = spans[half:]
        # Not the older ones: what has stood still for an hour before it began to shrink would count
        # as shrinking for two more when it stops. Nor the first: it began somewhere in a step.
        steps_ms = [2 * one.took_ms for one in spans[max(1, half) :]]
        return _Past(
            spans,
            min((one.peak for one in spans[:half]), default=0.0),
            max(one.peak for one in newer),
            max(one.peak for one in spans),
            max(one.peak - one.fallen_to for one in spans),
            min(one.trough for one in spans),
            max([_QUIET_MS, *steps_ms]),
        )


@dataclass(slots=True)
class _Run:
    """All that is known since the value was zero the last time.

    Attributes:
        began_ms: When it was noted first, and the value (`first`).
        at_ms: When it was noted last, and the value (`value`).
        top_ms: When the fall to the present value began, and from what (`top`): it has not risen
            since.
        fell_ms: When it has fallen the last time, and the value after that (`fallen_to`).
        past: The spans that are over.
        span_ms: When the present span began.
        peak: The greatest value of it.
        trough: The least value from which it rose again; infinite if it never did.
    """

    began_ms: int
    first: float
    at_ms: int = field(init=False)
    value: float = field(init=False)
    top_ms: int = field(init=False)
    top: float = field(init=False)
    fell_ms: int = field(init=False)
    fallen_to: float = field(init=False)
    past: _Past = _Past()
    span_ms: int = field(init=False)
    peak: float = field(init=False)
    trough: float = inf

    def __post_init__(self) -> None:
        self.at_ms = self.top_ms = self.fell_ms = self.span_ms = self.began_ms
        self.value = self.top = self.fallen_to = self.peak = self.first

    def note(self, at_ms: int, value: float) -> None:
        if value < self.value:
            self._fall(at_ms, value)
        elif value > self.value:
            if self.top > self.value:
                self.trough = min(self.trough, self.value)
            self.top = value
        if value == self.top:
            self.top_ms = at_ms
        self.peak = max(self.peak, value)
        self.at_ms, self.value = at_ms, value

    def _fall(self, at_ms: int, value: float) -> None:
        self.fell_ms, self.fallen_to = at_ms, value
        took_ms = at_ms - self.span_ms
        if took_ms >= _ENOUGH_MS:
            span = _Span(took_ms, self.peak, at_ms, value, self.trough)
            self.past = self.past.followed_by(span)
            self.span_ms, self.peak, self.trough = at_ms, value, inf

    def direction(self) -> Direction:
        known_ms = self.at_ms - self.began_ms
        if known_ms < _ENOUGH_MS:
            return "unknown"
        if self.remaining_ms() is not None:
            return "shrinking"
        if self._is_below_before() and self.at_ms - self.top_ms < _ENOUGH_MS:
            return "unknown"
        spans = self.past.spans
        base = spans[0].fallen_to if len(spans) >= _SPANS_MIN else self.first
        if self.value - base <= self._still():
            return "steady"
        return "growing" if known_ms >= 2 * _ENOUGH_MS else "unknown"

    def remaining_ms(self) -> int | None:
        is_overdue = self.at_ms - self.fell_ms > self.past.patience_ms
        if self.at_ms - self.began_ms < _ENOUGH_MS or is_overdue:
            return None
        if self._do_spans_fall():
            first = self.past.spans[0]
            speed = (first.fallen_to - self.fallen_to) / (self.fell_ms - first.ended_ms)
            return max(0, round(self.fallen_to / speed) - (self.at_ms - self.fell_ms))
        fell_for_ms = self.at_ms - self.top_ms
        if self._is_below_before() and fell_for_ms >= _ENOUGH_MS:
            return round(self.value * fell_for_ms / (self.top - self.value))
        return None

    def _do_spans_fall(self) -> bool:
        """True if each newer span, the present one too, has a lower peak than each older one.

        And a lower end: a catch-up that is over leaves a high peak behind, but falls no deeper.
        """
        past = self.past
        if len(past.spans) < _SPANS_MIN or max(past.newer, self.peak) >= past.older:
            return False
        newest, oldest = past.spans[-1], past.spans[0]
        still = max(self._still(), _VARIES * past.fall)
        return oldest.peak - newest.peak > still and oldest.fallen_to - self.fallen_to > still

    def _is_below_before(self) -> bool:
        """True if it has fallen to less than it ever fell to: no saw-tooth that is known does."""
        return min(self.top, self.trough, self.past.trough) - self.value > self._still()

    def _still(self) -> float:
        return _STEADY * max(self.peak, self.past.peak)


@dataclass(slots=True)
class Trend:
    """The values of the last steps, one a second at most.

    Each note costs the same however many there are: hundreds of objects are noted each second.
    """

    _newest: float | None = None
    _run: _Run | None = None

    def note(self, at_ms: int, value: float | None) -> None:
        """Add the present value; None if it is not known, which forgets those before."""
        self._newest = value
        if self._run is not None and at_ms < self._run.at_ms:
            self._run = None  # the clock was set back: the old times mean nothing
        if value is None or value <= 0:
            self._run = None
        elif self._run is None:
            self._run = _Run(at_ms, value)
        else:
            self._run.note(at_ms, value)

    @property
    def value(self) -> float | None:
        """The newest value."""
        return self._newest

    def direction(self) -> Direction:
        """The direction of the value, as far as the last steps tell.

        What shrinks has lower peaks than before, or has fallen without a rise for some time: files
        that arrive all at once are a peak, and what counts is whether they get fewer from then on.
        """
        return "unknown" if self._run is None else self._run.direction()

    def remaining_ms(self) -> int | None:
        """When it will be zero, in ms from now, at the speed of its falls; None for never."""
        return None if self._run is None else self._run.remaining_ms()
