"""A plan over changes is made once, and each step gives it rows; it follows its inputs' columns.

That contents are right at every time is shown by `test_view_oracle` and `test_view_stars`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline.app.compute.view.change_plan import ChangePlan, NotLinear
from shardline.app.compute.view.linear_query import LinearQuery
from shardline.app.protocol.objects import ViewDescription
from shardline.datasource.types.schema import DIFF, TS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

HIDDEN = f"{TS} BIGINT NOT NULL, {DIFF} BIGINT NOT NULL"


def changes(spark: SparkSession, columns: str, *rows: tuple[object, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), f"{columns}, {HIDDEN}")


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_each_step_has_its_own_rows(spark: SparkSession) -> None:
    """Of two inputs, one of them read twice; with the time and diff of each row."""
    columns = "a BIGINT"
    query = "SELECT a FROM t UNION ALL SELECT -a FROM t WHERE a > 1 UNION ALL SELECT a * 10 FROM u"
    first = {"t": changes(spark, columns, (1, 5, 1), (2, 6, -1)), "u": changes(spark, columns)}
    second = {"t": changes(spark, columns, (3, 7, 2)), "u": changes(spark, columns, (4, 8, -3))}
    plan = ChangePlan(spark, query, {name: frame.schema for name, frame in first.items()})
    assert rows_of(plan.over(spark, first)) == [(-2, 6, -1), (1, 5, 1), (2, 6, -1)]
    assert rows_of(plan.over(spark, second)) == [(-3, 7, 2), (3, 7, 2), (40, 8, -3)]
    assert not spark.catalog.listTables()


def test_a_step_says_nothing_to_sparks_parser(spark: SparkSession) -> None:
    """The text is read when the plan is made: another view of its name makes no difference."""
    frame = changes(spark, "a BIGINT", (1, 5, 1))
    plan = ChangePlan(spark, "SELECT a + 1 AS b FROM t", {"t": frame.schema})
    spark.sql("SELECT 'another' AS a").createOrReplaceTempView("t")
    try:
        assert rows_of(plan.over(spark, {"t": frame})) == [(2, 5, 1)]
    finally:
        spark.catalog.dropTempView("t")


def test_inputs_with_other_columns_get_a_plan_of_their_own(spark: SparkSession) -> None:
    """A column that is new, wider, or null for the first time."""
    query = "SELECT a FROM t"
    view = ViewDescription(
        name="v", query=query, inputs=("t",), schema="a BIGINT", strategy="linear"
    )
    schema = spark.createDataFrame([], "a BIGINT").schema
    linear = LinearQuery(view, schema)
    for columns, row in {
        "a BIGINT NOT NULL": (1, 5, 1),
        "a BIGINT": (None, 5, 1),
        "a BIGINT, b STRING": (2, "new", 5, 1),
        "b STRING, a BIGINT": ("before", 3, 5, 1),
    }.items():
        changed = linear.evaluate(spark, {"t": changes(spark, columns, row)})
        assert changed is not None, columns
        value = row[columns.split(", ").index(next(c for c in columns.split(", ") if c[0] == "a"))]
        assert rows_of(changed) == [(value, 5, 1)]
    assert linear.evaluate(spark, {"t": changes(spark, "a INT")}) is None, "another type"
    assert linear.evaluate(spark, {"t": changes(spark, "a BIGINT")}) is None, "doubted once"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT a, rand() AS r FROM t", "not deterministic"),
        ("SELECT DISTINCT a FROM t", "DISTINCT"),
        ("SELECT l.a FROM t l JOIN t r ON l.a = r.a", "a join of two inputs"),
        ("SELECT a FROM t WHERE a IN (SELECT a FROM t)", "a subquery in IN"),
        ("SELECT a FROM t LIMIT 1", "LIMIT"),
        ("SELECT 1 AS a", "rows that come from no input"),
    ],
)
def test_a_query_that_needs_more_than_changes_is_refused(
    spark: SparkSession, query: str, reason: str
) -> None:
    """When the plan is made, with the reason."""
    with pytest.raises(NotLinear, match=reason):
        ChangePlan(spark, query, {"t": changes(spark, "a BIGINT").schema})
