"""Follows a column of an operator down to the columns of inputs that it is.

    traces = ColumnTraces()
    traces.of(node, number)      the columns of inputs that the rows of a column are of
    inputs_of(node)              all inputs that an operator reads

Each value of the operator's column is then one of the input's, in a row that the input's row is
part of. The input may have others: filters and joins in between leave rows out.

A plan is asked for the same columns at each of its joins, in each of its terms, and each question
to the JVM takes a tenth of a millisecond: so what an operator returns is read once for a query.

Invariants:
    A column is followed down through operators that hand rows on one by one, and no others.
    NULL that an outer join adds is in no column that is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from shardline.app.compute.view.join_tree import INNER
from shardline.app.sql.path_above import KEPT_SIDE, WITH_COLUMNS_BELOW
from shardline.app.sql.plan_nodes import plain
from shardline.app.sql.query_tree import join_kind
from shardline.datasource.frames import kind_of, number_of, read_sequence

if TYPE_CHECKING:
    from shardline.app.sql.query_tree import QueryNode

__all__ = ["ColumnTraces", "InputColumn", "inputs_of"]


class InputColumn(NamedTuple):
    """A column of an input."""

    input: QueryNode
    name: str


class ColumnTraces:
    """The columns of one query's operators. Used by one thread at a time."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._names: dict[QueryNode, dict[int, str]] = {}
        self._projected: dict[QueryNode, dict[int, int]] = {}
        self._traced: dict[tuple[QueryNode, int, bool], tuple[InputColumn, ...]] = {}

    def of(
        self, node: QueryNode, number: int, *, all_values: bool = False
    ) -> tuple[InputColumn, ...]:
        """The columns of inputs that a column is, one of each branch; none if it is not known.

        Args:
            node: An operator.
            number: By which Spark knows the column; it may be one of another operator.
            all_values: True if all values of the column are wanted, and not all rows that have one
                of them: constants have values, too, which no input has.
        """
        asked = (node, number, all_values)
        if asked not in self._traced:
            self._traced[asked] = tuple(self._trace(node, number, all_values=all_values))
        return self._traced[asked]

    def _trace(self, node: QueryNode, number: int, *, all_values: bool) -> Iterator[InputColumn]:
        names = self._names_of(node)
        if number not in names:
            return
        if node.input:
            yield InputColumn(node, names[number])
            return
        match node.kind:
            case "Project":
                below = self._projected_of(node).get(number)
                if below is not None:
                    yield from self.of(node.children[0], below, all_values=all_values)
            case "Union":
                yield from self._trace_union(node, number, all_values=all_values)
            case "Join":
                for child in _kept_children(node):
                    if number in self._names_of(child):
                        yield from self.of(child, number, all_values=all_values)
                        return
            case kind if kind in WITH_COLUMNS_BELOW and len(node.children) == 1:
                yield from self.of(node.children[0], number, all_values=all_values)

    def _trace_union(
        self, node: QueryNode, number: int, *, all_values: bool
    ) -> tuple[InputColumn, ...]:
        """A column of each branch: it has one place in all of them."""
        place = node.numbers.index(number)
        found: list[InputColumn] = []
        for child in node.children:
            if not child.inputs:
                if all_values:
                    return ()
                continue  # its rows are constants, and all there
            below = self.of(child, number_of(child.output[place]), all_values=all_values)
            if not below:
                return ()
            found += below
        return tuple(found)

    def _names_of(self, node: QueryNode) -> dict[int, str]:
        """The names of an operator's columns by their numbers, in order."""
        if node not in self._names:
            self._names[node] = {number_of(one): str(one.name()) for one in node.output}
        return self._names[node]

    def _projected_of(self, node: QueryNode) -> dict[int, int]:
        """For columns of a projection the columns below that they are."""
        if node not in self._projected:
            given = read_sequence(node.plan.projectList())
            columns = {
                number_of(one): plain(one.child() if kind_of(one) == "Alias" else one)
                for one in given
            }
            self._projected[node] = {
                number: number_of(one) for number, one in columns.items() if one is not None
            }
        return self._projected[node]


def _kept_children(join: QueryNode) -> tuple[QueryNode, ...]:
    """The sides of a join whose rows are in its result as they are, each perhaps or several times.

    Those of a side that an outer join may fill with NULL are not.
    """
    kind = join_kind(join)
    if kind in INNER:
        return join.children
    return (join.children[KEPT_SIDE[kind]],) if kind in KEPT_SIDE else ()


def inputs_of(node: QueryNode) -> Iterator[QueryNode]:
    """All inputs that an operator reads, itself or below."""
    if node.input:
        yield node
    for child in node.children:
        yield from inputs_of(child)
