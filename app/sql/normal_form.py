"""The normal form of an analysed plan has joins and aggregates in the place of much else.

    normal_form(spark, plan)      the same query; `plan` itself if nothing is to be done

`x IN (SELECT …)`, EXISTS and their negations are semi and anti joins, or inside of OR a join that
adds a column (`ExistenceJoin`). DISTINCT is an aggregate without functions, INTERSECT and EXCEPT
are a semi and an anti join below one, and their forms with ALL count rows. What aggregates group by
are columns. Catalyst's optimizer does all that by rules of its own, which are applied here one by
one: the whole optimizer adds shapes that depend on statistics. Rules for changes then have little
to know.

A subquery inside of a subquery is left alone: Catalyst goes into the inner one first, and in
another order a reference to an outer row is left behind that shows only when the plan is run.

Invariants:
    Every expression is Spark's own, and the plan gives the same rows.
    What comes out is resolved, or it is not returned. So is a plan at which a rule fails.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
_SUBQUERIES: Final = ("PullupCorrelatedPredicates", "RewritePredicateSubquery")
"""In the optimizer's order."""

_AGGREGATES: Final = (
    "RewriteExceptAll",
    "RewriteIntersectAll",
    "ReplaceIntersectWithSemiJoin",
    "ReplaceExceptWithAntiJoin",
    "ReplaceDistinctWithAggregate",
    "ReplaceExpressions",
    "PullOutGroupingExpressions",
)
"""In the optimizer's order, but for the last two: a replaced set operator has neither an expression
to replace nor one to group by."""

_WITH_AGGREGATES: Final = frozenset({"Aggregate", "Distinct", "Except", "Intersect"})


def normal_form(spark: SparkSession, plan: Any) -> Any:
    """The normal form of a plan.

    Args:
        spark: Any session of the application.
        plan: As Spark has analysed it.
    """
    inlined = java_class(spark, f"{_OPTIMIZER}.InlineCTE")(True, False, False).apply(plan)
    subqueries = read_sequence(inlined.subqueriesAll())
    if subqueries and all(one.subqueriesAll().isEmpty() for one in subqueries):
        inlined = _applied(spark, _SUBQUERIES, inlined)
    if _WITH_AGGREGATES.isdisjoint(_kinds(inlined)):
        return inlined
    return _applied(spark, _AGGREGATES, inlined)


def _applied(spark: SparkSession, rules: Sequence[str], plan: Any) -> Any:
    """A plan after these rules, or as it is if they fail or leave no whole plan behind."""
    found = plan
    try:
        for rule in rules:
            found = scala_object(spark, f"{_OPTIMIZER}.{rule}").apply(found)
    except (PySparkException, Py4JError) as error:
        _log.info("a query is not brought into its normal form", exc_info=error)
        return plan
    return found if _is_whole(found) else plan


def _kinds(plan: Any) -> set[str]:
    """The classes of all operators of a plan."""
    mine = {str(plan.getClass().getSimpleName())}
    return mine.union(*(_kinds(child) for child in read_sequence(plan.children())))


def _is_whole(plan: Any) -> bool:
    """True if each operator is resolved, and has below it what it refers to."""
    if not plan.resolved() or not plan.missingInput().isEmpty():
        return False
    return all(_is_whole(child) for child in read_sequence(plan.children()))
