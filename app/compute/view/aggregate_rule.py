"""An aggregate becomes the reading of a state, and the state follows from what the aggregate reads.

    aggregate over X      becomes      results over buffers over the rows of a state
                                       and a state that groups X

What is above the aggregate reads the state as if it were an input: it has changes, and contents
before a step. So an aggregate may be anywhere in a query, below a join or below another aggregate,
and only rules for changes of rows are needed above it.

The results are Spark's own expressions, as they stand in the aggregate, over the values of the
functions; and each value is Spark's own `evaluateExpression` over the attributes in which the
function keeps what it has added up. Only the arithmetic of adding up is not Spark's function
(`accumulators`), and which rows are one session (`session_groups`).

Invariants:
    Attributes keep their ids: what refers to the aggregate's columns or its key need not change.
    A buffer has the type that the function gives it, or the aggregate is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import NullType, StructType

from shardline.app.compute.view.accumulators import Accumulators, GroupPrograms, group_programs
from shardline.app.compute.view.change_operators import ChangeOperators, NotIncremental
from shardline.app.compute.view.kept_plan import (
    KeptPlan,
    columns_of,
    plan_of,
    shared_plan,
    state_leaf,
)
from shardline.app.compute.view.session_groups import WINDOW, session_programs
from shardline.app.compute.view.view_columns import with_times
from shardline.app.sql.kept_aggregates import AggregateCall, aggregate_calls, is_of_session
from shardline.app.sql.plan_nodes import with_changed
from shardline.app.sql.query_tree import QueryNode, query_tree
from shardline.datasource.frames import analyse_query, empty_frame, kind_of, read_sequence, type_of
from shardline.datasource.java_names import java_class, scala_object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AggregateRule", "GroupState"]

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"

_EXACT_ARITHMETIC: Final = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
}
"""Settings in which a number that does not fit is an error, and no digit is dropped."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of one aggregate.

    Attributes:
        name: By which the query above reads it, as an input.
        source: What it groups: an operator with the columns `k1` … and `v1` … of `accumulators`,
            and `w` of `session_groups`.
        schema: Columns of the state.
        program: The SQL by which it is made of its source.
        anew: The state as an operator over its source, for groups of which it does not tell enough.
        extremes: The functions whose least or greatest values it has, and the columns of the source
            that these are of; none if `refreshed` is not there for it.
    """

    name: str
    source: QueryNode
    anew: QueryNode
    schema: StructType
    program: str
    _contents: KeptPlan
    _moved: KeptPlan
    _merged: KeptPlan
    _merged_found: KeptPlan
    _gone: KeptPlan | None
    extremes: tuple[tuple[str, str], ...] = ()
    _refreshed: KeptPlan | None = None

    @property
    def changes(self) -> StructType:
        """Columns of the state's changes."""
        return with_times(self.schema)

    @property
    def moved_columns(self) -> StructType:
        """Columns of what changes of its source add to each group."""
        return self._moved.columns

    def contents(self, session: SparkSession, rows: DataFrame, at: int) -> DataFrame:  # noqa: ARG002 - as of other states
        """The state over these rows of its source, at any time."""
        return self._contents.over(session, {"rows": rows})

    def moved(self, session: SparkSession, changes: DataFrame) -> DataFrame:
        """What changes of its source add to each group, at each time."""
        return self._moved.over(session, {"changes": changes})

    def merged(
        self, session: SparkSession, moved: DataFrame, state: DataFrame, *, found: bool
    ) -> DataFrame:
        """The state's change, with `_ts` and `_diff`; the frames are read more than once.

        Args:
            session: The one that the frames are of.
            moved: Rows of `moved`.
            state: The state before the step.
            found: True if it has little more than the groups that have moved.
        """
        merged = self._merged_found if found else self._merged
        return merged.over(session, {"moved": moved, "state": state})

    def refreshed(
        self, session: SparkSession, merged: Mapping[str, DataFrame], fronts: Sequence[DataFrame]
    ) -> DataFrame:
        """As `merged`, if groups may have lost a least or greatest value.

        Args:
            session: The one that the frames are of.
            merged: `moved` and `state`, with little more than its groups; and `changes` of its
                source.
            fronts: For each of `extremes` rows of the source before the step, among which the least
                or greatest value of each group is at each time, if the changes come to them.
        """
        assert self._refreshed is not None, self.name
        found = {f"front{place}": one for place, one in enumerate(fronts, 1)}
        return self._refreshed.over(session, {**merged, **found})

    def lost_extremes(
        self, session: SparkSession, moved: DataFrame, state: DataFrame
    ) -> DataFrame | None:
        """A row for each group of which only its rows tell what is left; args as of `merged`.

        Its least or greatest value may have gone, or a row within a session.

        None if nothing of the state can be lost in this way.
        """
        if self._gone is None:
            return None
        return self._gone.over(session, {"moved": moved, "state": state})


class AggregateRule:
    """Takes aggregates apart.

    Attributes:
        exact: A session in which a number that does not fit is an error.
    """

    def __init__(self, session: SparkSession, operators: ChangeOperators) -> None:
        """For the application of `session`."""
        self._spark = session
        self._operators = operators
        self._literals = scala_object(session, f"{_EXPRESSIONS}.Literal")
        self.exact = session.newSession()
        for name, value in _EXACT_ARITHMETIC.items():
            self.exact.conf.set(name, value)

    def split(self, node: QueryNode, name: str) -> tuple[QueryNode, GroupState]:
        """What an aggregate is over a state of this name, and that state.

        Args:
            node: An `Aggregate` that can be kept (`sql.kept_aggregates`).
            name: Names no input, and no other state.

        Raises:
            NotIncremental: A function keeps something else than this module knows of.
        """
        keys = _keys(node.plan)
        calls = aggregate_calls(node.plan)
        accumulators = [
            Accumulators(call.function, place, self._argument_type(call))
            for place, call in enumerate(calls, 1)
        ]
        named = _named(keys)
        of_sessions = WINDOW in named
        make_programs = session_programs if of_sessions else group_programs
        programs = make_programs(len(named) - of_sessions, accumulators)
        source = self._source(node.children[0], named, calls)
        state = self._state(name, source, programs)
        leaf = state_leaf(self.exact, state.name, state.schema)
        buffers = self._buffers(leaf, state.schema, named, [*zip(calls, accumulators, strict=True)])
        values = self._values(buffers, keys, calls)
        results = [self._result(one) for one in read_sequence(node.plan.aggregateExpressions())]
        return self._operators.plans.projected(results, values), state

    def _argument_type(self, call: AggregateCall) -> Any:
        if call.function == "count":
            return NullType()
        return type_of(call.arguments[0])

    # -- below the state ----------------------------------------------------------------------

    def _source(
        self, below: QueryNode, keys: Mapping[str, Any], calls: Sequence[AggregateCall]
    ) -> QueryNode:
        """The columns of which a state is made."""
        columns = [(key, name) for name, key in keys.items()]
        columns += [(self._value(call), f"v{place}") for place, call in enumerate(calls, 1)]
        return self._operators.plans.projected(
            [self._operators.named(one, name) for one, name in columns], below
        )

    def _value(self, call: AggregateCall) -> Any:
        """What a call is about at one row; NULL, or false, where its FILTER does not hold."""
        if call.function == "count":
            conditions = [self._expression("IsNotNull", one) for one in call.arguments]
            value, other = self._all(conditions), self._literals.FalseLiteral()
        else:
            (value,) = call.arguments
            other = self._literals.create(None, value.dataType())
        if call.condition is None:
            return value
        return self._expression("If", call.condition, value, other)

    def _all(self, conditions: Sequence[Any]) -> Any:
        found = self._literals.TrueLiteral()
        for condition in conditions:
            found = self._expression("And", found, condition)
        return found

    def _state(self, name: str, source: QueryNode, programs: GroupPrograms) -> GroupState:
        session = self.exact
        rows = columns_of(source.plan)
        changes = with_times(rows)
        contents = shared_plan(session, programs.contents, {"rows": rows})
        moved = shared_plan(session, programs.moved, {"changes": changes})
        state = contents.columns
        both = {"moved": moved.columns, "state": state}
        merged = shared_plan(session, programs.merged, both)
        found = shared_plan(session, programs.merged_found, both)
        gone = shared_plan(session, programs.gone, both) if programs.gone else None
        kept = tuple((function, f"v{there[1:]}") for function, there, _ in programs.extremes)
        refreshed = None
        if programs.refreshed:
            fronts = {f"front{place}": rows for place, _ in enumerate(kept, 1)}
            tables = {**both, "changes": changes, **fronts}
            refreshed = shared_plan(session, programs.refreshed, tables)
        empty = {"rows": empty_frame(session, rows)}
        program = query_tree(plan_of(analyse_query(session, programs.contents, empty)))
        anew = self._placed(program, source)
        return GroupState(
            name,
            source,
            anew,
            state,
            programs.contents,
            contents,
            moved,
            merged,
            found,
            gone,
            kept,
            refreshed,
        )

    def _placed(self, node: QueryNode, source: QueryNode) -> QueryNode:
        """A query over one table, with the rows of `source` as that table."""
        if node.input:
            pairs = zip(source.output, node.output, strict=True)
            columns = [self._operators.named(one, own.name(), own.exprId()) for one, own in pairs]
            return self._operators.plans.projected(columns, source)
        children = tuple(self._placed(child, source) for child in node.children)
        return replace(node, children=children, inputs=source.inputs)

    # -- above it -----------------------------------------------------------------------------

    def _buffers(
        self,
        leaf: QueryNode,
        schema: StructType,
        keys: Mapping[str, Any],
        calls: Sequence[tuple[AggregateCall, Accumulators]],
    ) -> QueryNode:
        """The key, and the attributes in which Spark's functions keep what they add up."""
        wanted = [*keys.values()]
        texts = [*keys]
        for call, kept in calls:
            attributes = read_sequence(call.call.aggregateFunction().aggBufferAttributes())
            given = kept.buffers()
            if len(attributes) != len(given):
                raise NotIncremental(
                    f"{call.function} keeps {len(attributes)} values in this Spark"
                )
            wanted += attributes
            texts += [
                f"CAST({text} AS {attribute.dataType().sql()})"
                for text, attribute in zip(given, attributes, strict=True)
            ]
        if not wanted:
            return leaf
        named = ", ".join(f"{text} AS b{place}" for place, text in enumerate(texts))
        empty = {"state": empty_frame(self.exact, schema)}
        text = f"SELECT {named} FROM state"  # noqa: S608 - our own names
        below = _over(query_tree(plan_of(analyse_query(self.exact, text, empty))), leaf)
        columns = [
            self._operators.named(found, attribute.name(), attribute.exprId())
            for found, attribute in zip(below.output, wanted, strict=True)
        ]
        return self._operators.plans.projected(columns, below)

    def _values(
        self, buffers: QueryNode, keys: Sequence[Any], calls: Sequence[AggregateCall]
    ) -> QueryNode:
        """The key, and the values of the functions."""
        values = []
        for call in calls:
            result = call.call.resultAttribute()
            value = call.call.aggregateFunction().evaluateExpression()
            values.append(self._operators.named(value, result.name(), result.exprId()))
        return self._operators.plans.projected([*keys, *values], buffers)

    def _result(self, expression: Any) -> Any:
        """An expression of the aggregate's results over the values of the functions."""
        if kind_of(expression) == "AggregateExpression":
            return expression.resultAttribute()
        return with_changed(self._spark, expression, self._result)

    def _expression(self, name: str, *fields: Any) -> Any:
        return java_class(self._spark, f"{_EXPRESSIONS}.{name}")(*fields)


def _keys(aggregate: Any) -> list[Any]:
    """The attributes that an aggregate groups by, each once; a constant is the same in all."""
    found = {
        int(key.exprId().id()): key
        for key in read_sequence(aggregate.groupingExpressions())
        if not key.foldable()
    }
    return list(found.values())


def _named(keys: Sequence[Any]) -> dict[str, Any]:
    """What an aggregate groups by, under the names of a state's columns."""
    numbers = count(1)
    return {WINDOW if is_of_session(key) else f"k{next(numbers)}": key for key in keys}


def _over(node: QueryNode, leaf: QueryNode) -> QueryNode:
    """A query over one table, with `leaf` in the place of that table."""
    if node.input:
        return replace(node, input=leaf.input, inputs=leaf.inputs)
    children = tuple(_over(child, leaf) for child in node.children)
    return replace(node, children=children, inputs=leaf.inputs)
