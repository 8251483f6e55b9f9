"""A LIMIT with more above it becomes the reading of a state: the rows that it lets through.

    join over LIMIT 10 over Sort over X     becomes    join over the rows of a state, and a state of
                                                       LIMIT 10 over Sort over the first rows of X

The first rows have changes (`first_rows_rule`), but a LIMIT of them has none: which row comes up
where one goes is not in any change. It is run anew over the first rows at each time at which these
change, and what it lets through then is compared with what it has let through before. Where
nothing but the view is above it, the view itself is what is compared, and there is no such state.

Columns of the state: `c1` … those of the rows that are needed above.

Invariants:
    Of rows that tie those stay in the state that are there, or others take their place in it: what
    is above sees one choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from shardline.app.compute.view.change_operators import ChangeOperators, NotIncremental
from shardline.app.compute.view.kept_plan import columns_of, state_leaf
from shardline.app.compute.view.view_columns import with_times
from shardline.app.sql.query_tree import QueryNode
from shardline.datasource.frames import number_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LimitRule", "LimitState"]


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of one LIMIT.

    Attributes:
        name: By which the query above reads it, as an input.
        source: The LIMIT over the state of its first rows, with the columns `c1` ….
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


class LimitRule:
    """Takes LIMITs apart whose rows are read by more than the view."""

    def __init__(self, exact: SparkSession, operators: ChangeOperators) -> None:
        """For the application of `exact`.

        Args:
            exact: A session whose settings are the same for all views.
            operators: Of the plan.
        """
        self._exact = exact
        self._operators = operators

    def split(
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
            raise NotIncremental("a LIMIT of rows of which nothing is read")
        named = self._operators.named
        given = [named(one, f"c{place}") for place, one in enumerate(columns, 1)]
        source = self._operators.plans.projected(given, limit)
        schema = columns_of(source.plan)
        leaf = state_leaf(self._exact, name, schema)
        shown = [
            named(held, one.name(), one.exprId())
            for held, one in zip(leaf.output, columns, strict=True)
        ]
        return self._operators.plans.projected(shown, leaf), LimitState(name, source, schema)
