"""A change plan computes the change of a view from the changes of its inputs.

    plan = ChangePlan(session, query, columns)       Spark's plan of the query, made once
    step = plan.step({"orders"})                     for steps in which only `orders` changes
    step.before                                      inputs whose contents before a step it needs
    step.over(session, changes, contents)            the view's rows with `_ts` and `_diff`
    plan.states                                      aggregates of the query, each of them a state
    plan.source_step(state, {"orders"})              for the changes of what such an aggregate reads

The query's plan is taken as Spark has analysed it, over inputs without `_ts` and `_diff`, and each
of its operators is given two more columns to hand on. No expression is touched, made or resolved
anew: none of them can see the two columns, whatever it is called with (`hash(*)`), and the query
means what it means to Spark.

Linear operators (DBSP's word), those with Q(a + b) = Q(a) + Q(b), are taken over changes as they
are: filters, projections, generators, UNION ALL. A join is linear in each of its two sides, and
needs the other side's contents (`join_change`). An aggregate is read as a state, which is kept by
the caller and is an input of what is above (`aggregate_rule`). What no changed input is below has
no change. So what can be done depends on which inputs have changed: a plan is made for each such
set.

Invariants:
    Every expression of the query is the one of its analysed plan.
    An operator that is not known here is refused: the view is recomputed, which is right.
    Nothing is run here, and nothing is left in the session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shardline.app.compute.view.aggregate_rule import AggregateRule, GroupState
from shardline.app.compute.view.change_operators import Change, ChangeOperators
from shardline.app.compute.view.evaluate import analyse_query
from shardline.app.compute.view.join_change import JoinRule, OneSided
from shardline.app.compute.view.kept_plan import Leaf, Operator, Operators, plan_of
from shardline.app.compute.view.touched_keys import OUTPUT, TouchedRule
from shardline.app.sql.kept_aggregates import refusal
from shardline.app.sql.normal_form import normal_form
from shardline.app.sql.plan_tree import plan_tree
from shardline.app.sql.query_tree import QueryNode, query_tree
from shardline.app.sql.strategy import choose_strategy
from shardline.app.sql.touched_keys import Region, Regions, judge
from shardline.datasource.spark_native.java_names import read_sequence
from shardline.datasource.types.schema import DIFF, TS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ChangePlan", "NotIncremental", "StepPlan"]

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


class NotIncremental(Exception):
    """A view's change cannot be computed from these inputs' changes; why: its text."""


class StepPlan:
    """A view's change, where certain inputs have changed.

    Attributes:
        before: Names of inputs whose contents before a step are needed.
        by_key: True if keys that rows have changed of are computed anew.
    """

    def __init__(
        self,
        operators: Operators,
        root: Operator,
        columns: Mapping[str, StructType],
        numbers: Callable[[], Operator] | None = None,
    ) -> None:
        """The change is the rows of `root`; `columns` are those of each input's contents.

        Args:
            numbers: Makes rows with the numbers of rows of touched keys; None without such.
        """
        self._numbers = numbers
        self.by_key = numbers is not None
        self._operators = operators
        self._root = root
        self._columns = {name: _types(given) for name, given in columns.items()}
        leaves = set(root.leaves())
        self._changes = frozenset(leaf.name for leaf in leaves if not leaf.before)
        self.before = frozenset(leaf.name for leaf in leaves if leaf.before)

    def fits(self, contents: Mapping[str, DataFrame]) -> bool:
        """True if contents of inputs have the columns that the plan was made for."""
        return all(_types(frame.schema) == self._columns[name] for name, frame in contents.items())

    def over(
        self,
        session: SparkSession,
        changes: Mapping[str, DataFrame],
        contents: Mapping[str, DataFrame],
    ) -> DataFrame:
        """The view's change; nothing is run yet.

        Args:
            session: The one that the frames are of.
            changes: Changes of inputs in the step, with `_ts` and `_diff` as last columns.
            contents: Contents of the inputs in `before`, just before the step, if they fit.
        """
        return self._frame(session, self._root, changes, contents)

    def number_of_rows(
        self,
        session: SparkSession,
        changes: Mapping[str, DataFrame],
        contents: Mapping[str, DataFrame],
    ) -> int:
        """How many rows touched keys have at all of their times: a job. Args as of `over`."""
        assert self._numbers is not None
        numbers = self._frame(session, self._numbers(), changes, contents).collect()
        return sum(number for (number,) in numbers)

    def _frame(
        self,
        session: SparkSession,
        root: Operator,
        changes: Mapping[str, DataFrame],
        contents: Mapping[str, DataFrame],
    ) -> DataFrame:
        frames = {Leaf(name): changes[name] for name in self._changes}
        frames |= {Leaf(name, before=True): contents[name] for name in self.before}
        return self._operators.frame(session, root, frames)


class ChangePlan:
    """The plans of one query over changes, for inputs of certain columns.

    Attributes:
        columns: Columns of the query's result.
        states: States of the query's aggregates, each before those that read it.
    """

    def __init__(
        self, session: SparkSession, query: str, columns: Mapping[str, StructType]
    ) -> None:
        """Analyse the query.

        Args:
            session: The session in which the view runs.
            query: The view's query.
            columns: Columns of each input's changes: its own, then `_ts` and `_diff`.

        Raises:
            NotIncremental: The query needs more than changes, whichever input changes.
        """
        self._given = dict(columns)
        self._operators = ChangeOperators(session)
        self._joins = JoinRule(session, self._operators)
        self._contents = {name: type(given)(_visible(given)) for name, given in columns.items()}
        empty = {name: session.createDataFrame([], given) for name, given in self._contents.items()}
        result = analyse_query(session, query, empty)
        self.columns: StructType = result.schema
        analysed = plan_of(result)
        normal = normal_form(session, analysed)
        strategy, reason = choose_strategy(plan_tree(normal.toJSON()), judge(session, normal))
        if strategy == "recompute":
            raise NotIncremental(reason)
        if not depends_on_rows_alone(analysed):
            raise NotIncremental("an expression that is not deterministic")
        self._spark = session
        self._output = read_sequence(analysed.output())
        self.states: list[GroupState] = []
        groups = AggregateRule(session, self._operators)
        self._query = self._with_states(query_tree(normal), groups)
        below = [node for state in self.states for node in (state.source, state.anew)]
        self._regions = Regions(session, self._query, below=below).by_top
        self._touched = TouchedRule(session, groups.exact, self._operators)
        self._by_key: dict[Region, None] = {}
        """Regions that the plan being made computes by key."""
        self._contents |= {state.name: state.schema for state in self.states}
        self._contents[OUTPUT] = self.columns
        self._steps: dict[tuple[str, frozenset[str]], StepPlan | NotIncremental] = {}

    def _with_states(self, node: QueryNode, rule: AggregateRule) -> QueryNode:
        """A query that reads states in the place of aggregates; fills `states`."""
        if node.input or not node.inputs:
            return node
        children = tuple(self._with_states(child, rule) for child in node.children)
        inputs = frozenset[str]().union(*(child.inputs for child in children))
        above = replace(node, children=children, inputs=inputs)
        if node.kind != "Aggregate" or refusal(self._spark, node.plan):
            return above
        # No object has such a name.
        read, state = rule.split(above, f"state {len(self.states) + 1}")
        self.states.append(state)
        return read

    def fits(self, changes: Mapping[str, DataFrame]) -> bool:
        """True if the frames have the columns that the plan was made for."""
        return {name: frame.schema for name, frame in changes.items()} == self._given

    def step(self, changed: Collection[str]) -> StepPlan:
        """The plan of steps in which these inputs and states change, and no others.

        Raises:
            NotIncremental: The query needs more than their changes.
        """
        names = frozenset(changed)

        return self._kept_step("", names, lambda: self._root(names).operator)

    def _root(self, changed: frozenset[str]) -> Change:
        """The change of the query."""
        root = self._operators.project(self._output, self._change(self._query, changed))
        regions = [one for one in self._regions.values() if one.top.inputs & changed]
        for region in regions:
            if not region.decided:
                gone = self._touched.gone(
                    region, changed, self._change_of(changed), self._output, self.columns
                )
                root = self._operators.union([self._output, self._output], [root, gone])
        return self._touched.consolidated(root, self._output) if regions else root

    def _change_of(self, changed: frozenset[str]) -> Callable[[QueryNode], Change]:
        return lambda node: self._change(node, changed)

    def source_step(self, state: GroupState, changed: Collection[str]) -> StepPlan:
        """The same for what a state groups; see `step`."""
        names = frozenset(changed)
        return self._kept_step(
            state.name, names, lambda: self._change(state.source, names).operator
        )

    def anew_step(self, state: GroupState, changed: Collection[str]) -> StepPlan:
        """The change of a state, its groups computed anew from all of their rows; see `step`."""
        names = frozenset(changed)

        def root() -> Operator:
            change = self._change(state.anew, names)
            return self._touched.consolidated(change, state.anew.output).operator

        return self._kept_step(f"{state.name} anew", names, root)

    def source_contents(self, state: GroupState) -> StepPlan:
        """What a state groups, all of it before a step."""
        root = self._operators.plans.over(state.source, before=True)
        return StepPlan(self._operators.plans, root, self._contents)

    def _kept_step(
        self, name: str, changed: frozenset[str], root: Callable[[], Operator]
    ) -> StepPlan:
        key = (name, changed)
        if key not in self._steps:
            try:
                self._by_key.clear()
                made, regions = root(), tuple(self._by_key)
                numbers = partial(self._numbers, regions, changed) if regions else None
                self._steps[key] = StepPlan(self._operators.plans, made, self._contents, numbers)
            except NotIncremental as refused:
                self._steps[key] = refused
        found = self._steps[key]
        if isinstance(found, NotIncremental):
            raise found
        return found

    def _numbers(self, regions: Sequence[Region], changed: frozenset[str]) -> Operator:
        """The numbers of rows of touched keys, of these regions."""
        numbers = [
            number
            for region in regions
            for number in self._touched.number_of_rows(region, changed, self._change_of(changed))
        ]
        return Operator(self._operators.plans.union([one.plan for one in numbers]), tuple(numbers))

    def _anew(self, region: Region, changed: frozenset[str]) -> Change:
        """The change of a region, whose touched keys are computed anew."""
        self._by_key[region] = None
        return self._touched.change(region, changed, self._change_of(changed))

    def _change(self, node: QueryNode, changed: frozenset[str]) -> Change:
        """The change of an operator of the query, handing the two columns on.

        Raises:
            NotIncremental: It is not known, or needs more than changes.
        """
        made = self._operators
        if not node.inputs & changed:
            # The rows of a constant are in the view since it was computed for the first time.
            return made.nothing(node)
        if node.input:
            return made.input(node)
        region = self._regions.get(node)
        if node.kind == "Join" and (region is None or region.decided):
            return self._join(node, changed)
        if region is not None:
            return self._anew(region, changed)
        return self._linear(node, [self._change(child, changed) for child in node.children])

    def _join(self, node: QueryNode, changed: frozenset[str]) -> Change:
        try:
            return self._joins.change(node, changed, self._change_of(changed))
        except OneSided as refused:
            region = self._regions.get(node)
            if region is not None:
                return self._anew(region, changed)
            raise NotIncremental(str(refused)) from None

    def _linear(self, node: QueryNode, below: Sequence[Change]) -> Change:
        """The change of a linear operator over the changes `below` it."""
        made = self._operators
        if node.kind in _AS_BELOW:
            return made.over(node.plan, below, below[0].hidden)
        match node.kind:
            case "Sort":
                return below[0]  # a change has no order
            case "Project":
                return made.project(read_sequence(node.plan.projectList()), below[0])
            case "Expand":
                return made.expand(node.plan, below[0])
            case "Union":
                return made.union([child.output for child in node.children], below)
        raise NotIncremental(f"the operator {node.kind}")


def depends_on_rows_alone(plan: Any) -> bool:
    """True if no expression of a plan gives other values for the same row.

    An aggregate function over rows in no order may be called not deterministic, too: its result is
    never evaluated twice.
    """
    if bool(plan.deterministic()):
        return True
    mine = all(map(_is_of_row, read_sequence(plan.expressions())))
    return mine and all(map(depends_on_rows_alone, read_sequence(plan.children())))


def _is_of_row(expression: Any) -> bool:
    if bool(expression.deterministic()):
        return True
    below = read_sequence(expression.children())
    if str(expression.getClass().getSimpleName()) != "AggregateExpression":
        return any(not one.deterministic() for one in below) and all(map(_is_of_row, below))
    arguments = read_sequence(expression.aggregateFunction().children())
    return all(bool(one.deterministic()) for one in arguments)


def _types(columns: StructType) -> list[tuple[str, str]]:
    # Without nullability: contents and changes of one input may differ in it, and a union bears it.
    return [(field.name, field.dataType.simpleString()) for field in columns.fields]


def _visible(columns: StructType) -> list[Any]:
    return [field for field in columns.fields if field.name not in (TS, DIFF)]
