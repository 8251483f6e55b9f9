"""A plan lists the parts that a read of a shard must fetch, from one state and without I/O.

There are two kinds of reads: the contents at a time (`plan_snapshot`), and the updates of an
interval of times (`plan_changes`). Both give `PlannedPart`s: plain data with all that a fetch
needs, so that tasks on executors fetch without ever reading the log (Delta: a scan's files).

Parts are then spread over tasks (`pack_parts`): large ones are cut into *shares* of their row
groups, which needs no look at the file, and small ones go together.

A snapshot must be consolidated only where rows were retracted. A part whose diffs are all positive,
and whose key range no retracting part overlaps, is exact as it is: append-only data does not pay
for retractions. The others form *groups*: parts whose key ranges overlap, to be merged and
consolidated together.

Invariants:
    A plan is a pure function of its arguments. From a later state with other physical batches it
    has other parts, and the same consolidated meaning.
    Every update that the read asks for is in exactly one planned part, after the part's time
    filter; and in exactly one share of it.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import msgspec

from shardline.datasource.shard.batch import Batch, Part, Volume
from shardline.datasource.shard.state import ShardState
from shardline.datasource.types.spark_types import path_text
from shardline.datasource.types.stats import bounds

__all__ = [
    "PlannedPart",
    "SnapshotPlan",
    "TimeFilter",
    "batch_changes",
    "pack_parts",
    "plan_changes",
    "plan_snapshot",
    "volume_of",
]

_OPEN_COST_BYTES: Final = 256 << 10
"""The cost of opening a part when parts are packed into partitions, in bytes of reading. On local
disk it takes as long as decoding 60 KiB, on an object store as two requests. The value lies between
them: 10,000 tiny parts make about 80 tasks of the default size, and not 1 or 10,000."""


_LISTS_MAX: Final = 10_000
"""The most partitions of one plan: a driver takes milliseconds for each, and sends a kilobyte."""

_SHARE_ROWS: Final = 1 << 14
"""The least rows of a share of a part: fewer than any sensible row group has."""


class TimeFilter(msgspec.Struct, frozen=True, gc=False):
    """A filter that passes rows with `lower <= time < upper`; None is unbounded."""

    lower: int | None
    upper: int | None

    def passes_all(self, first: int, last: int) -> bool:
        """True if every time from `first` to `last` passes."""
        return (self.lower is None or self.lower <= first) and (
            self.upper is None or last < self.upper
        )

    def passes_none(self, first: int, last: int) -> bool:
        """True if no time from `first` to `last` passes."""
        return (self.lower is not None and last < self.lower) or (
            self.upper is not None and self.upper <= first
        )


class PlannedPart(msgspec.Struct, frozen=True, gc=False):
    """One part to fetch, and which of its rows count.

    Attributes:
        part: Where the rows are.
        times: The interval of the read, cut to the interval of the part's batch.
        ordered: True if the part's rows are in the shard's sort order.
        share: `(i, n)`: only row groups in the i-th of n equal slices are meant (i from 0).
        audit: True if no row passes the filter by the part's statistics, and the part is read only
            to check that; it yields nothing.
    """

    part: Part
    times: TimeFilter
    ordered: bool
    share: tuple[int, int] = (0, 1)
    audit: bool = False

    def row_groups(self, count: int) -> range:
        """The row groups in this share of a part that has `count` of them."""
        index, shares = self.share
        return range(count * index // shares, count * (index + 1) // shares)

    @property
    def weight_bytes(self) -> int:
        """The cost of reading it, opening included, in bytes of reading."""
        return self.part.size_bytes // self.share[1] + _OPEN_COST_BYTES

    @property
    def needs_time(self) -> bool:
        """True if rows must be filtered by time one by one."""
        bounds = self.part.time_bounds
        return bounds is None or not self.times.passes_all(*bounds)


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The parts that hold the contents of a shard at one time.

    Attributes:
        plain: Parts that are exact by themselves; a row with a diff above 1 counts that often.
        groups: Sets of parts to be merged and consolidated, each set on its own.
    """

    plain: tuple[PlannedPart, ...]
    groups: tuple[tuple[PlannedPart, ...], ...]

    @property
    def planned(self) -> list[PlannedPart]:
        """All parts of the plan."""
        return [*self.plain, *chain.from_iterable(self.groups)]


def volume_of(planned: Iterable[PlannedPart]) -> Volume:
    """An upper bound of the data to read: counts whole parts, as if no filter were applied."""
    return Volume.of(one.part for one in planned)


def plan_changes(state: ShardState, lower: int, upper: int | None) -> list[PlannedPart]:
    """The parts that hold the updates with `lower <= time < upper`."""
    return [planned for _, parts in batch_changes(state, lower, upper) for planned in parts]


def batch_changes(
    state: ShardState, lower: int, upper: int | None
) -> Iterator[tuple[Batch, list[PlannedPart]]]:
    """As `plan_changes`, batch by batch in order of time; earlier batches cost nothing."""
    batches = state.trace.batches
    first = bisect.bisect_right(batches, lower, key=lambda batch: batch.desc.lower)
    for index in range(max(first - 1, 0), len(batches)):
        batch = batches[index]
        if not batch.desc.overlaps(lower, upper):
            return
        times = _cut(lower, upper, batch.desc.lower, batch.desc.upper)
        yield batch, list(_planned(batch, times))


def plan_snapshot(state: ShardState, as_of: int, column: str) -> SnapshotPlan:
    """The parts that hold the contents at `as_of`.

    Args:
        state: A state of the shard.
        as_of: Updates at this time and before count.
        column: The first column that runs are sorted by: parts whose ranges of it are disjoint have
            no row in common.
    """
    # Times before the first are not filtered out: a snapshot sums all of history. But a trimmed
    # batch's part can hold rows before its batch's lower, which another batch holds too.
    planned = [
        found
        for batch in state.trace.batches
        if batch.desc.lower <= as_of
        for found in _planned(
            batch, _cut(None, as_of + 1, None, batch.desc.upper), first=batch.desc.lower
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
    return SnapshotPlan(tuple(plain), _groups(touched))


def _groups(touched: Sequence[tuple[PlannedPart, _Range]]) -> tuple[tuple[PlannedPart, ...], ...]:
    """Group parts whose ranges overlap, directly or through other parts."""
    hulls = _hulls([span for _, span in touched])
    groups: list[list[PlannedPart]] = [[] for _ in hulls]
    for candidate, span in touched:
        groups[bisect.bisect_right(hulls, span[0], key=lambda hull: hull[0]) - 1].append(candidate)
    return tuple(map(tuple, groups))


def pack_parts(planned: Iterable[PlannedPart], target_bytes: int) -> list[list[PlannedPart]]:
    """Spread parts over lists of about `target_bytes` each, heaviest part first.

    Parts larger than that are cut into shares. The weight of a part is its encoded size and the
    cost of opening it, so that many tiny parts do not end in one list. If there would be more lists
    than a driver schedules with ease, they are larger instead. Their order and contents are a pure
    function of the arguments: a plan made again is the same.
    """
    chosen = list(planned)
    total = sum(p.weight_bytes for p in chosen)
    target_bytes = max(target_bytes, -(-total // _LISTS_MAX))
    items = [share for one in chosen for share in _shares(one, target_bytes)]
    items.sort(key=lambda p: (-p.weight_bytes, p.part.key, p.share))
    wanted = -(-total // target_bytes)
    bins: list[list[PlannedPart]] = [[] for _ in range(min(wanted, len(items)))]
    lightest = [(0, index) for index in range(len(bins))]
    for item in items:
        weight, index = lightest[0]
        bins[index].append(item)
        heapq.heapreplace(lightest, (weight + item.weight_bytes, index))
    return bins


def _shares(planned: PlannedPart, target_bytes: int) -> Iterator[PlannedPart]:
    # Row groups are not cut, so more shares than there may be row groups are empty tasks.
    count = min(-(-planned.part.size_bytes // target_bytes), -(-planned.part.rows // _SHARE_ROWS))
    if count <= 1 or planned.part.inline is not None:
        yield planned
        return
    for index in range(count):
        yield msgspec.structs.replace(planned, share=(index, count))


def _cut(
    lower: int | None, upper: int | None, batch_lower: int | None, batch_upper: int | None
) -> TimeFilter:
    lowers = [time for time in (lower, batch_lower) if time is not None]
    uppers = [time for time in (upper, batch_upper) if time is not None]
    return TimeFilter(max(lowers, default=None), min(uppers, default=None))


def _planned(batch: Batch, times: TimeFilter, first: int | None = None) -> Iterator[PlannedPart]:
    """The parts of a batch that may have rows at `times`.

    Args:
        batch: The batch.
        times: The times that count in every part.
        first: In a part with rows before this time, only rows at it and later count.
    """
    later = msgspec.structs.replace(times, lower=first)
    for run in batch.runs:
        ordered = run.order == "sorted"
        for part in run.parts:
            bounds = part.time_bounds
            wanted = times
            if first is not None and (bounds is None or bounds[0] < first):
                wanted = later
            if bounds is None or not wanted.passes_none(*bounds):
                yield PlannedPart(part, wanted, ordered)


_Edge = tuple[int, Any]
"""An end of a range that compares with any other: `(0, 0)` and `(2, 0)` are the infinities."""

_Range = tuple[_Edge, _Edge]

_BELOW: Final[_Edge] = (0, 0)
_ABOVE: Final[_Edge] = (2, 0)


def _ranges(planned: Sequence[PlannedPart], column: str) -> list[_Range]:
    """The range of each part's values in `column`; unbounded if its statistics do not give one.

    Nulls sort first and NaN last, and neither is within the bounds that statistics give. Bounds of
    parts that were written under another type of the column do not compare: then all ranges are
    unbounded.
    """
    path = path_text((column,))
    known = [p.part.stats for p in planned]
    found = [stats.columns.get(path) if stats else None for stats in known]
    kinds = {one.kind for one in found if one is not None and one.kind is not None}
    if len(kinds) != 1 or "coll" in kinds:
        return [(_BELOW, _ABOVE)] * len(planned)
    ranges = []
    for stats, one in zip(known, found, strict=True):
        lo, hi = bounds(stats, path) if stats else (None, None)
        ranges.append(
            (
                _BELOW if lo is None or one is None or one.nulls else (1, lo),
                _ABOVE if hi is None or one is None or one.nans else (1, hi),
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
    """True if `span` has a value in common with one of the disjoint, ordered `hulls`."""
    after = bisect.bisect_right(hulls, span[1], key=lambda hull: hull[0])
    return after > 0 and hulls[after - 1][1] >= span[0]
