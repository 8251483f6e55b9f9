"""The normal form of an analysed plan has joins and aggregates in the place of much else.

    normal_form(spark, plan)      the same query; `plan` itself if nothing is to be done

`x IN (SELECT …)`, EXISTS and their negations are semi and anti joins, or inside of OR a join that
adds a column (`ExistenceJoin`). A subquery that gives a value for an outer row is a left join, and
one without outer columns that always has one row an inner join with it. DISTINCT is an aggregate
without functions, INTERSECT and EXCEPT are a semi and an anti join below one, and their forms with
ALL count rows. What aggregates group by are columns. Catalyst's optimizer does all that by rules of
its own, which are applied here one by one: the whole optimizer adds shapes that depend on
statistics. Only rows without outer columns are joined here. Rules for changes then have little to
know.

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

from shardline.app.sql.strategy import INPUT
from shardline.datasource.spark_native.java_names import (
    java_class,
    read_sequence,
    scala_object,
    scala_sequence,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["normal_form"]

_log = logging.getLogger(__name__)

_LOGICAL: Final = "org.apache.spark.sql.catalyst.plans.logical"
_OPTIMIZER: Final = "org.apache.spark.sql.catalyst.optimizer"
_SUBQUERIES: Final = (
    "PullupCorrelatedPredicates",
    "RewriteCorrelatedScalarSubquery",
    "RewriteLateralSubquery",
    "RewritePredicateSubquery",
)
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

_ONE_FOR_ONE: Final = frozenset({"Project", "SubqueryAlias"})
"""Operators that give one row for each."""

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
        inlined = _with_single_rows(spark, inlined)
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


def _with_single_rows(spark: SparkSession, plan: Any) -> Any:
    """A plan whose subqueries of one row are joined, where filters and projections use them."""
    if _kind(plan) == INPUT:
        return plan
    children = [_with_single_rows(spark, child) for child in read_sequence(plan.children())]
    sequence = scala_sequence(spark, children)
    plan = plan.withNewChildren(sequence) if children else plan
    if _kind(plan) not in {"Filter", "Project"}:
        return plan
    (below,) = read_sequence(plan.children())
    found: dict[int, Any] = {}
    expressions = [_without_single_rows(spark, one, found) for one in _own(plan)]
    if not found:
        return plan
    for row in found.values():
        below = _joined(spark, below, row)
    logical = f"{_LOGICAL}.{_kind(plan)}"
    if _kind(plan) == "Project":
        return java_class(spark, logical)(scala_sequence(spark, expressions), below)
    filtered = java_class(spark, logical)(expressions[0], below)
    return java_class(spark, f"{_LOGICAL}.Project")(plan.output(), filtered)


def _own(plan: Any) -> list[Any]:
    return read_sequence(plan.projectList()) if _kind(plan) == "Project" else [plan.condition()]


def _without_single_rows(spark: SparkSession, expression: Any, found: dict[int, Any]) -> Any:
    """An expression with the columns of plans in the place of subqueries; these go to `found`."""
    if _kind(expression) == "ScalarSubquery" and _has_one_row(expression):
        row = expression.plan()
        found[int(expression.exprId().id())] = row
        return row.output().apply(0)
    given = read_sequence(expression.children())
    children = [_without_single_rows(spark, child, found) for child in given]
    if all(new is old for new, old in zip(children, given, strict=True)):
        return expression
    return expression.withNewChildren(scala_sequence(spark, children))


def _has_one_row(subquery: Any) -> bool:
    """True of a subquery without outer columns that has a row whatever its inputs hold."""
    if not subquery.outerAttrs().isEmpty() or not subquery.joinCond().isEmpty():
        return False
    plan = subquery.plan()
    while _kind(plan) in _ONE_FOR_ONE:
        plan = plan.children().apply(0)
    return _kind(plan) == "Aggregate" and bool(plan.groupingExpressions().isEmpty())


def _joined(spark: SparkSession, plan: Any, row: Any) -> Any:
    """Each row of a plan with a row."""
    inner = scala_object(spark, "org.apache.spark.sql.catalyst.plans.Inner")
    none = scala_object(spark, "scala.None")
    no_hint = scala_object(spark, f"{_LOGICAL}.JoinHint").NONE()
    return java_class(spark, f"{_LOGICAL}.Join")(plan, row, inner, none, no_hint)


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _kinds(plan: Any) -> set[str]:
    """The classes of all operators of a plan."""
    mine = {_kind(plan)}
    return mine.union(*(_kinds(child) for child in read_sequence(plan.children())))


def _is_whole(plan: Any) -> bool:
    """True if each operator is resolved, and has below it what it refers to."""
    if not plan.resolved() or not plan.missingInput().isEmpty():
        return False
    return all(_is_whole(child) for child in read_sequence(plan.children()))
