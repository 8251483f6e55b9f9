"""Whether what a query over changes gives is the change of its view: the last look, at run time.

A project's check has decided that a view is linear (`app.project.strategy`), by the same list of
operators, over inputs of the same columns. Here Spark's plan over the very inputs is held against
it: a session in which the query means something else recomputes the view, which is always right.

Invariants:
    Rows that are used have the view's columns, then `_ts` and `_diff`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.project.strategy import INPUT, LINEAR
from datasource.schema import DIFF, TS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["refusal"]


def refusal(result: DataFrame, columns: StructType) -> str:
    """Why a query over changes does not give the change of a view; "" if it does.

    Args:
        result: The query over inputs that are temporary views.
        columns: Of the view.
    """
    # Without what may be null inside of values: the text that columns are kept as does not say it.
    wanted = [(field.name, field.dataType.simpleString()) for field in columns.fields]
    found = [(field.name, field.dataType.simpleString()) for field in result.schema.fields]
    if found[: len(wanted)] != wanted or result.columns[len(wanted) :] != [TS, DIFF]:
        return f"its columns are {', '.join(result.columns)}"
    plan: Any = result._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public door
    if not plan.deterministic():
        return "an expression that is not deterministic"
    if not plan.subqueriesAll().isEmpty():
        return "a subquery in an expression"
    return ", ".join(sorted(_operators(plan) - LINEAR))


def _operators(plan: Any) -> set[str]:
    """Names of the operators of a plan above its inputs."""
    name = plan.getClass().getSimpleName()
    if name == INPUT:
        return set()
    found = {name}
    children = plan.children()
    for place in range(children.size()):
        found |= _operators(children.apply(place))
    return found
