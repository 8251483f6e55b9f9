"""Aggregates that follow from changes fail where their query does, in front of a FILTER, too."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.errors import PySparkException

from shardline.app.compute.view.kept_plan import plan_of
from shardline.app.sql.kept_aggregates import refusal
from shardline.app.sql.normal_form import normal_form
from shardline.datasource.frames import analyse_query

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CALLS: Final = (
    "sum(10 div a)",
    "min(10 div a)",
    "max((10 div a) + 1)",
    "avg(10 div a)",
    "count(10 div a)",
    "sum(CAST(10 / a AS DECIMAL(10, 2)))",
    "max(b)",
    "avg(a)",
)
KEPT_ALONE: Final = ("sum(10 div a)", "min(10 div a)", "max(b)", "avg(a)")
"""Of one call each of these is computed once at most, and after its FILTER."""


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Of a file: of rows in a plan Spark computes some of the query before it runs."""
    folder: Path = tmp_path_factory.mktemp("kept_aggregates")
    rows = [("x", 1, 5), ("x", 0, 6), ("y", 2, None)]
    spark.createDataFrame(rows, "k STRING, a INT, b INT").write.parquet(f"{folder}/t")
    return spark.read.parquet(f"{folder}/t")


def why_refused(spark: SparkSession, table: DataFrame, query: str) -> str:
    plan = normal_form(spark, plan_of(analyse_query(spark, query, {"t": table})))
    while str(plan.getClass().getSimpleName()) != "Aggregate":
        plan = plan.children().head()
    return refusal(spark, plan)


def fails(spark: SparkSession, table: DataFrame, query: str) -> bool:
    try:
        analyse_query(spark, query, {"t": table}).collect()
    except PySparkException as error:
        if error.getCondition() == "DIVIDE_BY_ZERO":
            return True
        raise
    return False


@pytest.mark.parametrize("calls", [*combinations_with_replacement(CALLS, 2)], ids=" and ".join)
def test_what_fails_at_a_row_that_is_filtered_is_not_kept(
    spark: SparkSession, table: DataFrame, calls: tuple[str, str]
) -> None:
    """The row with a = 0 is in no call; Spark fails at it if the calls share what they compute."""
    shown = ", ".join(f"{call} FILTER (WHERE a > {n}) AS c{n}" for n, call in enumerate(calls))
    query = f"SELECT k, {shown} FROM t GROUP BY k"  # noqa: S608 - put together here
    assert why_refused(spark, table, query) or not fails(spark, table, query)


@pytest.mark.parametrize("call", KEPT_ALONE)
def test_what_is_computed_behind_its_filter_is_kept(
    spark: SparkSession, table: DataFrame, call: str
) -> None:
    """Alone, and beside a call that shares nothing with it."""
    for also in ("", ", count(*) FILTER (WHERE b > 5) AS n"):
        query = f"SELECT k, {call} FILTER (WHERE a > 0) AS c{also} FROM t GROUP BY k"  # noqa: S608
        assert not fails(spark, table, query)
        assert why_refused(spark, table, query) == ""


def test_the_reason_says_what_may_fail(spark: SparkSession, table: DataFrame) -> None:
    """It is shown by `plan`."""
    query = "SELECT avg(10 div a) FILTER (WHERE a > 0) AS m FROM t"
    assert fails(spark, table, query)
    assert "more than once may fail at rows that FILTER" in why_refused(spark, table, query)
