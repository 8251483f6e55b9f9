"""Aggregates without DISTINCT in their calls give what those with it give, or are left alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from shardline.app.compute.view.kept_plan import plan_of
from shardline.app.sql.kept_aggregates import aggregate_expressions
from shardline.app.sql.normal_form import normal_form
from shardline.datasource.frames import analyse_query, children_of, frame_of, kind_of, read_sequence
from support.profiles import some_of
from support.spark.views import comparable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS: Final = (
    ("a", 1, 10, 1.5, True),
    ("a", 1, 10, 1.5, True),
    ("a", 2, 10, -0.0, False),
    ("a", 2, None, 0.0, None),
    ("b", None, None, None, None),
    ("b", None, None, float("nan"), True),
    ("b", 0, 7, float("nan"), False),
    (None, 3, 7, 2.0, True),
    (None, 3, 8, 2.0, True),
)
COLUMNS: Final = "k STRING, a INT, b BIGINT, x DOUBLE, f BOOLEAN"

TAKEN_APART: Final = {
    "by_key": "SELECT k, count(DISTINCT a) AS n FROM t GROUP BY k",
    "of_all": "SELECT count(DISTINCT a) AS n, count(*) AS m, sum(b) AS s FROM t",
    "over_nothing": "SELECT count(DISTINCT a) AS n, sum(DISTINCT b) AS s FROM t WHERE a > 99",
    "several": "SELECT count(DISTINCT a) AS n, k, sum(DISTINCT a) + count(DISTINCT b) AS s, "
    "count(DISTINCT a + 1) AS o, max(b) AS hi, count(a) AS c FROM t GROUP BY k",
    "rows_of_values": "SELECT k, count(DISTINCT a, b) AS n, count(DISTINCT b, a) AS m FROM t "
    "GROUP BY k",
    "filters": "SELECT k, count(DISTINCT a) FILTER (WHERE f) AS n, count(DISTINCT a) AS m, "
    "count(DISTINCT a) FILTER (WHERE NOT f) AS o, sum(b) FILTER (WHERE a > 1) AS s, "
    "count(*) FILTER (WHERE f) AS c FROM t GROUP BY k",
    "filters_that_hold_without_a_row": "SELECT k, count(DISTINCT a) AS n, "
    "count(*) FILTER (WHERE k = 'a') AS m, count(*) FILTER (WHERE f IS NULL) AS o FROM t "
    "GROUP BY k",
    "literals": "SELECT k, count(DISTINCT 1) AS n, count(DISTINCT 2) FILTER (WHERE f) AS m FROM t "
    "GROUP BY k",
    "floats": "SELECT k, count(DISTINCT x) AS n FROM t GROUP BY k",
    "by_float": "SELECT x, count(DISTINCT a) AS n FROM t GROUP BY x",
    "decimals": "SELECT k, avg(DISTINCT CAST(b AS DECIMAL(10, 2))) AS m FROM t GROUP BY k",
    "extremes": "SELECT k, max(DISTINCT b) AS hi, count(DISTINCT b) AS n FROM t GROUP BY k",
    "by_expression": "SELECT a % 2 AS odd, count(DISTINCT k) AS n FROM t GROUP BY a % 2",
    "with_a_literal": "SELECT k, 'x' AS y, count(DISTINCT a) AS n FROM t GROUP BY k, 'x'",
    "having": "SELECT k FROM t GROUP BY k HAVING count(DISTINCT a) > 1",
    "shown_twice": "SELECT k AS one, k AS two, count(DISTINCT a) AS n FROM t GROUP BY k",
    "nested": "SELECT n, count(DISTINCT s) AS m FROM (SELECT k, count(DISTINCT a) AS n, "
    "sum(b) AS s FROM t GROUP BY k) GROUP BY n",
    "in_a_subquery": "SELECT k, b FROM t WHERE a < (SELECT count(DISTINCT k) FROM t)",
    "over_a_join": "SELECT l.k, count(DISTINCT r.b) AS n, count(DISTINCT l.b) AS m FROM t l "
    "JOIN t r ON l.a = r.a GROUP BY l.k",
    "in_grouping_sets": "SELECT k, f, count(DISTINCT a) AS n FROM t GROUP BY CUBE (k, f)",
}
LEFT_ALONE: Final = {
    # Where that is the only call with DISTINCT Spark divides by zero, whatever the FILTER says.
    "fails_in_front_of_its_filter": "SELECT k, count(DISTINCT 10 DIV a) FILTER (WHERE a <> 0) AS n "
    "FROM t GROUP BY k",
    "sums_of_floats": "SELECT k, sum(DISTINCT x) AS s FROM t GROUP BY k",
    "with_another_function": "SELECT k, count(DISTINCT a) AS n, median(b) AS m FROM t GROUP BY k",
    "lists": "SELECT k, size(collect_list(DISTINCT a)) AS n FROM t GROUP BY k",
    "collations": "SELECT k COLLATE UTF8_LCASE AS k, count(DISTINCT a) AS n FROM t "
    "GROUP BY k COLLATE UTF8_LCASE",
    "collated_values": "SELECT f, count(DISTINCT k COLLATE UTF8_LCASE) AS n FROM t GROUP BY f",
    "session_windows": "SELECT count(DISTINCT a) AS n FROM t "
    "GROUP BY session_window(timestamp_seconds(b), '5 seconds')",
}


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, COLUMNS)


@pytest.mark.parametrize(
    "name", some_of(TAKEN_APART, {"filters", "of_all", "filters_that_hold_without_a_row"})
)
def test_values_are_counted_once(spark: SparkSession, table: DataFrame, name: str) -> None:
    """The same rows, under the same ids of columns, and no call has DISTINCT."""
    asked = analyse_query(spark, TAKEN_APART[name], {"t": table})
    plan = normal_form(spark, plan_of(asked))
    assert any(call.isDistinct() for call in calls(plan_of(asked)))
    assert not any(call.isDistinct() for call in calls(plan) if kind(call) not in {"Max", "Min"})
    assert ids(plan) == ids(plan_of(asked))
    assert rows_of(spark, plan) == rows_of(spark, plan_of(asked))


def test_many_calls_make_no_more_aggregates_than_one(spark: SparkSession, table: DataFrame) -> None:
    """Each is a state, of which a view may have eight."""
    calls = ", ".join(f"count(DISTINCT a + {n}) AS n{n}" for n in range(9))
    query = f"SELECT k, {calls} FROM t GROUP BY k"  # noqa: S608 - put together here
    asked = analyse_query(spark, query, {"t": table})
    plan = normal_form(spark, plan_of(asked))
    assert kinds(plan)["Aggregate"] == 2
    assert rows_of(spark, plan) == rows_of(spark, plan_of(asked))


@pytest.mark.parametrize("name", some_of(LEFT_ALONE, {"session_windows"}))
def test_what_would_not_follow_is_left_alone(
    spark: SparkSession, table: DataFrame, name: str
) -> None:
    """One more aggregate below it would be of no use."""
    plan = normal_form(spark, plan_of(analyse_query(spark, LEFT_ALONE[name], {"t": table})))
    assert any(call.isDistinct() for call in calls(plan))
    assert "Union" not in kinds(plan)


def calls(plan: Any) -> list[Any]:
    own = list(aggregate_expressions(plan)) if kind_of(plan) == "Aggregate" else []
    below = [*children_of(plan), *read_sequence(plan.subqueries())]
    return own + [one for child in below for one in calls(child)]


def kind(call: Any) -> str:
    return kind_of(call.aggregateFunction())


def kinds(plan: Any) -> Counter[str]:
    below = (kinds(child) for child in children_of(plan))
    return sum(below, Counter([kind_of(plan)]))


def ids(plan: Any) -> list[int]:
    return [int(one.exprId().id()) for one in read_sequence(plan.output())]


def rows_of(spark: SparkSession, plan: Any) -> Counter[Any]:
    found = frame_of(spark, spark._jsparkSession, plan)
    return Counter(comparable(tuple(row)) for row in found.collect())
