"""A query's meaning is decided by its own session, whatever the thread has done before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardline.app.compute.view.change_plan import ChangePlan
from shardline.app.compute.view.view_columns import parse_columns, with_times
from shardline.app.project.project import Project
from shardline.app.protocol.objects import ViewDescription
from shardline.datasource.frames import as_active
from shardline.datasource.java_names import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "k INT, a DECIMAL(15, 2), b DECIMAL(32, 4)"
QUOTIENT = "SELECT k, sum(a) / sum(b) AS share FROM t GROUP BY k"
"""Of decimals: Spark's type of it is another one where no digit may be dropped."""


@pytest.fixture
def other(spark: SparkSession) -> SparkSession:
    """A session in which decimals are divided in another way."""
    session = spark.newSession()
    session.conf.set("spark.sql.decimalOperations.allowPrecisionLoss", "false")
    return session


@pytest.fixture
def expected(spark: SparkSession) -> str:
    """Spark's type of the quotient."""
    session = spark.newSession()
    session.createDataFrame([], COLUMNS).createOrReplaceTempView("t")
    return session.sql(QUOTIENT).schema["share"].dataType.simpleString().upper()


def active(spark: SparkSession) -> Any:
    return java_class(spark, "org.apache.spark.sql.classic.SparkSession").getActiveSession().get()


def test_types_of_a_project_are_those_of_its_session(
    spark: SparkSession, other: SparkSession, expected: str
) -> None:
    """Plans of a view are made in sessions of their own, and the next one is checked after them."""
    project = Project()
    project.source("t", "csv", options={"path": "later"}, schema=COLUMNS)
    for name in ("one", "two"):
        project.view(name, QUOTIENT)
    with as_active(other):
        kept = project.check(spark).descriptions
        assert active(spark).equals(other._jsparkSession), "it is as it was before"
    for name in ("one", "two"):
        described = kept[name]
        assert isinstance(described, ViewDescription)
        assert described.schema == f"k INT,share {expected}"


def test_a_plan_leaves_the_active_session_as_it_was(spark: SparkSession, expected: str) -> None:
    """It has parts in a session of exact arithmetic."""
    with as_active(spark):
        plan = ChangePlan(spark, QUOTIENT, {"t": with_times(parse_columns(COLUMNS))})
        assert active(spark).equals(spark._jsparkSession)
        assert plan.columns["share"].dataType.simpleString().upper() == expected
        plan.step({"t"})
        assert active(spark).equals(spark._jsparkSession)
