"""Sessions follow from changes: at every time they are what plain Spark makes of all rows."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.types import NullType

from shardline.app.compute.view.accumulators import Accumulators
from shardline.app.compute.view.group_steps import GroupSteps
from shardline.app.compute.view.session_groups import session_programs
from support.profiles import one_of, some_of
from support.spark.view_world import ViewWorld

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from support.spark.views import Row

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are put together here

START: Final = 10
END: Final = 60
CUTS: Final = (START + 1, 20, 23, 32, 45, END)
"""The ends of steps: one has changes at three times, one at two, and the last one at none."""

CHANGES: Final = (10, 20, 21, 22, 25, 30, 40)
ONLY_NEW: Final = (20, 21, 22, 40)
"""Times at which no row goes."""

CLICKS: Final = pa.schema(
    [
        ("who", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("stay", pa.int32()),
        ("price", pa.int64()),
        ("cost", pa.decimal128(10, 2)),
        ("mark", pa.string()),
    ]
)

WINDOW: Final = "session_window(at, '10 seconds')"
SHOWN: Final = "w.start AS b, w.end AS e"

QUERIES: Final = {
    "counted": f"SELECT who, {SHOWN}, n FROM (SELECT who, {WINDOW} AS w, count(*) AS n "
    "FROM clicks GROUP BY who, w)",
    "all_functions": f"SELECT who, {WINDOW}.start AS b, count(price) AS n, sum(price) AS s, "
    "avg(cost) AS m, sum(cost) AS t, min(mark) AS lo, max(price) AS hi, avg(price) AS a, "
    "count(*) FILTER (WHERE price > 5) AS f, max(cost) FILTER (WHERE mark = 'x') AS x "
    f"FROM clicks GROUP BY who, {WINDOW}",
    "gap_of_the_row": f"SELECT {SHOWN}, n, who FROM (SELECT session_window(at, CASE WHEN stay > 0 "
    "THEN concat(stay, ' seconds') END) AS w, who, count(*) AS n, max(mark) AS m FROM clicks "
    "GROUP BY 1, 2)",
    "without_a_zone": f"SELECT {SHOWN}, n, mark FROM (SELECT session_window(local, '5 seconds') "
    "AS w, mark, sum(price) AS n FROM clicks GROUP BY mark, w)",
    "two_keys": f"SELECT w, who, mark, n FROM (SELECT who, {WINDOW} AS w, mark, count(*) AS n "
    "FROM clicks WHERE price > 2 GROUP BY who, w, mark HAVING count(*) > 1)",
    "over_sessions": "SELECT who, count(*) AS sessions, max(n) AS longest FROM (SELECT who, "
    f"{WINDOW} AS w, count(*) AS n FROM clicks GROUP BY who, w) GROUP BY who",
    "sessions_of_sessions": f"SELECT n, {SHOWN}, c FROM (SELECT n, w, count(*) AS c FROM (SELECT "
    f"who, {WINDOW} AS w, count(*) AS n FROM clicks GROUP BY who, w) GROUP BY n, w)",
    "by_window_alone": f"SELECT {SHOWN}, n FROM (SELECT w, max(n) AS n FROM (SELECT who, {WINDOW} "
    "AS w, count(*) AS n FROM clicks GROUP BY who, w) GROUP BY w)",
    "of_distinct": f"SELECT who, {SHOWN}, n FROM (SELECT who, {WINDOW} AS w, "
    "count(DISTINCT price) AS n FROM clicks GROUP BY who, w)",
}


class SessionWorld(ViewWorld):
    """Clicks at moments that are a whole gap apart, a little more, a little less, or the same."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        """Updated at random."""
        super().__init__(spark, folder, CUTS, range(START, 44))
        draw = random.Random(seed)
        self.inputs["clicks"] = found = self.bench.input("clicks", CLICKS)
        for time in CHANGES:
            rows = [(_click(draw), 1) for _ in range(12 if time == START else 3)]
            there = [] if time in ONLY_NEW else found.at(time - 1)
            gone = [(row, -1) for row in draw.sample(there, min(3, len(there)))]
            found.append([(time, row, diff) for row, diff in rows + gone], time + 1)
        found.idle(END)


def _click(draw: random.Random) -> Row:
    seconds = draw.choice([0, 3, 5, 10, 20, 21, 30, 45, 55, 60, 80])
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        seconds=seconds, microseconds=draw.choice([0, 0, 1, -1])
    )
    nothing = draw.random() < 0.1
    return (
        draw.choice([None, "ada", "bob"]),
        None if nothing else moment,
        None if nothing else moment.replace(tzinfo=None),
        draw.choice([0, 1, 9, 10, 30]),
        draw.choice([None, 1, 3, 7, 9]),
        draw.choice([None, Decimal("1.10"), Decimal("20.05")]),
        draw.choice([None, "x", "y"]),
    )


@pytest.fixture(scope="module", params=one_of(8, range(8)))
def world(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SessionWorld]:
    made = SessionWorld(spark, tmp_path_factory.mktemp("sessions"), request.param)
    yield made
    made.close()


@pytest.mark.parametrize("name", some_of(QUERIES, {"all_functions"}))
def test_sessions_are_those_of_all_rows(world: SessionWorld, name: str) -> None:
    """At each time, as rows extend them, join them, and leave holes; no query is run anew."""
    query = QUERIES[name]
    kept = world.kept(name, query)
    assert world.follow(kept, partial(world.by_spark, query)) == {"recompute", "incremental"}
    assert kept.strategy == "incremental", kept.reason


def test_sessions_are_made_anew_only_where_rows_go(world: SessionWorld) -> None:
    """Rows that come need nothing but the sessions that are there."""
    query = QUERIES["counted"]
    anew: list[int] = []

    def counted(states: GroupSteps, *given: Any) -> Any:
        anew.append(given[-1].lower)
        return make_anew(states, *given)

    make_anew, loses = GroupSteps._anew, GroupSteps._loses_extremes
    with (
        mock.patch.object(GroupSteps, "_anew", counted),
        mock.patch.object(GroupSteps, "_loses_extremes", autospec=True, side_effect=loses) as asked,
    ):
        world.follow(world.kept("in_part_anew", query), partial(world.by_spark, query))
    assert anew == [lower for lower, upper in pairwise(CUTS) if not only_new(lower, upper)]
    assert asked.call_count == len(anew), "a step in which no row goes asks for none"


def only_new(lower: int, upper: int) -> bool:
    return {time for time in CHANGES if lower <= time < upper} <= set(ONLY_NEW)


def test_only_sessions_near_what_comes_are_looked_at(spark: SparkSession) -> None:
    """Of the others nothing is said: neither that they go, nor that they come."""
    programs = session_programs(1, [Accumulators("count", 1, NullType())])
    session = spark.newSession()
    held = [("a", 0, 10, 1), ("a", 20, 40, 2), ("a", 50, 60, 5), ("b", 20, 40, 7)]
    moved = [("a", 7, 38, 55, 3), ("a", 8, 61, 70, 1), ("a", 8, 80, 90, 1)]
    # What comes touches the one that ends where it starts, and the one that starts where it ends.
    held += [("c", 0, 10, 1), ("c", 30, 40, 1)]
    moved += [("c", 7, 10, 30, 1)]
    window = "named_struct('start', timestamp_seconds(s), 'end', timestamp_seconds(e)) AS w"
    session.createDataFrame(held, "k1 STRING, s INT, e INT, n LONG").selectExpr(
        "k1", window, "n", "n AS c1"
    ).createOrReplaceTempView("state")
    session.createDataFrame(moved, "k1 STRING, _ts LONG, s INT, e INT, n LONG").selectExpr(
        "k1", "_ts", window, "n", "n AS c1"
    ).createOrReplaceTempView("moved")
    found = session.sql(programs.merged).selectExpr(
        "k1", "unix_seconds(w.start)", "unix_seconds(w.end)", "n", "_ts", "_diff"
    )
    assert sorted(map(tuple, found.collect())) == [
        ("a", 20, 40, 2, 7, -1),
        ("a", 20, 60, 10, 7, 1),
        ("a", 50, 60, 5, 7, -1),
        ("a", 61, 70, 1, 8, 1),
        ("a", 80, 90, 1, 8, 1),
        ("c", 0, 10, 1, 7, -1),
        ("c", 0, 40, 3, 7, 1),
        ("c", 30, 40, 1, 7, -1),
    ]
