"""The strategy of a view is chosen here: computed from changes, or recomputed; with the reason.

To recompute is always right, and costs as much as the whole input at each change. A query is linear
when its result over a sum of changes is the sum of its results over each: then the inputs' changes
alone give the view's change. That holds for operators that look at one row at a time (projections,
filters, generators), and for UNION ALL of such. With joins of such it is incremental: the change of
one side is joined with what is on the other one. So it is with aggregates that can be kept
(`kept_aggregates`): a state has what they have added up. Everything else is run anew and compared.

    choose_strategy(plan_tree(…), refusals(…))    ("linear", "")
                                                  ("incremental", "a join of two inputs")
                                                  ("recompute", "an aggregate (median)")

Invariants:
    An operator is linear because it is in the list, never because it is in no other: unknown ones
    are recomputed. So is an expression with a subquery.
    A branch of a union that reads no input has no changes: it does not stand in the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shardline.app.protocol.objects import STATES_MAX, Strategy
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
    "OuterReference": "a subquery with outer columns",
    "Exists": "a subquery in EXISTS",
    "LateralSubquery": "a lateral join",
    "ListQuery": "a subquery in IN",
    "ScalarSubquery": "a scalar subquery",
}
_WHOLE: Final = frozenset({"PythonUDTF", "UnresolvedPolymorphicPythonUDTF"})
_SPOKEN: Final = {"Average": "avg", "ListAgg": "listagg"}
_JOINED: Final = {
    "Cross": "a cross join of two inputs",
    "ExistenceJoin": "a subquery in EXISTS or IN (run anew where its inputs change)",
    "Inner": "a join of two inputs",
    "LeftAnti": "an anti join, as NOT EXISTS is (run anew where its right side changes)",
    "LeftOuter": "a left outer join (run anew where its right side changes)",
    "LeftSemi": "a semi join, as IN is (run anew where its right side changes)",
    "RightOuter": "a right outer join (run anew where its left side changes)",
}
"""Joins whose change follows from the change of a side and from what is on the other one."""

_OTHER_JOINS: Final = {"FullOuter": "a full outer join"}


def choose_strategy(plan: Node, refusals: Sequence[str]) -> tuple[Strategy, str]:
    """The strategy for a query, and the reason if it is not the best one.

    Args:
        plan: The query's analysed plan, over inputs that are temporary views, in its normal form.
        refusals: Why each of its aggregates cannot be kept (`kept_aggregates.refusals`).

    Returns:
        `linear` and ""; or `incremental` and its joins and aggregates; or `recompute` and the
        pieces of the query that demand it.
    """
    found = list(dict.fromkeys(_obstacles(plan, refusals)))
    if len(refusals) > STATES_MAX:
        found.append((f"more than {STATES_MAX} aggregates", "recompute"))
    reasons = [reason for reason, way in found if way == "recompute"]
    if not found and not any(node.kind == INPUT for node in plan.walk()):
        reasons = ["rows that come from no input"]
    if reasons:
        return "recompute", ", ".join(reasons[:_REASONS_MAX])
    if found:
        return "incremental", ", ".join(reason for reason, _ in found[:_REASONS_MAX])
    return "linear", ""


def _obstacles(plan: Node, refusals: Sequence[str]) -> Iterator[tuple[str, Strategy]]:
    """All that is not linear, above the inputs in the order of the plan, with the best way left."""
    ahead, aggregates = [plan], iter(refusals)
    while ahead:
        node = ahead.pop()
        if node.kind == INPUT:
            continue
        if node.kind == "Join" and join_type(node) in _JOINED:
            yield _JOINED[join_type(node)], "incremental"
        elif node.kind == "Aggregate":
            refused = next(aggregates)
            yield (refused, "recompute") if refused else (_aggregate(node), "incremental")
        elif node.kind not in _LINEAR | CONSTANT:
            yield _reason(node), "recompute"
        for expression in (inner for tree in node.expressions for inner in tree.walk()):
            if expression.kind in _SUBQUERIES:
                yield _SUBQUERIES[expression.kind], "recompute"
            elif expression.kind in _WHOLE:
                yield "a table function in Python, which may look at many rows", "recompute"
        ahead += reversed(node.children)


def _reason(node: Node) -> str:
    match node.kind:
        case "Join" | "AsOfJoin":
            return f"{_OTHER_JOINS.get(join_type(node), 'a join')} of two inputs"
        case kind:
            return REASONS.get(kind, f"the operator {kind}")


def _aggregate(node: Node) -> str:
    functions = {
        _sql_name(call.children[0].kind)
        for tree in node.expressions
        for call in tree.walk()
        if call.kind == "AggregateExpression" and call.children
    }
    return f"an aggregate ({', '.join(sorted(functions))})" if functions else "distinct rows"


def join_type(node: Node) -> str:
    """Spark's name for the type of a join: `LeftOuter`."""
    kind = node.fields.get("joinType")
    found = kind if isinstance(kind, dict) else {}
    # One without columns is an object to Scala, and any other a class.
    name = str(found.get("object") or found.get("product-class") or "")
    return name.rstrip("$").rsplit(".", 1)[-1]


def _sql_name(kind: str) -> str:
    """A function's name as in SQL: `CollectList` becomes `collect_list`."""
    if kind in _SPOKEN:
        return _SPOKEN[kind]
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind).lstrip("_")
