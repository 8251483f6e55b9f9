"""Finds where a query takes the first rows of an order, of which a view keeps those in front.

    ORDER BY … LIMIT 10 OFFSET 5 over X      needs the first 15 rows of X, and no others

A view over millions of rows needs a few of them, and some to spare for those that go
(`compute.view.first_rows_rule`), wherever the change of X itself is known: over the rows of a
table, over joins, over groups.

    find_first_rows(root, follows)    each such LIMIT, with its order and the number it needs

Invariants:
    Between a LIMIT and its order is nothing that leaves rows out or adds some.
    What is below the order has no LIMIT of its own, and all of it follows changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import ArrayType, DataType, StringType, StructType

from shardline.app.sql.kept_aggregates import can_be_key
from shardline.app.sql.query_tree import QueryNode
from shardline.app.sql.strategy import CONSTANT, LIMITS, LINEAR
from shardline.datasource.frames import read_sequence, type_of

__all__ = ["FirstRows", "find_first_rows"]

_NEEDED_MAX: Final = 1_000_000
"""Above it a state would be most of what the LIMIT is of, and a LIMIT no reason to keep one."""

_SHOWN_MAX: Final = 1_000
"""Rows that a LIMIT may let through to be a state itself: a step reads and compares them all."""

_ROW_FOR_ROW: Final = frozenset({"PipeOperator", "Project", "SubqueryAlias"})
"""Operators that may be between a LIMIT and its order."""

_FOLLOWS: Final = LINEAR | CONSTANT | {"Aggregate", "Join", "Window"}


@dataclass(frozen=True, slots=True, eq=False)
class FirstRows:
    """A LIMIT of rows in order.

    Attributes:
        limits: The LIMIT, and those between it and the order, from the last one on.
        sort: The order.
        needed: How many of its first rows are needed.
    """

    limits: tuple[QueryNode, ...]
    sort: QueryNode
    needed: int

    @property
    def are_few(self) -> bool:
        """True if the rows that come through can be a state."""
        return self.needed <= _SHOWN_MAX


def find_first_rows(root: QueryNode, follows: Callable[[QueryNode], bool]) -> list[FirstRows]:
    """All of a query that need few rows of what follows changes.

    Args:
        root: A query in its normal form.
        follows: True of an aggregate, a join or a window whose change is known.
    """
    found: list[FirstRows] = []
    ahead = [root]
    while ahead:
        node = ahead.pop()
        first = _first_rows_of(node) if node.kind in LIMITS else None
        if first is not None and _can_be_kept(first.sort, follows):
            found.append(first)
        else:
            ahead += node.children
    return found


def _first_rows_of(limit: QueryNode) -> FirstRows | None:
    """What a LIMIT lets through; None if it has no order, or needs too many of its rows."""
    needed: int | None = None
    node, limits = limit, []
    while node.kind in LIMITS | _ROW_FOR_ROW:
        if node.kind in LIMITS:
            limits.append(node)
        if node.kind == "Offset":
            needed = None if needed is None else needed + _number(node.plan.offsetExpr())
        elif node.kind in LIMITS:
            most = _number(node.plan.limitExpr())
            needed = most if needed is None else min(needed, most)
        (node,) = node.children
    # One that is not global orders the rows of each partition, whichever they are.
    is_order = node.kind == "Sort" and bool(getattr(node.plan, "global")())
    if not is_order or needed is None or not 0 < needed <= _NEEDED_MAX:
        return None
    return FirstRows(tuple(limits), node, needed)


def _number(expression: Any) -> int:
    """The number of a LIMIT, which is an expression without columns."""
    return int(expression.eval(None))


def _can_be_kept(sort: QueryNode, follows: Callable[[QueryNode], bool]) -> bool:
    (rows,) = sort.children
    keys = (order.child() for order in read_sequence(sort.plan.order()))
    columns = (type_of(one) for one in (*rows.output, *keys))
    return bool(rows.inputs) and _all_follow(rows, follows) and all(map(_can_be_stored, columns))


def _all_follow(node: QueryNode, follows: Callable[[QueryNode], bool]) -> bool:
    if node.input:
        return True
    if node.kind not in _FOLLOWS or read_sequence(node.plan.subqueries()):
        return False
    if node.kind in {"Aggregate", "Join", "Window"} and not follows(node):
        return False
    return all(_all_follow(child, follows) for child in node.children)


def _can_be_stored(kind: DataType) -> bool:
    """True if a shard has a column of this type, and its rows can be added up."""
    match kind:
        case ArrayType():
            return _can_be_stored(kind.elementType)
        case StructType():
            return all(_can_be_stored(field.dataType) for field in kind.fields)
    return isinstance(kind, StringType) or can_be_key(kind)
