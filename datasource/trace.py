"""The trace: a shard's batches, in order of time, and its since.

The shape follows differential-dataflow's spine: batches carry a *level* (their size class) so that
merging neighbours of like size keeps their number logarithmic. This module only keeps the sequence
right; who merges, and when, is maintenance.

Invariants (`check`):
    Batches are contiguous: the first starts at `TIME_MIN`, each starts where the one before ends.
    No batch is compacted further than the trace: its since is at or before the trace's.
    An empty batch never has an empty neighbour: idle progress costs no batches.
    `inline_bytes` is the sum over all batches.
"""

from __future__ import annotations

import msgspec

from datasource.batch import Batch
from datasource.description import Description
from datasource.frontier import TIME_MIN, Frontier, join

__all__ = ["Trace", "check", "downgrade", "level_of", "push"]


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Since and batches.

    Attributes:
        since: Reads at `as_of >= since` are exact; None when nothing can be read any more.
        batches: In order of time, without gaps.
        inline_bytes: Bytes of inline parts in all batches; kept, because summing is O(batches).
    """

    since: int | None = TIME_MIN
    batches: tuple[Batch, ...] = ()
    inline_bytes: int = 0

    @property
    def upper(self) -> Frontier:
        """No update before this frontier can ever be added."""
        return self.batches[-1].desc.upper_frontier if self.batches else Frontier(TIME_MIN)

    @property
    def since_frontier(self) -> Frontier:
        """`since` as a frontier."""
        return Frontier(self.since)


def level_of(rows: int) -> int:
    """Size class of a batch with `rows` updates: level `i` holds at most `2**i`."""
    return max(rows - 1, 0).bit_length()


def push(trace: Trace, batch: Batch) -> Trace:
    """Append `batch`, which must start at the trace's upper and cover at least one time.

    An empty batch fuses with an empty last one; a batch with updates swallows an empty last one,
    unless its interval is what keeps rows of its parts out.
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
    """The trace with its since advanced to `since`; never moved back."""
    new = join((trace.since_frontier, since)).time
    return trace if new == trace.since else msgspec.structs.replace(trace, since=new)


def check(trace: Trace) -> None:
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
