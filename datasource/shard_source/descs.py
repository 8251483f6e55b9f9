"""Chooses the end of a micro-batch: pure functions of planned parts, a frontier and limits.

A stream must read a backlog in steps that fit the user's limits, and must choose each end so that
any later run, over other physical batches, reads the same rows for it. So ends are times, never
positions in a list of parts; only a snapshot, which has one time, needs a pinned list.
(Materialize: the `descs` operator of `shard_source`, which picks parts and times on one worker.)

A range of changes is cut by time. It ends where the times of a part begin, so that no part is read
twice if that can be helped; only a part that is too much by itself (a backlog that compaction has
merged into one) is cut inside of its times, as if its rows were spread evenly over them. A snapshot
has one time, and is cut between *units* instead: a part, or a group of parts that must be
consolidated together.

Invariants:
    The least step is always admitted: a limit slows a stream down and never stops it.
    The order of a snapshot's units is part of what an offset means. It is a pure function of the
    states that the offset names; another order needs another version of the offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.read import first_sort_column
from shardline.datasource.shard.plan import PlannedPart, batch_changes, plan_changes, plan_snapshot
from shardline.datasource.shard.state import ShardState

__all__ = [
    "Limits",
    "SnapshotUnit",
    "cut_units",
    "first_time",
    "next_frontier",
    "parts_with_news",
    "planning_horizon",
    "snapshot_units",
    "stop_before",
]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one micro-batch; None is unlimited. The first one reached counts."""

    size_bytes: float | None = None
    rows: float | None = None
    parts: float | None = None

    def admits(self, size_bytes: float, rows: float, parts: float) -> bool:
        """True if the given amount fits into one micro-batch."""
        return (
            (self.parts is None or parts <= self.parts)
            and (self.rows is None or rows <= self.rows)
            and (self.size_bytes is None or size_bytes <= self.size_bytes)
        )

    @property
    def unlimited(self) -> bool:
        """True if there is no limit at all."""
        return self.size_bytes is None and self.rows is None and self.parts is None


# --- changes: cut by time ----------------------------------------------------------------------


def parts_with_news(states: Iterable[ShardState], lower: int, upper: Frontier) -> list[PlannedPart]:
    """The parts of all shards that may have updates with `lower <= time < upper`, by metadata."""
    return [part for state in states for part in plan_changes(state, lower, upper.time)]


def planning_horizon(
    states: Iterable[ShardState], lower: int, upper: Frontier, limits: Limits
) -> Frontier:
    """A frontier up to `upper` before which more lies than `limits` admit; or `upper`.

    Planning need not look further, so a micro-batch of a long backlog costs as much as it reads,
    not as much as is left.
    """
    if limits.unlimited:
        return upper
    for state in states:
        size_bytes = rows = 0.0
        parts = 0
        for batch, found in batch_changes(state, lower, upper.time):
            shares = [(_last_time(p) - first_time(p) + 1) / _span(p) for p in found]
            size_bytes += sum(p.part.size_bytes * s for p, s in zip(found, shares, strict=True))
            rows += sum(p.part.rows * s for p, s in zip(found, shares, strict=True))
            parts += len(found)
            if not limits.admits(size_bytes, rows, parts):
                # The end of the batch, not of some part: all that was counted lies before it, so
                # `next_frontier` sees more than the limits admit. With an end inside of the batch
                # it could see less, and would take that end for the limit's. The lower `upper`
                # also ends the count of the shards after this one sooner.
                upper = meet((upper, batch.desc.upper_frontier))
                break
    return upper


def first_time(planned: PlannedPart) -> int:
    """The least time at which a part may have rows of the planned interval."""
    bounds = planned.part.time_bounds
    assert bounds is not None, planned.part.key
    # The part may begin before the planned interval does; its rows from before do not count.
    return bounds[0] if planned.times.lower is None else max(bounds[0], planned.times.lower)


def next_frontier(planned: Sequence[PlannedPart], upper: Frontier, limits: Limits) -> Frontier:
    """The end of the next range: as far towards `upper` as `limits` allow, and one time at least.

    Args:
        planned: `parts_with_news` up to `upper`; not empty.
        upper: The greatest end there is.
        limits: Limits of one micro-batch.
    """
    if limits.unlimited:
        return upper
    load = _Load.of(planned)
    # `upper`, not `last + 1`: times without updates are passed for free, and the holds with them.
    if load.fits(load.last + 1, limits):
        return upper
    # What a range reads grows with its end, so the greatest end within the limits is found by
    # bisection over times. `low` is not tested before the loop: `first + 1` is the least end that
    # reads anything, and it is admitted in any case, or the stream would stand still for ever.
    low, high = load.first + 1, load.last + 1
    while high - low > 1:
        middle = low + (high - low) // 2
        low, high = (middle, high) if load.fits(middle, limits) else (low, middle)
    # An end inside of a part makes two micro-batches read that part. It is moved back to where a
    # part begins, unless nothing would be left before it or another part is cut there, too.
    if load.cuts_a_part(low):
        whole = load.starts[bisect_right(load.starts, low) - 1]
        if whole > load.first and not load.cuts_a_part(whole):
            return Frontier(whole)
    return Frontier(low)


@dataclass(frozen=True, slots=True)
class _Load:
    """The amount of some parts that lies before a time, as arrays: plans have 100,000 parts.

    Attributes:
        first: Least time of any row.
        last: Greatest time of any row.
        starts: Times at which parts begin, ascending, each once.
    """

    first: int
    last: int
    starts: list[int]
    _lower: npt.NDArray[np.int64]
    _upper: npt.NDArray[np.int64]
    _spans: npt.NDArray[np.float64]
    _sizes: npt.NDArray[np.float64]
    _rows: npt.NDArray[np.float64]

    @classmethod
    def of(cls, planned: Sequence[PlannedPart]) -> _Load:
        lower = np.fromiter(map(first_time, planned), np.int64, len(planned))
        upper = np.fromiter(map(_last_time, planned), np.int64, len(planned))
        return cls(
            int(lower.min()),
            int(upper.max()),
            np.unique(lower).tolist(),
            lower,
            upper,
            np.fromiter(map(_span, planned), np.float64, len(planned)),
            np.fromiter((item.part.size_bytes for item in planned), np.float64, len(planned)),
            np.fromiter((item.part.rows for item in planned), np.float64, len(planned)),
        )

    def fits(self, end: int, limits: Limits) -> bool:
        """True if everything before `end` is within the limits."""
        touched = self._lower < end
        shares = self._before(end)[touched] / self._spans[touched]
        return limits.admits(
            float(self._sizes[touched] @ shares),
            float(self._rows[touched] @ shares),
            int(touched.sum()),
        )

    def cuts_a_part(self, end: int) -> bool:
        """True if some part has times on both sides of `end`."""
        return bool(np.any((self._lower < end) & (self._upper >= end)))

    def _before(self, end: int) -> npt.NDArray[np.float64]:
        """The number of each part's times before `end`; meaningless for parts after it."""
        return (np.minimum(self._upper, end - 1) - self._lower + 1).astype(np.float64)


def _last_time(planned: PlannedPart) -> int:
    bounds = planned.part.time_bounds
    assert bounds is not None, planned.part.key
    upper = planned.times.upper
    return bounds[1] if upper is None else min(bounds[1], upper - 1)


def _span(planned: PlannedPart) -> int:
    """The number of times from a part's first row to its last."""
    bounds = planned.part.time_bounds
    assert bounds is not None, planned.part.key
    # Of the whole part, not cut to the planned interval: sizes and rows are the whole part's, too.
    return bounds[1] - bounds[0] + 1


def stop_before(planned: Iterable[PlannedPart], unreadable: Collection[str]) -> int | None:
    """The least time of any unreadable part, which the frontier may reach and not pass; or None.

    Args:
        planned: The result of `parts_with_news`.
        unreadable: Keys of parts that are missing or damaged.
    """
    # The minimum over times, not the first in the list: parts are in no order of time within a
    # batch, and good parts at or after that time must not be emitted before the bad one.
    return min((first_time(p) for p in planned if p.part.key in unreadable), default=None)


# --- snapshots: cut between units --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SnapshotUnit:
    """The least piece of a snapshot that can be read by itself.

    Attributes:
        input: Index of its shard among the query's inputs.
        kind: `plain`: one part. `group`: parts that must be consolidated together.
        parts: The part, or the group.
    """

    input: int
    kind: Literal["plain", "group"]
    parts: tuple[PlannedPart, ...]


def snapshot_units(states: Sequence[ShardState], as_of: int) -> list[SnapshotUnit]:
    """The units of the snapshot of all shards at `as_of`, in the order in which offsets count."""
    units = []
    for index, state in enumerate(states):
        plan = plan_snapshot(state, as_of, first_sort_column(state))
        found = [SnapshotUnit(index, "group", group) for group in plan.groups]
        found += [SnapshotUnit(index, "plain", (part,)) for part in plan.plain]
        # By key, since keys never change. The order of a plan is no promise: a release may plan
        # groups first, and a query that restarts with it would skip units and repeat others.
        units += sorted(found, key=lambda unit: min(item.part.key for item in unit.parts))
    return units


def cut_units(units: Sequence[SnapshotUnit], done: int, limits: Limits) -> int:
    """The count of units read after the piece that starts at `done`; at least one more."""
    if limits.unlimited:
        return len(units)
    size_bytes = rows = parts = 0
    for count, unit in enumerate(units[done:], start=done):
        size_bytes += sum(item.part.size_bytes for item in unit.parts)
        rows += sum(item.part.rows for item in unit.parts)
        parts += len(unit.parts)
        # `count > done` admits the first unit whatever it weighs: a unit cannot be cut.
        if count > done and not limits.admits(size_bytes, rows, parts):
            return count
    return len(units)
