"""A change plan computes the change of a view from the changes of its inputs.

    plan = ChangePlan(session, query, columns)       Spark's plan of the query, made once
    step = plan.step({"orders"})                     for steps in which only `orders` changes
    step.before                                      inputs whose contents before a step it needs
    step.look_ups                                    inputs of which it needs the rows of some keys
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

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shardline.app.compute.view.aggregate_rule import GroupState
from shardline.app.compute.view.change_operators import Change, ChangeOperators, NotIncremental
from shardline.app.compute.view.choice_rule import ChoiceState, LimitState, ResultState
from shardline.app.compute.view.column_trace import ColumnTraces
from shardline.app.compute.view.concern import concerns
from shardline.app.compute.view.evaluation_order import EvaluationOrder, StateSource
from shardline.app.compute.view.first_look_up import first_look_up
from shardline.app.compute.view.first_rows_rule import FirstRowsState
from shardline.app.compute.view.join_change import JoinRule, OneSided
from shardline.app.compute.view.kept_plan import Leaf, Operator, Operators, plan_of
from shardline.app.compute.view.look_up import FanOut, LookUp, LookUps, one_row
from shardline.app.compute.view.row_conditions import ConditionReader, Conditions
from shardline.app.compute.view.state_rules import State, StateRules
from shardline.app.compute.view.temporal_rule import TemporalState
from shardline.app.compute.view.touched_keys import OUTPUT, Shown, TouchedRule
from shardline.app.execution.spark_errors import error_line
from shardline.app.sql.first_of_key import FirstOfKey, find_first_of_keys
from shardline.app.sql.kept_aggregates import refusal
from shardline.app.sql.names_apart import with_names_apart
from shardline.app.sql.normal_form import normal_form
from shardline.app.sql.path_above import WITH_COLUMNS_BELOW
from shardline.app.sql.plan_tree import plan_tree
from shardline.app.sql.query_tree import QueryNode, query_tree
from shardline.app.sql.strategy import choose_strategy
from shardline.app.sql.touched_keys import Region, Regions
from shardline.datasource.errors import ShardError
from shardline.datasource.frames import (
    analyse_query,
    children_of,
    empty_frame,
    kind_of,
    number_of,
    read_sequence,
)
from shardline.datasource.schema import DIFF, TS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ChangePlan", "NotIncremental", "StepPlan"]

_STEPS_MAX: Final = 64
"""Plans of steps that a view keeps. There is one for each set of inputs that change together: as
many sets as a view over a dozen inputs has would fill the JVM's memory, and few occur again."""

_AS_BELOW: Final = WITH_COLUMNS_BELOW - {"Sort"}
"""Operators that are taken over changes as they are: a change has no order."""


class StepPlan:
    """A view's change, where certain inputs have changed.

    Attributes:
        changed: Names of inputs and states whose changes are needed.
        before: Names of inputs whose contents before a step are needed, all of them.
        look_ups: Those of which only some rows are needed, each after those it needs.
        columns: The columns of the contents of each input.
        numbers: Makes the plan of the numbers of rows of touched keys, which looks nothing up; None
            where no keys are computed anew.
    """

    def __init__(
        self,
        operators: Operators,
        root: Operator,
        columns: Mapping[str, StructType],
        look_ups: Sequence[LookUp] = (),
        numbers: Callable[[], StepPlan] | None = None,
    ) -> None:
        """The change is the rows of `root`; `columns` are those of each input's contents."""
        self._operators = operators
        self._root = root
        self.columns = columns
        self._types = {name: _types(given) for name, given in columns.items()}
        leaves = set(root.leaves())
        self.changed = frozenset(leaf.name for leaf in leaves if not leaf.before)
        self.before = frozenset(leaf.name for leaf in leaves if leaf.before and not leaf.place)
        self.look_ups = tuple(look_ups)
        self.numbers = numbers

    def fits(self, contents: Mapping[str, DataFrame]) -> bool:
        """True if contents of inputs have the columns that the plan was made for."""
        return all(_types(frame.schema) == self._types[name] for name, frame in contents.items())

    def over(
        self,
        session: SparkSession,
        changes: Mapping[str, DataFrame],
        contents: Mapping[str, DataFrame],
        found: Mapping[Leaf, DataFrame] | None = None,
    ) -> DataFrame:
        """The view's change; nothing is run yet.

        Args:
            session: The one that the frames are of.
            changes: Changes of inputs in the step, with `_ts` and `_diff` as last columns.
            contents: Contents of the inputs in `before`, just before the step, if they fit.
            found: The rows of each of `look_ups`, or more of the same input; and those of what is
                in `before` and not in `contents`.
        """
        frames = {Leaf(name): changes[name] for name in self.changed} | dict(found or {})
        frames |= {Leaf(name, before=True): frame for name, frame in contents.items()}
        return self.over_leaves(session, frames)

    def over_leaves(self, session: SparkSession, frames: Mapping[Leaf, DataFrame]) -> DataFrame:
        """The view's change, from the rows of each leaf; nothing is run yet."""
        return self._operators.frame(session, self._root, frames)


class ChangePlan:
    """The plans of one query over changes, for inputs of certain columns.

    Attributes:
        columns: Columns of the query's result.
        query: The query in its normal form, without states.
        states: States of the query's aggregates, each before those that read it.
        contents: The query over contents of its states, and of inputs that it reads beside them.
        over_states: The same; None if it reads inputs.
        chooses: True if a state has rows that are no better than others that it has not
            (`choice_rule`).
    """

    def __init__(
        self,
        session: SparkSession,
        query: str,
        columns: Mapping[str, StructType],
        fan_out: FanOut = one_row,
    ) -> None:
        """Analyse the query.

        Args:
            session: The session in which the view runs.
            query: The view's query.
            columns: Columns of each input's changes: its own, then `_ts` and `_diff`.
            fan_out: By which the order is chosen in which inputs are looked up.

        Raises:
            NotIncremental: The query needs more than changes, whichever input changes.
        """
        self._columns = dict(columns)
        self._operators = ChangeOperators(session)
        self._joins = JoinRule(session, self._operators)
        self._contents = {name: type(given)(_visible(given)) for name, given in columns.items()}
        empty = {name: empty_frame(session, given) for name, given in self._contents.items()}
        result = analyse_query(session, query, empty)
        self.columns, analysed = result.schema, plan_of(result)
        normal = with_names_apart(session, normal_form(session, analysed))
        self.query = query_tree(normal)
        judged = Regions(session, self.query, lambda node: not refusal(session, node.plan))
        tree = plan_tree(normal.toJSON())
        strategy, reason = choose_strategy(tree, judged.verdicts())
        if strategy == "recompute":
            raise NotIncremental(reason)
        if not depends_on_rows_alone(analysed):
            raise NotIncremental("an expression that is not deterministic")
        self._output = read_sequence(analysed.output())
        self.states: list[State] = []
        self._order = EvaluationOrder(session)
        rules = StateRules(self._operators, self._order, judged, tree)
        self._query = self._with_states(self.query, rules)
        self.chooses = any(isinstance(state, ChoiceState) for state in self.states)
        below = [node for state in self.states for node in _below(state)]
        chosen = [state.source for state in self.states if isinstance(state, ResultState)]
        self._regions = Regions(session, self._query, below=below, chosen=chosen).by_top
        self._touched = TouchedRule(session, rules.exact, self._operators)
        self._by_key: dict[Region, None] = {}
        """Regions that the plan being made computes by key."""
        self._contents |= {state.name: state.schema for state in self.states}
        self._contents[OUTPUT] = self.columns
        self.contents = self._over_contents()
        is_over_states = self._query.inputs <= {state.name for state in self.states}
        self.over_states = self.contents if is_over_states else None
        self._steps: dict[tuple[str, frozenset[str]], StepPlan | str] = {}
        """By what changes: the plan, or why there is none."""
        trees = [self._query, *below]
        self._traces = ColumnTraces()
        self._reader = ConditionReader(session, self._traces, self._order)
        made_of = {state.name: _source_of(state) for state in self.states}
        self._first = dict.fromkeys(self._order.evaluated_first(self._query, made_of))
        """Operators whose conditions leave out no error of the query."""
        self._first_rows = {
            region: first_look_up(region.sources[0].node, found, self._traces, self._reader)
            for region, found in find_first_of_keys(trees, self._regions, self._first).items()
        }
        self._known = self._reader.known(self._first)
        self._known_inside: dict[Region, dict[QueryNode, Conditions]] = {}
        added_up = (
            column
            for region in self._regions.values()
            for source in region.sources
            for column in source.columns
        )
        self._concerns = concerns(trees, self._known, added_up)
        self._fan_out = fan_out

    def _with_states(self, node: QueryNode, rules: StateRules) -> QueryNode:
        """A query that reads states in the place of operators; fills `states`."""
        if node.input or not node.inputs:
            return node
        children = tuple(self._with_states(child, rules) for child in node.children)
        inputs = frozenset[str]().union(*(child.inputs for child in children))
        above = replace(node, children=children, inputs=inputs)
        # No object has such a name.
        split = rules.split(node, above, f"state {len(self.states) + 1}")
        if split is None:
            return above
        read, state = split
        self.states.append(state)
        return read

    def _over_contents(self) -> StepPlan:
        plans = self._operators.plans
        below = Change(plans.over(self._query, before=True), ())
        root = self._operators.project(self._output, below).operator
        return StepPlan(plans, root, self._contents)

    def fits(self, columns: Mapping[str, StructType]) -> bool:
        """True if changes have the columns that the plan was made for."""
        return columns == self._columns

    def columns_of(self, name: str) -> StructType:
        """Columns of the changes of an input."""
        return self._columns[name]

    def concerning(self, name: str, updates: pa.Table) -> pa.Table:
        """Of an input's updates those that can change what the query gives."""
        concern = self._concerns.get(name)
        return updates if concern is None else concern.of(updates)

    def columns_read(self, name: str) -> frozenset[str] | None:
        """Names of the columns of an input that the query reads; None for all."""
        concern = self._concerns.get(name)
        return None if concern is None else concern.columns

    def without_unread(self, name: str, rows: pa.Table) -> pa.Table:
        """Rows of an input without the values that the query does not read: its columns stay."""
        concern = self._concerns.get(name)
        return rows if concern is None else concern.without_unread(rows)

    def step(self, changed: Collection[str]) -> StepPlan:
        """The plan of steps in which these inputs and states change, and no others.

        Raises:
            NotIncremental: The query needs more than their changes.
        """

        def root(look_ups: LookUps) -> Operator:
            return self._root(look_ups).operator

        return self._kept_step("", frozenset(changed), root)

    def _root(self, look_ups: LookUps) -> Change:
        """The change of the query."""
        shown = Shown(OUTPUT, self._output, self.columns)
        return self._with_what_goes(self._query, look_ups, shown)

    def _with_what_goes(self, root: QueryNode, look_ups: LookUps, shown: Shown) -> Change:
        """The change of what is shown, with what was shown before for keys that are touched."""
        columns = shown.columns
        change = self._operators.project(columns, self._change(root, look_ups))
        regions = [one for one in self._regions_in(root) if one.top.inputs & look_ups.changed]
        for region in regions:
            if not region.decided:
                with look_ups.part(), look_ups.within(self._known_in(region)):
                    gone = self._touched.gone(region, look_ups, self._change_of(look_ups), shown)
                change = self._operators.union([columns, columns], [change, gone])
        return self._touched.consolidated(change, columns) if regions else change

    def _regions_in(self, node: QueryNode) -> Iterator[Region]:
        """The regions at and below an operator."""
        if node in self._regions:
            yield self._regions[node]
        for child in node.children:
            yield from self._regions_in(child)

    def _change_of(self, look_ups: LookUps) -> Callable[[QueryNode], Change]:
        return partial(self._change, look_ups=look_ups)

    def source_step(self, state: State, changed: Collection[str]) -> StepPlan:
        """The same for what a state is of; see `step`."""

        def root(look_ups: LookUps) -> Operator:
            if isinstance(state, ResultState):
                shown = Shown(state.name, state.source.output, state.schema)
                return self._with_what_goes(state.source, look_ups, shown).operator
            return self._change(state.source, look_ups).operator

        return self._kept_step(state.name, frozenset(changed), root)

    def anew_step(self, state: GroupState, changed: Collection[str]) -> StepPlan:
        """The change of a state, its groups computed anew from all of their rows; see `step`."""

        def root(look_ups: LookUps) -> Operator:
            change = self._change(state.anew, look_ups)
            return self._touched.consolidated(change, state.anew.output).operator

        return self._kept_step(f"{state.name} anew", frozenset(changed), root)

    def front_step(
        self, state: GroupState, function: str, column: str, changed: Collection[str]
    ) -> StepPlan:
        """Rows of what a state groups, as they were before a step: the first ones by a value.

        Together with the changes they have the least or greatest value of each group that changes,
        at each time. The plan has one look-up, and reads nothing else.

        Args:
            state: The state.
            function: `min` or `max`.
            column: Of the state's source: the value.
            changed: Names of the inputs and states that change.

        Raises:
            NotIncremental: These cannot be looked up.
        """

        def root(look_ups: LookUps) -> Operator:
            return self._front(state, function, column, look_ups)

        return self._kept_step(f"{state.name} {function} {column}", frozenset(changed), root)

    def _front(self, state: GroupState, function: str, column: str, look_ups: LookUps) -> Operator:
        source = state.source
        columns = {str(one.name()): one for one in source.output}
        keys = [one for name, one in columns.items() if name.startswith("k")]
        wanted = FirstOfKey(
            number=1,
            column=number_of(columns[column]),
            descends=function == "max",
            nulls_first=False,
        )
        first = first_look_up(source, wanted, self._traces, self._reader)
        # All rows count: what is known of rows that come to anything is said by the filters below.
        with look_ups.part(), look_ups.within({}):
            self._change(source, look_ups)
            leaves = look_ups.touched(source, keys, [(source, keys)], first)
        if not leaves or any(one.first is None for one in look_ups.ordered):
            raise NotIncremental("the first rows of a group cannot be looked up")
        return self._operators.plans.over(source, before=True, found=leaves)

    def source_contents(self, state: State) -> StepPlan:
        """What a state is of, all of it before a step."""
        root = self._operators.plans.over(state.source, before=True)
        return StepPlan(self._operators.plans, root, self._contents)

    def _kept_step(
        self, name: str, changed: frozenset[str], root: Callable[[LookUps], Operator]
    ) -> StepPlan:
        key = (name, changed)
        # Behind the others: the one that was not used for longest comes first.
        found = self._steps.pop(key, None)
        if found is None:
            look_ups = LookUps(changed, self._traces, self._known, self._fan_out)
            try:
                self._by_key.clear()
                made, regions = root(look_ups), tuple(self._by_key)
                numbers = partial(self._numbers, regions, changed) if regions else None
                found = StepPlan(
                    self._operators.plans, made, self._contents, look_ups.ordered, numbers
                )
            except NotIncremental as refused:
                found = str(refused)
            except (ShardError, OSError):
                raise  # of this moment: what is kept would refuse the next step, too
            except Exception as error:  # noqa: BLE001 - whatever it is, there is the other way
                found = error_line(error)
        self._steps[key] = found
        if len(self._steps) > _STEPS_MAX:
            del self._steps[next(iter(self._steps))]
        if isinstance(found, str):
            # Anew each time: an error that is raised again keeps the frames of all times before.
            raise NotIncremental(found)
        return found

    def _numbers(self, regions: Sequence[Region], changed: frozenset[str]) -> StepPlan:
        """The numbers of rows of touched keys, of these regions."""
        look_ups = LookUps(changed, self._traces, by_key=False)
        numbers = [
            number
            for region in regions
            for number in self._touched.number_of_rows(region, look_ups, self._change_of(look_ups))
        ]
        plans = self._operators.plans
        root = Operator(plans.union([one.plan for one in numbers]), tuple(numbers))
        return StepPlan(plans, root, self._contents)

    def _anew(self, region: Region, look_ups: LookUps) -> Change:
        """The change of a region, whose touched keys are computed anew."""
        self._by_key[region] = None
        with look_ups.part(), look_ups.within(self._known_in(region)):
            return self._touched.change(
                region, look_ups, self._change_of(look_ups), self._first_rows.get(region)
            )

    def _known_in(self, region: Region) -> dict[QueryNode, Conditions]:
        """What is known of rows inside of a region: by what it reads, and not by what reads it."""
        if region not in self._known_inside:
            inside = (
                node
                for source in region.sources
                for node in self._order.evaluated_first(source.node, {})
                if node in self._first
            )
            self._known_inside[region] = self._reader.known(inside)
        return self._known_inside[region]

    def _change(self, node: QueryNode, look_ups: LookUps) -> Change:
        """The change of an operator of the query, handing the two columns on.

        Raises:
            NotIncremental: It is not known, or needs more than changes.
        """
        made = self._operators
        if not node.inputs & look_ups.changed:
            # The rows of a constant are in the view since it was computed for the first time.
            return made.nothing(node)
        if node.input:
            look_ups.has_change_of(node)
            return made.input(node)
        region = self._regions.get(node)
        if node.kind == "Join" and (region is None or region.decided):
            return self._join(node, look_ups)
        if region is not None:
            return self._anew(region, look_ups)
        if node.kind == "Filter" and not self._has_region(node):
            joined = self._joins.filtered(node, look_ups, self._change_of(look_ups))
            if joined is not None:
                return joined
        return self._linear(node, [self._change(child, look_ups) for child in node.children])

    def _has_region(self, node: QueryNode) -> bool:
        """True if something below a node is computed anew by keys, and so not part of a join."""
        return node in self._regions or any(map(self._has_region, node.children))

    def _join(self, node: QueryNode, look_ups: LookUps) -> Change:
        region, by_key = self._regions.get(node), dict(self._by_key)
        try:
            with look_ups.undone_if_refused(OneSided, NotIncremental):
                return self._joins.change(node, look_ups, self._change_of(look_ups))
        except (OneSided, NotIncremental) as refused:
            # Refused may be a join below, which is in no region but this one.
            if region is None:
                raise NotIncremental(str(refused)) from None
        self._by_key = by_key
        return self._anew(region, look_ups)

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
    return mine and all(map(depends_on_rows_alone, children_of(plan)))


def _is_of_row(expression: Any) -> bool:
    if bool(expression.deterministic()):
        return True
    below = children_of(expression)
    if kind_of(expression) != "AggregateExpression":
        return any(not one.deterministic() for one in below) and all(map(_is_of_row, below))
    arguments = children_of(expression.aggregateFunction())
    return all(bool(one.deterministic()) for one in arguments)


def _below(state: State) -> tuple[QueryNode, ...]:
    """What a state is computed of."""
    return (state.source, state.anew) if isinstance(state, GroupState) else (state.source,)


def _source_of(state: State) -> StateSource:
    """What counts of a state where a filter above it may be taken below it."""
    source = state.source
    if isinstance(state, FirstRowsState | LimitState):
        return StateSource(source.children, (), filters=False)  # nothing goes below a LIMIT
    made = read_sequence(source.plan.projectList())
    if isinstance(state, TemporalState | ResultState):
        filters = isinstance(state, TemporalState)
        return StateSource(source.children, tuple(made), filters=filters)
    # Only what is said of the groups' keys goes below them.
    keys = tuple(one for one in made if one.name().startswith("k"))
    return StateSource(source.children, keys, filters=False)


def _types(columns: StructType) -> list[tuple[str, str]]:
    # Without nullability: contents and changes of one input may differ in it, and a union bears it.
    return [(field.name, field.dataType.simpleString()) for field in columns.fields]


def _visible(columns: StructType) -> list[Any]:
    return [field for field in columns.fields if field.name not in (TS, DIFF)]
