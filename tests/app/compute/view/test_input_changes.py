"""Times at which inputs change are read off their shards' states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shardline.app.compute.view.input_changes import (
    find_input_changes,
    lag_ms,
    unchanged_until,
)
from shardline.app.compute.view.maintained_view import View
from shardline.app.execution.commit_pacing import CommitPacing
from shardline.datasource.frontier import Frontier
from support.fakes.clock import ManualClock
from support.models.shards import World, schema_of, updates

APPENDS = st.lists(
    st.tuples(st.lists(st.integers(0, 4), max_size=3), st.integers(5, 9)), max_size=5
)
"""For each append the offsets of its rows' times, and how far it settles."""


def filled(world: World, name: str, appends: list[tuple[list[int], int]]) -> set[int]:
    """A shard with these appends; the times of its rows."""
    client = world.client()
    client.create(name, schema_of())
    handle, upper, times = client.writer(name), 0, set[int]()
    for offsets, length in appends:
        rows = [(n, "row", upper + offset, 1) for n, offset in enumerate(offsets)]
        handle.compare_and_append(
            updates(*rows) if rows else None, Frontier(upper), Frontier(upper + length)
        )
        times |= {upper + offset for offset in offsets}
        upper += length
    return times


@given(APPENDS, APPENDS, st.integers(0, 30), st.integers(1, 30))
def test_news_are_all_times_of_changes(
    one: list[tuple[list[int], int]],
    two: list[tuple[list[int], int]],
    lower: int,
    length: int,
) -> None:
    """No change is missed; where no part spans several times, none is invented."""
    world = World()
    truth = filled(world, "one", one) | filled(world, "two", two)
    states = world.client().readable("one", "two")
    wanted = {time for time in truth if lower <= time < lower + length}
    news = find_input_changes(states, lower, lower + length)
    assert set(news.times) <= wanted
    assert news.known or not wanted
    read = {time for time in wanted if news.spread}
    assert set(news.with_times(read).known) == wanted
    assert news.volume.rows >= len(wanted), "a time has an update at least"
    assert bool(news.volume.size_bytes) == bool(news.known)


@given(APPENDS, APPENDS, st.integers(0, 40))
def test_quiet_inputs_have_no_change(
    one: list[tuple[list[int], int]], two: list[tuple[list[int], int]], lower: int
) -> None:
    """The frontier that may be followed has no change before it, and is the least upper."""
    world = World()
    truth = filled(world, "one", one) | filled(world, "two", two)
    states = world.client().readable("one", "two")
    until = unchanged_until(states, lower).time
    assert until is not None
    assert until >= lower
    uppers = [state.upper.time or 0 for state in states]
    if until > lower:
        assert until == min(uppers)
        assert not any(lower <= time < until for time in truth)
    elif min(uppers) > lower:
        assert any(time >= lower for time in truth)


def test_merged_parts_have_about_as_many_times_as_intervals() -> None:
    """Such a part says its first and its last time only, and is not taken for a single time."""
    world = World()
    assert filled(world, "one", [([0], 5), ([0, 30], 40), ([0, 10, 20], 30)])
    states = world.client().readable("one")
    assert find_input_changes(states, 0, 5).expected_times(10) == 1
    assert find_input_changes(states, 0, 45).expected_times(10) == 4
    assert find_input_changes(states, 5, 75).expected_times(10) == 7  # of 5 … 35 and 45 … 65
    assert find_input_changes(states, 25, 36).expected_times(10) == 2
    assert find_input_changes(states, 5, 25).expected_times(10) == 2  # what is behind it is not its


def test_leaps_of_uppers_at_rest_slow_no_source_down() -> None:
    """A view is behind by what it lacks, and not by a quiet time that its inputs leap over."""
    client, clock = World().client(), ManualClock(0)
    client.create("in", schema_of())
    writer, pace = client.writer("in"), CommitPacing(clock, 1000, 10_000, lambda _: 0.0)
    view: Any = SimpleNamespace(
        _host=SimpleNamespace(interval_ms=1000),
        _reports=SimpleNamespace(hydrated=True, output=SimpleNamespace(upper=0)),
    )
    seen = []
    for moment in range(0, 60_000, 5000):
        writer.compare_and_append(None, Frontier(max(moment - 4999, 0)), Frontier(moment + 1))
        for _ in range(5):
            seen.append(View.behind_ms(view, client.readable("in")))
            pace.report_lag("v", seen[-1] or 0)
            view._reports.output.upper = moment + 1
            clock.advance(1000)
    assert max(one or 0 for one in seen) == 1000
    assert pace.interval_ms == 1000
    rows = updates((1, "row", 58_000, 1))
    writer.compare_and_append(rows, Frontier(55_001), Frontier(58_001))
    assert lag_ms(client.readable("in"), 55_001, 1000) == 1001
    writer.compare_and_append(None, Frontier(58_001), Frontier(68_001))
    assert lag_ms(client.readable("in"), 55_001, 1000) == 11_001
    writer.compare_and_append(None, Frontier(68_001), Frontier(None))
    assert lag_ms(client.readable("in"), 55_001, 1000) is None
