"""The sequence of batches: contiguous, fused where idle, and never saying more than is known."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasource.batch import Batch, Run
from datasource.description import Description
from datasource.frontier import EMPTY, Frontier
from datasource.state import ShardState, holders_since, is_tombstone, seqno_since
from datasource.trace import Trace, check, downgrade, level_of, push
from support.commands import histories, part
from support.strategies import bounded

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
        trace = push(trace, more)
        check(trace)
    assert intervals(trace) == [(0, 10, 1), (10, 11, 1), (11, None, 0)]
    assert trace.upper == EMPTY


def test_a_trimmed_batch_does_not_swallow_the_idle_time_before_it() -> None:
    """Its interval is what keeps the earlier rows of its parts out."""
    trace = push(push(Trace(), batch(0, 5)), batch(5, 10, 3, 7))
    assert intervals(trace) == [(0, 5, 0), (5, 10, 2)]
    check(trace)


@pytest.mark.parametrize("bad", [batch(4, 9), batch(6, 9), batch(5, 5)])
def test_a_gap_or_an_overlap_is_a_bug_of_the_caller(bad: Batch) -> None:
    """A batch starts where the trace ends, and covers some time."""
    with pytest.raises(AssertionError):
        push(push(Trace(), batch(0, 5)), bad)


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
    """What the head of the module promises is what `check` asserts."""
    with pytest.raises(AssertionError):
        check(bad)


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
