"""Plans: which parts must be read for a question about a shard, from one state, without I/O.

Two questions: the contents at a time (`plan_snapshot`), and what changed in an interval of times
(`plan_changes`). The answer is a list of `PlannedPart`: plain data that can be sent anywhere, with
all that a fetch needs, so that fetching never looks at state.

A snapshot must be consolidated only where something was retracted. A part whose diffs are all
positive, and whose key range no retracting part overlaps, is exact as it is: append-only data does
not pay for retractions. The others form *groups*: parts whose key ranges overlap, to be merged and
consolidated together.

Invariants:
    A plan is a pure function of (state, question). Over a later state with other physical batches
    it has other parts, and the same consolidated meaning.
    Every update of the question is in exactly one planned part, after the part's time filter.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from datasource.batch import Part
from datasource.sparktype import path_text
from datasource.state import ShardState
from datasource.stats import bounds

__all__ = [
    "PlannedPart",
    "SnapshotPlan",
    "TimeFilter",
    "pack",
    "plan_changes",
    "plan_snapshot",
]

_OPEN_COST_BYTES: Final = 1 << 20
"""What opening a part weighs when parts are packed into partitions, in bytes of reading: about the
time of a request to an object store, at the throughput of one core decoding."""


@dataclass(frozen=True, slots=True)
class TimeFilter:
    """Rows with `lower <= time < upper` belong to the question; None is unbounded."""

    lower: int | None
    upper: int | None

    def passes_all(self, first: int, last: int) -> bool:
        """Whether every time from `first` to `last` passes."""
        return (self.lower is None or self.lower <= first) and (
            self.upper is None or last < self.upper
        )

    def passes_none(self, first: int, last: int) -> bool:
        """Whether no time from `first` to `last` passes."""
        return (self.lower is not None and last < self.lower) or (
            self.upper is not None and self.upper <= first
        )


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """One part to fetch, and which of its rows count.

    Attributes:
        part: Where the rows are.
        times: The interval of the question, cut to the interval of the part's batch.
        ordered: Whether the part's rows are in the shard's sort order.
    """

    part: Part
    times: TimeFilter
    ordered: bool

    @property
    def needs_time(self) -> bool:
        """Whether rows must be filtered by time one by one."""
        bounds = self.part.time_bounds
        return bounds is None or not self.times.passes_all(*bounds)


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """Where the contents at a time are.

    Attributes:
        plain: Parts that are exact by themselves, up to repeating rows with a diff above 1.
        groups: Sets of parts to be merged and consolidated, each on its own.
    """

    plain: tuple[PlannedPart, ...]
    groups: tuple[tuple[PlannedPart, ...], ...]


def plan_changes(state: ShardState, lower: int, upper: int | None) -> list[PlannedPart]:
    """The parts that hold the updates with `lower <= time < upper`."""
    return [
        planned
        for batch in state.trace.batches
        if batch.desc.overlaps(lower, upper)
        for run in batch.runs
        for part in run.parts
        if (
            planned := _planned(
                part, _cut(lower, upper, batch.desc.lower, batch.desc.upper), run.order == "sorted"
            )
        )
    ]


def plan_snapshot(state: ShardState, as_of: int, column: str) -> SnapshotPlan:
    """The parts that hold the contents at `as_of`.

    Args:
        state: The shard's.
        as_of: Updates at this time and before count.
        column: The first column that runs are sorted by: parts whose ranges of it are apart have
            no row in common.
    """
    # Times before the first are not filtered out: a snapshot sums all of history. But a trimmed
    # batch's part can hold rows before its batch's lower, which another batch holds too.
    planned = [
        found
        for batch in state.trace.batches
        if batch.desc.lower <= as_of
        for run in batch.runs
        for part in run.parts
        if (
            found := _planned(
                part,
                _cut(_first(batch.desc.lower, part), as_of + 1, None, batch.desc.upper),
                run.order == "sorted",
            )
        )
    ]
    if not any(p.part.retracts for p in planned):
        return SnapshotPlan(tuple(planned), ())
    ranges = _ranges(planned, column)
    hulls = _hulls([r for p, r in zip(planned, ranges, strict=True) if p.part.retracts])
    plain, touched = [], []
    for candidate, span in zip(planned, ranges, strict=True):
        if candidate.part.retracts or _meets(span, hulls):
            touched.append((candidate, span))
        else:
            plain.append(candidate)
    groups = [
        tuple(candidate for candidate, span in touched if _meets(span, [hull]))
        for hull in _hulls([span for _, span in touched])
    ]
    return SnapshotPlan(tuple(plain), tuple(groups))


def pack(planned: Iterable[PlannedPart], partitions: int) -> list[list[PlannedPart]]:
    """Spread parts over at most `partitions` lists of like weight, heaviest part first.

    The weight of a part is its encoded size and what it costs to open it. The lists' order and
    contents are a pure function of the arguments.
    """
    ordered = sorted(planned, key=lambda p: (-p.part.size_bytes, p.part.key))
    count = max(1, min(partitions, len(ordered)))
    bins: list[list[PlannedPart]] = [[] for _ in range(count)]
    weights = [0] * count
    for item in ordered:
        lightest = min(range(count), key=weights.__getitem__)
        bins[lightest].append(item)
        weights[lightest] += item.part.size_bytes + _OPEN_COST_BYTES
    return [items for items in bins if items]


def _first(batch_lower: int, part: Part) -> int | None:
    """The least time that counts, if the part has rows before its batch's lower."""
    bounds = part.time_bounds
    return batch_lower if bounds is None or bounds[0] < batch_lower else None


def _cut(
    lower: int | None, upper: int | None, batch_lower: int | None, batch_upper: int | None
) -> TimeFilter:
    lowers = [time for time in (lower, batch_lower) if time is not None]
    uppers = [time for time in (upper, batch_upper) if time is not None]
    return TimeFilter(max(lowers, default=None), min(uppers, default=None))


def _planned(part: Part, times: TimeFilter, ordered: bool) -> PlannedPart | None:  # noqa: FBT001
    bounds = part.time_bounds
    if bounds is not None and times.passes_none(*bounds):
        return None
    return PlannedPart(part, times, ordered)


_Edge = tuple[int, Any]
"""An end of a range that compares with any other: `(0, 0)` and `(2, 0)` are the infinities."""

_Range = tuple[_Edge, _Edge]

_BELOW: Final[_Edge] = (0, 0)
_ABOVE: Final[_Edge] = (2, 0)


def _ranges(planned: Sequence[PlannedPart], column: str) -> list[_Range]:
    """Where each part lies in `column`; everywhere if its statistics do not tell.

    Nulls sort first and NaN last, and neither is within the bounds that statistics give. Parts
    written under another type of the column have bounds that do not compare: then none do.
    """
    path = path_text((column,))
    known = [p.part.stats.columns.get(path) if p.part.stats else None for p in planned]
    kinds = {stats.kind for stats in known if stats is not None and stats.kind is not None}
    if len(kinds) != 1 or "coll" in kinds:
        return [(_BELOW, _ABOVE)] * len(planned)
    ranges = []
    for item, stats in zip(planned, known, strict=True):
        lo, hi = bounds(item.part.stats, path) if stats and item.part.stats else (None, None)
        ranges.append(
            (
                _BELOW if lo is None or stats is None or stats.nulls else (1, lo),
                _ABOVE if hi is None or stats is None or stats.nans else (1, hi),
            )
        )
    return ranges


def _hulls(ranges: Sequence[_Range]) -> list[_Range]:
    """The union of `ranges` as disjoint ranges in order."""
    hulls: list[_Range] = []
    for lo, hi in sorted(ranges):
        if hulls and lo <= hulls[-1][1]:
            hulls[-1] = (hulls[-1][0], max(hi, hulls[-1][1]))
        else:
            hulls.append((lo, hi))
    return hulls


def _meets(span: _Range, hulls: Sequence[_Range]) -> bool:
    """Whether `span` has a value in common with one of the disjoint, ordered `hulls`."""
    after = bisect.bisect_right(hulls, span[1], key=lambda hull: hull[0])
    return after > 0 and hulls[after - 1][1] >= span[0]
