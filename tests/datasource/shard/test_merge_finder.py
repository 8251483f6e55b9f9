"""A finder that goes on from what it saw gives what a look at every batch gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.shard import merge_finder
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.merge_finder import MergeFinder
from shardline.datasource.shard.trace import Trace, due_merges, level_of
from support.strategies.rows import bounded

if TYPE_CHECKING:
    from shardline.datasource.shard.trace import Due

FILLED = (object(),)
"""Runs of a batch that has updates."""


def batch(at: int, rows: int) -> Batch:
    runs = FILLED if rows else ()
    return Batch(Description(at, at + 1), runs, level=level_of(rows))  # type: ignore[arg-type]


def weigh(one: Batch) -> int:
    return 100 + one.desc.lower * one.level


def plainly(trace: Trace, factor: int) -> list[tuple[Due, int]]:
    return [
        (due, sum(weigh(b) for b in trace.batches[due.start : due.end]))
        for due in due_merges(trace, factor)
    ]


changes = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([0, 1, 1, 1, 2, 40, 5000])),
        st.tuples(st.just("merge"), st.integers(1, 12)),
        st.tuples(st.just("merge early"), st.integers(0, 40)),
        st.tuples(st.just("factor"), st.sampled_from([2, 4, 16])),
        st.tuples(st.just("back"), st.integers(1, 30)),
    ),
    max_size=60,
)


@bounded
@given(st.lists(st.sampled_from([0, 1, 1, 2, 40]), max_size=60), changes)
def test_it_finds_what_is_due(sizes: list[int], changed: list[tuple[str, int]]) -> None:
    """Appends, merges at the end and in the middle, states that are older, other factors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_finder, "_NEWEST", 5)
        finder = MergeFinder()
        factor, at = 4, len(sizes)
        batches = tuple(batch(n, rows) for n, rows in enumerate(sizes))
        for what, number in [("append", 1), *changed]:
            if what == "append":
                batches, at = (*batches, batch(at, number)), at + 1
            elif what == "merge":
                batches, at = (*batches[:-number], batch(at, 30)), at + 1
            elif what == "merge early":
                batches = (*batches[:number], batch(at, 30), *batches[number + 3 :])
                at += 1
            elif what == "back":
                batches = batches[:-number]
            else:
                factor = number
            trace = Trace(batches=batches)
            assert list(finder.find(trace, factor, weigh)) == plainly(trace, factor)


@bounded
@given(st.integers(0, 30), st.lists(st.sampled_from([1, 1, 1, 2, 40]), min_size=1, max_size=30))
def test_an_interrupt_on_the_way_changes_no_answer(before: int, sizes: list[int]) -> None:
    """Ctrl-C at any batch, also at the first: what others have merged meanwhile is found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_finder, "_NEWEST", 5)
        begun = tuple(batch(n, 1) for n in range(before))
        more = (*begun, *(batch(before + n, rows) for n, rows in enumerate(sizes)))
        for at in range(before, len(more)):
            finder = MergeFinder()
            finder.find(Trace(batches=begun), 4, weigh)

            def interrupt(one: Batch, at: int = at) -> int:
                if one.desc.lower == at:
                    raise KeyboardInterrupt
                return weigh(one)

            with pytest.raises(KeyboardInterrupt):
                finder.find(Trace(batches=more), 4, interrupt)
            for later in ((*begun, batch(100, 5000)), (*begun, batch(100, 1)), more):
                trace = Trace(batches=later)
                assert list(finder.find(trace, 4, weigh)) == plainly(trace, 4)


def test_it_looks_only_at_batches_that_are_new() -> None:
    """After an append at one, after a merge of the newest at few."""
    seen: list[int] = []

    def count(one: Batch) -> int:
        seen.append(one.desc.lower)
        return weigh(one)

    finder = MergeFinder()
    batches = tuple(batch(n, 1) for n in range(5000))
    finder.find(Trace(batches=batches), 16, count)
    assert len(seen) == 5000
    seen.clear()
    batches = (*batches, batch(5000, 1))
    finder.find(Trace(batches=batches), 16, count)
    assert seen == [5000]
    seen.clear()
    for _ in range(3):
        batches = (*batches[:-16], batch(6000, 16))
        finder.find(Trace(batches=batches), 16, count)
    assert len(seen) < 3 * 2 * merge_finder._NEWEST
    grown = msgspec.structs.replace(batches[-1], level=7)
    trace = Trace(batches=(*batches[:-1], grown))
    assert list(finder.find(trace, 16, weigh)) == plainly(trace, 16)
