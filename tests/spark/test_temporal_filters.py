"""Views with temporal filters hold at every time what their query says with now() as that time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.spark.timed_world import TimedWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Case(NamedTuple):
    """A view's query.

    Attributes:
        query: For Spark.
        duck: The same for DuckDB, where timestamps are µs, and `{now}` those of the time.
        how: The strategy.
        way: How its steps were taken after the first one.
    """

    query: str
    duck: str
    how: str = "incremental"
    way: str = "incremental"


CASES = {
    "until": Case(
        "SELECT id, who FROM events WHERE ends > now()",
        "SELECT id, who FROM events WHERE ends > {now}",
    ),
    "window": Case(
        "SELECT id, price FROM events "
        "WHERE begins > now() - INTERVAL '0.0054' SECOND AND price > 6 AND begins <= now()",
        "SELECT id, price FROM events "
        "WHERE begins > {now} - 5400 AND price > 6 AND begins <= {now}",
    ),
    "between": Case(
        "SELECT id FROM events WHERE now() BETWEEN begins AND ends",
        "SELECT id FROM events WHERE {now} BETWEEN begins AND ends",
    ),
    "groups": Case(
        "SELECT who, count(*) AS n, sum(price) AS total, max(id) AS most FROM events "
        "WHERE begins BETWEEN current_timestamp() - INTERVAL '0.012' SECOND "
        "AND current_timestamp() + INTERVAL '0.0001' SECOND GROUP BY who",
        "SELECT who, count(*), sum(price), max(id) FROM events "
        "WHERE begins BETWEEN {now} - 12000 AND {now} + 100 GROUP BY who",
    ),
}


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedWorld]:
    made = TimedWorld(spark, tmp_path_factory.mktemp("timed"))
    yield made
    made.close()


@pytest.mark.parametrize("name", CASES)
def test_contents_at_every_time(world: TimedWorld, name: str) -> None:
    """Rows come and go at their times, with and without changes of inputs."""
    case = CASES[name]
    kept = world.kept(f"v_{name}", case.query)
    ways = world.follow(kept, partial(world.by_duck, case.duck))
    assert kept.strategy == case.how
    assert ways == {"recompute", case.way}
