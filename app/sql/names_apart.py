"""Gives columns that functions of SQL are called with names of their own.

Spark puts a projection below such calls: where two functions have a parameter of the name of the
column that both are called with, it has that column twice, as two aliases of the same name. In a
branch of a UNION ALL both become one column, as Spark's optimizer takes away an alias that has its
column's name, and then refuses the plan that it has broken itself. It does so for any query with
such calls over a UNION ALL; but the plans of steps have unions where the query has none: of what
each input stands for, and of the terms of a join.

    with_names_apart(spark, plan)      the same rows; `plan` itself if it calls no function of SQL

Invariants:
    Columns keep their ids, by which all else refers to them.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shardline.app.sql.plan_nodes import tree_pattern, with_changed
from shardline.app.sql.strategy import INPUT
from shardline.datasource.frames import kind_of, read_sequence, scala_sequence
from shardline.datasource.java_names import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["with_names_apart"]

_PROJECT: Final = "org.apache.spark.sql.catalyst.plans.logical.Project"


def with_names_apart(spark: SparkSession, plan: Any) -> Any:
    """A plan whose projections have no two columns of one name, where functions of SQL are called.

    Args:
        spark: Any session of the application.
        plan: As Spark has analysed it, or in its normal form.
    """
    if not plan.containsPattern(tree_pattern(spark, "SQL_SCALAR_FUNCTION")):
        return plan
    return _apart(spark, plan)


def _apart(spark: SparkSession, plan: Any) -> Any:
    if kind_of(plan) == INPUT:
        return plan
    plan = with_changed(spark, plan, partial(_apart, spark))
    if kind_of(plan) != "Project":
        return plan
    columns = read_sequence(plan.projectList())
    names = Counter(str(one.name()).lower() for one in columns)
    if len(names) == len(columns):
        return plan
    named = [
        one.withName(f"{one.name()} {one.exprId().id()}")
        if kind_of(one) == "Alias" and names[str(one.name()).lower()] > 1
        else one
        for one in columns
    ]
    return java_class(spark, _PROJECT)(scala_sequence(spark, named), plan.children().apply(0))
