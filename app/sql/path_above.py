"""Tells what a query does with the rows of an operator: the path from it up to the last one.

    path = PathAbove(shown=places)      above the last operator: nothing
    path.below(node, 0)                 above its first child

Three things are known of it: where the operator's columns are shown, as they are; which operators
right above it take rows one by one; and the conditions that a row of it satisfies if it comes to
anything, so that the others need not be kept. Spark brings such conditions down as well
(PushPredicateThroughJoin); here they stay where they are, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardline.app.sql.plan_nodes import conjuncts
from shardline.app.sql.query_tree import QueryNode, join_kind
from shardline.datasource.frames import kind_of, number_of, read_sequence

__all__ = ["INNER_JOINS", "KEPT_SIDE", "WITH_COLUMNS_BELOW", "Condition", "PathAbove", "renamed"]

INNER_JOINS: Final = frozenset({"Cross", "Inner"})
KEPT_SIDE: Final = {
    "ExistenceJoin": 0,
    "LeftAnti": 0,
    "LeftOuter": 0,
    "LeftSemi": 0,
    "LeftSingle": 0,
    "RightOuter": 1,
}
"""Joins that return each row of a side, or some of them, under the columns of that side."""

WITH_COLUMNS_BELOW: Final = frozenset(
    {
        "Filter",
        "Generate",
        "PipeOperator",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sort",
        "SubqueryAlias",
    }
)
"""Operators that return each column of their child as it is, for each row by itself."""

_ONE_BY_ONE: Final = (WITH_COLUMNS_BELOW | {"Project"}) - {"Generate", "Sort"}
"""Those that make no more than one row of a row, and those that choose columns. A Sort may be below
a LIMIT, whose first rows are a matter of their own."""

Places = Mapping[int, int]
"""Places among the columns of the query, by the numbers of columns that are there as they are."""

Condition = tuple[QueryNode, Any]
"""An expression, and the operator of which it is a condition."""


@dataclass(frozen=True, slots=True)
class PathAbove:
    """What is above an operator.

    Attributes:
        shown: None if what is above does more than to take its rows one by one.
        one_by_one: Operators that do no more, as far up as they come, the nearest one first.
        conditions: Those without which none of its rows comes to anything.
    """

    shown: Places | None = None
    one_by_one: tuple[QueryNode, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def below(self, node: QueryNode, side: int) -> PathAbove:
        """What is above a child of the operator `node` that this path is above of.

        Args:
            node: The operator.
            side: Number of the child.
        """
        return PathAbove(
            None if self.shown is None else _shown_below(node, self.shown),
            (node, *self.one_by_one) if node.kind in _ONE_BY_ONE else (),
            tuple(self._conditions_below(node, side)),
        )

    def _conditions_below(self, node: QueryNode, side: int) -> Iterator[Condition]:
        if node.kind in _ONE_BY_ONE:
            yield from self.conditions
        if node.kind == "Filter":
            yield from ((node, one) for one in conjuncts(node.plan.condition()))
        if node.kind != "Join":
            return
        kind = join_kind(node)
        is_inner = kind in INNER_JOINS
        if is_inner or KEPT_SIDE.get(kind) == side:
            yield from self.conditions
        condition = node.plan.condition()
        if condition.isDefined() and (is_inner or KEPT_SIDE.get(kind) == 1 - side):
            yield from ((node, one) for one in conjuncts(condition.get()))


def _shown_below(node: QueryNode, shown: Places) -> Places | None:
    """The columns of a node's child that are shown; None if its rows are not taken one by one."""
    if node.kind in WITH_COLUMNS_BELOW:
        return shown
    if node.kind != "Project":
        return None
    found = {}
    for column in read_sequence(node.plan.projectList()):
        given = renamed(column)
        if given is not None and number_of(column) in shown:
            found[number_of(given)] = shown[number_of(column)]
    return found


def renamed(column: Any) -> Any | None:
    """The column that a column of a projection is, perhaps under another name; None for others."""
    if kind_of(column) == "Alias":
        column = column.child()
    return column if kind_of(column) == "AttributeReference" else None
