"""Tells where Spark may evaluate an expression that fails at a row: before which filters.

    order = EvaluationOrder(spark)
    order.evaluated_first(root, states)     operators whose conditions come before what can fail

A row that a filter leaves out need not be looked up, or read at all, but only if nothing that Spark
evaluates before the filter can fail at it: else the query fails, and the view has to. The order of
a plan is not that of evaluation. The optimizer takes a filter down through projections, joins and,
if it is about keys alone, aggregates, to where others are; it infers further filters from those
that it has, by the columns that are equal to theirs, and from a Generate.

Invariants:
    An operator is left out if in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from shardline.app.compute.view.join_tree import join_conditions
from shardline.app.sql.plan_nodes import conjuncts, tree_pattern
from shardline.app.sql.query_tree import join_kind
from shardline.app.sql.safe_expressions import cannot_fail
from shardline.datasource.frames import (
    kind_of,
    number_of,
    numbers_of,
    numbers_read,
    read_sequence,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.sql.query_tree import QueryNode
    from shardline.app.sql.touched_keys import Choice

__all__ = ["EvaluationOrder", "StateSource"]


_EVALUATED_ELSEWHERE: Final = frozenset({"Aggregate", "Filter", "Generate", "Join", "Project"})
"""Operators whose expressions may be evaluated at rows of those below them, in a condition."""


@dataclass(frozen=True, slots=True)
class StateSource:
    """What a state is made of, as far as the order counts in which filters are evaluated.

    Attributes:
        children: The operators below the columns of which the state is made.
        expressions: Those that are evaluated at a row where a filter from above the state is taken
            down to its source.
        filters: True if the state itself is a filter.
    """

    children: tuple[QueryNode, ...]
    expressions: tuple[Any, ...]
    filters: bool


@dataclass(frozen=True, slots=True)
class _Above:
    """What is above an operator.

    Attributes:
        filtered: True if there is a filter.
        fails: True if one of them can fail at a row, and may be evaluated here.
        columns: The columns here that what can fail is about, or may be inferred to be.
        is_unknown: True if it may be about others.
        equal: Pairs of columns that are equal in all rows that come to anything.
    """

    filtered: bool = False
    fails: bool = False
    columns: frozenset[int] = frozenset()
    is_unknown: bool = False
    equal: frozenset[tuple[int, int]] = frozenset()

    def with_equal(self, pairs: Iterable[tuple[int, int]]) -> _Above:
        """The same, with what else is equal."""
        return replace(self, equal=self.equal | frozenset(pairs)).inferred(())

    def inferred(self, columns: Iterable[int]) -> _Above:
        """The same, with what can fail about further columns, and about all that equal one."""
        found = self.columns | frozenset(columns)
        while True:
            more = {b for a, b in self.equal if a in found} | {
                a for a, b in self.equal if b in found
            }
            if more <= found:
                return replace(self, columns=found)
            found |= more

    def through(self, node: QueryNode) -> _Above:
        """The same above the children of an operator."""
        match node.kind:
            case "Filter" | "Join" | "SubqueryAlias":
                return self
            case "Project":
                made = read_sequence(node.plan.projectList())
            case "Aggregate":
                made = read_sequence(node.plan.aggregateExpressions())
            case "Generate":
                made_here = set(numbers_of(node.plan.generatorOutput()))
                columns = self.columns - made_here
                if columns != self.columns:
                    columns |= frozenset(numbers_read(node.plan.generator()))
                return replace(self, columns=columns)
            case _:
                return replace(self, is_unknown=bool(self.is_unknown or self.columns))
        below = {number_of(one): frozenset(numbers_read(one)) for one in made}
        columns = frozenset[int]().union(*(below.get(one, ()) for one in self.columns))
        equal = (
            (a, b)
            for left, right in self.equal
            for a in below.get(left, {left})
            for b in below.get(right, {right})
        )
        return replace(self, columns=columns, equal=frozenset(equal))


class EvaluationOrder:
    """What Spark evaluates before what, in one query."""

    def __init__(self, spark: SparkSession) -> None:
        """Nothing is known yet; `spark` is any session of the application."""
        self._spark = spark
        self._fails: dict[QueryNode, tuple[Any, ...]] = {}

    def evaluated_first(
        self, root: QueryNode, states: Mapping[str, StateSource]
    ) -> Iterator[QueryNode]:
        """Operators whose conditions are evaluated before all that can fail at a row.

        Args:
            root: The last of them.
            states: What the states are made of that are read in the place of operators, by name.
        """
        yield from self._first(root, states, _Above())

    def may_fail_beside(self, root: QueryNode, choice: Choice) -> bool:
        """True if what can fail outside of a choice may be about its key.

        Args:
            root: The last operator of the query.
            choice: A part of it. What is computed of its key, or equals that, counts, too.
        """
        failing: set[int] = set()
        for node in _outside(root, choice.last):
            for one in self._taken_down(node):
                failing.update(numbers_read(one))
        same = frozenset(
            pair
            for node in _outside(root, choice.region.top)
            for pair in (*_equal_columns(node), *_made_of(node))
        )
        about = _Above(equal=same).inferred(map(number_of, choice.keys)).columns
        return not failing.isdisjoint(about)

    def _taken_down(self, node: QueryNode) -> Iterator[Any]:
        """The expressions that can fail, and that a condition may have evaluated further below."""
        if node.kind in _EVALUATED_ELSEWHERE:
            # What a function of groups gives is there with the groups, and not below them.
            calls = tree_pattern(self._spark, "AGGREGATE_EXPRESSION")
            yield from (one for one in self._failing(node) if not one.containsPattern(calls))

    def has_safe_conditions(self, node: QueryNode) -> bool:
        """True if no condition of filters and joins can fail, from an operator on down."""
        is_safe = node.kind not in {"Filter", "Join"} or self.is_safe(node)
        return is_safe and all(map(self.has_safe_conditions, node.children))

    def is_safe(self, node: QueryNode) -> bool:
        """True if an operator cannot fail at a row."""
        # A subquery with more than one row is an error, which is found by the join.
        fails = node.kind == "Join" and join_kind(node) == "LeftSingle"
        return not fails and not self._failing(node)

    def _first(
        self, node: QueryNode, states: Mapping[str, StateSource], above: _Above
    ) -> Iterator[QueryNode]:
        if node.input:
            made = states.get(node.input)
            below = None if made is None else self._below(node, made, above)
            if made is not None and below is not None:
                for child in made.children:
                    yield from self._first(child, states, below)
            return
        filters = node.kind in {"Filter", "Join"} or _infers_filter(node)
        above = above.with_equal(_equal_columns(node))
        # A filter over a column that is computed is computed there where it is evaluated.
        if (filters or (above.filtered and node.kind == "Project")) and not self.is_safe(node):
            failing = self._failing(node)
            columns = [number for one in failing for number in numbers_read(one)]
            above = replace(above, fails=True).inferred(columns)
        if not above.fails:
            yield node
        above = replace(above.through(node), filtered=above.filtered or filters)
        for child in node.children:
            yield from self._first(child, states, above)

    def _below(self, leaf: QueryNode, made: StateSource, above: _Above) -> _Above | None:
        """What is above the source of a state; None if something that fails may come down to it."""
        if made.filters:
            return None if above.fails or not self._are_safe(made) else _Above(filtered=True)
        if not made.expressions:
            return _Above()  # without keys nothing is taken below an aggregate
        if above.fails:
            # A key has one name where the state is made and where it is read.
            names = {one.name() for one in made.expressions}
            output = read_sequence(leaf.plan.output())
            keys = {number_of(one) for one in output if one.name() in names}
            if above.is_unknown or keys & above.columns:
                return None
        comes_down = above.filtered and not self._are_safe(made)
        return None if comes_down else _Above(filtered=above.filtered)

    def _are_safe(self, made: StateSource) -> bool:
        return all(cannot_fail(self._spark, one) for one in made.expressions)

    def _failing(self, node: QueryNode) -> tuple[Any, ...]:
        """The expressions of an operator that can fail at a row."""
        if node not in self._fails:
            self._fails[node] = tuple(
                one
                for one in read_sequence(node.plan.expressions())
                if not cannot_fail(self._spark, one)
            )
        return self._fails[node]


def _outside(node: QueryNode, inside: QueryNode) -> Iterator[QueryNode]:
    """The operators of a query, without one and all below it."""
    if node is inside or node.input:
        return
    yield node
    for child in node.children:
        yield from _outside(child, inside)


def _made_of(node: QueryNode) -> Iterator[tuple[int, int]]:
    """The columns of an operator, each with those of its children that it is made of."""
    match node.kind:
        case "Aggregate":
            made = read_sequence(node.plan.aggregateExpressions())
        case "Project":
            made = read_sequence(node.plan.projectList())
        case "Union":
            made = []
            for child in node.children:
                yield from zip(node.numbers, child.numbers, strict=True)
        case _:
            made = []
    for one in made:
        yield from ((number_of(one), number) for number in numbers_read(one))


def _infers_filter(node: QueryNode) -> bool:
    """True for a Generate, but not one of EXCEPT ALL and INTERSECT ALL."""
    return node.kind == "Generate" and kind_of(node.plan.generator()) != "ReplicateRows"


def _equal_columns(node: QueryNode) -> Iterator[tuple[int, int]]:
    """Columns that a filter or a join compares for equality; perhaps after casts."""
    conditions: Iterable[Any] = ()
    if node.kind == "Filter":
        conditions = conjuncts(node.plan.condition())
    elif node.kind == "Join":
        conditions = join_conditions(node)
    for one in conditions:
        if kind_of(one) in {"EqualTo", "EqualNullSafe"}:
            left, right = set(numbers_read(one.left())), set(numbers_read(one.right()))
            if len(left) == len(right) == 1:
                yield left.pop(), right.pop()
