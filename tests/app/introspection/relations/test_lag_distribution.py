"""Percentiles and shares of lag are those that DuckDB computes of the same minutes."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.introspection.events import Remembered
from shardline.app.introspection.relations.lag_distribution import tail_shares
from support.fakes.introspection import World

MINUTE = 60_000
LAGS = st.lists(st.integers(0, 50) | st.integers(0, 10**9), min_size=1, max_size=300)


def world_of(lags: dict[str, list[int]]) -> World:
    """A world whose last minutes had these lags."""
    world = World()
    first = world.clock.now_ms() // MINUTE - 2 * max(map(len, lags.values()))
    rows = [
        ((first + 2 * number) * MINUTE, (name, lag))
        for name, values in lags.items()
        for number, lag in enumerate(values)
    ]
    world.tell(Remembered(relation="wallclock_lag_history", rows=tuple(rows)))
    return world


def ask(query: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
    """Rows of a query of DuckDB."""
    return duckdb.execute(query, values).fetchall()


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), LAGS, min_size=1))
def test_percentiles_are_those_of_the_minutes(lags: dict[str, list[int]]) -> None:
    """`percentile_disc`: values that have occurred, and none between them."""
    expected = ask(
        "SELECT name, count(*), percentile_disc(0.5) WITHIN GROUP (ORDER BY lag), "
        "percentile_disc(0.9) WITHIN GROUP (ORDER BY lag), "
        "percentile_disc(0.99) WITHIN GROUP (ORDER BY lag), max(lag) FROM "
        "(SELECT name, unnest(lags) AS lag FROM "
        "(SELECT unnest($names) AS name, unnest($lags) AS lags)) GROUP BY name",
        {"names": list(lags), "lags": list(lags.values())},
    )
    rows = world_of(lags).rows("wallclock_lag_percentiles")
    assert sorted(tuple(row.values()) for row in rows) == sorted(expected)


@given(st.dictionaries(st.sampled_from(["a", "b"]), LAGS, min_size=1))
def test_shares_are_those_of_the_minutes_above(lags: dict[str, list[int]]) -> None:
    """Each point is exact, they fall from the least value to none above the greatest."""
    found: dict[object, list[tuple[int, float]]] = defaultdict(list)
    for row in world_of(lags).rows("wallclock_lag_distribution"):
        lag, share = row["lag"], row["share"]
        assert isinstance(lag, int)
        assert isinstance(share, float)
        found[row["object_id"]].append((lag, share))
    assert found.keys() == lags.keys()
    for name, points in found.items():
        shares = ask(
            "SELECT (SELECT count(*) FROM (SELECT unnest($lags) AS lag) WHERE lag > p)"
            " / len($lags) FROM (SELECT unnest($points) AS p) ORDER BY p",
            {"points": [lag for lag, _ in points], "lags": lags[str(name)]},
        )
        assert [share for _, share in points] == pytest.approx([share for (share,) in shares])
        assert points == sorted(points)
        assert points[-1] == (max(lags[str(name)]), 0.0)


@given(st.lists(st.integers(0, 10**6), min_size=100, max_size=300))
def test_a_day_has_few_points_and_none_is_far_from_the_next(lags: list[int]) -> None:
    """Steps of 1/32 at most, and the rare large ones finer."""
    points = list(tail_shares(sorted(lags)))
    assert len(points) <= 32 + math.log2(300)
    shares = [1.0, *(share for _, share in points)]
    repeated = max(map(lags.count, lags)) / len(lags)
    assert all(
        before - after <= 1 / 32 + repeated + 1 / len(lags) for before, after in pairwise(shares)
    )
    assert sorted(lags)[-2] in dict(points), "the second worst minute"


def test_a_day_ago_has_the_minutes_until_then() -> None:
    """As of an earlier moment minutes count that were over; now all of them."""
    world = world_of({"a": [1, 2, 3, 400]})
    at = world.clock.now_ms() // MINUTE * MINUTE - 4 * MINUTE
    (then,) = world.relations.rows("wallclock_lag_percentiles", as_of=at)
    assert (then["minutes"], then["max"]) == (2, 2)
    (now,) = world.rows("wallclock_lag_percentiles")
    assert (now["minutes"], now["p50"], now["max"]) == (4, 2, 400)
    shares = world.relations.rows("wallclock_lag_distribution", as_of=at)
    assert [(row["lag"], row["share"]) for row in shares] == [(1, 0.5), (2, 0.0)]
