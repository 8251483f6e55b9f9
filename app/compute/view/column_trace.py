"""A column of an operator is followed down to the columns of inputs that it is.

    trace(node, column)          the columns of inputs that the rows of `column` are of
    plain(expression)            the column that an expression is, whatever it is cast to
    inputs_of(node)              all inputs that an operator reads

Each value of the operator's column is then one of the input's, in a row that the input's row is
part of. The input may have others: filters and joins in between leave rows out.

Invariants:
    A column is followed down through operators that hand rows on one by one, and no others.
    NULL that an outer join adds is in no column that is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardline.app.compute.view.join_tree import INNER, join_kind
from shardline.app.sql.plan_nodes import kind_of
from shardline.app.sql.touched_keys import KEPT_SIDE, WITH_COLUMNS_BELOW
from shardline.datasource.spark_native.java_names import read_sequence

if TYPE_CHECKING:
    from shardline.app.sql.query_tree import QueryNode

__all__ = ["InputColumn", "inputs_of", "kept_children", "plain", "trace"]

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")


class InputColumn(NamedTuple):
    """A column of an input."""

    input: QueryNode
    name: str


def trace(node: QueryNode, column: Any, *, all_values: bool = False) -> list[InputColumn]:
    """The columns of inputs that a column is, one of each branch; none if it is not known.

    Args:
        node: An operator.
        column: One of its columns.
        all_values: True if all values of the column are wanted, and not all rows that have one of
            them: constants have values, too, which no input has.
    """
    if node.input:
        number = column.exprId()
        return [
            InputColumn(node, str(one.name())) for one in node.output if one.exprId().equals(number)
        ]
    match node.kind:
        case "Project":
            given = _projected(node, column)
            return [] if given is None else trace(node.children[0], given, all_values=all_values)
        case "Union":
            return _trace_union(node, column, all_values=all_values)
        case "Join":
            for child in kept_children(node):
                if any(one.exprId().equals(column.exprId()) for one in child.output):
                    return trace(child, column, all_values=all_values)
        case kind if kind in WITH_COLUMNS_BELOW and len(node.children) == 1:
            return trace(node.children[0], column, all_values=all_values)
    return []


def kept_children(join: QueryNode) -> tuple[QueryNode, ...]:
    """The sides of a join whose rows are in its result as they are, each perhaps or several times.

    Those of a side that an outer join may fill with NULL are not.
    """
    kind = join_kind(join)
    if kind in INNER:
        return join.children
    return (join.children[KEPT_SIDE[kind]],) if kind in KEPT_SIDE else ()


def plain(expression: Any) -> Any | None:
    """The column that an expression is; a cast to a wider integer changes no value."""
    while kind_of(expression) == "Cast":
        given, wanted = (_width(one) for one in (expression.child(), expression))
        if given < 0 or given > wanted:
            return None
        expression = expression.child()
    return expression if kind_of(expression) == "AttributeReference" else None


def inputs_of(node: QueryNode) -> Iterator[QueryNode]:
    """All inputs that an operator reads, itself or below."""
    if node.input:
        yield node
    for child in node.children:
        yield from inputs_of(child)


def _projected(node: QueryNode, column: Any) -> Any | None:
    """The column below a projection that one of its columns is."""
    for one in read_sequence(node.plan.projectList()):
        if not one.exprId().equals(column.exprId()):
            continue
        return plain(one.child() if kind_of(one) == "Alias" else one)
    return None


def _trace_union(node: QueryNode, column: Any, *, all_values: bool) -> list[InputColumn]:
    """A column of each branch: it has one place in all of them."""
    places = [p for p, one in enumerate(node.output) if one.exprId().equals(column.exprId())]
    found: list[InputColumn] = []
    for child in node.children if places else ():
        if not child.inputs:
            if all_values:
                return []
            continue  # its rows are constants, and all there
        below = trace(child, child.output[places[0]], all_values=all_values)
        if not below:
            return []
        found += below
    return found


def _width(expression: Any) -> int:
    """The place of an expression's type among the integers, the widest last; -1 of others."""
    name = str(expression.dataType().simpleString())
    return _INTEGERS.index(name) if name in _INTEGERS else -1
