"""The plan of a view says what is done: its rules, states, look-ups, and why it is recomputed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from rich.console import Console

from shardline.app.cli.explain_plan import plan_view as shown_plan
from shardline.app.cli.view_plan_table import view_plan_table
from shardline.app.compute.view.view_columns import parse_columns
from shardline.app.compute.view.view_plan import plan_view
from shardline.app.coordinator.view_explanation import EXPLAINED_MAX, with_view_plans
from shardline.app.project.permission import Permissions
from shardline.app.project.plan import make_plan, plan_from_json, plan_json
from shardline.app.project.project import Project
from shardline.app.protocol.objects import ViewDescription
from shardline.app.protocol.view_plan import StatePlan, ViewPlan, obstacles, plan_rows
from support.profiles import some_of
from support.spark.benchmark_queries import NEXMARK, NEXMARK_TABLES, TPCH, TPCH_TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are put together here

TABLES: Final = {
    "orders": "id BIGINT, who STRING, price INT, weight DOUBLE",
    "people": "name STRING, city STRING",
}


def planned(spark: SparkSession, query: str) -> ViewPlan:
    used = {name: parse_columns(ddl) for name, ddl in TABLES.items() if name in query}
    return plan_view(spark, "v", query, used)


def rules(plan: ViewPlan) -> dict[str, str]:
    return {one.text: one.rule for one in plan.operators}


def test_a_linear_view_takes_rows_one_by_one(spark: SparkSession) -> None:
    """It keeps nothing, and looks nothing up."""
    plan = planned(spark, "SELECT id, price * 2 AS twice FROM orders WHERE price > 3")
    assert rules(plan) == {
        "Project twice": "row by row",
        "Filter (orders.price > 3)": "row by row",
        "orders": "its changes",
    }
    assert [one.depth for one in plan.operators] == [0, 1, 2]
    assert (plan.strategy, plan.states, plan.look_ups, plan.recomputed) == ("linear", (), (), ())


def test_an_aggregate_over_a_join_has_a_state_and_finds_rows_by_key(spark: SparkSession) -> None:
    """Each side by what the other one has, and the groups by their key."""
    query = (
        "SELECT p.city, count(*) AS n FROM orders o JOIN people p ON o.who = p.name GROUP BY p.city"
    )
    plan = planned(spark, query)
    found = rules(plan)
    assert found["Aggregate by p.city (count)"] == "added up in v_state_1"
    joined = "the change of each side, joined with the other side"
    assert found["Join Inner on (o.who = p.name)"] == joined
    assert [(one.shard, one.key) for one in plan.states] == [("v_state_1", ("p.city",))]
    assert {(one.shard, one.columns, one.changes) for one in plan.look_ups} == {
        ("people", ("name",), ("orders",)),
        ("orders", ("who",), ("people",)),
        ("v_state_1", ("p.city",), ("orders", "people")),
    }


def test_a_temporal_filter_has_a_state_of_rows_that_come_and_go(spark: SparkSession) -> None:
    """Found by the second of their next change, whichever input changes."""
    query = (
        "SELECT who, count(*) AS n FROM orders "
        "WHERE timestamp_seconds(price) > now() AND id > 3 GROUP BY who"
    )
    plan = planned(spark, query)
    assert plan.reason == "an aggregate (count), a temporal filter"
    (filtered,) = [one for one in plan.operators if one.text.startswith("Filter")]
    assert filtered.rule == "rows come and go at their own times, which v_state_1 keeps"
    rows = [row for row in plan_rows(plan) if row.item == "v_state_1"]
    assert [(row.part, row.detail) for row in rows] == [
        ("state", "a row for each one that is there for a time, or will be"),
        ("look-up", "by the second of its next change, where the time changes"),
    ]
    assert rules(plan)["Aggregate by orders.who (count)"] == "added up in v_state_2"


def test_touched_keys_say_by_which_key(spark: SparkSession) -> None:
    """And that the view itself tells what it has shown, where rows do not decide it."""
    plan = planned(spark, "SELECT who, sum(weight) AS kg FROM orders GROUP BY who")
    rule = rules(plan)["Aggregate by orders.who (sum)"]
    assert rule == (
        "touched keys: anew for each orders.who that changes; what was shown is taken from the view"
    )
    assert {(one.shard, one.columns) for one in plan.look_ups} == {
        ("orders", ("who",)),
        ("v", ("who",)),
    }


def test_first_rows_of_a_key_are_told_from_all(spark: SparkSession) -> None:
    """So many of each are looked up, unless another step needs all."""
    window = "rank() OVER (PARTITION BY who ORDER BY price DESC) AS place"
    first = f"SELECT id, who FROM (SELECT *, {window} FROM orders) WHERE place < 4"
    plan = planned(spark, first)
    assert [one.detail for one in plan_rows(plan) if one.item == "orders"] == [
        "by who, the first 3 of each, where orders changes"
    ]
    whole = f"{first} UNION ALL SELECT id, who FROM (SELECT *, {window} FROM orders)"
    assert [one.detail for one in plan_rows(planned(spark, whole)) if one.item == "orders"] == [
        "by who, where orders changes"
    ]


def test_what_is_over_states_alone_is_said(spark: SparkSession) -> None:
    """A LIMIT of rows in order is no obstacle: those in front are a state."""
    query = "SELECT who, count(*) AS n FROM orders GROUP BY who ORDER BY n DESC, who LIMIT 2"
    plan = planned(spark, query)
    assert plan.strategy == "incremental"
    assert rules(plan)["GlobalLimit"] == "run anew over the states at each change (LIMIT)"
    assert rules(plan)["Sort"] == "v_state_2 has the rows in front, and some to spare"
    assert plan.states[1] == StatePlan(
        shard="v_state_2", rows="the first rows, of which 2 are needed"
    )
    assert not obstacles(plan)
    assert not plan.recomputed


def test_a_limit_with_more_above_it_is_a_state(spark: SparkSession) -> None:
    """What it lets through has changes then, as the view itself would have."""
    first = "SELECT who, price FROM orders ORDER BY price, id LIMIT 3"
    plan = planned(spark, f"SELECT who, count(*) AS n FROM ({first}) GROUP BY who")
    assert (plan.strategy, obstacles(plan), plan.recomputed) == ("incremental", [], ())
    assert rules(plan)["GlobalLimit"] == "run anew over the first rows, and compared with v_state_2"
    assert [one.rows for one in plan.states] == [
        "the first rows, of which 3 are needed",
        "the rows that a LIMIT lets through",
        "",
    ]


def test_a_temporal_filter_between_a_limit_and_its_order_is_an_obstacle(
    spark: SparkSession,
) -> None:
    """Its state has no order. One below the order is none."""
    held, ordered = "timestamp_seconds(price) > now()", "ORDER BY price, id"
    query = f"SELECT * FROM (SELECT id, price FROM orders {ordered}) WHERE {held} LIMIT 3"
    plan = planned(spark, query)
    assert (plan.strategy, plan.reason) == ("recompute", "LIMIT")
    plan = planned(spark, f"SELECT id, price FROM orders WHERE {held} {ordered} LIMIT 3")
    assert plan.strategy == "incremental"


LATEST: Final = (
    "SELECT who, id, row_number() OVER (PARTITION BY who ORDER BY price DESC) AS place FROM orders"
)

OBSTACLES: Final = {
    "SELECT max(id) AS last FROM (SELECT id FROM orders ORDER BY price, id LIMIT 2000)": (
        "GlobalLimit",
        "LIMIT",
    ),
    "SELECT id, row_number() OVER (ORDER BY id) AS place FROM orders": (
        "Window over all rows",
        "a window over all rows, without PARTITION BY",
    ),
    "SELECT sum(weight) AS kg FROM orders": (
        "Aggregate of all rows (sum)",
        "an aggregate (sum of DOUBLE), and there is no GROUP BY by which it could be computed anew",
    ),
    "SELECT sum(weight) AS kg FROM orders "
    "GROUP BY session_window(timestamp_seconds(id), '1 second')": (
        "Aggregate by session_window (sum)",
        "session windows without another key, and nothing that it groups by is a key of rows",
    ),
    "SELECT id, row_number() OVER (PARTITION BY 1 ORDER BY id) AS place FROM orders": (
        "Window by 1",
        "a window whose PARTITION BY has no key of rows",
    ),
    "SELECT map(who, id) AS m, count(*) AS n FROM orders GROUP BY map(who, id)": (
        "Aggregate by _groupingexpression (count)",
        "groups by MAP<STRING, BIGINT>, which is no key of rows",
    ),
    "SELECT 1 AS one, count(*) AS n FROM orders GROUP BY 1": (
        "Aggregate by 1 (count)",
        "groups by a constant, which is no key of rows",
    ),
    "SELECT o.id, p.city FROM orders o FULL JOIN people p ON o.who < p.name": (
        "Join FullOuter on (o.who < p.name)",
        "a join without an equality by which its sides meet",
    ),
}


@pytest.mark.parametrize("query", OBSTACLES)
def test_an_operator_that_cannot_follow_says_why(spark: SparkSession, query: str) -> None:
    """It alone, and what each change then costs."""
    plan = planned(spark, query)
    assert [(one.text, one.obstacle) for one in obstacles(plan)] == [OBSTACLES[query]]
    assert plan.strategy == "recompute"
    last = [*plan_rows(plan)][-1]
    assert last.detail.startswith("each time at which one changes, the query reads all of orders")


@pytest.mark.parametrize(
    "query", [LATEST, "SELECT who, sum(weight) AS kg FROM orders GROUP BY who"], ids=["row", "sum"]
)
def test_as_a_view_of_its_own_it_follows(spark: SparkSession, query: str) -> None:
    """And so does what reads it, as is said of one that cannot follow where it stands."""
    assert planned(spark, query).strategy == "incremental"
    text = f"""CREATE SOURCE orders USING json OPTIONS (path '/nowhere')
      SCHEMA (id BIGINT, who STRING, price INT, weight DOUBLE);
      CREATE MATERIALIZED VIEW own AS {query};
      CREATE MATERIALIZED VIEW above AS SELECT who, count(*) AS n FROM own GROUP BY who;"""
    views = Project.parse({"all.sql": text}).check(spark).descriptions
    ways = [one.strategy for one in views.values() if isinstance(one, ViewDescription)]
    assert ways == ["incremental", "incremental"]


def test_an_input_at_whose_change_all_is_run_anew_is_named(spark: SparkSession) -> None:
    """A side that an outer join without an equality cannot follow."""
    plan = planned(spark, "SELECT o.id, p.city FROM orders o LEFT JOIN people p ON o.who < p.name")
    assert plan.strategy == "incremental"
    assert [name for name, _ in plan.recomputed] == ["people"]
    assert [(one.shard, one.changes) for one in plan.whole_reads] == [("people", ("orders",))]


SOME: Final = {
    **{name: (TPCH[name], TPCH_TABLES) for name in ("q2", "q4", "q6", "q13", "q20")},
    **{f"nexmark {name}": (NEXMARK[name], NEXMARK_TABLES) for name in ("q3", "q7", "q18")},
}


@pytest.mark.parametrize("name", some_of(SOME, {"q4", "q13", "nexmark q3", "nexmark q7"}))
def test_a_plan_and_the_choice_of_the_strategy_agree(spark: SparkSession, name: str) -> None:
    """What a project's check has chosen is what the plan shows, with its obstacles."""
    query, tables = SOME[name]
    used = {one: ddl for one, ddl in tables.items() if one in query}
    sources = " ".join(
        f"CREATE SOURCE {one} USING json OPTIONS (path '/nowhere') SCHEMA ({ddl});"
        for one, ddl in used.items()
    )
    text = f"{sources} CREATE MATERIALIZED VIEW v AS {query}"
    resolved = Project.parse({"all.sql": text}).check(spark)
    plan = make_plan(resolved.descriptions, {}, columns=resolved.columns)
    (found,) = with_view_plans(spark, plan, resolved, Permissions()).views
    wanted = resolved.descriptions["v"]
    assert (found.strategy, found.reason) == (wanted.strategy, wanted.reason)  # type: ignore[union-attr]
    assert bool(obstacles(found)) == (found.strategy == "recompute")
    assert len(found.operators) >= len(used)


def printed(view: object, width: int) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def test_a_plan_in_a_narrow_terminal_is_folded_and_not_cut(spark: SparkSession) -> None:
    """Every word is there, and a tree stays one."""
    query = (
        "SELECT p.city, count(*) AS n FROM orders o JOIN people p ON o.who = p.name GROUP BY p.city"
    )
    plan = planned(spark, query)
    rows = [*plan_rows(plan)]
    shown = printed(view_plan_table(rows), 60)
    assert max(map(len, shown.splitlines())) <= 60
    assert "…" not in shown
    wanted = "".join(f"{row.item}{row.detail}" for row in rows)
    counts = {sign: wanted.count(sign) for sign in set(wanted) if not sign.isspace()}
    assert all(shown.count(sign) >= count for sign, count in counts.items())
    first, second = (shown.index(text) for text in ("Aggregate by", "Join Inner"))
    assert shown.rindex("\n", 0, second) > first


def test_a_projects_plan_has_those_of_the_views_that_it_makes(spark: SparkSession) -> None:
    """Not of those that stay; through JSON, too; and says of which there are too many."""
    views = [
        f"CREATE MATERIALIZED VIEW v{n} AS SELECT id FROM t;" for n in range(EXPLAINED_MAX + 2)
    ]
    text = "CREATE SOURCE t USING json OPTIONS (path '/nowhere') SCHEMA (id INT); " + " ".join(
        views
    )
    resolved = Project.parse({"all.sql": text}).check(spark)
    running = {name: resolved.descriptions[name] for name in ("t", "v0")}
    bare = make_plan(resolved.descriptions, running)
    plan = with_view_plans(spark, bare, resolved, Permissions())
    assert [one.view for one in plan.views] == [f"v{n}" for n in range(1, EXPLAINED_MAX + 1)]
    assert plan_from_json(plan_json(plan)) == plan
    shown = printed(shown_plan(plan), 80)
    assert "how v1 will be kept" in shown
    assert f"not planned here, as they are many: v{EXPLAINED_MAX + 1}" in shown
