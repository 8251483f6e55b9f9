"""The change of a join comes from the change of each side, joined with what is on the other side.

An inner join of inputs X1 … Xn is one operator here, whatever its parentheses, with one term for
each input that has changed (only where nothing in it can fail at a row: else two sides at a time):

    Δ(X1 ⋈ … ⋈ Xn) = Σi  X1⁻ ⋈ … ⋈ X(i-1)⁻ ⋈ ΔXi ⋈ H(X(i+1)) ⋈ … ⋈ H(Xn)

X⁻ is what X gave before the step, and H(X) that together with its change, each row at its own time.
So no result of a join is kept (Materialize's delta joins). A pair of two changed rows is counted by
the term of the first of them alone. In each term the change stands first, and each next input is
one that a condition connects with what is there: no term begins with two inputs that are large.

A left outer, semi or anti join is linear in its left side, a right outer join in its right one. So
is what a subquery in a condition stands for (`sql.normal_form`). Where the other side changes, rows
come and go that have not changed: that is refused.

Invariants:
    Each condition of the query is applied once, as soon as all of its columns are there.
    Which rows match is decided by Spark's own join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

from shardline.app.compute.view.change_operators import Change, ChangeOperators
from shardline.app.compute.view.kept_plan import Operator
from shardline.app.compute.view.safe_expressions import cannot_fail
from shardline.datasource.spark_native.java_names import (
    java_class,
    read_sequence,
    scala_object,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.sql.query_tree import QueryNode

__all__ = ["JoinRule", "OneSided"]

_CATALYST: Final = "org.apache.spark.sql.catalyst"
_BOTH: Final = frozenset({"Inner", "Cross"})
_LINEAR_IN: Final = {
    "ExistenceJoin": 0,
    "LeftAnti": 0,
    "LeftOuter": 0,
    "LeftSemi": 0,
    "RightOuter": 1,
}
_TRANSPARENT: Final = frozenset({"ResolvedHint", "SubqueryAlias"})
"""They change neither rows nor columns; a hint was about other sizes."""

_EQUALITIES: Final = frozenset({"EqualTo", "EqualNullSafe"})

ChangeOf = Callable[["QueryNode"], Change]
"""The change of an operator of the query."""


class OneSided(Exception):
    """The side of a join has changed in which it is not linear; which: its text."""


class JoinRule:
    """Makes the changes of joins."""

    def __init__(self, spark: SparkSession, operators: ChangeOperators) -> None:
        """For sessions of the application of `spark`."""
        self._spark = spark
        self._made = operators
        self._inner = scala_object(spark, f"{_CATALYST}.plans.Inner")
        no_hint = scala_object(spark, f"{_CATALYST}.plans.logical.JoinHint")
        self._no_hint = no_hint.NONE()

    def change(self, node: QueryNode, changed: frozenset[str], change_of: ChangeOf) -> Change:
        """The change of a join.

        Args:
            node: The join.
            changed: Names of inputs that have changed.
            change_of: The rule for what is below it.

        Raises:
            OneSided: It is not linear in what has changed.
        """
        kind = _kind(node)
        if kind in _BOTH:
            return self._inner_change(node, changed, change_of)
        kept = _LINEAR_IN.get(kind)
        if kept is None:
            raise OneSided(f"a {kind} join")
        if node.children[1 - kept].inputs & changed:
            raise OneSided(f"the {('right', 'left')[kept]} side of a {kind} join has changed")
        sides = [self._made.before(side) for side in node.children]
        sides[kept] = change_of(node.children[kept])
        return self._made.over(node.plan, sides, sides[kept].hidden)

    def _inner_change(
        self, node: QueryNode, changed: frozenset[str], change_of: ChangeOf
    ) -> Change:
        sides, conditions = self._taken_apart(node)
        changes = {
            place: partial(change_of, side)
            for place, side in enumerate(sides)
            if side.inputs & changed
        }
        join = _InnerJoin(self, self._made, sides, conditions, changes)
        terms = [join.term(node.output, place) for place in changes]
        return terms[0] if len(terms) == 1 else self._made.union([node.output] * len(terms), terms)

    def _taken_apart(self, node: QueryNode) -> tuple[list[QueryNode], list[Any]]:
        """What an inner join joins, and what holds of its rows: as many sides as may be reordered.

        In another order a condition is evaluated for other rows. Where anything in the join could
        fail, that order is the query's, or an error of the query might not be one of the change.
        """
        sides: list[QueryNode] = []
        conditions: list[Any] = []
        _flatten(node, sides, conditions)
        inside = [one for side in sides for one in _expressions(side)]
        safe = all(cannot_fail(self._spark, one) for one in (*conditions, *inside))
        if len(sides) == len(node.children) or (safe and _are_disjoint(sides)):
            return sides, conditions
        condition = node.plan.condition()
        return list(node.children), [condition.get()] if condition.isDefined() else []

    def pair(self, left: Operator, right: Operator, conditions: Sequence[Any]) -> Operator:
        """The inner join of two operators."""
        condition = reduce(self._and, conditions) if conditions else None
        option = scala_object(self._spark, "scala.Option").apply(condition)
        join = self._made.plans.make(
            "Join", left.plan, right.plan, self._inner, option, self._no_hint
        )
        return Operator(join, (left, right))

    def _and(self, left: Any, right: Any) -> Any:
        return java_class(self._spark, f"{_CATALYST}.expressions.And")(left, right)


@dataclass(frozen=True, slots=True)
class _InnerJoin:
    """The change of a tree of inner joins, as one operator.

    Attributes:
        rule: Makes joins.
        made: Makes operators over changes.
        sides: What is joined, in the order of the query.
        conditions: What holds of the rows, all of it.
        changes: The changes of those sides that have changed, by place, made anew at each use.
    """

    rule: JoinRule
    made: ChangeOperators
    sides: Sequence[QueryNode]
    conditions: Sequence[Any]
    changes: Mapping[int, Callable[[], Change]]

    def term(self, columns: Sequence[Any], first: int) -> Change:
        """The term of the side at `first`: these columns of the rows that its change makes."""
        ahead = list(self.conditions)
        so_far: Operator | None = None
        hidden: list[Any] = []
        for place in self._ordered(first):
            side = self._side(place, first)
            hidden += side.hidden
            if so_far is None:
                so_far = side.operator
                continue
            there = _both(so_far.plan.outputSet(), side.operator.plan.outputSet())
            now = [one for one in ahead if one.references().subsetOf(there)]
            ahead = [one for one in ahead if one not in now]
            so_far = self.rule.pair(so_far, side.operator, now)
        assert so_far is not None
        assert not ahead
        return self.made.joined(columns, so_far, hidden)

    def _side(self, place: int, first: int) -> Change:
        """What the side at `place` is in the term of the one at `first`."""
        side, change = self.sides[place], self.changes.get(place)
        if change is None or place < first:
            return self.made.before(side)
        return change() if place == first else self.made.all_of(side, change())

    def _ordered(self, first: int) -> list[int]:
        """The places of all sides from `first` on, each connected with those before if any is."""
        order, left = [first], [place for place in range(len(self.sides)) if place != first]
        columns = [side.plan.outputSet() for side in self.sides]
        there = columns[first]
        while left:
            chosen = next(_connected(self.conditions, columns, there, left), left[0])
            left.remove(chosen)
            order.append(chosen)
            there = _both(there, columns[chosen])
        return order


def _connected(
    conditions: Sequence[Any], columns: Sequence[Any], there: Any, places: Sequence[int]
) -> Iterator[int]:
    """Places that a condition connects with columns that are there: by an equality first."""
    for equal in (True, False):
        for place in places:
            both = _both(there, columns[place])
            for condition in conditions:
                needs = condition.references()
                if (condition.getClass().getSimpleName() in _EQUALITIES) == equal and (
                    needs.subsetOf(both)
                    and not needs.subsetOf(there)
                    and not needs.subsetOf(columns[place])
                ):
                    yield place


def _expressions(node: QueryNode) -> Iterator[Any]:
    """All expressions of a query's operators, down to its inputs."""
    if node.input:
        return
    yield from read_sequence(node.plan.expressions())
    for child in node.children:
        yield from _expressions(child)


def _are_disjoint(sides: Sequence[QueryNode]) -> bool:
    """True if no two sides have an attribute in common: one that is projected away may be."""
    there = sides[0].plan.outputSet()
    for side in sides[1:]:
        columns = side.plan.outputSet()
        if not there.intersect(columns).isEmpty():
            return False
        there = _both(there, columns)
    return True


def _both(left: Any, right: Any) -> Any:
    """The columns of two sets."""
    return getattr(left, "$plus$plus")(right)


def _kind(node: QueryNode) -> str:
    """The type of a join as Spark calls it: `Inner`, `LeftOuter`."""
    return str(node.plan.joinType().getClass().getSimpleName()).rstrip("$")


def _flatten(node: QueryNode, sides: list[QueryNode], conditions: list[Any]) -> None:
    """Add what an inner join joins, and what holds of its rows."""
    if node.kind == "Join" and _kind(node) in _BOTH:
        for child in node.children:
            _flatten(child, sides, conditions)
        if node.plan.condition().isDefined():
            conditions.extend(_conjuncts(node.plan.condition().get()))
        return
    if not _is_around_a_join(node):
        sides.append(node)
        return
    _flatten(node.children[0], sides, conditions)
    if node.kind == "Filter":
        conditions.extend(_conjuncts(node.plan.condition()))


def _is_around_a_join(node: QueryNode) -> bool:
    """True if rows of an inner join pass through, perhaps not all of them, with their columns."""
    while node.kind != "Join":
        names = node.kind == "Project" and all(
            column.getClass().getSimpleName() == "AttributeReference"
            for column in read_sequence(node.plan.projectList())
        )
        if not names and node.kind not in _TRANSPARENT | {"Filter"}:
            return False
        (node,) = node.children
    return _kind(node) in _BOTH


def _conjuncts(condition: Any) -> Iterator[Any]:
    """The conditions that a condition joins by AND."""
    if condition.getClass().getSimpleName() != "And":
        yield condition
        return
    yield from _conjuncts(condition.left())
    yield from _conjuncts(condition.right())
