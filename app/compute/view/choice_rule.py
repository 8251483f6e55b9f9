"""Rows that a query chooses are a state, where other rows might stand in their place.

    join over LIMIT 10 over Sort over X     becomes    join over the rows of a state, and a state of
                                                       LIMIT 10 over Sort over the first rows of X
    join over latest over row_number over X becomes    join over the rows of a state, and a state of
                                                       latest over row_number over X

Of rows that tie any may come through a LIMIT or be numbered first, and a sum of floats depends on
the order in which they are added. Whatever is above such an operator must go by one choice: what is
retracted later is what has been shown, bit by bit. A state is where it is written down.

The first rows of a LIMIT have changes (`first_rows_rule`), but the LIMIT of them has none: which
row comes up where one goes is not in any change. It is run anew over the first rows at each time at
which these change, and what it lets through then is compared with what it has let through before.

Results of a region (`sql.touched_keys`) do have a change: those of the touched keys come anew, and
what the state has of these keys goes. Filters and projections right above the region are below the
state, and so are conditions from further above, which stay there as well: a state has no rows that
nobody reads. The key goes through all of them, whether the query shows it or not, as rows go by it.

Where nothing but the view is above, the view itself is what is compared or retracted, and there is
no such state.

Columns of a state: `c1` … those of the rows that are needed above, and of the key.

Invariants:
    Of rows that tie those stay in the state that are there, or others take their place in it: what
    is above sees one choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.types import StructType

from shardline.app.compute.view.change_operators import ChangeOperators, NotIncremental
from shardline.app.compute.view.kept_plan import columns_of, state_leaf
from shardline.app.compute.view.view_columns import with_times
from shardline.app.sql.query_tree import QueryNode
from shardline.app.sql.touched_keys import Choice
from shardline.datasource.frames import number_of, read_sequence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ChoiceRule", "ChoiceState", "LimitState", "ResultState"]

_NOTHING_READ: Final = "a LIMIT of rows of which nothing is read"


@dataclass(frozen=True, slots=True)
class ChoiceState:
    """The state of rows that a query chooses.

    Attributes:
        name: By which the query above reads it, as an input.
        source: The operator that chooses, with the columns `c1` ….
        schema: Columns of the state.
    """

    name: str
    source: QueryNode
    schema: StructType

    @property
    def changes(self) -> StructType:
        """Columns of the state's changes."""
        return with_times(self.schema)

    def contents(self, session: SparkSession, rows: DataFrame, at: int) -> DataFrame:  # noqa: ARG002 - as of other states
        """The state over all rows of its source."""
        return rows


class LimitState(ChoiceState):
    """The state of what a LIMIT lets through, over the state of its first rows."""

    __slots__ = ()


class ResultState(ChoiceState):
    """The state of a region's results, which the same rows need not give again."""

    __slots__ = ()


_State = TypeVar("_State", bound=ChoiceState)


class ChoiceRule:
    """Takes operators apart that choose rows which are read by more than the view."""

    def __init__(self, exact: SparkSession, operators: ChangeOperators) -> None:
        """For the application of `exact`.

        Args:
            exact: A session whose settings are the same for all views.
            operators: Of the plan.
        """
        self._exact = exact
        self._operators = operators

    def limit(
        self, limit: QueryNode, needed: frozenset[int], name: str
    ) -> tuple[QueryNode, LimitState]:
        """What is above a LIMIT over a state of this name, and that state.

        Args:
            limit: The LIMIT, over the state of its first rows.
            needed: Ids of the columns that anything above it refers to.
            name: Names no input, and no other state.

        Raises:
            NotIncremental: Nothing of its rows is needed.
        """
        columns = [one for one in limit.distinct_output if number_of(one) in needed]
        if not columns:
            raise NotIncremental(_NOTHING_READ)
        return self._split(limit, columns, limit, name, LimitState)

    def results(
        self,
        choice: Choice,
        above: QueryNode,
        needed: frozenset[int],
        name: str,
        conditions: Iterable[Any] = (),
    ) -> tuple[QueryNode, ResultState]:
        """The same for the results of a region.

        Args:
            choice: What is chosen.
            above: Its last operator, over the states below it.
            needed: Ids of the columns that any operator refers to: those of the key are among them.
            name: Names no input, and no other state.
            conditions: By which rows are left out; over columns of the last operator.
        """
        wider = self.filtered(self._with_keys(choice, choice.last, above), conditions)
        columns = [one for one in wider.distinct_output if number_of(one) in needed]
        return self._split(wider, columns, choice.last, name, ResultState)

    def filtered(self, node: QueryNode, conditions: Iterable[Any]) -> QueryNode:
        """An operator with conditions above it, the first one below the others."""
        for one in conditions:
            plan = self._operators.plans.make("Filter", one, node.plan)
            node = QueryNode(plan, "Filter", "", (node,), node.inputs)
        return node

    def _split(
        self,
        node: QueryNode,
        columns: Sequence[Any],
        given_by: QueryNode,
        name: str,
        kind: type[_State],
    ) -> tuple[QueryNode, _State]:
        """A state of these columns of a node; and what reads it in the place of an operator."""
        named = self._operators.named
        given = [named(one, f"c{place}") for place, one in enumerate(columns, 1)]
        source = self._operators.plans.projected(given, node)
        schema = columns_of(source.plan)
        leaf = state_leaf(self._exact, name, schema)
        held = {number_of(one): there for one, there in zip(columns, leaf.output, strict=True)}
        read = self._operators.read(given_by.output, held, leaf)
        return read, kind(name, source, schema)

    def _with_keys(self, choice: Choice, node: QueryNode, above: QueryNode) -> QueryNode:
        """An operator from which on rows are taken one by one, with the key beside its columns.

        Args:
            choice: What is chosen.
            node: The operator in the query.
            above: The same over states.
        """
        plans = self._operators.plans
        if node is choice.region.top:
            missing = self._missing(choice, above)
            if not missing:
                return above
            plan = plans.make(
                "Aggregate",
                above.plan.groupingExpressions(),
                self._longer(above.plan.aggregateExpressions(), missing),
                above.children[0].plan,
                above.plan.hint(),
            )
            return replace(above, plan=plan)
        below = self._with_keys(choice, node.children[0], above.children[0])
        over = above.plan.withNewChildren(plans.sequence([below.plan]))
        wider = replace(above, plan=over, children=(below,))
        missing = self._missing(choice, wider)
        if missing:
            columns = self._longer(over.projectList(), missing)
            wider = replace(wider, plan=plans.make("Project", columns, below.plan))
        return wider

    def _missing(self, choice: Choice, node: QueryNode) -> list[Any]:
        there = set(node.numbers)
        return [key for key in choice.keys if number_of(key) not in there]

    def _longer(self, columns: Any, more: Sequence[Any]) -> Any:
        return self._operators.plans.sequence([*read_sequence(columns), *more])
