"""Dataflows begin, and reads are made, at times that are right for all of their inputs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardline.app.coordinator.as_of_selection import Readable, choose_as_of
from shardline.app.coordinator.oracle import Oracle
from shardline.datasource.frontier import EMPTY, Frontier

TIMES = st.integers(0, 50)


@st.composite
def readable(draw: st.DrawFn) -> Readable:
    """A shard that can be read somewhere."""
    since = draw(TIMES)
    upper = draw(st.one_of(st.just(EMPTY), st.builds(Frontier, st.integers(since, 60))))
    return Readable(Frontier(since), upper)


@given(st.lists(readable(), max_size=4), st.none() | readable())
def test_an_as_of_can_be_read_and_skips_nothing(
    inputs: list[Readable], output: Readable | None
) -> None:
    """It is at or after every since; and at the output's last time, if history still allows."""
    chosen = choose_as_of(inputs, output)
    assert chosen is not None
    assert all(chosen >= (one.since.time or 0) for one in inputs)
    resumes = output is not None and output.upper.time not in (None, 0)
    if resumes:
        assert output is not None
        assert output.upper.time is not None
        assert chosen >= output.upper.time - 1
        if all((one.since.time or 0) < output.upper.time for one in inputs):
            assert chosen == output.upper.time - 1
    else:
        # No later than it must: it can be computed now, or as soon as every input can be read.
        bounds = [one.upper.time - 1 for one in inputs if one.upper.time]
        floor = max((one.since.time or 0 for one in inputs), default=0)
        assert chosen == floor or chosen <= min(bounds, default=0)


def test_an_input_without_history_can_never_be_read() -> None:
    """The empty since says so: there is no `as_of`."""
    assert choose_as_of([Readable(EMPTY, EMPTY)], None) is None


def test_a_query_of_constants_begins_at_the_beginning() -> None:
    """It has no input to wait for."""
    assert choose_as_of([], None) == 0


def test_a_source_that_has_ended_does_not_hold_a_dataflow_back() -> None:
    """Only what may still change bounds the choice from above."""
    ended = Readable(Frontier(3), EMPTY)
    assert choose_as_of([ended, Readable(Frontier(0), Frontier(10))], None) == 9


@given(st.lists(st.lists(st.one_of(st.just(EMPTY), st.builds(Frontier, TIMES)), max_size=3)))
def test_strict_reads_never_go_back_and_see_what_was_complete(
    reads: list[list[Frontier]],
) -> None:
    """Whatever they read, and in whatever order the sources move."""
    oracle = Oracle(7)
    last = 7
    for uppers in reads:
        time = oracle.choose_strict(uppers)
        assert time >= last
        assert all(upper.is_beyond(time) or time >= (upper.time or 0) - 1 for upper in uppers)
        last = time


def test_a_serializable_read_waits_for_nothing() -> None:
    """The slowest input decides; an empty shard is read at the least time."""
    assert Oracle.choose_serializable([Frontier(10), Frontier(4), EMPTY]) == 3
    assert Oracle.choose_serializable([Frontier(0), Frontier(4)]) == 0
    assert Oracle.choose_serializable([EMPTY]) == 0
