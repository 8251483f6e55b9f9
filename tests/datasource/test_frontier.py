"""Times and frontiers in sentences."""

from __future__ import annotations

import pytest

from shardline.datasource.frontier import EMPTY, TIME_MAX, Frontier, with_date


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (1_795_980_325_000, "1795980325000 (2026-11-29 19:25:25.000 UTC)"),
        (Frontier(1_795_980_325_007), "[1795980325007] (2026-11-29 19:25:25.007 UTC)"),
        (7, "7"),
        (TIME_MAX, str(TIME_MAX)),
        (EMPTY, "[]"),
    ],
)
def test_a_time_has_its_date(time: int | Frontier, said: str) -> None:
    """Who has asked with a date is answered with one; positions in an order have none."""
    assert with_date(time) == said
