"""Reads inner joins as one join of many sides, whatever their parentheses, with its conditions.

    sides, conditions = flatten(node)      what is joined, and all that holds of its rows

Filters around and between the joins are among the conditions, and projections that only choose
columns are passed over: `FROM a, b WHERE a.k = b.k` is the join of `a` and `b` by `k`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from shardline.app.sql.plan_nodes import conjuncts
from shardline.app.sql.query_tree import join_kind
from shardline.datasource.frames import kind_of, read_sequence

if TYPE_CHECKING:
    from shardline.app.sql.query_tree import QueryNode

__all__ = [
    "INNER",
    "are_disjoint",
    "both_columns",
    "flatten",
    "is_around_a_join",
    "join_conditions",
]

INNER: Final = frozenset({"Inner", "Cross"})
"""Joins that return the pairs of rows for which their condition holds, and nothing else."""

_TRANSPARENT: Final = frozenset({"ResolvedHint", "SubqueryAlias"})
"""They change neither rows nor columns; a hint was about other sizes."""


def join_conditions(join: QueryNode) -> list[Any]:
    """The conditions of a join, all of which hold of the rows that match; none of a cross join."""
    condition = join.plan.condition()
    return [*conjuncts(condition.get())] if condition.isDefined() else []


def flatten(node: QueryNode) -> tuple[list[QueryNode], list[Any]]:
    """The sides of an inner join and its conditions; an operator that is none is its only side."""
    sides: list[QueryNode] = []
    conditions: list[Any] = []
    _flatten(node, sides, conditions)
    return sides, conditions


def _flatten(node: QueryNode, sides: list[QueryNode], conditions: list[Any]) -> None:
    """Add what an inner join joins, and what holds of its rows."""
    if node.kind == "Join" and join_kind(node) in INNER:
        for child in node.children:
            _flatten(child, sides, conditions)
        conditions.extend(join_conditions(node))
        return
    if not is_around_a_join(node):
        sides.append(node)
        return
    _flatten(node.children[0], sides, conditions)
    if node.kind == "Filter":
        conditions.extend(conjuncts(node.plan.condition()))


def is_around_a_join(node: QueryNode) -> bool:
    """True if rows of an inner join pass through, perhaps not all of them, with their columns."""
    while node.kind != "Join":
        names = node.kind == "Project" and all(
            kind_of(column) == "AttributeReference"
            for column in read_sequence(node.plan.projectList())
        )
        if not names and node.kind not in _TRANSPARENT | {"Filter"}:
            return False
        (node,) = node.children
    return join_kind(node) in INNER


def are_disjoint(sides: Sequence[QueryNode]) -> bool:
    """True if no two sides have an attribute in common: one that is projected away may be."""
    there = sides[0].plan.outputSet()
    for side in sides[1:]:
        columns = side.plan.outputSet()
        if not there.intersect(columns).isEmpty():
            return False
        there = both_columns(there, columns)
    return True


def both_columns(left: Any, right: Any) -> Any:
    """The columns of two sets."""
    return getattr(left, "$plus$plus")(right)
