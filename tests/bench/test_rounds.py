"""Measurements are taken in turns and put into figures."""

from __future__ import annotations

import math

import pytest

from bench.rounds import Measured, alternate, in_turns, quantile, rates
from support.fakes.clock import ManualClock


def test_cases_take_turns_and_keep_their_best_round() -> None:
    """Noise that lasts longer than one case hits all of them, and one quiet round is enough."""
    order: list[str] = []
    results = {"a": iter([3.0, 1.0, 2.0]), "b": iter([5.0, 6.0, 4.0])}

    def case(name: str) -> float:
        order.append(name)
        return next(results[name])

    best = in_turns(3, {name: lambda name=name: case(name) for name in results})  # type: ignore[misc]
    assert best == {"a": 1.0, "b": 4.0}
    assert order == ["a", "b", "a", "b", "a", "b"]


def test_seconds_are_those_of_the_clock() -> None:
    """A case's time is what passes while it runs, and nothing before or after."""
    clock = ManualClock()

    def slow() -> None:
        clock.advance(1500)

    best = alternate(clock, 2, {"slow": slow, "none": lambda: None})
    assert best == {"slow": 1.5, "none": 0.0}


def test_the_first_case_is_what_the_others_are_compared_with() -> None:
    """Twice the seconds are half the ratio; the first case has neither ratio nor aim."""
    lines = rates("read", {"base": 2.0, "ours": 4.0}, 100, "rows/s", {"base": 1.0, "ours": 0.6})
    assert lines == [
        Measured("read: base", 50.0, "rows/s"),
        Measured("read: ours", 25.0, "rows/s", 0.5, 0.6),
    ]


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [
        ([5.0], 0.5, 5.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([float(n) for n in range(1, 21)], 0.95, 19.0),
        ([float(n) for n in range(1, 101)], 0.95, 95.0),
        ([1.0, 2.0], 1.0, 2.0),
        ([1.0, 2.0], 0.0, 1.0),
    ],
)
def test_a_quantile_is_a_value_that_was_measured(
    values: list[float], share: float, found: float
) -> None:
    """The nearest rank: p95 of twenty values is the second greatest."""
    assert quantile(values, share) == found


def test_no_values_have_no_quantile() -> None:
    """Nothing measured shows as nothing, and not as zero."""
    assert math.isnan(quantile([], 0.5))
