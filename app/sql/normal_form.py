"""The normal form of an analysed plan has joins and aggregates in the place of much else.

    normal_form(spark, plan)      the same query; `plan` itself if nothing is to be done

`x IN (SELECT …)`, EXISTS and their negations are semi and anti joins, or inside of OR a join that
adds a column (`ExistenceJoin`). NOT is brought down to IN first, as Spark's rule tells NULL from
false only there. A subquery that gives a value for an outer row is a left join, and one without
outer columns that always has one row an inner join with it. DISTINCT is an aggregate without
functions, INTERSECT and EXCEPT are a semi and an anti join below one, and their forms with ALL
count rows. An outer join whose added rows a filter leaves out is an inner one. What aggregates
group by are columns. A join is over the columns that are read, if one that is not could not be
compared. Catalyst's optimizer does all that by rules of its own, which are applied here one by one:
the whole optimizer adds shapes that depend on statistics. Only rows without outer columns are
joined here. Rules for changes then have little to know.

Subqueries are worked off from the outside in, and rewritten from the inside out, as the optimizer
does: what refers to an outer row is pulled up out of a subquery first, which then stands for itself
and is brought into its normal form, with what is inside of it; and then it is joined. In another
order a reference to an outer row is left behind that shows only when the plan is run.

Invariants:
    Every expression is Spark's own, and the plan gives the same rows.
    What comes out is resolved, or it is not returned. So is a plan at which a rule fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from shardline.app.sql.distinct_values import with_distinct_values
from shardline.app.sql.plan_nodes import conjunction, conjuncts, tree_pattern, with_changed
from shardline.app.sql.strategy import INPUT
from shardline.app.sql.unread_columns import without_unread_columns
from shardline.datasource.frames import (
    children_of,
    is_whole,
    kind_of,
    operator_kinds,
    read_sequence,
    scala_sequence,
)
from shardline.datasource.java_names import java_class, scala_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["normal_form"]

_log = logging.getLogger(__name__)

_LOGICAL: Final = "org.apache.spark.sql.catalyst.plans.logical"
_OPTIMIZER: Final = "org.apache.spark.sql.catalyst.optimizer"
_PULL_UP: Final = ("PullupCorrelatedPredicates",)
_REWRITE: Final = (
    "RewriteCorrelatedScalarSubquery",
    "RewriteLateralSubquery",
    "RewritePredicateSubquery",
)
"""In the optimizer's order, as those before; between them subqueries are worked on themselves."""

_SIMPLIFY: Final = ("BooleanSimplification", "SimplifyBinaryComparison", "SimplifyConditionals")
"""They bring NOT down to IN; in the optimizer they come long before subqueries are rewritten."""

_SIMPLIFY_MAX: Final = 8
"""Most passes of them: each brings NOT down by one operator at least."""

_NULL_IS_HARMLESS: Final = frozenset({"Alias", "And", "CaseWhen", "If", "Or"})
"""Expressions below which an IN may say false for NULL: a condition passes no row either way, and
what is selected is what Spark's own rule makes of it."""

_SUBQUERIES: Final = frozenset({"Exists", "ListQuery", "ScalarSubquery"})
"""Catalyst's expressions of subqueries, by their classes."""

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

_NULLABILITY: Final = "org.apache.spark.sql.catalyst.analysis.UpdateAttributeNullability"
"""Lets operators know which of their columns may be NULL after what is below them has changed."""

_INNER: Final = ("EliminateOuterJoin",)
"""An outer join under a filter that no row with NULL passes is an inner one."""

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
    if not inlined.subqueriesAll().isEmpty():
        inlined = _without_subqueries(spark, inlined)
    kinds = operator_kinds(inlined)
    if not _WITH_AGGREGATES.isdisjoint(kinds):
        inlined = _applied(spark, _AGGREGATES, inlined)
        inlined = _tried(partial(with_distinct_values, spark), inlined)
    if {"Filter", "Join"} <= kinds:
        inlined = _applied(spark, _INNER, _with_filters_at_joins(spark, inlined))
    if "Join" in operator_kinds(inlined):
        inlined = _tried(partial(without_unread_columns, spark), inlined)
    # The rules for EXCEPT ALL and INTERSECT ALL group what both sides have by columns of the left
    # one alone, which may not be NULL where those of the right one are. In the optimizer others put
    # that right; here a state's columns come from it, and NULL would be read as a 0.
    return _tried(scala_object(spark, _NULLABILITY).apply, inlined)


def _applied(spark: SparkSession, rules: Sequence[str], plan: Any) -> Any:
    """A plan after these rules of Catalyst; see `_tried`."""

    def change(found: Any) -> Any:
        for rule in rules:
            found = scala_object(spark, f"{_OPTIMIZER}.{rule}").apply(found)
        return found

    return _tried(change, plan)


def _tried(change: Callable[[Any], Any], plan: Any) -> Any:
    """A changed plan, or as it is if the change fails or leaves no whole plan behind."""
    try:
        found = change(plan)
    except (PySparkException, Py4JError) as error:
        _log.info("a query is not brought into its normal form", exc_info=error)
        return plan
    return found if is_whole(found) else plan


def _without_subqueries(spark: SparkSession, plan: Any) -> Any:
    """A plan with joins in the place of subqueries, as far as there are rules for them."""
    simple = _with_not_next_to_in(spark, plan)
    if simple is None:
        return plan
    pulled = _with_values_last(spark, _applied(spark, _PULL_UP, simple))
    joined = _applied(spark, _REWRITE, _with_flat_subqueries(spark, pulled))
    return _with_single_rows(spark, joined)


def _with_not_next_to_in(spark: SparkSession, plan: Any) -> Any | None:
    """A plan whose `x IN (SELECT …)` may become a join; None if that would lose what NULL means.

    The join says false where IN has no value, as there is a NULL among the rows, and Spark's rule
    makes a difference for NOT right above alone. Anywhere below NOT, false and NULL are two things.
    """
    pattern = tree_pattern(spark, "IN_SUBQUERY")
    if not plan.containsPattern(pattern):
        return plan
    for _ in range(_SIMPLIFY_MAX):
        if _may_be_false_for_null(plan, pattern):
            return plan
        plan = _applied(spark, _SIMPLIFY, plan)
    return None


def _may_be_false_for_null(plan: Any, pattern: Any) -> bool:
    """True if no IN of a plan is in an expression for which NULL and false are two things."""
    if kind_of(plan) == INPUT:
        return True
    own = read_sequence(plan.expressions())
    return all(_is_null_harmless(one, pattern) for one in own) and all(
        _may_be_false_for_null(one, pattern) for one in children_of(plan)
    )


def _is_null_harmless(expression: Any, pattern: Any, *, null_matters: bool = False) -> bool:
    kind = kind_of(expression)
    # Those inside of a subquery are looked at when it is rewritten itself.
    if kind in _SUBQUERIES or not expression.containsPattern(pattern):
        return True
    below = children_of(expression)
    if kind == "Not" and kind_of(below[0]) == "InSubquery":
        return _is_null_harmless(below[0], pattern, null_matters=null_matters)
    if kind == "InSubquery":
        inside = (_is_null_harmless(one, pattern, null_matters=True) for one in below)
        return not null_matters and all(inside)
    deeper = null_matters or kind not in _NULL_IS_HARMLESS
    conditions = _conditions(kind, len(below))
    return all(
        _is_null_harmless(one, pattern, null_matters=deeper and place not in conditions)
        for place, one in enumerate(below)
    )


def _conditions(kind: str, count: int) -> range:
    """Places of the children of an expression that are conditions: NULL is false there."""
    match kind:
        case "If":
            return range(1)
        case "CaseWhen":  # conditions and values in turn, and a last value without a condition
            return range(0, count - 1, 2)
        case "AggregateExpression":  # the function and its FILTER
            return range(1, count)
        case _:
            return range(0)


def _with_values_last(spark: SparkSession, plan: Any) -> Any:
    """A plan that filters first by what compares with no value of a correlated subquery.

    Such a value comes from an outer join of the filter's rows. What is in the filter beside it,
    such as the equalities of `FROM a, b`, would be above that join, and below it the join of all
    pairs of rows. The optimizer takes it down through joins, too.
    """
    if kind_of(plan) == INPUT or plan.subqueriesAll().isEmpty():
        return plan
    plan = with_changed(spark, plan, lambda one: _with_values_last(spark, one))
    if kind_of(plan) != "Filter":
        return plan
    last: list[Any] = []
    first: list[Any] = []
    for one in conjuncts(plan.condition()):
        (last if _compares_with_outer_value(one) else first).append(one)
    if not last or not first:
        return plan
    below = _filter(spark, first, plan.children().apply(0))
    return _filter(spark, last, below)


def _with_filters_at_joins(spark: SparkSession, plan: Any) -> Any:
    """A plan whose filters stand right above joins, where projections between only choose columns.

    There Catalyst's rules look for them. A filter reads columns that the projection has chosen.
    """
    if kind_of(plan) == INPUT:
        return plan
    plan = with_changed(spark, plan, lambda one: _with_filters_at_joins(spark, one))
    if kind_of(plan) != "Filter":
        return plan
    chosen = plan.children().apply(0)
    if kind_of(chosen) != "Project" or kind_of(chosen.children().apply(0)) != "Join":
        return plan
    columns = read_sequence(chosen.projectList())
    if any(kind_of(one) != "AttributeReference" for one in columns):
        return plan
    below = _filter(spark, [plan.condition()], chosen.children().apply(0))
    return chosen.withNewChildren(scala_sequence(spark, [below]))


def _compares_with_outer_value(expression: Any) -> bool:
    if kind_of(expression) == "ScalarSubquery":
        return not expression.outerAttrs().isEmpty() or not expression.joinCond().isEmpty()
    return any(map(_compares_with_outer_value, children_of(expression)))


def _filter(spark: SparkSession, conditions: Sequence[Any], below: Any) -> Any:
    return java_class(spark, f"{_LOGICAL}.Filter")(conjunction(spark, conditions), below)


def _with_flat_subqueries(spark: SparkSession, plan: Any) -> Any:
    """A plan whose subqueries have none themselves, where filters and projections use them."""
    if kind_of(plan) == INPUT or plan.subqueriesAll().isEmpty():
        return plan
    below = with_changed(spark, plan, lambda one: _with_flat_subqueries(spark, one))
    return _with_expressions(spark, below, lambda one: _with_flat_plan(spark, one))


def _with_flat_plan(spark: SparkSession, expression: Any) -> Any:
    if kind_of(expression) in _SUBQUERIES:
        plan = expression.plan()
        if plan.subqueriesAll().isEmpty():
            return expression
        return expression.withNewPlan(_without_subqueries(spark, plan))
    return with_changed(spark, expression, lambda one: _with_flat_plan(spark, one))


def _with_single_rows(spark: SparkSession, plan: Any) -> Any:
    """A plan whose subqueries of one row are joined, where filters and projections use them."""
    if kind_of(plan) == INPUT:
        return plan
    plan = with_changed(spark, plan, lambda one: _with_single_rows(spark, one))
    found: dict[int, Any] = {}
    with_columns = _with_expressions(
        spark, plan, lambda one: _without_single_rows(spark, one, found)
    )
    if not found:
        return plan
    below = plan.children().apply(0)
    for row in found.values():
        below = _joined(spark, below, row)
    over_row = with_columns.withNewChildren(scala_sequence(spark, [below]))
    if kind_of(plan) == "Project":
        return over_row
    return java_class(spark, f"{_LOGICAL}.Project")(plan.output(), over_row)


def _with_expressions(spark: SparkSession, plan: Any, change: Callable[[Any], Any]) -> Any:
    """A filter or a projection with changed expressions; any other operator as it is."""
    kind = kind_of(plan)
    if kind not in {"Filter", "Project"}:
        return plan
    given = read_sequence(plan.projectList()) if kind == "Project" else [plan.condition()]
    made = [change(one) for one in given]
    if all(new is old for new, old in zip(made, given, strict=True)):
        return plan
    expressions = scala_sequence(spark, made) if kind == "Project" else made[0]
    return java_class(spark, f"{_LOGICAL}.{kind}")(expressions, plan.children().apply(0))


def _without_single_rows(spark: SparkSession, expression: Any, found: dict[int, Any]) -> Any:
    """An expression with the columns of plans in the place of subqueries; these go to `found`."""
    if kind_of(expression) == "ScalarSubquery" and _has_one_row(expression):
        row = expression.plan()
        found[int(expression.exprId().id())] = row
        return row.output().apply(0)
    return with_changed(spark, expression, lambda one: _without_single_rows(spark, one, found))


def _has_one_row(subquery: Any) -> bool:
    """True of a subquery without outer columns that has a row whatever its inputs hold."""
    if not subquery.outerAttrs().isEmpty() or not subquery.joinCond().isEmpty():
        return False
    plan = subquery.plan()
    while kind_of(plan) in _ONE_FOR_ONE:
        plan = plan.children().apply(0)
    return kind_of(plan) == "Aggregate" and bool(plan.groupingExpressions().isEmpty())


def _joined(spark: SparkSession, plan: Any, row: Any) -> Any:
    """Each row of a plan with a row."""
    inner = scala_object(spark, "org.apache.spark.sql.catalyst.plans.Inner")
    none = scala_object(spark, "scala.None")
    no_hint = scala_object(spark, f"{_LOGICAL}.JoinHint").NONE()
    return java_class(spark, f"{_LOGICAL}.Join")(plan, row, inner, none, no_hint)
