"""Times at which inputs change are read off their shards' states."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardline.app.compute.view.input_changes import find_input_changes, unchanged_until
from shardline.datasource.frontier import Frontier
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
