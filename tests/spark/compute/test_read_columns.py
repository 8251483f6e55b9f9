"""Columns that a view's query does not read: nothing of them is handed to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from shardline.app.compute.view.change_plan import ChangePlan
from shardline.app.compute.view.view_columns import parse_columns, with_times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("query", "read"),
    [
        # Spark computes a grouping below the aggregate, beside all columns.
        ("SELECT upper(n) AS n, sum(a) AS s FROM t GROUP BY upper(n)", {"n", "a"}),
        ("SELECT k FROM (SELECT k, a + 1 AS b, n FROM t) WHERE b > 1", {"k", "a"}),
        ("SELECT b FROM (SELECT b, c FROM (SELECT a + 1 AS b, k + 1 AS c FROM t))", {"a"}),
        ("SELECT k FROM (SELECT k, a FROM t UNION ALL SELECT a, k FROM t)", {"k", "a"}),
        ("SELECT k FROM (SELECT DISTINCT k, n FROM t)", {"k", "n"}),
        ("SELECT k, first(b) AS m FROM (SELECT k, a AS b, n FROM t) GROUP BY k", {"k", "a"}),
        ("SELECT k, rank() OVER (PARTITION BY k ORDER BY a) AS r FROM t", {"k", "a"}),
        ("SELECT t.k FROM t JOIN u ON t.a = u.k", {"k", "a"}),
    ],
)
def test_a_column_that_only_goes_through_is_not_read(
    spark: SparkSession, query: str, read: set[str]
) -> None:
    """Its values are not handed over, and an update of it alone is none."""
    columns = {"t": "k INT, a INT, n STRING"} | ({"u": "k INT"} if "u.k" in query else {})
    given = {name: with_times(parse_columns(kinds)) for name, kinds in columns.items()}
    plan = ChangePlan(spark, query, given)
    row = {"k": [1], "a": [2], "n": ["x"], "_ts": [5], "_diff": [1]}
    left = plan.without_unread("t", pa.table(row))
    there = {name for name in ("k", "a", "n") if not left.column(name).null_count}
    assert there == read
