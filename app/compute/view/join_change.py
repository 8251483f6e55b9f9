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
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shardline.app.compute.view.change_operators import Change, ChangeOperators
from shardline.app.compute.view.join_tree import (
    INNER,
    are_disjoint,
    both_columns,
    flatten,
    is_around_a_join,
    join_conditions,
)
from shardline.app.compute.view.kept_plan import Leaf, Operator
from shardline.app.compute.view.look_up import LookUps
from shardline.app.sql.plan_nodes import conjunction
from shardline.app.sql.query_tree import join_kind
from shardline.app.sql.safe_expressions import cannot_fail
from shardline.datasource.frames import kind_of, read_sequence
from shardline.datasource.java_names import scala_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.sql.query_tree import QueryNode

__all__ = ["JoinRule", "OneSided"]

_CATALYST: Final = "org.apache.spark.sql.catalyst"
_LINEAR_IN: Final = {
    "ExistenceJoin": 0,
    "LeftAnti": 0,
    "LeftOuter": 0,
    "LeftSemi": 0,
    "RightOuter": 1,
}
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
        self._operators = operators
        self._inner = scala_object(spark, f"{_CATALYST}.plans.Inner")
        no_hint = scala_object(spark, f"{_CATALYST}.plans.logical.JoinHint")
        self._no_hint = no_hint.NONE()

    def change(self, node: QueryNode, look_ups: LookUps, change_of: ChangeOf) -> Change:
        """The change of a join.

        Args:
            node: The join.
            look_ups: Those of the plan, with the names of inputs that have changed.
            change_of: The rule for what is below it.

        Raises:
            OneSided: It is not linear in what has changed.
        """
        kind, changed = join_kind(node), look_ups.changed
        if kind in INNER:
            return self._inner_change(node, look_ups, change_of)
        kept = _LINEAR_IN.get(kind)
        if kept is None:
            raise OneSided(f"a {kind} join")
        if node.children[1 - kept].inputs & changed:
            raise OneSided(f"the {('right', 'left')[kept]} side of a {kind} join has changed")
        mine, other = node.children[kept], node.children[1 - kept]
        conditions = join_conditions(node)
        with look_ups.part():
            change = change_of(mine)
            needed = kind == "LeftSemi"
            found = look_ups.restrict(other, conditions, [mine], needed=needed)
        sides = [change, self._operators.before(other, found)]
        return self._operators.over(node.plan, sides[::-1] if kept else sides, change.hidden)

    def filtered(self, node: QueryNode, look_ups: LookUps, change_of: ChangeOf) -> Change | None:
        """The change of a filter around an inner join, as of one join; None if it is to stay apart.

        `FROM a, b WHERE a.k = b.k` says only in its filter what connects the two.
        """
        if not is_around_a_join(node):
            return None
        sides, conditions = flatten(node)
        if not self._may_reorder(sides, conditions):
            return None
        return self._terms(node, sides, conditions, look_ups, change_of)

    def _inner_change(self, node: QueryNode, look_ups: LookUps, change_of: ChangeOf) -> Change:
        sides, conditions = self._taken_apart(node)
        return self._terms(node, sides, conditions, look_ups, change_of)

    def _terms(
        self,
        node: QueryNode,
        sides: Sequence[QueryNode],
        conditions: Sequence[Any],
        look_ups: LookUps,
        change_of: ChangeOf,
    ) -> Change:
        changes = {
            place: partial(change_of, side)
            for place, side in enumerate(sides)
            if side.inputs & look_ups.changed
        }
        join = _InnerJoin(self, self._operators, sides, conditions, changes, look_ups)
        terms = [join.term(node.output, place) for place in changes]
        return (
            terms[0]
            if len(terms) == 1
            else self._operators.union([node.output] * len(terms), terms)
        )

    def _taken_apart(self, node: QueryNode) -> tuple[list[QueryNode], list[Any]]:
        """What an inner join joins, and what holds of its rows: as many sides as may be reordered.

        In another order a condition is evaluated for other rows. Where anything in the join could
        fail, that order is the query's, or an error of the query might not be one of the change.
        """
        sides, conditions = flatten(node)
        if len(sides) == len(node.children) or self._may_reorder(sides, conditions):
            return sides, conditions
        condition = node.plan.condition()
        return list(node.children), [condition.get()] if condition.isDefined() else []

    def _may_reorder(self, sides: Sequence[QueryNode], conditions: Sequence[Any]) -> bool:
        inside = [one for side in sides for one in _expressions(side)]
        safe = all(cannot_fail(self._spark, one) for one in (*conditions, *inside))
        return safe and are_disjoint(sides)

    def pair(self, left: Operator, right: Operator, conditions: Sequence[Any]) -> Operator:
        """The inner join of two operators."""
        condition = conjunction(self._spark, conditions) if conditions else None
        option = scala_object(self._spark, "scala.Option").apply(condition)
        join = self._operators.plans.make(
            "Join", left.plan, right.plan, self._inner, option, self._no_hint
        )
        return Operator(join, (left, right))


@dataclass(frozen=True, slots=True)
class _InnerJoin:
    """The change of a tree of inner joins, as one operator.

    Attributes:
        rule: Makes joins.
        operators: Makes operators over changes.
        sides: What is joined, in the order of the query.
        conditions: What holds of the rows, all of it.
        changes: The changes of those sides that have changed, by place, made anew at each use.
        look_ups: Those of the plan.
    """

    rule: JoinRule
    operators: ChangeOperators
    sides: Sequence[QueryNode]
    conditions: Sequence[Any]
    changes: Mapping[int, Callable[[], Change]]
    look_ups: LookUps

    def term(self, columns: Sequence[Any], first: int) -> Change:
        """The term of the side at `first`: these columns of the rows that its change makes."""
        with self.look_ups.part():
            return self._term(columns, first)

    def _term(self, columns: Sequence[Any], first: int) -> Change:
        ahead = list(self.conditions)
        change = self.changes[first]()
        so_far, hidden = change.operator, [*change.hidden]
        earlier = [self.sides[first]]
        there = earlier[0].plan.outputSet()
        left = [place for place in range(len(self.sides)) if place != first]
        while left:
            place = self._next(left, earlier, there)
            left.remove(place)
            added = self.sides[place]
            there = both_columns(there, added.plan.outputSet())
            now = [one for one in ahead if one.references().subsetOf(there)]
            ahead = [one for one in ahead if one not in now]
            side = self._side(place, first, self.look_ups.restrict(added, self.conditions, earlier))
            hidden += side.hidden
            so_far = self.rule.pair(so_far, side.operator, now)
            earlier.append(added)
        assert not ahead
        return self.operators.joined(columns, so_far, hidden)

    def _side(self, place: int, first: int, found: Mapping[QueryNode, Leaf]) -> Change:
        """What a further side, at `place`, is in the term of the one at `first`."""
        side, change = self.sides[place], self.changes.get(place)
        if change is None or place < first:
            return self.operators.before(side, found)
        return self.operators.all_of(side, change(), found)

    def _next(self, left: Sequence[int], earlier: Sequence[QueryNode], there: Any) -> int:
        """The place of the next side: one that has a key, or else any that a condition connects."""
        sides = [self.sides[place] for place in left]
        chosen = self.look_ups.next_side(sides, self.conditions, earlier)
        if chosen is not None:
            return left[sides.index(chosen)]
        columns = [side.plan.outputSet() for side in self.sides]
        return next(_connected(self.conditions, columns, there, left), left[0])


def _connected(
    conditions: Sequence[Any], columns: Sequence[Any], there: Any, places: Sequence[int]
) -> Iterator[int]:
    """Places that a condition connects with columns that are there: by an equality first."""
    for equal in (True, False):
        for place in places:
            both = both_columns(there, columns[place])
            for condition in conditions:
                needs = condition.references()
                if (kind_of(condition) in _EQUALITIES) == equal and (
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
