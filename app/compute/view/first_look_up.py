"""Tells which rows of an input a step looks up for an operator that needs the first of each key.

    found = first_look_up(node, first, traces, reader)      None: all rows of its keys

The operator is over an input, perhaps filtered. Of a key as many rows in front are looked up as are
needed, and they must be rows that the filter lets through: so it has to be one that Arrow decides
exactly as Spark does (`row_conditions`).

Invariants:
    Between the operator and the input each row is one row, or is left out by a known condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shardline.app.compute.index.order_codes import OrderBy, has_codes
from shardline.datasource.frames import number_of, type_of

if TYPE_CHECKING:
    from shardline.app.compute.view.column_trace import ColumnTraces
    from shardline.app.compute.view.row_conditions import ConditionReader, Conditions
    from shardline.app.sql.first_of_key import FirstOfKey
    from shardline.app.sql.query_tree import QueryNode

__all__ = ["FirstLookUp", "first_look_up"]

_ROW_FOR_ROW: Final = frozenset(
    {
        "PipeOperator",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sort",
        "SubqueryAlias",
    }
)
"""Operators that return a row for each row of their child."""


@dataclass(frozen=True, slots=True)
class FirstLookUp:
    """The rows of each key of an input that are needed, beside those that go.

    Attributes:
        order: That of the rows.
        number: How many, at each time of a step.
        where: What holds of the rows that count.
    """

    order: OrderBy
    number: int
    where: Conditions = ()


def first_look_up(
    node: QueryNode, first: FirstOfKey, traces: ColumnTraces, reader: ConditionReader
) -> FirstLookUp | None:
    """Which rows of an input are needed; None if that is not known.

    Args:
        node: What is read by that which needs the first rows of each key.
        first: Which of its rows.
        traces: Columns of the operators.
        reader: Of the query's conditions.
    """
    filters, below = [], node
    while below.kind in _ROW_FOR_ROW | {"Filter"} and not below.input:
        filters += [below] if below.kind == "Filter" else []
        (below,) = below.children
    if not below.input:
        return None
    column = next((one for one in node.output if number_of(one) == first.column), None)
    traced = traces.of(node, first.column)
    if column is None or len(traced) != 1 or not has_codes(type_of(column)):
        return None
    where = [reader.exactly(one, below) for one in filters]
    known = tuple(one for one in where if one is not None)
    if len(known) < len(where):
        return None
    order = OrderBy(traced[0].name, first.descends, first.nulls_first)
    return FirstLookUp(order, first.number, known)
