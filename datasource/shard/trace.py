"""A trace holds a shard's batches in order of time, and its since; it finds merges that are due.

Each append adds a batch, and a read opens all of them: unmerged, a shard would become slower with
every append. The shape follows differential dataflow's spine: batches carry a *level* (their size
class), so that merging neighbours of like size keeps their number logarithmic. This module keeps
the sequence right and finds the neighbours that are due (`due_merges`) and a past that is worth
writing anew (`cancelled_past`); merging itself is done by `maintenance`.

Invariants (`check_trace`):
    Batches are contiguous: the first starts at `TIME_MIN`, each starts where the one before ends.
    No batch is compacted further than the trace: its since is at or before the trace's.
    An empty batch never has an empty neighbour: idle progress costs no batches.
    `inline_bytes` is the sum over all batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from shardline.datasource.frontier import TIME_MIN, Frontier, join
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.description import Description

__all__ = [
    "Due",
    "DueWalk",
    "Trace",
    "cancelled_past",
    "check_trace",
    "downgrade",
    "due_merges",
    "level_of",
    "push_batch",
]

_PAST_ROWS_MIN: Final = 1 << 10
"""With fewer updates than this a past that cancels is not worth a merge of its own: that would cost
a log record for every few appends, and save a reader a millisecond."""


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """The since and the batches of a shard.

    Attributes:
        since: Reads at `as_of >= since` are exact; None when nothing can be read any more.
        batches: In order of time, without gaps.
        inline_bytes: Bytes of inline parts in all batches; stored, because every append needs it
            and summing takes O(batches).
    """

    since: int | None = TIME_MIN
    batches: tuple[Batch, ...] = ()
    inline_bytes: int = 0

    @property
    def upper(self) -> Frontier:
        """The frontier before which no update can ever be added."""
        return self.batches[-1].desc.upper_frontier if self.batches else Frontier(TIME_MIN)

    @property
    def since_frontier(self) -> Frontier:
        """`since` as a frontier."""
        return Frontier(self.since)


def level_of(rows: int) -> int:
    """Size class of a batch with `rows` updates: level `i` holds at most `2**i`."""
    return max(rows - 1, 0).bit_length()


def push_batch(trace: Trace, batch: Batch) -> Trace:
    """Append `batch`, which must start at the trace's upper and cover at least one time.

    If the last batch is empty, the new one takes its place and covers its interval too, unless
    `batch` is trimmed: a wider interval would let in rows of its parts that are not the batch's.
    """
    assert trace.upper == Frontier(batch.desc.lower), (trace.upper, batch.desc)
    assert not batch.desc.is_empty_interval, batch.desc
    last = trace.batches[-1] if trace.batches else None
    kept = trace.batches
    if last is not None and last.is_empty and not batch.is_trimmed:
        kept = kept[:-1]
        desc = Description(last.desc.lower, batch.desc.upper, batch.desc.since)
        batch = msgspec.structs.replace(batch, desc=desc)
    return msgspec.structs.replace(
        trace,
        batches=(*kept, batch),
        inline_bytes=trace.inline_bytes + batch.inline_bytes,
    )


def downgrade(trace: Trace, since: Frontier) -> Trace:
    """The trace with its since moved up to `since`; never back."""
    new = join((trace.since_frontier, since)).time
    return trace if new == trace.since else msgspec.structs.replace(trace, since=new)


class Due(NamedTuple):
    """Batches `[start, end)` of the trace that are to be merged.

    Attributes:
        start: Index of the first one.
        end: Index after the last one.
        is_one_tier: True if all are of one tier: then merging only the first `factor` of them, or
            more, is enough.
    """

    start: int
    end: int
    is_one_tier: bool


def due_merges(
    trace: Trace, factor: int, is_free: Callable[[Batch], bool] = lambda _: True
) -> Iterator[Due]:
    """The merges that are due, most urgent first; no two share a batch.

    Sizes are put into *tiers*, each `factor` times as large as the one below (rounded to a power of
    two). A trace in shape has tiers that do not grow from older batches to newer ones, and fewer
    than `factor` batches in each: so there are O(log n) batches with updates. Two things are out of
    shape:

    - a batch that is larger than those right before it: they are merged with it. This happens to
      it once, when it arrives, and lifts the others by a tier at least;
    - `factor` neighbours in one tier: merged, they are in the next one.

    So each update is written again about once per tier. Empty batches are no reason to merge, and
    one at the end of the trace may still grow and is never part of a merge.

    Args:
        trace: A shard's trace.
        factor: At least 2. More leaves more batches and rewrites less.
        is_free: True for a batch that may be part of a merge. Batches before and after one that
            may not are never merged together; nor are those around a merge that is yielded here.
    """
    walk = DueWalk(factor)
    for batch in trace.batches:
        walk.step(batch, is_free=is_free(batch))
    return iter(walk.due())


class DueWalk:
    """Looks at the batches of a trace for `due_merges`, from the first to the last."""

    def __init__(self, factor: int) -> None:
        """Begin before the first batch."""
        self.seen = 0
        self._factor = factor
        self._width = factor.bit_length() - 1
        self._lifted: list[Due] = []
        self._full: list[_Group] = []
        self._groups: list[_Group] = []

    def copy(self) -> DueWalk:
        """A walk that goes on from here by itself."""
        made = DueWalk(self._factor)
        made.seen = self.seen
        made._lifted, made._full = [*self._lifted], [*self._full]
        made._groups = [*self._groups]
        return made

    def step(self, batch: Batch, *, is_free: bool = True) -> None:
        """Look at the next batch."""
        index, self.seen = self.seen, self.seen + 1
        if not is_free:
            self._close()
            return
        if batch.is_empty:
            return
        groups = self._groups
        tier, start, count = batch.level // self._width, index, 1
        if groups and groups[-1].tier < tier:
            while groups and groups[-1].tier < tier:
                start = groups.pop().start
            self._lifted.append(Due(start, index + 1, is_one_tier=False))
            self._close()
            return
        if groups and groups[-1].tier == tier:
            last = groups.pop()
            start, count = last.start, last.members + 1
        groups.append(_Group(tier, start, index + 1, count))

    def due(self) -> list[Due]:
        """The merges of the batches so far, most urgent first."""
        full = reversed([*self._full, *_full(self._groups, self._factor)])
        return [*self._lifted, *(Due(one.start, one.end, is_one_tier=True) for one in full)]

    def _close(self) -> None:
        """No later batch is merged with those so far."""
        self._full += _full(self._groups, self._factor)
        self._groups = []


def cancelled_past(trace: Trace, is_free: Callable[[Batch], bool] = lambda _: True) -> Due | None:
    """The first batches, if more than half of the updates in them cancel or sum up; or None.

    Tiers bound the number of batches and the bytes rewritten. But they let a shard whose rows are
    updated again and again grow to `factor` times its contents, because an update and its
    retraction meet only when their tiers are merged. So the batches that lie wholly at or before
    the since, which a merge reduces to their contents, are merged when they have twice as many
    updates as contents, and at least as many updates came after their last such merge as it left:
    an update pays for two more rewrites.

    Looks at every part, unlike `due_merges`.

    Args:
        trace: A shard's trace.
        is_free: As for `due_merges`; the past ends before a batch that is not free.
    """
    kept = rows = net = end = 0
    for index, batch in enumerate(trace.batches):
        upper = batch.desc.upper
        if upper is None or not Frontier(upper - 1) <= trace.since_frontier or not is_free(batch):
            break
        if batch.is_empty:
            continue
        if not rows and Frontier(upper - 1) <= Frontier(batch.desc.since):
            kept = batch.rows
        rows += batch.rows
        net += sum(part.diff_sum for part in batch.parts)
        end = index + 1
    # The second condition ends a loop: with retractions of rows that never came, a merge leaves
    # more than `net` updates, and the first condition alone would ask for it again and again.
    cancels = rows > 2 * max(net, 0) and rows - kept >= max(kept, 1)
    return Due(0, end, is_one_tier=False) if cancels and rows >= _PAST_ROWS_MIN else None


class _Group(NamedTuple):
    """Neighbours `[start, end)` of one tier; `members` of them have updates."""

    tier: int
    start: int
    end: int
    members: int


def _full(groups: Iterable[_Group], factor: int) -> list[_Group]:
    return [group for group in groups if group.members >= factor]


def check_trace(trace: Trace) -> None:
    """Assert every invariant named in the module's head."""
    lower: int | None = TIME_MIN
    previous_empty = False
    for batch in trace.batches:
        assert lower is not None, ("a batch after the empty frontier", batch.desc)
        assert batch.desc.lower == lower, (batch.desc, lower)
        assert not batch.desc.is_empty_interval, batch.desc
        assert Frontier(batch.desc.since) <= trace.since_frontier, (batch.desc, trace.since)
        assert not (previous_empty and batch.is_empty), batch.desc
        for part in batch.parts:
            assert part.rows > 0, part.key
            assert part.time_bounds is not None, (part.key, "appended without a time")
        previous_empty = batch.is_empty
        lower = batch.desc.upper
    inline = sum(batch.inline_bytes for batch in trace.batches)
    assert inline == trace.inline_bytes, (inline, trace.inline_bytes)
