"""Views whose operators are computed anew for touched keys alone, at every time against Spark."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from shardline.app.compute.view.state_step import StateStep
from support.profiles import some_of
from support.spark.view_world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

AGGREGATES = {
    "median": "SELECT who, median(price) AS m, count(*) AS n FROM orders GROUP BY who",
    "floats": "SELECT who, avg(weight) AS w, sum(weight) AS s, max(weight) AS hi FROM orders "
    "GROUP BY who",
    "distinct_values": "SELECT who, count(DISTINCT id) AS i, sum(DISTINCT price) AS s, "
    "count(DISTINCT price % 3, id) FILTER (WHERE price > 9) AS f FROM orders GROUP BY who",
    "spread": "SELECT who, stddev(price) AS s, mode() WITHIN GROUP (ORDER BY price) AS m, "
    "percentile_disc(0.3) WITHIN GROUP (ORDER BY price DESC) AS p FROM orders GROUP BY who",
    "lists": "SELECT who, sort_array(collect_list(price)) AS l, "
    "listagg(who, '-') WITHIN GROUP (ORDER BY who) AS t, "
    "max_by(id, struct(price, id)) AS m FROM orders GROUP BY who",
    "flags": "SELECT who, every(price > 9) AS e, bool_or(price > 25) AS o, "
    "bit_xor(price) AS x FROM orders GROUP BY who",
    "by_two_with_having": "SELECT price % 2 AS odd, concat(who, '!') AS w, who, "
    "median(id) + 1 AS m FROM orders GROUP BY who, price % 2 HAVING count(DISTINCT id) > 1",
    "by_a_float": "SELECT weight, size(collect_list(id)) AS n, median(price) AS m "
    "FROM orders GROUP BY weight",
    "by_a_collation": "SELECT w, count(*) AS n FROM (SELECT collate(upper(who), 'UTF8_LCASE') AS w "
    "FROM orders) GROUP BY w",
    "rollup": "SELECT who, price % 2 AS odd, median(id) AS m FROM orders "
    "GROUP BY ROLLUP (who, price % 2)",
    "over_rows_of_rows": "SELECT tag, median(id) AS m, count(DISTINCT who) AS n FROM orders "
    "LATERAL VIEW explode(tags) t AS tag WHERE price > 6 GROUP BY tag",
    "over_a_union": "SELECT k, count(DISTINCT n) AS c FROM (SELECT who AS k, id AS n FROM orders "
    "UNION ALL SELECT name, length(city) FROM people) GROUP BY k",
    "over_a_join": "SELECT city, median(price) AS m, avg(weight) AS w FROM orders JOIN people "
    "ON who = name GROUP BY city",
    "of_an_aggregate": "SELECT n, median(total) AS m FROM (SELECT who, count(*) AS n, "
    "sum(price) AS total FROM orders GROUP BY who) GROUP BY n",
    "of_which_sums_are_kept": "SELECT n, sum(m) AS s, count(*) AS c FROM (SELECT who, "
    "count(DISTINCT price) AS n, CAST(median(price) AS DECIMAL(10, 2)) AS m FROM orders "
    "GROUP BY who) GROUP BY n",
    "joined": "SELECT o.id, m.m FROM orders o JOIN (SELECT who, median(day) AS m FROM visits "
    "GROUP BY who) m ON o.who = m.who WHERE o.price > m.m",
}


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Inputs that all change at the same times, and several times in a step."""
    made = World(spark, tmp_path_factory.mktemp("keys"))
    yield made
    made.close()


def follows(world: World, name: str, query: str) -> None:
    """A view is right at every time, and no step but the first has run the query."""
    kept = world.kept(name, query)
    assert world.follow(kept, partial(world.by_spark, query)) == {"recompute", "incremental"}
    assert kept.strategy == "incremental", kept.reason


@pytest.mark.parametrize("name", some_of(AGGREGATES, {"over_a_join"}))
def test_groups_that_change_are_computed_anew(world: World, name: str) -> None:
    """Whatever the functions; of results that are not decided the shown row goes."""
    follows(world, f"grouped_{name}", AGGREGATES[name])


WINDOWS = {
    "ranks": "SELECT id, rank() OVER (PARTITION BY who ORDER BY price) AS r, "
    "sum(price) OVER (PARTITION BY upper(who) ORDER BY price) AS s FROM orders",
    "top_of_each": "SELECT who, id, price FROM orders WHERE id < 5 QUALIFY row_number() OVER "
    "(PARTITION BY who ORDER BY price DESC, id, cost, weight, tags) <= 2",
    "over_groups": "SELECT who, day, m, lag(m) OVER (PARTITION BY who ORDER BY day) AS l FROM "
    "(SELECT who, day, count(DISTINCT price) AS m FROM orders JOIN visits USING (who) "
    "GROUP BY who, day)",
    "sessions": "SELECT w.s, count(*) AS n FROM (SELECT who, unix_seconds(session_window("
    "timestamp_seconds(price), '3 seconds').start) AS s FROM orders "
    "GROUP BY who, session_window(timestamp_seconds(price), '3 seconds')) w GROUP BY w.s",
}


@pytest.mark.parametrize("name", some_of(WINDOWS, {"top_of_each"}))
def test_partitions_that_change_are_computed_anew(world: World, name: str) -> None:
    """Of window functions, the first rows of each key, and session windows."""
    follows(world, f"window_{name}", WINDOWS[name])


JOINS = {
    "full": "SELECT o.id, p.name, p.city FROM orders o FULL JOIN people p "
    "ON upper(o.who) = upper(p.name) AND o.price > 9",
    "left_of_left": "SELECT o.id, p.city, v.day FROM orders o LEFT JOIN people p ON o.who = p.name "
    "LEFT JOIN visits v ON v.who = o.who AND v.day > 2",
    "groups_of_padded": "SELECT p.name, count(o.id) AS n, max(o.weight) AS w FROM people p "
    "LEFT JOIN orders o ON o.who = p.name GROUP BY p.name",
    "not_decided_joined": "SELECT o.id, o.who, f.m FROM orders o JOIN (SELECT who, "
    "avg(weight) AS m FROM orders GROUP BY who) f ON f.who = o.who",
}


@pytest.mark.parametrize("name", some_of(JOINS, {"groups_of_padded"}))
def test_join_keys_that_change_are_computed_anew(world: World, name: str) -> None:
    """Where both sides change."""
    follows(world, f"joined_{name}", JOINS[name])


def test_a_step_of_too_many_rows_is_recomputed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each time, and it is right."""
    monkeypatch.setattr(StateStep, "is_too_large", lambda *_: True)
    query = AGGREGATES["median"]
    kept = world.kept("too_large", query)
    assert world.follow(kept, partial(world.by_spark, query)) == {"recompute"}
