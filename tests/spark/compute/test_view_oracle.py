"""Views of every kind, at every time, against DuckDB over the rows of a model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from support.profiles import some_of
from support.spark.view_world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from support.spark.kept_plans import Compared

pytestmark = pytest.mark.spark


class Case(NamedTuple):
    """A view's query.

    Attributes:
        duck: The same for DuckDB; "" if it is the same text.
        how: The strategy.
        taken: The way of its steps, both of whose inputs change; "" if it is the strategy's.
    """

    query: str
    duck: str = ""
    how: str = "recompute"
    taken: str = ""


LINEAR = "linear"
JOINED = "incremental"
GROUPED = "incremental"

CASES = {
    "filter": Case("SELECT id, price * 2 AS twice FROM orders WHERE price > 10", how=LINEAR),
    "star": Case("SELECT * FROM orders WHERE who <> 'bob' OR who IS NULL", how=LINEAR),
    "star_except": Case(
        "SELECT o.* EXCEPT (tags, weight), upper(who) AS big FROM orders o",
        "SELECT id, who, price, cost, upper(who) FROM orders",
        LINEAR,
    ),
    "cte": Case(
        "WITH dear AS (SELECT who, price FROM orders WHERE price >= 20) "
        "SELECT who, price + 1 AS p FROM (SELECT * FROM dear) d",
        how=LINEAR,
    ),
    "union_all": Case(
        "SELECT who FROM orders UNION ALL SELECT name FROM people WHERE city IS NOT NULL",
        how=LINEAR,
    ),
    "explode": Case(
        "SELECT id, tag FROM orders LATERAL VIEW explode(tags) t AS tag",
        "SELECT id, unnest(tags) FROM orders",
        LINEAR,
    ),
    "case_null_nan": Case(
        "SELECT id, coalesce(weight, -1D) AS w, CASE WHEN price > 15 THEN 'dear' END AS k "
        "FROM orders",
        "SELECT id, coalesce(weight, -1), CASE WHEN price > 15 THEN 'dear' END FROM orders",
        LINEAR,
    ),
    "distinct_from": Case(
        "SELECT id, who IS DISTINCT FROM 'bob' AS other FROM orders "
        "WHERE price IS NOT DISTINCT FROM 10 OR id > 1",
        how=LINEAR,
    ),
    "from_first": Case("FROM orders SELECT id, price WHERE price > 10", how=LINEAR),
    "with_constants": Case(
        "SELECT id, who FROM orders UNION ALL VALUES (0, 'nobody'), (0, 'nobody') "
        "UNION ALL SELECT 1, NULL",
        how=LINEAR,
    ),
    "cte_twice": Case(
        "WITH dear AS (SELECT who, price FROM orders WHERE price >= 20) "
        "SELECT who FROM dear UNION ALL SELECT upper(who) FROM dear WHERE price > 25",
        how=LINEAR,
    ),
    "table": Case("TABLE people", "SELECT * FROM people", LINEAR),
    "pipe": Case(
        "FROM orders |> WHERE price > 10 |> SELECT id",
        "SELECT id FROM orders WHERE price > 10",
        LINEAR,
    ),
    "pipe_behind_select": Case(
        "SELECT id, price FROM orders |> WHERE price > 10",
        "SELECT id, price FROM orders WHERE price > 10",
        LINEAR,
    ),
    "sorted_spread_hinted": Case(
        "SELECT /*+ REPARTITION(2) */ id FROM (SELECT id FROM orders DISTRIBUTE BY id) ORDER BY id",
        "SELECT id FROM orders",
        LINEAR,
    ),
    "unpivot": Case(
        "SELECT * FROM (SELECT id, price, price + 1 AS more FROM orders) "
        "UNPIVOT (v FOR k IN (price, more))",
        how=LINEAR,
    ),
    "hop": Case(
        "SELECT id, unix_seconds(window(timestamp_seconds(price), '10 seconds', '5 seconds').start)"
        " AS s FROM orders",
        "SELECT id, price // 5 * 5 - d FROM orders, (VALUES (0), (5)) AS w(d)",
        LINEAR,
    ),
    "tumble": Case(
        "SELECT unix_seconds(window.start) AS s, count(*) AS n FROM orders "
        "GROUP BY window(timestamp_seconds(price), '10 seconds')",
        "SELECT price // 10 * 10, count(*) FROM orders GROUP BY 1",
        how=GROUPED,
    ),
    "array_of_no_nulls": Case(
        "SELECT id, array(id, 1L) AS a, named_struct('p', price) AS s FROM orders",
        "SELECT id, [id, 1], {'p': price} FROM orders",
        LINEAR,
    ),
    "select_as_name": Case("SELECT id AS select FROM orders", "SELECT id FROM orders", LINEAR),
    "inner_join": Case(
        "SELECT o.id, p.city FROM orders o JOIN people p ON o.who = p.name", how=JOINED
    ),
    "join_using": Case(
        "SELECT who, o.id, v.day, p.city FROM orders o JOIN visits v USING (who), people p "
        "WHERE p.name = who AND v.day > 1",
        how=JOINED,
    ),
    "cross_join": Case("SELECT p.name, v.day FROM people p CROSS JOIN visits v", how=JOINED),
    "join_by_range": Case(
        "SELECT o.id, v.day FROM orders o JOIN visits v ON o.price BETWEEN v.day * 4 AND 20",
        how=JOINED,
    ),
    "join_of_changes": Case(
        "SELECT x.k, x.n, y.day FROM (SELECT upper(who) AS k, id AS n FROM orders WHERE price > 3 "
        "UNION ALL SELECT upper(name), 0 FROM people) x "
        "JOIN (SELECT upper(who) AS k, day + 1 AS day FROM visits) y ON x.k = y.k AND x.n > y.day",
        how=JOINED,
    ),
    "filter_between_joins": Case(
        "SELECT x.id, v.day FROM (SELECT o.id, o.who FROM orders o JOIN people p ON o.who = p.name "
        "WHERE p.city = 'Rome') x JOIN visits v ON x.who = v.who",
        how=JOINED,
    ),
    "may_fail": Case(
        "SELECT o.id, v.day FROM orders o JOIN people p ON o.who = p.name AND 60 / o.price > 3 "
        "JOIN visits v ON o.who = v.who",
        how=JOINED,
    ),
    "four_times_one": Case(
        "SELECT a.day, b.day AS b, c.day AS c, d.day AS d FROM visits a JOIN visits b USING (who) "
        "JOIN visits c USING (who) JOIN (visits d JOIN people p ON d.who = p.name) USING (who)",
        how=JOINED,
    ),
    "cte_joined": Case(
        "WITH v AS (SELECT who, day FROM visits WHERE day > 0) "
        "SELECT a.who, b.day FROM v a JOIN v b ON a.day = b.day AND a.who <> b.who",
        how=JOINED,
    ),
    "left_join": Case(
        "SELECT o.id, p.city FROM orders o LEFT JOIN people p ON o.who = p.name",
        how=JOINED,
    ),
    "left_join_of_constants": Case(
        "SELECT o.id, c.n FROM orders o JOIN visits v ON o.who = v.who "
        "LEFT JOIN (VALUES (10, 'ten'), (20, 'twenty')) AS c(k, n) ON o.price = c.k",
        how=JOINED,
    ),
    "right_join_of_constants": Case(
        "SELECT c.n, o.id FROM (VALUES (10, 'ten')) c(k, n) RIGHT JOIN orders o ON o.price = c.k",
        how=JOINED,
        taken=LINEAR,  # nothing is read but changes
    ),
    "full_join": Case(
        "SELECT o.id, p.name, p.city FROM orders o FULL OUTER JOIN people p ON o.who = p.name",
        how=JOINED,
    ),
    "semi_join": Case(
        "SELECT id FROM orders o LEFT SEMI JOIN people p ON o.who = p.name",
        "SELECT id FROM orders o WHERE who IN (SELECT name FROM people)",
        JOINED,
    ),
    "anti_join": Case(
        "SELECT id FROM orders o LEFT ANTI JOIN people p ON o.who = p.name",
        "SELECT id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM people p WHERE p.name = o.who)",
        JOINED,
    ),
    "self_join": Case(
        "SELECT a.id AS one, b.id AS two FROM orders a JOIN orders b "
        "ON a.who = b.who AND a.id < b.id",
        how=JOINED,
    ),
    "three_way": Case(
        "SELECT p.city, v.day, count(*) AS n FROM orders o JOIN people p ON o.who = p.name "
        "JOIN visits v ON v.who = p.name GROUP BY p.city, v.day",
        how=GROUPED,
    ),
    "aggregates": Case(
        "SELECT who, count(*) AS n, count(weight) AS w, sum(price) AS s, min(price) AS lo, "
        "max(cost) AS hi, avg(price) AS mean FROM orders GROUP BY who",
        how=GROUPED,
    ),
    "global_count": Case("SELECT count(*) AS n, sum(cost) AS c FROM orders", how=GROUPED),
    "having": Case(
        "SELECT who, count(*) AS n FROM orders GROUP BY who HAVING count(*) > 1", how=GROUPED
    ),
    "distinct": Case("SELECT DISTINCT who, price % 2 AS odd FROM orders", how=GROUPED),
    "distinct_values": Case(
        "SELECT who, count(DISTINCT price) AS p, count(DISTINCT price) FILTER (WHERE id > 2) AS f, "
        "sum(DISTINCT cost) AS c, count(*) AS n, min(id) AS lo, count(DISTINCT weight) AS w "
        "FROM orders GROUP BY who",
        how=GROUPED,
    ),
    "distinct_of_all": Case(
        "SELECT count(DISTINCT who) AS n, sum(DISTINCT price) AS s, "
        "count(*) FILTER (WHERE price > 10) AS m FROM orders",
        how=GROUPED,
    ),
    "distinct_over_joins": Case(
        "SELECT p.city, count(DISTINCT v.day) AS days, count(DISTINCT o.who) AS n, "
        "sum(o.price) AS s FROM orders o JOIN people p ON o.who = p.name "
        "JOIN visits v ON v.who = p.name "
        "GROUP BY p.city",
        how=GROUPED,
    ),
    "distinct_of_groups": Case(
        "SELECT n, count(DISTINCT total) AS m FROM (SELECT who, count(DISTINCT price) AS n, "
        "sum(price) AS total FROM orders GROUP BY who) GROUP BY n",
        how=GROUPED,
    ),
    "count_distinct": Case("SELECT count(DISTINCT who) AS n, max(weight) AS w FROM orders"),
    "window": Case(
        "SELECT id, who, row_number() OVER (PARTITION BY who ORDER BY price, id) AS place, "
        "sum(price) OVER (PARTITION BY who) AS total FROM orders",
        how=GROUPED,
    ),
    "lag": Case("SELECT id, lag(price) OVER (ORDER BY id, price) AS before FROM orders"),
    "union": Case("SELECT who FROM orders UNION SELECT name FROM people", how=GROUPED),
    "except": Case("SELECT who FROM orders EXCEPT SELECT name FROM people", how=GROUPED),
    "except_all": Case("SELECT who FROM orders EXCEPT ALL SELECT name FROM people", how=GROUPED),
    "intersect": Case("SELECT who FROM orders INTERSECT SELECT name FROM people", how=GROUPED),
    # Of a side without NULLs and one with some.
    "except_all_nulls": Case(
        "SELECT coalesce(who, 'bob') AS who FROM orders EXCEPT ALL SELECT name FROM people",
        how=GROUPED,
    ),
    "intersect_all_nulls": Case(
        "SELECT a, count(*) AS n FROM (SELECT coalesce(a, 0) AS a FROM numbers "
        "INTERSECT ALL SELECT b FROM numbers) GROUP BY a",
        how=GROUPED,
    ),
    "scalar_subquery": Case(
        "SELECT id FROM orders WHERE price > (SELECT avg(price) FROM orders)", how=GROUPED
    ),
    "scalar_subqueries": Case(
        "SELECT id, price - (SELECT max(day) FROM visits WHERE day < 3) AS d, "
        "(SELECT count(*) FROM people WHERE city = 'Nowhere') AS n FROM orders",
        how=GROUPED,
    ),
    "correlated": Case(
        "SELECT id, (SELECT count(*) FROM visits v WHERE v.who = o.who) AS n FROM orders o",
        how=GROUPED,
    ),
    "exists": Case(
        "SELECT id FROM orders o WHERE EXISTS "
        "(SELECT 1 FROM visits v WHERE v.who = o.who AND v.day > 2)",
        how=JOINED,
    ),
    "not_in": Case(
        "SELECT id FROM orders WHERE who IS NOT NULL AND "
        "who NOT IN (SELECT name FROM people WHERE name IS NOT NULL)",
        how=JOINED,
        taken="recompute",  # NULL is no key: its comparison is not a mere equality
    ),
    "top_k": Case("SELECT id, price FROM orders ORDER BY price DESC, id LIMIT 3", how=GROUPED),
    "rollup": Case(
        "SELECT who, price % 2 AS odd, count(*) AS n FROM orders GROUP BY ROLLUP (who, price % 2)",
        how=GROUPED,
    ),
    "cube": Case(
        "SELECT p.city, p.name, count(*) AS n FROM people p GROUP BY CUBE (city, name)", how=GROUPED
    ),
    "nested": Case(
        "SELECT who, named_struct('id', id, 'tags', tags) AS s, weight AS w, "
        "array(weight, 0D) AS ws FROM orders GROUP BY ALL",
        "SELECT DISTINCT who, {'id': id, 'tags': tags}, weight, [weight, 0] FROM orders",
        how=GROUPED,
    ),
}


WITHOUT_KEPT_PLANS = {"not_in"}
"""It has a broadcast."""

IN_ONE_PIECE = {"union_all", "sorted_spread_hinted"}
"""Linear ones: over two tables, and with hints by which Spark distributes the rows."""


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Inputs with a history, which all cases share."""
    made = World(spark, tmp_path_factory.mktemp("oracle"))
    yield made
    made.close()


IN_EACH_RUN: Final = {
    *("explode", "case_null_nan", "join_of_changes", "except_all", "distinct_values"),
    "intersect_all_nulls",
}
"""Operators of each kind; what others test closely (joins, keys, stars, limits) is theirs."""


@pytest.mark.parametrize("name", some_of(CASES, IN_EACH_RUN))
def test_contents_at_every_time(world: World, name: str, compared_plans: Compared) -> None:
    """Its view holds at each time what DuckDB says, and is kept as its project said."""
    case = CASES[name]
    kept = world.kept(f"v_{name}", case.query)
    ways = world.follow(kept, partial(world.by_duck, case.duck or case.query))
    # The first contents count as a run of the query, also where they are those of its states.
    assert ways == {"recompute", case.taken or case.how}
    assert kept.strategy == case.how
    assert (kept.reason == "") == (case.how == LINEAR)
    assert (compared_plans.runs > 0) == (name not in WITHOUT_KEPT_PLANS), compared_plans
    assert case.how != LINEAR or name in IN_ONE_PIECE or compared_plans.in_pieces, compared_plans
