"""The linear check decides at run time if a query over changes gives the change of its view.

A project's check has found the view linear (`shardline.app.project.analyze`), over inputs of the
same columns. Since then the session's settings, Spark's version or an input may have changed, and
then the same text could give wrong changes. So the same questions are asked again, in the session
and of the columns that will be used: where the answer is no, the view is recomputed, which is
always right.

Invariants:
    A query that passes returns the view's columns, then `_ts` and `_diff`.
    Nothing is run: only plans over tables without rows are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardline.app.compute.view.evaluate import analyse_query
from shardline.app.sql.compare_plans import compare_plans
from shardline.app.sql.plan_tree import Node, plan_tree
from shardline.app.sql.strategy import INPUT, LINEAR
from shardline.datasource.types.schema import DIFF, TS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["find_nonlinearity"]


def find_nonlinearity(
    session: SparkSession,
    query: str,
    over_changes: str,
    inputs: Mapping[str, StructType],
    columns: StructType,
) -> str:
    """The reason why a query over changes does not give the change of a view; "" if it does.

    Args:
        session: The session in which the view runs.
        query: The view's query.
        over_changes: The query over changes that was made of it.
        inputs: Columns of the changes of each input: its own, then `_ts` and `_diff`.
        columns: Columns of the view.
    """
    changes = {name: session.createDataFrame([], schema) for name, schema in inputs.items()}
    result = analyse_query(session, over_changes, changes)
    # By their text, which leaves out if values inside may be null: the stored columns lack it, too.
    wanted = [(field.name, field.dataType.simpleString()) for field in columns.fields]
    found = [(field.name, field.dataType.simpleString()) for field in result.schema.fields]
    if found[: len(wanted)] != wanted or result.columns[len(wanted) :] != [TS, DIFF]:
        return f"its columns are {', '.join(result.columns)}"
    plan = _plan(result)
    if not plan.deterministic():
        return "an expression that is not deterministic"
    if not plan.subqueriesAll().isEmpty():
        return "a subquery in an expression"
    unknown = ", ".join(sorted(_operators(plan) - LINEAR))
    if unknown:
        return unknown
    contents = {
        name: session.createDataFrame([], type(schema)(_visible(schema)))
        for name, schema in inputs.items()
    }
    return compare_plans(_tree(analyse_query(session, query, contents)), _tree(result))


def _visible(schema: StructType) -> list[Any]:
    return [field for field in schema.fields if field.name not in (TS, DIFF)]


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public door


def _tree(frame: DataFrame) -> Node:
    return plan_tree(_plan(frame).toJSON())


def _operators(plan: Any) -> set[str]:
    """Names of a plan's operators, without those that are inside of its inputs."""
    name = plan.getClass().getSimpleName()
    if name == INPUT:
        return set()
    found = {name}
    children = plan.children()
    for place in range(children.size()):
        found |= _operators(children.apply(place))
    return found
