"""Deciding what a micro-batch reads: pure functions of a state and a frontier.

(Materialize: the `descs` operator of `shard_source`, which picks parts and times on one worker.)
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from datasource.frontier import Frontier
from datasource.plan import PlannedPart, plan_changes
from datasource.state import ShardState

__all__ = ["Limits", "has_news", "next_frontier"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch may read; None is unlimited. The first one reached counts."""

    size_bytes: int | None = None
    rows: int | None = None
    parts: int | None = None

    def admits(self, planned: list[PlannedPart]) -> bool:
        """Whether all of `planned` fit into one micro-batch."""
        return (
            (self.parts is None or len(planned) <= self.parts)
            and (self.rows is None or sum(p.part.rows for p in planned) <= self.rows)
            and (
                self.size_bytes is None
                or sum(p.part.size_bytes for p in planned) <= self.size_bytes
            )
        )

    @property
    def unlimited(self) -> bool:
        """Whether there is no limit at all."""
        return self.size_bytes is None and self.rows is None and self.parts is None


def has_news(state: ShardState, lower: int, upper: Frontier) -> bool:
    """Whether there is any update with `lower <= time < upper`, as far as metadata tell."""
    return bool(plan_changes(state, lower, upper.time))


def next_frontier(state: ShardState, lower: int, upper: Frontier, limits: Limits) -> Frontier:
    """The end of the range that starts at `lower`: as far towards `upper` as `limits` allow.

    Ranges end where a batch or a part's times end, so that no part is read twice if it can be
    helped. The least such step is always admitted: a limit slows a stream, it never stops it.
    """
    if limits.unlimited:
        return upper
    ends = _ends(state, lower, upper)
    # What a range reads only grows with its end, so both questions are answered by bisection:
    # where is the first end with any part, and where is the last one within the limits?
    first = bisect_left(ends, True, key=lambda end: has_news(state, lower, end))
    if first == len(ends):
        return upper
    least = len(plan_changes(state, lower, ends[first].time))

    def too_much(end: Frontier) -> bool:
        planned = plan_changes(state, lower, end.time)
        return len(planned) > least and not limits.admits(planned)

    return ends[bisect_left(ends, True, lo=first + 1, key=too_much) - 1]


def _ends(state: ShardState, lower: int, upper: Frontier) -> list[Frontier]:
    """Where a range may end, ascending, the last one being `upper`."""
    candidates = {upper}
    for batch in state.trace.batches:
        if not batch.desc.overlaps(lower, upper.time):
            continue
        candidates.add(min(batch.desc.upper_frontier, upper))
        for part in batch.parts:
            bounds = part.time_bounds
            if bounds is not None and lower < bounds[1] + 1:
                candidates.add(min(Frontier(bounds[1] + 1), upper))
    return sorted(end for end in candidates if end > Frontier(lower))
