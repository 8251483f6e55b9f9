"""The normal form of an analysed plan has joins where the query has subqueries in conditions.

    normal_form(spark, plan)      the same query; `plan` itself if nothing is to be done

`x IN (SELECT …)`, EXISTS and their negations are semi and anti joins, or inside of OR a join that
adds a column (`ExistenceJoin`). Catalyst's optimizer turns them into these by two rules of its own,
which are applied here one by one: the whole optimizer adds shapes that depend on statistics. Rules
for changes then have only joins to know.

A subquery inside of a subquery is left alone: Catalyst goes into the inner one first, and in
another order a reference to an outer row is left behind that shows only when the plan is run.

Invariants:
    Every expression is Spark's own, and the plan gives the same rows.
    What comes out is resolved, or it is not returned. So is a plan at which a rule fails.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from shardline.datasource.spark_native.java_names import (
    java_class,
    read_sequence,
    scala_object,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["normal_form"]

_log = logging.getLogger(__name__)

_OPTIMIZER: Final = "org.apache.spark.sql.catalyst.optimizer"
_RULES: Final = ("PullupCorrelatedPredicates", "RewritePredicateSubquery")
"""In the optimizer's order."""


def normal_form(spark: SparkSession, plan: Any) -> Any:
    """The normal form of a plan.

    Args:
        spark: Any session of the application.
        plan: As Spark has analysed it.
    """
    inlined = java_class(spark, f"{_OPTIMIZER}.InlineCTE")(True, False, False).apply(plan)
    subqueries = read_sequence(inlined.subqueriesAll())
    if not subqueries or any(not one.subqueriesAll().isEmpty() for one in subqueries):
        return inlined
    found = inlined
    try:
        for rule in _RULES:
            found = scala_object(spark, f"{_OPTIMIZER}.{rule}").apply(found)
    except (PySparkException, Py4JError) as error:
        _log.info("a query keeps its subqueries", exc_info=error)
        return inlined
    return found if _is_whole(found) else inlined


def _is_whole(plan: Any) -> bool:
    """True if each operator is resolved, and has below it what it refers to."""
    if not plan.resolved() or not plan.missingInput().isEmpty():
        return False
    return all(_is_whole(child) for child in read_sequence(plan.children()))
