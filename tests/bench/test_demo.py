"""The demo with a page and without is compared within one run, by medians."""

from __future__ import annotations

from bench.demo import Share, compare, turns


def test_each_round_has_both_and_every_other_one_the_opposite_order() -> None:
    """Else what becomes quicker with time would be counted for the page."""
    assert list(turns(3)) == [0, 1, 1, 0, 0, 1]


def test_a_page_is_compared_with_the_windows_without_one_of_the_same_run() -> None:
    """By medians: one window in which something else happened moves no line."""
    without = [Share(100.0, 5.0), Share(90.0, 4.0), Share(400.0, 80.0)]
    watched = [Share(110.0, 6.0), Share(10.0, 1.0), Share(120.0, 9.0)]
    lines = {line.name: line for line in compare("demo", {0: without, 1: watched})}
    whole = lines["demo, one open page: all of it"]
    assert (whole.value, whole.ratio) == (110.0, 1.1)
    python = lines["demo, one open page: the driver's Python"]
    assert (python.value, python.ratio) == (6.0, 1.2)
    more = lines["one open page: more of the driver's Python"]
    assert (more.value, more.most) == (1.0, 2.0)
