"""Operators over changes hand two more columns on: the time of an update, and its diff.

    made = ChangeOperators(session)
    made.input(node, "orders")         the changes of an input, to be given by each step
    made.project(columns, below)       these columns, and the two of what is below

Where several inputs meet in one row, its time is the greatest of their times, as it is there from
the last of them on, and its diff the product of their diffs. What was there before a step has a
time that is less than all others.

Invariants:
    The two columns are the last ones of what is made here, and no expression of a query sees them.
    A product of diffs that does not fit is an error, and never another number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from shardline.app.compute.view.accumulators import BEFORE
from shardline.app.compute.view.kept_plan import Leaf, Operator, Operators, plan_of
from shardline.app.compute.view.view_columns import with_times
from shardline.app.sql.plan_nodes import column_named
from shardline.datasource.frames import empty_frame, number_of, read_sequence
from shardline.datasource.java_names import java_class, scala_object
from shardline.datasource.schema import DIFF, TS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.sql.query_tree import QueryNode

__all__ = ["Change", "ChangeOperators", "NotIncremental"]

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"


class NotIncremental(Exception):
    """A view's change cannot be computed from these inputs' changes; why: its text."""


@dataclass(frozen=True, slots=True)
class Change:
    """An operator over changes.

    Attributes:
        operator: Returns the columns of the query's operator, and perhaps others.
        hidden: `_ts` and `_diff`, which it returns, too; empty for rows that were there before,
            each of which counts once.
    """

    operator: Operator
    hidden: Sequence[Any]


class ChangeOperators:
    """Makes operators over changes.

    Attributes:
        spark: A session of the application.
        plans: Makes the operators of Spark.
    """

    def __init__(self, spark: SparkSession) -> None:
        """For sessions of the application of `spark`."""
        self.spark = spark
        self.plans = Operators(spark)
        pair = empty_frame(spark, with_times(StructType()))
        self._pair = read_sequence(plan_of(pair).output())
        marks = spark.sql(f"SELECT {BEFORE}L AS {TS}, 1L AS {DIFF}")
        self._marks = read_sequence(plan_of(marks).projectList())

    def nothing(self, node: QueryNode) -> Change:
        """The change of what has none."""
        return self._table(node, None)

    def input(self, node: QueryNode) -> Change:
        """The changes of an input."""
        return self._table(node, Leaf(node.input))

    def before(self, node: QueryNode, found: Mapping[QueryNode, Leaf] | None = None) -> Change:
        """What an operator of the query gave before the step.

        Args:
            node: The operator.
            found: Inputs of it of which not all rows are needed: what they stand for.
        """
        return Change(self.plans.over(node, before=True, found=found), ())

    def all_of(
        self, node: QueryNode, changed: Change, found: Mapping[QueryNode, Leaf] | None = None
    ) -> Change:
        """What an operator gave before the step, and its change, with times and diffs."""
        there = self.plans.over(node, before=True, found=found)
        marked = self.plans.make(
            "Project", self.plans.sequence([*node.output, *self._marks]), there.plan
        )
        # The change is first: a union has the attributes of its first child.
        news = self.project(node.output, changed).operator
        union = self.plans.union([news.plan, marked])
        return Change(Operator(union, (news, Operator(marked, (there,)))), changed.hidden)

    def read(self, columns: Iterable[Any], held: Mapping[int, Any], below: QueryNode) -> QueryNode:
        """What an operator of the query gives, by what a state has of it.

        All of its columns are there: what is above returns those of its children, read or not.

        Args:
            columns: Those of the operator.
            held: What the state has of them, by their numbers; the others nobody reads.
            below: The rows of the state.
        """
        literals = scala_object(self.spark, f"{_EXPRESSIONS}.Literal")

        def unread(column: Any) -> Any:
            # Of what is never NULL to Spark it does not look for NULL.
            kind = column.dataType()
            return literals.create(None, kind) if column.nullable() else literals.default(kind)

        given = [
            self.named(held.get(number_of(one)) or unread(one), one.name(), one.exprId())
            for one in columns
        ]
        return self.plans.projected(given, below)

    def project(self, columns: Iterable[Any], below: Change) -> Change:
        """A projection."""
        given = self.plans.sequence([*columns, *below.hidden])
        plan = self.plans.make("Project", given, below.operator.plan)
        return Change(Operator(plan, (below.operator,)), below.hidden)

    def expand(self, plan: Any, below: Change) -> Change:
        """Several rows for each row, all of them at its time and with its diff."""
        rows = self.plans.sequence(
            self.plans.sequence([*read_sequence(row), *below.hidden])
            for row in read_sequence(plan.projections())
        )
        output = self.plans.sequence([*read_sequence(plan.output()), *below.hidden])
        made = self.plans.make("Expand", rows, output, below.operator.plan)
        return Change(Operator(made, (below.operator,)), below.hidden)

    def union(self, outputs: Sequence[Iterable[Any]], below: Sequence[Change]) -> Change:
        """The rows of all changes.

        Args:
            outputs: The columns of each that are wanted, as many and of the same types.
            below: The changes.
        """
        children = tuple(
            self.project(output, one).operator for output, one in zip(outputs, below, strict=True)
        )
        union = self.plans.union([child.plan for child in children])
        # A union's columns are those of its first child, with types that fit all of them.
        hidden = read_sequence(union.output())[-len(self._pair) :]
        return Change(Operator(union, children), hidden)

    def over(self, plan: Any, children: Sequence[Change], hidden: Sequence[Any]) -> Change:
        """An operator of the query over changes; `hidden` are among the columns that it returns."""
        below = tuple(child.operator for child in children)
        made = plan.withNewChildren(self.plans.sequence([child.plan for child in below]))
        return Change(Operator(made, below), hidden)

    def joined(self, columns: Iterable[Any], joined: Operator, hidden: Sequence[Any]) -> Change:
        """Columns of a join of changes, each row at the last of its times.

        Args:
            columns: Those of the query's operator.
            joined: The join, which returns them and `hidden`.
            hidden: Pairs of `_ts` and `_diff`, one after the other.
        """
        if len(hidden) == len(self._pair):
            return self.project(columns, Change(joined, hidden))
        times, diffs = hidden[::2], hidden[1::2]
        time = self._expression("Greatest", self.plans.sequence(times))
        diff = diffs[0]
        for other in diffs[1:]:
            diff = self._expression("Multiply", diff, other, self._checked())
        pair = [self.named(time, TS), self.named(diff, DIFF)]
        given = self.plans.sequence([*columns, *pair])
        plan = self.plans.make("Project", given, joined.plan)
        return Change(Operator(plan, (joined,)), [one.toAttribute() for one in pair])

    def _table(self, node: QueryNode, leaf: Leaf | None) -> Change:
        hidden = [one.newInstance() for one in self._pair]
        return Change(Operator(self.plans.empty([*node.output, *hidden]), (), leaf), hidden)

    def _expression(self, name: str, *fields: Any) -> Any:
        return java_class(self.spark, f"{_EXPRESSIONS}.{name}")(*fields)

    def named(self, expression: Any, name: str, number: Any | None = None) -> Any:
        """See `column_named`."""
        return column_named(self.spark, expression, name, number)

    def _checked(self) -> Any:
        """Arithmetic that raises where a result does not fit, whatever the session says."""
        mode = scala_object(self.spark, f"{_EXPRESSIONS}.EvalMode").ANSI()
        return self._expression("NumericEvalContext", mode, False)
