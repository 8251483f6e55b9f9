"""Results that ties or the order of adding decide are states, where more than the view is above."""

from __future__ import annotations

import itertools
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.errors import ArithmeticException

from shardline.app.compute.view.change_plan import ChangePlan, NotIncremental
from shardline.app.compute.view.choice_rule import ResultState
from shardline.app.compute.view.temporal_rule import TemporalState
from shardline.app.compute.view.view_columns import with_times
from shardline.app.execution.observations import Stepped
from shardline.datasource.errors import Determinate
from shardline.testing import Lab
from support.profiles import some_of
from support.spark.bids import bids_world

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from shardline.app.compute.view.state_rules import State
    from support.spark.view_world import ViewWorld
    from support.spark.views import Row

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are put together here


@pytest.fixture(scope="module")
def worlds(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], ViewWorld]:
    """Worlds by their seeds."""
    return cache(lambda seed: bids_world(spark, tmp_path_factory.mktemp("bids"), seed))


LATEST: Final = (
    "(SELECT *, row_number() OVER (PARTITION BY item ORDER BY price DESC, id) AS place FROM bids)"
)
TOTALS: Final = "(SELECT item, sum(weight) AS total FROM bids GROUP BY item)"
QUERIES: Final = {
    "latest_joined": f"SELECT b.id, i.city FROM {LATEST} b JOIN items i ON i.name = b.item "
    "WHERE b.place = 1",
    "latest_joined_on": f"SELECT i.city, b.note FROM items i LEFT JOIN {LATEST} b "
    "ON i.name = b.item AND b.place <= 2",
    "latest_grouped": f"SELECT note, count(*) AS n FROM {LATEST} WHERE place <= 3 GROUP BY note",
    "latest_without_key": f"SELECT id, price FROM (SELECT id, price, place FROM {LATEST}) "
    "WHERE place <= 2",
    "totals_joined": f"SELECT i.city, t.total FROM {TOTALS} t JOIN items i ON i.name = t.item",
    "totals_at_both_sides": f"SELECT a.id, t.total FROM bids a JOIN {TOTALS} t "
    "ON a.item <=> t.item WHERE a.weight > t.total OR a.price > 6",
    "totals_of_totals": "SELECT price, sum(total) AS all FROM (SELECT item, price, sum(weight) "
    "AS total FROM bids GROUP BY item, price) GROUP BY price",
    "totals_counted": f"SELECT total, count(*) AS n FROM {TOTALS} GROUP BY total",
    "hidden_keys": "SELECT n, total FROM (SELECT count(*) AS n, sum(weight) AS total "
    "FROM bids GROUP BY item, price) WHERE n > 1",
    "greatest_total": "SELECT max(total) AS m FROM (SELECT sum(weight) AS total FROM bids "
    "GROUP BY item, day)",
    "ranked": f"SELECT item, total, rank() OVER (ORDER BY total) AS r FROM {TOTALS}",
    "first_totals": f"SELECT item, total FROM {TOTALS} WHERE item IS NOT NULL "
    "ORDER BY total DESC, item LIMIT 2",
    "first_totals_joined": "SELECT i.city, t.n FROM items i JOIN (SELECT item, n FROM (SELECT "
    "item, count(*) AS n, sum(weight) AS w FROM bids GROUP BY item) ORDER BY w, item LIMIT 2) t "
    "ON i.name = t.item",
    "in_union": f"SELECT item AS a, total FROM {TOTALS} UNION ALL SELECT note, weight FROM {LATEST}"
    " WHERE place < 3",
    "in_union_without_key": f"SELECT note, place FROM {LATEST} WHERE place < 3 UNION ALL "
    "SELECT city, 1 FROM items",
    "in_union_twice": f"SELECT u.a, u.b FROM (SELECT note, note FROM {LATEST} WHERE place < 3 "
    "UNION ALL SELECT city, name FROM items) AS u(a, b)",
    "in_a_condition": f"SELECT id FROM bids WHERE item IN (SELECT item FROM {TOTALS} "
    "WHERE total > 0)",
    "not_in_a_condition": f"SELECT name FROM items i WHERE NOT EXISTS (SELECT 1 FROM {LATEST} b "
    "WHERE b.item = i.name AND b.price > 7 AND b.place = 1)",
    "windows_of_windows": "SELECT note, id FROM (SELECT *, row_number() OVER (PARTITION BY note "
    f"ORDER BY place, id) AS again FROM {LATEST}) WHERE again = 1",
    "lag": "SELECT d, count(*) AS n FROM (SELECT price - lag(price) OVER (PARTITION BY item "
    "ORDER BY id) AS d FROM bids) GROUP BY d",
    "lists": "SELECT i.city, b.ids FROM items i JOIN (SELECT item, sort_array(collect_list(id)) "
    "AS ids FROM bids GROUP BY item) b ON b.item = i.name",
    "expressions": "SELECT i.city, t.total + 1 AS more FROM items i JOIN (SELECT upper(item) AS u, "
    "sum(weight) * 2 AS total FROM bids GROUP BY upper(item)) t ON upper(i.name) = t.u",
    "distinct": f"SELECT DISTINCT total FROM {TOTALS}",
    "by_itself": f"SELECT a.item, a.total FROM {TOTALS} a JOIN {TOTALS} b ON a.total = b.total",
    "months": "SELECT i.city, CAST(b.months AS INT) AS months FROM (SELECT item, "
    f"make_ym_interval(price, id % 12) AS months FROM {LATEST} WHERE place <= 2) b "
    "JOIN items i ON i.name = b.item",
    "no_elements": "SELECT i.city, size(b.nothing) AS n FROM (SELECT item, array() AS nothing "
    f"FROM {LATEST} WHERE place <= 2) b JOIN items i ON i.name = b.item",
    "variants": "SELECT i.city, to_json(b.ids) AS ids FROM (SELECT item, "
    f"parse_json(concat('[', id, ']')) AS ids FROM {LATEST} WHERE place <= 2) b "
    "JOIN items i ON i.name = b.item",
    "padded_twice": "SELECT i.city, f.total FROM items i LEFT JOIN (SELECT "
    f"coalesce(t.item, b.item) AS item, t.total FROM {TOTALS} t FULL JOIN {LATEST} b "
    "ON t.item = b.item AND b.place = 1) f ON i.name = f.item",
    "placed_among_joined": "SELECT item, count(*) AS n FROM (SELECT b.*, row_number() OVER "
    f"(PARTITION BY b.note ORDER BY b.id) AS again FROM {LATEST} b JOIN {TOTALS} t "
    "ON t.item = b.item WHERE b.place < 4) WHERE again = 1 GROUP BY item",
    "outer": f"SELECT coalesce(t.total, -1) AS total, b.price FROM {TOTALS} t "
    f"FULL JOIN {LATEST} b ON t.item = b.note",
}


def is_followed(world: ViewWorld, name: str, query: str) -> bool:
    """True if a view is right at each time, and follows its changes after the first contents."""
    kept = world.kept(f"result_{name}", query)
    assert world.follow(kept, partial(world.by_spark, query)) == {"recompute", "incremental"}
    anew = [one.reason for one in world.bench.told(Stepped) if one.id == kept.name and one.reason]
    return anew == ["its first contents"]


@pytest.mark.parametrize(
    ("seed", "name"),
    some_of(
        itertools.product([1, 2, 3], QUERIES),
        [
            (1, "latest_joined_on"),
            (2, "latest_without_key"),
            (3, "totals_at_both_sides"),
            (1, "hidden_keys"),
            (2, "ranked"),
            (2, "in_union_without_key"),
            (3, "months"),
            (2, "first_totals_joined"),
            (3, "windows_of_windows"),
            (1, "placed_among_joined"),
            (1, "outer"),
        ],
    ),
)
def test_what_is_above_results_follows_their_changes(
    worlds: Callable[[int], ViewWorld], seed: int, name: str
) -> None:
    """At each time the view has what Spark says of all rows."""
    assert is_followed(worlds(seed), name, QUERIES[name])


BIDS: Final = "id BIGINT, item STRING, price INT, weight DOUBLE, note STRING, at TIMESTAMP"
ITEMS: Final = "name STRING, city STRING"

JOIN: Final = "JOIN items i ON i.name = b.item"
IS_FIRST: Final = "(b.place = 1)"
FIRST: Final = {
    "where": f"SELECT b.id, i.city FROM {LATEST} b {JOIN} WHERE b.place = 1",
    "on": f"SELECT b.id, i.city FROM {LATEST} b {JOIN} AND b.place = 1",
    "on_right": f"SELECT b.id, i.city FROM items i LEFT JOIN {LATEST} b ON i.name = b.item "
    "AND b.place = 1",
    "on_left": f"SELECT b.id, i.city FROM {LATEST} b RIGHT {JOIN} AND b.place = 1",
    "of_left": f"SELECT b.id, i.city FROM {LATEST} b LEFT {JOIN} WHERE b.place = 1",
    "semi": f"SELECT id FROM {LATEST} b LEFT SEMI {JOIN} WHERE b.place = 1",
    "anti": f"SELECT city FROM items i LEFT ANTI JOIN {LATEST} b ON i.name = b.item "
    "AND b.place = 1",
    "of_groups": f"SELECT note, sum(length(item)) AS n FROM {LATEST} b WHERE b.place = 1 "
    "GROUP BY note",
    "now": f"SELECT b.id, i.city FROM {LATEST} b {JOIN} WHERE b.place = 1 AND b.at > now()",
}
"""Rows of other places come to nothing."""

ALL: Final = {
    "on_the_side_that_stays": f"SELECT b.id FROM {LATEST} b LEFT {JOIN} AND b.place = 1",
    "full": f"SELECT b.id, i.city FROM {LATEST} b FULL {JOIN} AND b.place = 1",
    "padding": f"SELECT b.id FROM items i LEFT JOIN {LATEST} b ON i.name = b.item "
    "WHERE b.place IS NULL",
    "of_the_other_side": f"SELECT city FROM items i LEFT ANTI JOIN {LATEST} b ON i.name = b.item "
    "WHERE i.city = 'x'",
    "of_both_sides": f"SELECT b.id FROM {LATEST} b {JOIN} WHERE b.place = length(i.city)",
    "of_groups_of_places": f"SELECT count(*) AS n FROM {LATEST} b {JOIN} GROUP BY b.item, b.place "
    "HAVING b.place = 1",
    "one_row": f"SELECT city, (SELECT b.id FROM {LATEST} b WHERE i.name = b.item AND b.place = "
    "length(i.city)) AS id FROM items i",
    "may_have_two_rows": f"SELECT * FROM (SELECT b.id, b.place, (SELECT i.city FROM items i WHERE "
    f"i.name = b.item) AS city FROM {LATEST} b) WHERE place = 1",
    "fails": f"SELECT b.id FROM {LATEST} b {JOIN} WHERE b.place = 1 AND 10 div (b.id - 1) > 0",
    "fails_below": f"SELECT * FROM (SELECT b.id, b.place FROM {LATEST} b {JOIN} "
    "WHERE 10 div (b.id - 1) > 0) b WHERE b.place = 1",
}
"""They come to something, or the query may fail at one of them."""


def states_of(spark: SparkSession, query: str) -> list[State]:
    empty = {"bids": BIDS, "items": ITEMS}
    columns = {
        table: with_times(spark.createDataFrame([], kinds).schema) for table, kinds in empty.items()
    }
    return ChangePlan(spark, query, columns).states


@pytest.mark.parametrize("name", [*FIRST, *ALL])
def test_a_state_has_no_rows_that_come_to_nothing(spark: SparkSession, name: str) -> None:
    """Conditions from above leave them out, as far as that leaves out no error."""
    states = states_of(spark, {**FIRST, **ALL}[name])
    (state,) = (one for one in states if isinstance(one, ResultState))
    node, found = state.source.children[0], []
    while node.kind == "Filter":
        found.append(str(node.plan.condition().sql()))
        (node,) = node.children
    assert found == ([IS_FIRST] if name in FIRST else [])


def test_rows_that_go_by_themselves_are_above_the_results(spark: SparkSession) -> None:
    """Their state is another one, also where nothing is between a temporal filter and a window."""
    query = f"SELECT city FROM (SELECT * FROM {LATEST} WHERE place = 1 AND at > now()) b {JOIN}"
    assert [type(one) for one in states_of(spark, query)] == [ResultState, TemporalState]


BELOW: Final = (
    "SELECT b.id, i.city FROM (SELECT *, row_number() OVER (PARTITION BY item ORDER BY id) "
    f"AS place FROM bids WHERE 10 div (length(item) - 4) > 0) b {JOIN} WHERE b.place = 1"
)
FAILING: Final = {
    "above": f"SELECT b.id, i.city FROM (SELECT * FROM {LATEST} WHERE place = 1 AND note = 'a') b "
    f"{JOIN} WHERE 10 div (length(b.item) - 4) > 0",
    "renamed": "SELECT b.id, i.city FROM (SELECT id, upper(item) AS what, item FROM "
    f"{LATEST} WHERE place = 1 AND note = 'a') b {JOIN} WHERE 10 div (length(b.what) - 4) > 0",
    "above_groups": "SELECT n FROM (SELECT item, count(*) AS n, sum(weight) AS w FROM bids "
    "GROUP BY item) WHERE w > 0 AND 10 div (length(item) - 4) > 0",
    "beside": f"SELECT b.id, i.city FROM (SELECT * FROM {LATEST} WHERE place = 1 AND note = 'a') b "
    "JOIN (SELECT * FROM items WHERE 10 div (length(name) - 4) > 0) i ON i.name = b.item",
    "below": BELOW,
    "inferred": BELOW,
    "inferred_of_groups": "SELECT b.n, i.city FROM (SELECT item, count(*) AS n FROM bids "
    f"WHERE 10 div (length(item) - 4) > 0 GROUP BY item) b {JOIN}",
}
"""Queries that fail at a lamp: one of `items` where it is inferred, else of `bids`."""


@pytest.mark.parametrize("name", FAILING)
def test_a_view_fails_at_the_times_at_which_its_query_fails(spark: SparkSession, name: str) -> None:
    """Also at a row that is left out below, or of the other side: Spark takes conditions there."""
    query, where = FAILING[name], "items" if name.startswith("inferred") else "bids"
    sql = f"""
    CREATE SOURCE bids USING json OPTIONS (path '/nowhere') SCHEMA ({BIDS});
    CREATE SOURCE items USING json OPTIONS (path '/nowhere') SCHEMA ({ITEMS});
    CREATE MATERIALIZED VIEW v AS {query};
    """
    schemas = {"bids": BIDS, "items": ITEMS}
    rows: dict[str, list[Row]] = {
        "bids": [(1, "chair", 1, 0.5, "a", None)],
        "items": [("chair", "Rome")],
    }
    lamps: dict[str, Row] = {"bids": (2, "lamp", 1, 0.5, "b", None), "items": ("lamp", "Oslo")}
    with Lab(spark, sql, follow_changes=True) as lab:
        for table, there in rows.items():
            lab.push(table, there, at=0)
        lab.advance(1)
        lab.push(where, [lamps[where]], at=1)
        lab.advance(2)
        lab.push(where, [lamps[where]], at=2, diff=-1)
        lab.advance(3)
        shown = lab.contents("v", 0).collect()
        assert lab.contents("v", 2).collect() == shown
        assert len(shown) == 1
        with pytest.raises(Determinate, match="DIVIDE_BY_ZERO"):
            lab.contents("v", 1)
    try:
        for table, schema in schemas.items():
            there = rows[table] + [lamps[table]] * (table == where)
            spark.createDataFrame(there, schema).createOrReplaceTempView(table)
        with pytest.raises(ArithmeticException):
            spark.sql(query).collect()
        spark.createDataFrame(rows[where], schemas[where]).createOrReplaceTempView(where)
        assert spark.sql(query).collect() == shown
    finally:
        for table in schemas:
            spark.catalog.dropTempView(table)


MONTHS: Final = "make_ym_interval(price, 1)"
NOT_STORED: Final = {
    "temporal_filter": "SELECT CAST(months AS INT) AS n FROM "
    f"(SELECT {MONTHS} AS months, at FROM bids) WHERE at > now()",
    "key": "SELECT CAST(months AS INT) AS n, total FROM (SELECT months, sum(weight) AS total "
    f"FROM (SELECT {MONTHS} AS months, weight FROM bids) GROUP BY months) WHERE total > 1",
    "result": "SELECT CAST(last AS INT) AS n FROM (SELECT item, "
    f"max_by({MONTHS}, id) AS last FROM bids GROUP BY item) x JOIN items i ON i.name = x.item",
    "names": "SELECT to_json(pair) AS pair, n FROM (SELECT named_struct('a', id, 'A', item) AS "
    "pair, count(*) AS n FROM bids GROUP BY named_struct('a', id, 'A', item))",
}


@pytest.mark.parametrize("name", NOT_STORED)
def test_what_a_shard_cannot_hold_is_no_state(spark: SparkSession, name: str) -> None:
    """The view is recomputed; it does not fail."""
    with pytest.raises(NotIncremental):
        states_of(spark, NOT_STORED[name])
