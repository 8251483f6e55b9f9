"""The sequence of batches: contiguous, fused where idle, few; it says no more than is known."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.shard.batch import Batch, Run
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import ShardState, holders_since, is_tombstone, seqno_since
from shardline.datasource.shard.trace import (
    Trace,
    cancelled_past,
    check_trace,
    downgrade,
    due_merges,
    level_of,
    push_batch,
)
from support.models.merging import next_merge
from support.models.shards import SETTINGS
from support.strategies.commands import histories, part
from support.strategies.rows import bounded

BLOB = (Run((part(ts=3),)),)


def batch(lower: int, upper: int | None, *times: int) -> Batch:
    runs = tuple(Run((part(ts=time),)) for time in times)
    return Batch(Description(lower, upper), runs)


def intervals(trace: Trace) -> list[tuple[int, int | None, int]]:
    return [(b.desc.lower, b.desc.upper, b.rows) for b in trace.batches]


def test_pushes_are_contiguous_and_idle_time_costs_nothing() -> None:
    """Empty batches fuse with what follows; batches with updates stay apart."""
    trace = Trace()
    for more in (batch(0, 5), batch(5, 9), batch(9, 10, 9), batch(10, 11, 10), batch(11, None)):
        trace = push_batch(trace, more)
        check_trace(trace)
    assert intervals(trace) == [(0, 10, 1), (10, 11, 1), (11, None, 0)]
    assert trace.upper == EMPTY


def test_a_trimmed_batch_does_not_swallow_the_idle_time_before_it() -> None:
    """Its interval is what keeps the earlier rows of its parts out."""
    trace = push_batch(push_batch(Trace(), batch(0, 5)), batch(5, 10, 3, 7))
    assert intervals(trace) == [(0, 5, 0), (5, 10, 2)]
    check_trace(trace)


@pytest.mark.parametrize("bad", [batch(4, 9), batch(6, 9), batch(5, 5)])
def test_a_gap_or_an_overlap_is_a_bug_of_the_caller(bad: Batch) -> None:
    """A batch starts where the trace ends, and covers some time."""
    with pytest.raises(AssertionError):
        push_batch(push_batch(Trace(), batch(0, 5)), bad)


@pytest.mark.parametrize(
    "bad",
    [
        Trace(0, (batch(1, 5),)),
        Trace(0, (batch(0, 5), batch(6, 9, 7))),
        Trace(0, (batch(0, 5), batch(5, 9))),
        Trace(0, (batch(0, None), batch(5, 9, 5))),
        Trace(0, (Batch(Description(0, 5, 3), BLOB),)),
        Trace(0, (Batch(Description(0, 5), (Run((part(),)),)),)),
        Trace(0, (batch(0, 5),), inline_bytes=1),
    ],
)
def test_check_sees_every_broken_invariant(bad: Trace) -> None:
    """What the head of the module promises is what `check_trace` asserts."""
    with pytest.raises(AssertionError):
        check_trace(bad)


def test_since_moves_forward_only() -> None:
    """A downgrade to an earlier time leaves the trace as it is."""
    trace = downgrade(Trace(), Frontier(7))
    assert trace.since == 7
    assert downgrade(trace, Frontier(3)) is trace
    assert downgrade(trace, EMPTY).since is None
    assert downgrade(downgrade(trace, EMPTY), Frontier(9)).since is None


@given(st.integers(0, 2**40))
def test_a_level_holds_at_most_its_power_of_two(rows: int) -> None:
    """The level is the least `i` with `rows <= 2**i`."""
    level = level_of(rows)
    assert rows <= 2**level
    assert level == 0 or rows > 2 ** (level - 1)


@given(histories())
@bounded
def test_no_command_moves_a_frontier_back(states: list[ShardState]) -> None:
    """Whatever is commanded in whatever order: since, upper, seqno and time only grow."""
    for old, new in pairwise(states):
        assert new.seqno == old.seqno + 1
        assert new.walltime_ms > old.walltime_ms
        if new.shard != old.shard or (is_tombstone(old) and not is_tombstone(new)):
            continue
        assert new.since >= old.since
        assert new.upper >= old.upper
        for name, writer in old.writers.items():
            if writer.lease_ms is None and not is_tombstone(new):
                assert new.writers[name].last >= writer.last


@given(histories())
@bounded
def test_the_since_never_passes_a_holder(states: list[ShardState]) -> None:
    """Every reader that is registered can read at its since, at every moment of every history."""
    for state in states:
        held = holders_since(state)
        if held is not None and not is_tombstone(state):
            assert state.since <= held
        assert all(seqno_since(state) <= reader.seqno for reader in state.leased.values())


@given(histories())
@bounded
def test_what_a_settled_time_shows_never_changes(states: list[ShardState]) -> None:
    """An append adds nothing below the upper it met, also not out of parts that reach below it."""
    for old, new in pairwise(states):
        appended = new.trace.batches[: len(old.trace.batches) - 1] == old.trace.batches[:-1]
        if appended and not old.upper.is_empty and new.base == old.base:
            settled = old.upper.time or 0
            assert shown(new.trace, settled) == shown(old.trace, settled)


def shown(trace: Trace, before: int) -> Counter[tuple[str, int]]:
    """Which parts show their first or last time, if that is before `before`."""
    return Counter(
        (one.key, time)
        for held in trace.batches
        for one in held.parts
        for time in one.time_bounds or ()
        if held.desc.covers(time) and time < before
    )


# --- what is merged next -------------------------------------------------------------------------


def trace_of(*sizes: int) -> Trace:
    """Batches with this many updates, one after the other; 0 is an interval without any."""
    trace = Trace()
    for number, size in enumerate(sizes):
        some = (part(f"p{number}", rows=size, ts=number),) if size else ()
        runs = (Run(some),) if some else ()
        trace = push_batch(trace, Batch(Description(number, number + 1, 0), runs, level_of(size)))
    return trace


def merge_at(trace: Trace, start: int, end: int) -> Trace:
    merged = trace.batches[start:end]
    size = sum(batch.rows for batch in merged)
    one = Batch(
        Description(merged[0].desc.lower, merged[-1].desc.upper, 0),
        (Run((part("m", rows=size, ts=merged[0].desc.lower),)),),
        level_of(size),
    )
    return msgspec.structs.replace(
        trace, batches=(*trace.batches[:start], one, *trace.batches[end:])
    )


def test_neighbours_of_like_size_are_due_together() -> None:
    """As many as the factor says, and all of them when they are more."""
    assert next_merge(trace_of(1, 1, 1), 4) is None
    assert next_merge(trace_of(1, 1, 1, 1), 4) == (0, 4)
    assert next_merge(trace_of(*[1] * 9), 4) == (0, 9)
    assert next_merge(trace_of(900, *[1] * 5), 4) == (1, 6)


def test_small_batches_before_a_large_one_are_merged_with_it() -> None:
    """Otherwise they would be out of reach of those of their size that come later."""
    assert next_merge(trace_of(1, 100), 4) == (0, 2)
    assert next_merge(trace_of(5000, 1, 20, 1, 100), 4) == (1, 3)
    assert next_merge(trace_of(5000, 100, 1), 4) is None


def test_an_empty_batch_at_the_end_is_left_to_grow() -> None:
    """It would be another one by the time a merge of it is applied."""
    assert next_merge(trace_of(1, 1, 1, 1, 0), 4) == (0, 4)
    assert next_merge(trace_of(0), 2) is None
    assert next_merge(Trace(), 2) is None


def test_what_is_taken_or_too_much_does_not_keep_the_rest_from_being_merged() -> None:
    """Batches that are not free part those before them from those after; so does a merge itself."""

    def found(trace: Trace, *taken: int) -> list[tuple[int, int, bool]]:
        free = {b.desc.lower for n, b in enumerate(trace.batches) if n not in taken}
        return [(*due,) for due in due_merges(trace, 4, lambda b: b.desc.lower in free)]

    assert found(trace_of(*[1] * 12)) == [(0, 12, True)]
    assert found(trace_of(*[1] * 12), 5, 6) == [(7, 12, True), (0, 5, True)]
    assert found(trace_of(*[1] * 12), 2, 10) == [(3, 10, True)]
    assert found(trace_of(1, 100, *[1] * 4)) == [(0, 2, False), (2, 6, True)]
    assert found(trace_of(1, 100, *[1] * 4), 0) == [(2, 6, True)]
    assert found(trace_of(1, 100, *[1] * 4), 1) == [(2, 6, True)]


@bounded
@given(
    st.lists(st.integers(0, 3) | st.integers(0, 5000), max_size=60),
    st.sets(st.integers(0, 59)),
    st.integers(2, 16),
)
def test_due_merges_are_apart_and_free(sizes: list[int], taken: set[int], factor: int) -> None:
    """None shares a batch with another one, none has one that is taken, each has two at least."""
    trace = trace_of(*sizes)
    used: set[int] = set()
    free = {b.desc.lower for n, b in enumerate(trace.batches) if n not in taken}
    for due in due_merges(trace, factor, lambda b: b.desc.lower in free):
        span = set(range(due.start, due.end))
        assert not span & (used | taken)
        used |= span
        full = [b for b in trace.batches[due.start : due.end] if not b.is_empty]
        assert len(full) >= (factor if due.is_one_tier else 2)
        width = factor.bit_length() - 1
        tiers = [b.level // width for b in full]
        assert (len(set(tiers)) == 1) == due.is_one_tier
        assert due.is_one_tier or max(tiers[:-1]) < tiers[-1]


@bounded
@given(st.lists(st.integers(0, 3) | st.integers(0, 5000), max_size=300), st.integers(2, 16))
def test_batches_stay_few_and_rewrites_too(sizes: list[int], factor: int) -> None:
    """Whatever the sizes: fewer than `factor` batches per tier, each rewritten once per tier."""
    trace, written = Trace(), 0
    for number, size in enumerate(sizes):
        more = trace_of(*[0] * number, size).batches[-1:]
        moved = Description(number, number + 1, 0)
        trace = push_batch(trace, msgspec.structs.replace(more[0], desc=moved))
        while due := next_merge(trace, factor):
            trace = merge_at(trace, *due)
            written += trace.batches[due[0]].rows
    total = sum(sizes)
    tiers = level_of(total) // (factor.bit_length() - 1) + 1
    assert sum(not batch.is_empty for batch in trace.batches) <= (factor - 1) * tiers
    # A tier per rewrite, one more for arriving larger than those before.
    assert written <= total * (tiers + 1)
    assert sum(batch.rows for batch in trace.batches) == total


def churn(trace: Trace, rows: int, change: int) -> Trace:
    """One more batch: `rows` updates whose diffs add up to `change`."""
    at = trace.upper.time
    assert at is not None
    some = part(f"p{at}", rows=rows, ts=at, diff_sum=change)
    return push_batch(trace, Batch(Description(at, at + 1, 0), (Run((some,)),), level_of(rows)))


def test_a_past_that_cancels_is_written_anew() -> None:
    """Once as much came as there was; what since keeps apart does not count."""
    trace = merge_past(churn(Trace(), 1000, 1000), 1000)
    for _ in range(9):
        trace = churn(trace, 100, 0)
    assert cancelled_past(downgrade(trace, Frontier(9))) is None
    trace = churn(churn(trace, 100, 0), 100, 0)
    late = downgrade(trace, Frontier(11))
    assert cancelled_past(late) == (0, 12, False)
    assert cancelled_past(downgrade(trace, Frontier(9))) is None
    assert cancelled_past(late, lambda b: b.desc.lower != 10) is None
    assert cancelled_past(msgspec.structs.replace(late, since=None)) == (0, 12, False)


def test_a_past_of_more_rows_than_before_does_not_cancel() -> None:
    """A shard that is only added to is never written again for this."""
    trace = merge_past(churn(Trace(), 1000, 1000), 1000)
    for _ in range(50):
        trace = churn(trace, 1000, 1000)
    assert cancelled_past(downgrade(trace, Frontier(50))) is None


def test_few_large_batches_are_a_past_that_cancels_too() -> None:
    """A bulk update of a large table need not wait for others like it."""
    trace = merge_past(churn(Trace(), 10**6, 10**6), 10**6)
    trace = churn(trace, 2 * 10**6, 0)
    assert cancelled_past(downgrade(trace, Frontier(1))) == (0, 2, False)
    small = merge_past(churn(Trace(), 10, 10), 10)
    assert cancelled_past(downgrade(churn(small, 20, 0), Frontier(1))) is None


def merge_past(trace: Trace, left: int) -> Trace:
    """All batches as one, consolidated to the last time, with so many updates left."""
    desc = Description(0, trace.upper.time, trace.upper.time)
    net = sum(p.diff_sum for b in trace.batches for p in b.parts)
    runs = (Run((part("m", rows=left, ts=0, diff_sum=net),)),) if left else ()
    return msgspec.structs.replace(trace, batches=(Batch(desc, runs, level_of(left)),))


@bounded
@given(st.lists(st.tuples(st.integers(0, 6000), st.integers(-6000, 6000)), max_size=200))
def test_a_past_is_not_written_again_and_again(moves: list[tuple[int, int]]) -> None:
    """Also where rows are taken back that never came, and a merge cannot reduce it to contents."""
    trace, appended, written, live = Trace(), 0, 0, 0
    for rows, wish in moves:
        change = max(-rows, min(rows, wish))
        if rows:
            trace, appended = churn(trace, rows, change), appended + rows
            live += change
        assert trace.upper.time is not None
        trace = downgrade(trace, Frontier(max(trace.upper.time - 1, 0)))
        if due := cancelled_past(trace):
            assert due.end == len(trace.batches)
            trace = merge_past(trace, abs(live))
            written += abs(live)
            assert cancelled_past(trace) is None
    assert written <= 2 * appended


def test_ten_thousand_appends_are_written_four_times_and_leave_few_batches() -> None:
    """The numbers behind the default factor."""
    trace, written = Trace(), 0
    for number in range(10_000):
        size = 100
        one = Batch(
            Description(number, number + 1, 0), (Run((part("p", rows=size, ts=number),)),), 7
        )
        trace, written = push_batch(trace, one), written + size
        while due := next_merge(trace, SETTINGS.compact_factor):
            trace = merge_at(trace, *due)
            written += trace.batches[due[0]].rows
    assert written <= 4 * 1_000_000
    assert len(trace.batches) <= 45
