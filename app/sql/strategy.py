"""The strategy of a view is chosen here: computed from changes, or recomputed; with the reason.

To recompute is always right, and costs as much as the whole input at each change. A query is linear
when its result over a sum of changes is the sum of its results over each: then the inputs' changes
alone give the view's change. That holds for operators that look at one row at a time (projections,
filters, generators), and for UNION ALL of such. Everything else is run anew and compared.

    choose_strategy(plan_tree(…)) -> ("linear", "") | ("recompute", "a join of two inputs")

Invariants:
    An operator is linear because it is in the list, never because it is in no other: unknown ones
    are recomputed. So is an expression with a subquery.
    A branch of a union that reads no input has no changes: it does not stand in the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardline.app.protocol.objects import Strategy
from shardline.app.sql.plan_tree import Node

__all__ = ["CONSTANT", "INPUT", "REASONS", "choose_strategy"]

_LINEAR: Final = frozenset(
    {
        "CTERelationDef",
        "CTERelationRef",
        "Expand",
        "Filter",
        "Generate",
        "PipeOperator",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sort",
        "SubqueryAlias",
        "Union",
        "WithCTE",
    }
)
"""Operators that treat each row by itself, and those of order and distribution: a view has none."""

INPUT: Final = "View"
"""The analyzer's operator for a temporary view: a view's inputs are such views."""

CONSTANT: Final = frozenset({"LocalRelation", "OneRowRelation", "Range"})
"""Operators that read no input: their rows are always the same."""

REASONS: Final = {
    "Deduplicate": "duplicates dropped",
    "Distinct": "DISTINCT",
    "Except": "EXCEPT",
    "GlobalLimit": "LIMIT",
    "Intersect": "INTERSECT",
    "LateralJoin": "a lateral join",
    "LocalLimit": "LIMIT",
    "Offset": "OFFSET",
    "Pivot": "PIVOT",
    "Sample": "TABLESAMPLE",
    "ScriptTransformation": "a script",
    "UnionLoop": "a recursive query",
    "UnionLoopRef": "a recursive query",
    "Window": "a window function",
}
"""Operators that need more than changed rows, by Spark's names, in words."""

_REASONS_MAX: Final = 5
"""Most reasons that are shown."""

_SUBQUERIES: Final = {
    "Exists": "a subquery in EXISTS",
    "LateralSubquery": "a lateral join",
    "ListQuery": "a subquery in IN",
    "ScalarSubquery": "a scalar subquery",
}
_WHOLE: Final = frozenset({"PythonUDTF", "UnresolvedPolymorphicPythonUDTF"})
_SPOKEN: Final = {"Average": "avg", "ListAgg": "listagg"}
_JOINS: Final = {
    "Cross": "a cross join",
    "FullOuter": "a full outer join",
    "Inner": "a join",
    "LeftAnti": "an anti join",
    "LeftOuter": "a left outer join",
    "LeftSemi": "a semi join",
    "RightOuter": "a right outer join",
}


def choose_strategy(plan: Node) -> tuple[Strategy, str]:
    """The strategy for a query, and the reason if it is not the best one.

    Args:
        plan: The query's analysed plan, over inputs that are temporary views.

    Returns:
        `linear` and "", or `recompute` and the pieces of the query that demand it.
    """
    reasons = list(dict.fromkeys(_obstacles(plan)))[:_REASONS_MAX]
    if not reasons and not any(node.kind == INPUT for node in plan.walk()):
        reasons = ["rows that come from no input"]
    return ("recompute", ", ".join(reasons)) if reasons else ("linear", "")


def _obstacles(plan: Node) -> Iterator[str]:
    """Descriptions of all that is not linear, in the order of the plan, above its inputs."""
    ahead = [plan]
    while ahead:
        node = ahead.pop()
        if node.kind == INPUT:
            continue
        if node.kind not in _LINEAR | CONSTANT:
            yield _reason(node)
        for expression in (inner for tree in node.expressions for inner in tree.walk()):
            if expression.kind in _SUBQUERIES:
                yield _SUBQUERIES[expression.kind]
            elif expression.kind in _WHOLE:
                yield "a table function in Python, which may look at many rows"
        ahead += reversed(node.children)


def _reason(node: Node) -> str:
    match node.kind:
        case "Aggregate":
            return _aggregate(node)
        case "Join" | "AsOfJoin":
            return f"{_join(node)} of two inputs"
        case kind:
            return REASONS.get(kind, f"the operator {kind}")


def _aggregate(node: Node) -> str:
    functions = {
        _sql_name(call.children[0].kind)
        for tree in node.expressions
        for call in tree.walk()
        if call.kind == "AggregateExpression" and call.children
    }
    return f"an aggregate: {', '.join(sorted(functions))}" if functions else "GROUP BY"


def _join(node: Node) -> str:
    kind = node.fields.get("joinType")
    name = str(kind.get("object", "")) if isinstance(kind, dict) else ""
    return _JOINS.get(name.rstrip("$").rsplit(".", 1)[-1], "a join")


def _sql_name(kind: str) -> str:
    """A function's name as in SQL: `CollectList` becomes `collect_list`."""
    if kind in _SPOKEN:
        return _SPOKEN[kind]
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind).lstrip("_")
