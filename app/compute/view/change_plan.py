"""A change plan computes the change of a linear view from the changes of its inputs.

    plan = ChangePlan(session, query, inputs)        Spark's plan of the query, made once
    plan.over(session, changes)                      the view's rows with `_ts` and `_diff`

A view is linear (DBSP's word) if Q(a + b) = Q(a) + Q(b): filters, projections, generators, UNION
ALL. Its change is then Q over the changes of its inputs, row by row, each at the same time and with
the same diff; constants have none. So the query's plan is taken as Spark has analysed it, over
inputs without `_ts` and `_diff`, and each of its operators is given two more columns to hand on. No
expression is touched, made or resolved anew: none of them can see the two columns, whatever it is
called with (`hash(*)`), and the query means what it means to Spark.

The plan is analysed once, and each step gives it new leaves (`kept_plan`).

Invariants:
    Every expression of the query is the one of its analysed plan.
    An operator that is not known here is refused: the view is recomputed, which is right.
    Nothing is run here, and nothing is left in the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from shardline.app.compute.view.evaluate import analyse_query
from shardline.app.compute.view.kept_plan import (
    KeptPlan,
    Operator,
    input_of,
    plan_of,
)
from shardline.app.sql.plan_tree import plan_tree
from shardline.app.sql.strategy import CONSTANT, choose_strategy
from shardline.datasource.spark_native.java_names import java_class, read_sequence
from shardline.datasource.types.schema import DIFF, TS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ChangePlan", "NotLinear"]

_INLINE_CTES: Final = "org.apache.spark.sql.catalyst.optimizer.InlineCTE"

_AS_BELOW: Final = frozenset(
    {
        "Filter",
        "Generate",
        "PipeOperator",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "SubqueryAlias",
    }
)
"""Operators that return each column of their child, and perhaps others."""


class NotLinear(Exception):
    """The change of a query cannot be computed from the changes of its inputs; why: its text."""


@dataclass(frozen=True, slots=True)
class _Handing:
    """An operator over changes.

    Attributes:
        operator: Returns the columns of the query's operator, and two more.
        hidden: These two: `_ts` and `_diff`.
    """

    operator: Operator
    hidden: Sequence[Any]


class ChangePlan(KeptPlan):
    """A query's plan over changes: its rows are the view's change, with `_ts` and `_diff`.

    The columns that it is made for are an input's own, then `_ts` and `_diff`. To make it raises
    `NotLinear` if the query needs more than changes.
    """

    @override
    def _analyse(self, session: SparkSession, query: str) -> Operator:
        """The last operator of the query, handing the two columns on.

        Raises:
            NotLinear: The query needs more than changes.
        """
        pair = session.createDataFrame([], f"{TS} BIGINT NOT NULL, {DIFF} BIGINT NOT NULL")
        self._pair = read_sequence(plan_of(pair).output())
        empty = {
            name: session.createDataFrame([], type(columns)(_visible(columns)))
            for name, columns in self._columns.items()
        }
        result = analyse_query(session, query, empty)
        self.columns: StructType = result.schema
        """Columns of the query's result."""
        analysed = plan_of(result)
        strategy, reason = choose_strategy(plan_tree(analysed.toJSON()))
        if strategy != "linear":
            raise NotLinear(reason)
        if not analysed.deterministic():
            raise NotLinear("an expression that is not deterministic")
        inline_ctes = java_class(session, _INLINE_CTES)(True, False, False)
        below = self._handing(inline_ctes.apply(analysed))
        return self._project(analysed.output(), below).operator

    def _handing(self, plan: Any) -> _Handing:
        """An operator of the query and all below it, handing the two columns on.

        Raises:
            NotLinear: It is not known.
        """
        kind = plan.getClass().getSimpleName()
        name = input_of(plan)
        if name or kind in CONSTANT:
            # The rows of a constant are in the view since it was computed for the first time.
            return self._leaf(plan.output(), name)
        below = tuple(self._handing(child) for child in read_sequence(plan.children()))
        if kind in _AS_BELOW:
            child = below[0].operator
            over = plan.withNewChildren(self._operators.sequence([child.plan]))
            return _Handing(Operator(over, (child,)), below[0].hidden)
        match kind:
            case "Sort":
                return below[0]  # a change has no order
            case "Project":
                return self._project(plan.projectList(), below[0])
            case "Expand":
                return self._expand(plan, below[0])
            case "Union":
                return self._union(plan, below)
        raise NotLinear(f"the operator {kind}")

    def _leaf(self, columns: Any, name: str) -> _Handing:
        hidden = [one.newInstance() for one in self._pair]
        table = self._operators.empty([*read_sequence(columns), *hidden])
        return _Handing(Operator(table, (), name), hidden)

    def _project(self, columns: Any, below: _Handing) -> _Handing:
        """A projection, with the two columns as its last ones."""
        given = self._with(columns, below)
        plan = self._operators.make("Project", given, below.operator.plan)
        return _Handing(Operator(plan, (below.operator,)), below.hidden)

    def _expand(self, plan: Any, below: _Handing) -> _Handing:
        """Several rows for each row, all of them at its time and with its diff."""
        rows = self._operators.sequence(
            self._with(row, below) for row in read_sequence(plan.projections())
        )
        output = self._with(plan.output(), below)
        made = self._operators.make("Expand", rows, output, below.operator.plan)
        return _Handing(Operator(made, (below.operator,)), below.hidden)

    def _union(self, plan: Any, below: Sequence[_Handing]) -> _Handing:
        """The rows of all; the two columns are in the same place in each."""
        outputs = [child.output() for child in read_sequence(plan.children())]
        children = tuple(
            self._project(output, one).operator for output, one in zip(outputs, below, strict=True)
        )
        union = self._operators.union([child.plan for child in children])
        # A union's columns are those of its first child, with types that fit all of them.
        return _Handing(
            Operator(union, children), read_sequence(union.output())[-len(self._pair) :]
        )

    def _with(self, columns: Any, below: _Handing) -> Any:
        """A sequence of columns, and the two of what is below."""
        return self._operators.sequence([*read_sequence(columns), *below.hidden])


def _visible(columns: StructType) -> list[Any]:
    return [field for field in columns.fields if field.name not in (TS, DIFF)]
