"""When the inputs of a view change: read off the states of their shards, without reading a row.

A part tells the first and the last time of its rows. Where they are one, as in what a source
appends on its grid of times, that is all there is to know. Parts that span several times are left
to whoever can read them.

Invariants:
    Without news there is no update of any input in the interval.
    Times are exact where nothing is spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.shard.batch import Part, Volume
from shardline.datasource.shard.plan import plan_changes
from shardline.datasource.shard.state import ShardState

__all__ = ["News", "news_of", "quiet_until"]


@dataclass(frozen=True, slots=True)
class News:
    """What is known of the changes in an interval.

    Attributes:
        times: At which some input changes, by parts with a single time.
        perhaps: At which one may, by parts that span several: where each begins in the interval.
        spread: Inputs with such parts.
        volume: How much there is to read for them.
    """

    times: tuple[int, ...] = ()
    perhaps: tuple[int, ...] = ()
    spread: tuple[str, ...] = ()
    volume: Volume = field(default_factory=Volume)

    @property
    def known(self) -> tuple[int, ...]:
        """All of them, ascending: exact if nothing is spread, and empty only without news."""
        return tuple(sorted({*self.times, *self.perhaps}))

    def with_times(self, found: Iterable[int]) -> News:
        """The same, after the parts that span several times have been read."""
        return replace(self, times=tuple(sorted({*self.times, *found})), perhaps=(), spread=())


def news_of(states: Sequence[ShardState], lower: int, upper: int | None) -> News:
    """The news of `[lower, upper)` of all inputs.

    Args:
        states: Of the inputs; all settled before `upper`.
        lower: Inclusive.
        upper: Exclusive; None for all that there is.
    """
    times: set[int] = set()
    perhaps: set[int] = set()
    spread: list[str] = []
    parts: list[Part] = []
    for state in states:
        several = False
        for planned in plan_changes(state, lower, upper):
            parts.append(planned.part)
            bounds = planned.part.time_bounds
            assert bounds is not None, planned.part.key
            single = bounds[0] == bounds[1]
            (times if single else perhaps).add(max(bounds[0], lower))
            several = several or not single
        if several:
            spread.append(state.name)
    return News(tuple(sorted(times)), tuple(sorted(perhaps)), tuple(spread), Volume.of(parts))


def quiet_until(states: Sequence[ShardState], lower: int) -> Frontier:
    """How far the inputs have gone since `lower` without a single change; `lower` if they have not.

    Args:
        states: Of the inputs.
        lower: A time; what happened before it is known.
    """
    upper = meet(state.upper for state in states)
    if upper <= Frontier(lower):
        return Frontier(lower)
    changed = any(plan_changes(state, lower, upper.time) for state in states)
    return Frontier(lower) if changed else upper
