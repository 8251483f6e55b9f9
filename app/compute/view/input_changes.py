"""Reads the times at which a view's inputs change off their shards' states, without any row.

A view is evaluated once for each such time, so they must be known before any data is read. A part
records the first and the last time of its rows. Where both are equal, as in parts that a source
appends on its grid of times, nothing else is needed. Times inside of parts that span several must
be read from their rows, by the caller.

Invariants:
    Empty news means that no input has an update in the interval.
    Times are exact if no input is in `spread`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.state import Part, ShardState, Volume, plan_changes

__all__ = [
    "InputChanges",
    "find_input_changes",
    "find_news",
    "lag_ms",
    "news_left",
    "unchanged_until",
    "volume_of_shards",
]


@dataclass(frozen=True, slots=True)
class InputChanges:
    """The changes of inputs in an interval, as far as their states show them.

    Attributes:
        times: Times of parts with a single time: an input changes there.
        perhaps: First time in the interval of each part that spans several: one may change there.
        spread: Names of inputs with such parts.
        volume: Rows and bytes of all these parts.
        changed: Names of the inputs that these parts are of.
        spread_ms: From the first to the last time of an input's parts that span several; of the
            input for which that is longest.
    """

    times: tuple[int, ...] = ()
    perhaps: tuple[int, ...] = ()
    spread: tuple[str, ...] = ()
    volume: Volume = field(default_factory=Volume)
    changed: frozenset[str] = frozenset()
    spread_ms: int = 0

    def expected_times(self, interval_ms: int) -> int:
        """The number of times at which something changes, where sources keep to an interval."""
        return max(len(self.known), self.spread_ms // interval_ms + 1 if self.spread else 0)

    @property
    def known(self) -> tuple[int, ...]:
        """All times, ascending: exact if nothing is spread, and empty only if nothing changes."""
        return tuple(sorted({*self.times, *self.perhaps}))

    def left_from(self, time: int) -> tuple[int, int]:
        """How many known times are left from `time` on, and about how many rows change at them."""
        known = self.known
        left = len(known) - bisect_left(known, time)
        return left, self.volume.rows * left // max(len(known), 1)

    def with_times(self, found: Iterable[int]) -> InputChanges:
        """The same news with `found`, the exact times of the inputs in `spread`."""
        return replace(
            self, times=tuple(sorted({*self.times, *found})), perhaps=(), spread=(), spread_ms=0
        )


def find_input_changes(states: Sequence[ShardState], lower: int, upper: int | None) -> InputChanges:
    """The news of `[lower, upper)` of all inputs.

    Args:
        states: States of the inputs, all settled before `upper`.
        lower: First time, inclusive.
        upper: Last time, exclusive; None for no end.
    """
    times: set[int] = set()
    perhaps: set[int] = set()
    spread: list[str] = []
    parts: list[Part] = []
    changed: set[str] = set()
    spread_ms = 0
    for state in states:
        several: list[tuple[int, int]] = []
        for planned in plan_changes(state, lower, upper):
            parts.append(planned.part)
            changed.add(state.name)
            bounds = planned.part.time_bounds
            assert bounds is not None, planned.part.key
            # A part may begin before the interval: of merged parts only a suffix is in it.
            first = max(bounds[0], lower)
            if bounds[0] == bounds[1]:
                times.add(first)
            else:
                perhaps.add(first)
                several.append((first, bounds[1] if upper is None else min(bounds[1], upper - 1)))
        if several:
            spread.append(state.name)
            of_input_ms = max(last for _, last in several) - min(first for first, _ in several)
            spread_ms = max(spread_ms, of_input_ms)
    return InputChanges(
        tuple(sorted(times)),
        tuple(sorted(perhaps)),
        tuple(spread),
        Volume.of(parts),
        frozenset(changed),
        spread_ms,
    )


def find_news(states: Sequence[ShardState], lower: int | None, upper: int | None) -> InputChanges:
    """The news of an interval, which may be empty, as it is if `lower` (None) is behind the end."""
    if lower is None or (upper is not None and upper <= lower):
        return InputChanges()
    return find_input_changes(states, lower, upper)


def news_left(
    news: InputChanges, states: Sequence[ShardState], lower: int | None, upper: int | None
) -> InputChanges:
    """The news that is left up to `upper` once the output has reached `lower`."""
    # Of a part that spans several times only the first is known. A step that ended before the end
    # has passed it by, and what is left would look like a quiet time.
    return news if lower is None or not news.spread else find_news(states, lower, upper)


def lag_ms(states: Sequence[ShardState], upper: int, interval_ms: int) -> int | None:
    """Milliseconds that an output is behind its inputs; None if these are finished.

    Of the time before the first change that it lacks an interval counts at most: where nothing
    happens uppers move in leaps, and what follows such a leap at its next look was never late.

    Args:
        states: States of the inputs.
        upper: Of the output.
        interval_ms: Distance of the times that uppers move to while something happens.
    """
    settled = meet(state.upper for state in states).time
    if settled is None:
        return None
    first = next(iter(find_news(states, upper, settled).known), settled)
    return max(settled - max(upper, first - interval_ms), 0)


def volume_of_shards(states: Iterable[ShardState]) -> Volume:
    """Rows and bytes of all parts of these shards."""
    return Volume.of(part for s in states for batch in s.trace.batches for part in batch.parts)


def unchanged_until(states: Sequence[ShardState], lower: int) -> Frontier:
    """The frontier up to which inputs are settled without a change since `lower`, or `lower`.

    Args:
        states: States of the inputs.
        lower: The first time that is asked about, inclusive.
    """
    upper = meet(state.upper for state in states)
    if upper <= Frontier(lower):
        return Frontier(lower)
    changed = any(plan_changes(state, lower, upper.time) for state in states)
    # All or nothing: up to the first change would be right, too, but the micro-batch that brings
    # the change moves the upper over the quiet time before it at no extra cost.
    return Frontier(lower) if changed else upper
