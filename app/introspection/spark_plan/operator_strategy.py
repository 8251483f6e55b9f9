"""Operator strategies say which operators of a view could follow changes alone, and why others not.

    explain_operator(view, operator)    ("recompute", "a window function")

A view is kept up to date by one strategy for all of it, which is chosen from Spark's analysed plan
(`app.sql.strategy`). Whoever wants a better one has to know what of the query stands in its way: so
each node of the query as it is written is judged by the same rule, in the same words.

Invariants:
    Nothing is claimed that the choice does not bear out: of a linear view every operator is linear,
    of an incremental one every operator that takes rows one by one; what stands in the way of one
    that is recomputed is named by its reason.
    An operator is linear because its kind is in the list, never because it is in no other.
    Pure, and without Spark.
"""

from __future__ import annotations

from typing import Final

from shardline.app.introspection.spark_plan.operators import OperatorPlan
from shardline.app.protocol.objects import Description, Strategy, ViewDescription
from shardline.app.sql.strategy import REASONS

__all__ = ["explain_operator"]

_LINEAR: Final = frozenset({"Filter", "Generate", "Project", "Sort", "Union"})
"""Nodes that treat each row by itself, and that of order: a view has none.

Here `Union` keeps duplicates: without ALL it is another operator in Spark's plan.
"""

_ROW_BY_ROW: Final = _LINEAR - {"Union"}
"""Those with one input: another one is the result of a query inside of their expressions."""

_SQL_KINDS: Final = {"Limit": "GlobalLimit"}
"""Operators of Spark's by the nodes that are called otherwise."""

_FULL_JOIN: Final = "a full outer join of two inputs"
_GROUPED: Final = "an aggregate"

_OUTSIDE: Final = frozenset({"Source", "Persist"})
"""They read and write; what is between them is computed by a strategy."""

_WRITES: Final = {
    "linear": "it appends what the changes of the inputs give",
    "incremental": "it appends what the changes of the inputs give with what they are joined with",
    "recompute": "it compares the new result with what the output holds, and appends what differs",
}


def explain_operator(
    description: Description, operator: OperatorPlan
) -> tuple[Strategy | None, str | None]:
    """The strategy that an operator of an object allows by itself, and the reason.

    Returns:
        Nothing of what computes nothing, is of no view, or is of a kind that is not known.
    """
    if not isinstance(description, ViewDescription):
        return None, None
    if operator.lir is None or operator.name in _OUTSIDE:
        return None, None
    if operator.name == "Correction":
        return description.strategy, _WRITES[description.strategy]
    if operator.name == "Query" or description.strategy == "linear":
        return description.strategy, description.reason or None
    return _alone(description, operator)


def _alone(view: ViewDescription, operator: OperatorPlan) -> tuple[Strategy | None, str | None]:
    """The strategy of an operator of a view that is not linear."""
    if operator.name == "Join" and not operator.detail.upper().startswith("FULL"):
        return "incremental", None
    has_subquery = operator.name in _ROW_BY_ROW and len(operator.inputs) > 1
    if view.strategy == "incremental":
        deduplicates = operator.name == "Union" and operator.detail == "UNION"
        row_by_row = operator.name in _LINEAR and not has_subquery and not deduplicates
        return ("linear" if row_by_row else "incremental"), None
    if has_subquery:
        return None, None  # only Spark's plan tells which subqueries are joins
    obstacle = _obstacle(operator)
    if obstacle is not None:
        # Most kinds stand in the way of some queries only.
        return ("recompute", obstacle) if obstacle in view.reason else (None, None)
    is_linear = operator.name in _LINEAR and not _may_look_at_many_rows(view, operator)
    return ("linear", None) if is_linear else (None, None)


def _obstacle(operator: OperatorPlan) -> str | None:
    """What of an operator needs more than the changed rows; None if it is not known to."""
    if operator.name == "Join":
        return _FULL_JOIN
    if operator.name == "Aggregate":
        return _GROUPED
    if operator.name == "Union":
        return REASONS["Distinct"] if operator.detail == "UNION" else None
    return REASONS.get(_SQL_KINDS.get(operator.name, operator.name))


def _may_look_at_many_rows(view: ViewDescription, operator: OperatorPlan) -> bool:
    # A generator may be a table function in Python, which only Spark's plan tells.
    return operator.name == "Generate" and "table function" in view.reason
