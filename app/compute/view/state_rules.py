"""Tells which operators of a query are kept as states, and takes them apart.

    rules = StateRules(operators, order, regions, tree)
    rules.split(node, above, name)      what is above reads a state of this name; and that state

An aggregate is a state of groups, a temporal filter one of rows that come and go by themselves, an
order of which a LIMIT needs the first rows one of these; and where more is above a LIMIT than the
view, what it lets through is one, too. So are results that ties decide, or the order of adding up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from shardline.app.compute.view.aggregate_rule import AggregateRule, GroupState
from shardline.app.compute.view.change_operators import ChangeOperators, NotIncremental
from shardline.app.compute.view.choice_rule import ChoiceRule, LimitState, ResultState
from shardline.app.compute.view.evaluation_order import EvaluationOrder
from shardline.app.compute.view.first_rows_rule import FirstRowsRule, FirstRowsState
from shardline.app.compute.view.temporal_rule import TemporalRule, TemporalState
from shardline.app.sql.kept_aggregates import refusal
from shardline.app.sql.plan_tree import Node
from shardline.app.sql.query_tree import QueryNode
from shardline.app.sql.safe_expressions import cannot_fail
from shardline.app.sql.stored_types import can_be_stored
from shardline.app.sql.strategy import keeps_limits
from shardline.app.sql.temporal_filters import split_condition, uses_clock
from shardline.app.sql.touched_keys import Choice, Regions
from shardline.datasource.frames import read_sequence

__all__ = ["State", "StateRules", "needed_rows"]

State: TypeAlias = GroupState | TemporalState | FirstRowsState | LimitState | ResultState
"""The memory that a view keeps of an operator of its query."""

_NOT_STORED: Final = "a state of rows whose values no shard can hold, or Spark cannot compare"


def needed_rows(regions: Regions, tree: Node) -> dict[QueryNode, int]:
    """The orders and LIMITs of a query that are states, with how many rows of each are needed.

    Args:
        regions: Of the query.
        tree: Its plan in its normal form.
    """
    found = {one.sort: one.needed for one in regions.first_rows}
    if keeps_limits(tree, regions.verdicts()):
        found |= {one.limits[0]: one.needed for one in regions.first_rows if one.are_few}
    return found


class StateRules:
    """The rules for states of one query.

    Attributes:
        exact: A session in which a number that does not fit is an error.
    """

    def __init__(
        self,
        operators: ChangeOperators,
        order: EvaluationOrder,
        regions: Regions,
        tree: Node,
    ) -> None:
        """For one query.

        Args:
            operators: Of the plan.
            order: Of the plan.
            regions: Of the query.
            tree: Its plan in its normal form, as plain values.
        """
        session = self._spark = operators.spark
        self._groups = AggregateRule(session, operators)
        self.exact = self._groups.exact
        self._timed = TemporalRule(session, self.exact, operators)
        self._first_rows = FirstRowsRule(session, self.exact, operators)
        self._chosen = ChoiceRule(self.exact, operators)
        self._choices = regions.choices
        self._order = order
        self._query = regions.root
        # Of a query without choices nobody asks.
        first = order.evaluated_first(regions.root, {}) if regions.choices else ()
        self._first = frozenset(first)
        self._needed_rows = needed_rows(regions, tree)
        self._needed_columns = regions.needed

    def split(self, node: QueryNode, above: QueryNode, name: str) -> tuple[QueryNode, State] | None:
        """What an operator is over a state of this name, and that state; None if it needs none.

        Args:
            node: The operator.
            above: The same over the states below it.
            name: Names no input, and no other state.

        Raises:
            NotIncremental: It is to be a state, and cannot be.
        """
        found = self._split(node, above, name)
        if found is None:
            return None
        read, state = found
        if not all(can_be_stored(field.dataType) for field in state.schema.fields):
            raise NotIncremental(_NOT_STORED)
        return self._constrained(node, read), state

    def _split(
        self, node: QueryNode, above: QueryNode, name: str
    ) -> tuple[QueryNode, State] | None:
        if node in self._choices:
            return self._results(self._choices[node], above, name)
        if node in self._needed_rows:
            return self._of_order(above, self._needed_rows[node], name)
        if node.kind == "Aggregate" and not refusal(self._spark, node.plan):
            return self._groups.split(above, name)
        if node.kind != "Filter":
            return None
        condition = split_condition(self._spark, node.plan.condition())
        if condition is None:
            return None
        return self._timed.split(above, condition, self._needed_columns, name)

    def _of_order(self, above: QueryNode, rows: int, name: str) -> tuple[QueryNode, State]:
        """The same for an order of which these many rows are needed, and for a LIMIT of it."""
        if above.kind == "Sort":
            return self._first_rows.split(above, rows, self._needed_columns, name)
        return self._chosen.limit(above, self._needed_columns, name)

    def _results(
        self, choice: Choice, above: QueryNode, name: str
    ) -> tuple[QueryNode, ResultState]:
        """The same for results that are not decided.

        Raises:
            NotIncremental: Elsewhere something can fail at a row of a key that has no results.
        """
        # A condition on keys, or on what equals them, is evaluated before there are results: also
        # for keys of which the state has no rows. It would miss the error.
        if self._order.may_fail_beside(self._query, choice):
            raise NotIncremental("a condition that can fail, on a key of what ties decide")
        conditions = self._conditions_of(choice) if choice.last in self._first else ()
        return self._chosen.results(choice, above, self._needed_columns, name, conditions)

    def _constrained(self, node: QueryNode, read: QueryNode) -> QueryNode:
        """What is read of a state, with the conditions that hold below it and can fail at a row.

        They hold for all of it. But Spark infers them for what it is joined with, where it does not
        see that they come from below a state (InferFiltersFromConstraints), and fails there.
        """
        # A LIMIT is above an order, and nothing may come in between.
        if node.kind == "Sort" or self._order.has_safe_conditions(node):
            return read
        below = read_sequence(node.plan.constraints().toSeq())
        known = self._over(read.plan.outputSet(), below)
        return self._chosen.filtered(
            read, [one for one in known if not cannot_fail(self._spark, one)]
        )

    def _conditions_of(self, choice: Choice) -> Iterator[Any]:
        """The conditions from above over columns of the results."""
        conditions = (condition for _, condition in choice.conditions)
        return self._over(choice.last.plan.outputSet(), conditions)

    def _over(self, columns: Any, conditions: Iterable[Any]) -> Iterator[Any]:
        """Those of conditions that are about these columns, and about no time."""
        for condition in conditions:
            if condition.references().subsetOf(columns) and not uses_clock(self._spark, condition):
                yield condition
