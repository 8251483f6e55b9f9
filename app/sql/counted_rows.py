"""Counts rows below a LIMIT, so that the LIMIT alone is run anew, and not what is below it.

Nothing tells from a change which row comes up when one of the first ten goes. So a LIMIT is run
anew at each change; but over rows that are there already, as the state of an aggregate, it costs no
join. A LIMIT of groups reads such a state anyhow. Here rows of other queries get one:

    ORDER BY … LIMIT 10 over X      becomes      ORDER BY … LIMIT 10 over (X EXCEPT ALL nothing)

of which Catalyst's own rule makes an aggregate that counts equal rows, and a generator that gives
each of them so many times.

    with_counted_rows(spark, plan)      the same query; `plan` itself if nothing is to be done

Rows that follow from one input row by row are left as they are: to read that again costs no more
than to read a copy.

Invariants:
    The plan gives the same rows: equal to an aggregate are only rows that are the same to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shardline.app.sql.kept_aggregates import has_one_form
from shardline.app.sql.plan_nodes import kind_of, spark_type
from shardline.app.sql.strategy import CONSTANT, INPUT, LINEAR
from shardline.datasource.java_names import (
    java_class,
    read_sequence,
    scala_object,
    scala_sequence,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["with_counted_rows"]

_CATALYST: Final = "org.apache.spark.sql.catalyst"
_LOGICAL: Final = f"{_CATALYST}.plans.logical"

_LIMITS: Final = frozenset({"GlobalLimit", "LocalLimit", "Offset"})

_ABOVE: Final = _LIMITS | {"Filter", "Project", "Sort", "SubqueryAlias"}
"""Operators that may be above the rows: they read nothing else."""


def with_counted_rows(spark: SparkSession, plan: Any) -> Any:
    """A plan that counts the rows below its lowest LIMIT, where they can be counted.

    Args:
        spark: Any session of the application.
        plan: In its normal form.
    """
    above, rows = _split(plan)
    if not above or not _is_worth_it(rows) or not _can_be_counted(spark, rows):
        return plan
    columns = [one.newInstance() for one in read_sequence(rows.output())]
    nothing = java_class(spark, f"{_LOGICAL}.LocalRelation")(
        scala_sequence(spark, columns),
        scala_sequence(spark, []),
        False,  # no stream
        scala_object(spark, "scala.None"),
    )
    without = java_class(spark, f"{_LOGICAL}.Except")(rows, nothing, True)
    found = scala_object(spark, f"{_CATALYST}.optimizer.RewriteExceptAll").apply(without)
    for operator in reversed(above):
        found = operator.withNewChildren(scala_sequence(spark, [found]))
    return found


def _split(plan: Any) -> tuple[list[Any], Any]:
    """What is above the rows of the lowest LIMIT, with its order, and those; nothing without one.

    Between a LIMIT and its order there may be projections, as where that is by other columns than
    are shown. Without an order below it nothing is above: who counts rows loses theirs.
    """
    above: list[Any] = []
    end, is_ordered, node = 0, True, plan
    while kind_of(node) in _ABOVE:
        above.append(node)
        if kind_of(node) in _LIMITS:
            is_ordered = False
        elif kind_of(node) == "Sort" and not is_ordered:
            end, is_ordered = len(above), True
        node = node.children().apply(0)
    if not end or not is_ordered:
        return [], plan
    return above[:end], above[end - 1].children().apply(0)


def _is_worth_it(rows: Any) -> bool:
    """True unless rows follow from an input row by row, or groups have a state already."""
    kinds = list(_kinds_outside_of_groups(rows))
    return INPUT in kinds and not LINEAR.union(CONSTANT, {INPUT}).issuperset(kinds)


def _kinds_outside_of_groups(plan: Any) -> list[str]:
    kind = kind_of(plan)
    if kind == INPUT:
        return [kind]
    below = [] if kind == "Aggregate" else read_sequence(plan.children())
    return [kind, *(one for child in below for one in _kinds_outside_of_groups(child))]


def _can_be_counted(spark: SparkSession, rows: Any) -> bool:
    columns = read_sequence(rows.output())
    ids = {int(one.exprId().id()) for one in columns}
    return len(ids) == len(columns) and all(has_one_form(spark_type(spark, c)) for c in columns)
