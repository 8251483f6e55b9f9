"""Finds window functions without an order: their result depends on the rows' arrival.

A window function sees the rows of a partition in the order of its ORDER BY. Without one, or with
one of constants or of the partition's own columns, they come in any order: `row_number()` then
gives other numbers in each run, which `determinism` must refuse in a view.

    find_unordered_function(operator, plan) -> (what, hint) | None
    is_order_insensitive(node)             True if a function's result is the same for any order

Invariants:
    One column that may differ between rows of a partition counts as an order: a plan does not show
    if its values tie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardline.app.sql.plan_tree import Node

__all__ = ["COLLECTED", "find_unordered_function", "is_order_insensitive"]

COLLECTED: Final = {
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "CollectUnion": "collect_union",
}
"""Aggregates that make an array of values in the order in which rows come, by their SQL names."""

_BY_PLACE: Final = {
    **COLLECTED,
    "AnyValue": "any_value",
    "First": "first",
    "Lag": "lag",
    "Last": "last",
    "Lead": "lead",
    "NTile": "ntile",
    "NthValue": "nth_value",
    "RowNumber": "row_number",
}
"""Functions that depend on a row's place. Ranks do not: rows that tie have the same rank."""

_UNORDERED: Final = frozenset({"ArraySize", "Cardinality", "Size", "SortArray"})
"""Functions of an array whose result does not depend on its order."""

_WHOLE: Final = ["UnboundedPreceding$", "UnboundedFollowing$"]
_HINT: Final = "add an ORDER BY with a column that tells the rows of a partition apart"

_ASCENDING: Final = (
    *("If", "And", "IsNull", "NamedLambdaVariable", "IsNull", "NamedLambdaVariable", "Literal"),
    *("If", "IsNull", "NamedLambdaVariable", "Literal"),
    *("If", "IsNull", "NamedLambdaVariable", "Literal"),
    *("If", "LessThan", "NamedLambdaVariable", "NamedLambdaVariable", "Literal"),
    *("If", "GreaterThan", "NamedLambdaVariable", "NamedLambdaVariable", "Literal", "Literal"),
)
"""The comparison that Spark gives an `array_sort` without one, as kinds of nodes in pre-order."""


def is_order_insensitive(node: Node) -> bool:
    """True if an expression of an array gives the same result for each order of the array."""
    if node.kind == "ArraySort" and len(node.children) > 1:
        comparison = node.children[1].children[:1]
        return [inner.kind for tree in comparison for inner in tree.walk()] == list(_ASCENDING)
    return node.kind in _UNORDERED


def find_unordered_function(operator: Node, plan: Node) -> tuple[str, str] | None:
    """The first function of a window operator whose result its inputs do not decide.

    Args:
        operator: A `Window`.
        plan: The whole plan that it is in.

    Returns:
        A sentence about it, and a hint; None if there is nothing.
    """
    for named in operator.expressions:
        for call in named.walk():
            if call.kind == "WindowExpression" and not _is_ordered(call.children[1]):
                name = _by_place(call)
                if name and not _is_sorted_later(call, named, plan):
                    return f"{name} over a window without an order takes rows as they come", _HINT
    return None


def _by_place(call: Node) -> str:
    """The function's name in SQL if its result depends on the order of rows, else ""."""
    function, spec = call.children
    whole = function.kind != "AggregateExpression" or _is_whole(spec)
    if function.kind == "AggregateExpression":
        function = function.children[0]
    if function.kind == "ListAgg" and not function.fields.get("orderExpressions", True):
        return "listagg()"
    name = _BY_PLACE.get(function.kind, "")
    if name:
        return f"{name}()"
    return "" if whole else "a frame of ROWS"


def _is_whole(spec: Node) -> bool:
    """True if a window's frame is all of the partition, or made of values and not of rows."""
    frames = [child for child in spec.children if child.kind == "SpecifiedWindowFrame"]
    return not any(
        "RowFrame" in str(frame.fields.get("frameType"))
        and [bound.kind for bound in frame.children] != _WHOLE
        for frame in frames
    )


def _is_ordered(spec: Node) -> bool:
    """True if ORDER BY has a column that may differ between the rows of a partition."""
    same = {
        identity
        for place in spec.fields.get("partitionSpec", [])
        for identity in _columns(spec.children[place])
    }
    order = [spec.children[place] for place in spec.fields.get("orderSpec", [])]
    return any(identity not in same for part in order for identity in _columns(part))


def _is_sorted_later(call: Node, named: Node, plan: Node) -> bool:
    """True if an array of the window is used only where its order does not matter."""
    function = call.children[0].children[0] if call.children[0].children else call
    if function.kind not in COLLECTED or not str(named.fields.get("name")).startswith("_we"):
        return False
    identity = named.identity
    parents = [
        parent
        for parent in plan.walk()
        if parent.family != "logical"
        and any(c.kind == "AttributeReference" and c.identity == identity for c in parent.children)
    ]
    return bool(parents) and all(is_order_insensitive(parent) for parent in parents)


def _columns(tree: Node) -> Iterator[object]:
    """Ids of the columns that an expression reads."""
    return (node.identity for node in tree.walk() if node.kind == "AttributeReference")
