"""Makes a view's plan: each operator of its query with the rule by which it is kept.

    plan_view(session, "busy", query, {"orders": columns})      a `ViewPlan`

The query is brought into the form in which it is kept, and each of its operators is asked for its
rule; then a step is planned for each input that may change, as a view does when it runs: what that
looks up, reads whole or refuses is what the plan says. So nothing is told that is not done.

Invariants:
    Nothing is run, no data is read, and nothing is left in the session.
    Operators are judged by the rules that keep the view: `touched_keys`, `kept_aggregates` and
    `strategy`. A query that cannot be planned over changes is one that is recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from shardline.app.compute.view.change_plan import ChangePlan, NotIncremental, StepPlan
from shardline.app.compute.view.choice_rule import ChoiceState, LimitState
from shardline.app.compute.view.kept_plan import plan_of
from shardline.app.compute.view.state_rules import needed_rows
from shardline.app.compute.view.temporal_rule import DUE
from shardline.app.compute.view.touched_keys import OUTPUT
from shardline.app.compute.view.view_columns import with_times
from shardline.app.execution.spark_errors import error_line
from shardline.app.protocol.objects import Strategy, state_shards
from shardline.app.protocol.view_plan import (
    LookUpPlan,
    QueryOperator,
    StatePlan,
    ViewPlan,
    WholeRead,
)
from shardline.app.sql.kept_aggregates import aggregate_expressions, refusal
from shardline.app.sql.normal_form import normal_form
from shardline.app.sql.plan_tree import plan_tree
from shardline.app.sql.query_tree import QueryNode, join_kind, query_tree
from shardline.app.sql.strategy import (
    CONSTANT,
    JOIN_SIDES,
    LIMITS,
    LINEAR,
    REASONS,
    choose_strategy,
)
from shardline.app.sql.temporal_filters import split_condition
from shardline.app.sql.touched_keys import Region, Regions
from shardline.datasource.frames import (
    analyse_query,
    as_active,
    clone_of,
    empty_frame,
    kind_of,
    read_sequence,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["plan_view"]

_UNSEEN: Final = frozenset({"LocalLimit", "PipeOperator", "ResolvedHint", "SubqueryAlias"})
"""Operators that do nothing to rows, or what the one above them does."""

_COMMON: Final = "commonexpressionref"
_TIME: Final = "the time"
_NEXT: Final = "the second of its next change"
_TIMED_ROWS: Final = "a row for each one that is there for a time, or will be"
_UNNAMED: Final = "__auto_generated_subquery_name"


def plan_view(
    spark: SparkSession, view: str, query: str, columns: Mapping[str, StructType]
) -> ViewPlan:
    """The plan of a view.

    Args:
        spark: A session like the one that the view runs in: its settings decide what it means.
        view: Name of the view.
        query: Its query, over inputs by their names.
        columns: Columns of each input's contents.

    Raises:
        AnalysisException: Spark refuses the query.
    """
    # A copy, where no temporary view of somebody else has the name of an input.
    session = clone_of(spark)
    with as_active(session):
        return _planned(session, view, query, columns)


def _planned(
    session: SparkSession, view: str, query: str, columns: Mapping[str, StructType]
) -> ViewPlan:
    empty = {name: empty_frame(session, given) for name, given in columns.items()}
    normal = normal_form(session, plan_of(analyse_query(session, query, empty)))
    tree = query_tree(normal)
    regions = Regions(session, tree, lambda node: not refusal(session, node.plan))
    nodes = plan_tree(normal.toJSON())
    strategy, reason = choose_strategy(nodes, regions.verdicts())
    changes = _changes(session, query, columns) if strategy != "recompute" else None
    if isinstance(changes, NotIncremental):
        strategy, reason, changes = "recompute", str(changes), None
    operators = _Operators(session, view, strategy, regions, needed_rows(regions, nodes))
    listed = tuple(operators.of(tree))
    states = tuple(operators.states) if changes is not None else ()
    found = _Steps(view, tuple(columns), changes, states)
    return ViewPlan(
        view=view,
        strategy=strategy,
        reason=reason,
        inputs=tuple(columns),
        operators=listed,
        states=states,
        look_ups=found.look_ups(),
        whole_reads=found.whole_reads(),
        recomputed=tuple(found.recomputed.items()),
    )


def _changes(
    session: SparkSession, query: str, columns: Mapping[str, StructType]
) -> ChangePlan | NotIncremental:
    changes = {name: with_times(given) for name, given in columns.items()}
    try:
        return ChangePlan(session, query, changes)
    except NotIncremental as refused:
        return refused
    except Exception as error:  # noqa: BLE001 - as `ChangeQuery`: there is the other way
        return NotIncremental(error_line(error))


# -- operators -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Operators:
    """Gives each operator of a query its rule.

    Attributes:
        needed: How many rows are needed of each order and LIMIT that is a state.
        states: Those of the operators so far, in the order in which a view keeps them.
    """

    spark: SparkSession
    view: str
    strategy: Strategy
    regions: Regions
    needed: Mapping[QueryNode, int]
    states: list[StatePlan] = field(default_factory=list)
    _state_of: dict[QueryNode, StatePlan] = field(default_factory=dict)
    _region_of: dict[QueryNode, Region] = field(default_factory=dict)
    _results_of: dict[Region, StatePlan] = field(default_factory=dict)

    def of(self, root: QueryNode) -> Iterator[QueryOperator]:
        """The operators of a query, from the last one on."""
        for region in self.regions.by_top.values():
            self._region_of |= dict.fromkeys(region.nodes, region)
        self._number_states(root)
        yield from self._walk(root, 0, over_states=self._reads_states_only(root))

    def _number_states(self, node: QueryNode) -> None:
        """States have numbers from the inputs on, as `ChangePlan` makes them."""
        for child in node.children:
            self._number_states(child)
        if not self._is_kept(node):
            return
        place = len(self.states)
        names = state_shards(self.view)
        if place < len(names):
            state = self._state(node, names[place])
            self.states.append(state)
            if node in self.regions.choices:
                self._results_of[self.regions.choices[node].region] = state
            else:
                self._state_of[node] = state

    def _state(self, node: QueryNode, shard: str) -> StatePlan:
        if node in self.regions.choices:
            key = ", ".join(_text(one) for one in self.regions.choices[node].keys)
            return StatePlan(shard=shard, rows=f"the rows that were given for each {key}")
        if self._is_temporal(node):
            return StatePlan(shard=shard, key=(DUE,), rows=_TIMED_ROWS)
        if node.kind == "Sort":
            needed = self.needed[node]
            return StatePlan(shard=shard, rows=f"the first rows, of which {needed} are needed")
        if node.kind in LIMITS:
            return StatePlan(shard=shard, rows="the rows that a LIMIT lets through")
        keys = read_sequence(node.plan.groupingExpressions())
        return StatePlan(shard=shard, key=tuple(_text(one) for one in keys if not one.foldable()))

    def _is_kept(self, node: QueryNode) -> bool:
        if node in self.regions.choices or self._is_temporal(node) or node in self.needed:
            return True
        return node.kind == "Aggregate" and bool(node.inputs) and not refusal(self.spark, node.plan)

    def _is_temporal(self, node: QueryNode) -> bool:
        if node.kind != "Filter" or not node.inputs:
            return False
        return split_condition(self.spark, node.plan.condition()) is not None

    def _reads_states_only(self, node: QueryNode) -> bool:
        if self._is_kept(node) or not node.inputs:
            return True
        return not node.input and all(map(self._reads_states_only, node.children))

    def _walk(self, node: QueryNode, depth: int, *, over_states: bool) -> Iterator[QueryOperator]:
        shown = _is_shown(node)
        if shown:
            rule, obstacle = self._rule(node)
            if obstacle and over_states and self.strategy != "recompute":
                rule, obstacle = f"run anew over the states at each change ({obstacle})", ""
            elif obstacle:
                rule = f"cannot follow: {obstacle}"
            yield QueryOperator(depth=depth, text=_described(node), rule=rule, obstacle=obstacle)
        below = over_states and not self._is_kept(node)
        for child in node.children:
            yield from self._walk(child, depth + shown, over_states=below)

    def _rule(self, node: QueryNode) -> tuple[str, str]:
        """How an operator's change is computed; and why it cannot be, or ""."""
        if not node.inputs or node.input:
            return "its changes" if node.input else "rows that never change", ""
        if read_sequence(node.plan.subqueries()):
            return "", "a subquery in an expression"
        region, state = self._region_of.get(node), self._state_of.get(node)
        if region is not None or state is not None:
            kept = "" if state is None else f"added up in {state.shard}"
            if state is not None and node.kind in LIMITS:
                kept = f"run anew over the first rows, and compared with {state.shard}"
            elif state is not None and node.kind == "Sort":
                kept = f"{state.shard} has the rows in front, and some to spare"
            elif state is not None and state.rows:
                kept = f"rows come and go at their own times, which {state.shard} keeps"
            return kept if region is None else self._by_key(region), ""
        return self._rule_of_kind(node)

    def _by_key(self, region: Region) -> str:
        keys = ", ".join(_text(one) for one in region.sources[0].keys)
        results = self._results_of.get(region)
        there = "the view" if results is None else results.shard
        shown = "" if region.decided else f"; what was shown is taken from {there}"
        return f"touched keys: anew for each {keys} that changes{shown}"

    def _rule_of_kind(self, node: QueryNode) -> tuple[str, str]:
        match node.kind:
            case "Aggregate":
                return "", _why_not_kept(node, refusal(self.spark, node.plan))
            case "Window" if self.regions.refused.get(node):
                return "", self.regions.refused[node]
            case "Window":
                return "", _WINDOW if read_sequence(node.plan.partitionSpec()) else _WITHOUT_KEY
            case "Join":
                return _join_rule(node)
            case kind if kind in LINEAR | CONSTANT:
                return "left out: a view has no order" if kind == "Sort" else "row by row", ""
        return "", REASONS.get(node.kind, f"the operator {node.kind}")


_WITHOUT_KEY: Final = "a window over all rows, without PARTITION BY"
_WINDOW: Final = "a window whose PARTITION BY has no key of rows"
_JOIN: Final = "a join without an equality by which its sides meet"


def _why_not_kept(node: QueryNode, refused: str) -> str:
    """Why an aggregate is neither added up nor computed anew by key."""
    if not read_sequence(node.plan.groupingExpressions()):
        return f"{refused}, and there is no GROUP BY by which it could be computed anew"
    return (
        f"{refused}, which is no key of rows"
        if refused.startswith("groups by ")
        else (f"{refused}, and nothing that it groups by is a key of rows")
    )


def _join_rule(node: QueryNode) -> tuple[str, str]:
    kind = join_kind(node)
    if kind in {"Inner", "Cross"}:
        return "the change of each side, joined with the other side", ""
    side = JOIN_SIDES.get(kind)
    if side is None:
        return "", _JOIN
    return f"the change of its {side} side, joined with the other one", ""


def _is_shown(node: QueryNode) -> bool:
    """False of operators that leave rows as they are, or choose columns of them."""
    if node.kind == "Project":
        columns = read_sequence(node.plan.projectList())
        return any(not _is_column(one) for one in columns)
    return node.kind not in _UNSEEN


def _is_column(expression: Any) -> bool:
    kind = kind_of(expression)
    if kind == "Alias":
        kind = kind_of(expression.child())
    return kind == "AttributeReference"


def _described(node: QueryNode) -> str:
    """An operator in a line: its kind, and what tells it from others of this kind."""
    told = _TOLD.get(node.kind)
    return node.input or (node.kind if told is None else f"{node.kind} {told(node)}")


def _partitions(node: QueryNode) -> str:
    keys = ", ".join(_text(one) for one in read_sequence(node.plan.partitionSpec()))
    return f"by {keys}" if keys else "over all rows"


def _join(node: QueryNode) -> str:
    condition = node.plan.condition()
    on = f" on {_condition(condition.get())}" if condition.isDefined() else ""
    return f"{join_kind(node)}{on}"


def _computed(node: QueryNode) -> str:
    columns = read_sequence(node.plan.projectList())
    return ", ".join(str(one.name()) for one in columns if not _is_column(one))


def _groups(node: QueryNode) -> str:
    keys = ", ".join(_text(one) for one in read_sequence(node.plan.groupingExpressions()))
    calls = aggregate_expressions(node.plan)
    names = dict.fromkeys(str(one.aggregateFunction().prettyName()) for one in calls)
    functions = f" ({', '.join(names)})" if names else ""
    return f"by {keys}{functions}" if keys else f"of all rows{functions}"


_TOLD: Final = {
    "Aggregate": _groups,
    "Filter": lambda node: _condition(node.plan.condition()),
    "Generate": lambda node: _text(node.plan.generator()),
    "Join": _join,
    "Project": _computed,
    "Window": _partitions,
}
"""What tells an operator from others of its kind."""


def _condition(expression: Any) -> str:
    """A condition as SQL, without brackets around all of it."""
    text = _text(expression)
    if _COMMON in text:
        # What `x BETWEEN …` becomes names its parts by numbers: say what it is about instead.
        columns = read_sequence(expression.references().toSeq())
        return f"of {', '.join(dict.fromkeys(str(one.name()) for one in columns))}"
    return text


def _text(expression: Any) -> str:
    """An expression as SQL; names need no quotes to be read, nor those that Spark has given."""
    return str(expression.sql()).replace("`", "").replace(f"{_UNNAMED}.", "")


# -- steps ---------------------------------------------------------------------------------------


class _Steps:
    """What steps need, for each input that may change.

    Attributes:
        recomputed: Inputs at whose change the query is run anew, with the reason.
    """

    def __init__(
        self,
        view: str,
        inputs: tuple[str, ...],
        changes: ChangePlan | None,
        states: tuple[StatePlan, ...],
    ) -> None:
        """Plan a step for each input alone: nothing is needed for two that neither needs."""
        self._found: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}
        self._first: dict[tuple[str, tuple[str, ...]], set[int]] = {}
        self._whole: dict[str, dict[str, None]] = {}
        self.recomputed: dict[str, str] = {}
        self._names = {OUTPUT: view}
        self._keys = {one.shard: one.key for one in states}
        self._columns: dict[str, dict[str, str]] = {}
        if changes is None:
            return
        for one, kept in zip(changes.states, states, strict=True):
            self._names[one.name] = kept.shard
            if isinstance(one, ChoiceState):
                self._columns[kept.shard] = _in_words(one)
        for name in inputs:
            try:
                self._plan(changes, name)
            except NotIncremental as refused:
                if changes.over_states is None:
                    self.recomputed[name] = str(refused)

    def look_ups(self) -> tuple[LookUpPlan, ...]:
        return tuple(
            LookUpPlan(
                shard=shard,
                columns=self._spoken(shard, columns),
                arranged_by=columns,
                changes=tuple(changes),
                # Where two steps look differently: all of what one of them needs.
                first=0 if 0 in self._first[shard, columns] else max(self._first[shard, columns]),
            )
            for (shard, columns), changes in self._found.items()
        )

    def whole_reads(self) -> tuple[WholeRead, ...]:
        return tuple(
            WholeRead(shard=shard, changes=tuple(changes)) for shard, changes in self._whole.items()
        )

    def _plan(self, changes: ChangePlan, name: str) -> None:
        changed = {name}
        for state in changes.states:
            moved = changed & state.source.inputs
            if moved:
                if isinstance(state, LimitState):
                    # It has no plan over changes: it is compared with the first rows, of which few
                    # are needed.
                    changed.add(state.name)
                    continue
                self._add(changes.source_step(state, moved), name)
                shard = self._names[state.name]
                key = tuple(f"k{place}" for place, _ in enumerate(self._keys[shard], 1))
                if self._keys[shard] == (DUE,):
                    self._note(shard, (DUE,), _TIME)
                elif key:
                    self._note(shard, key, name)
                changed.add(state.name)
        self._add(changes.step(changed), name)

    def _add(self, step: StepPlan, name: str) -> None:
        for one in step.look_ups:
            first = 0 if one.first is None else one.first.number
            self._note(self._names.get(one.leaf.name, one.leaf.name), one.key, name, first)
        for read in sorted(step.before):
            self._whole.setdefault(self._names.get(read, read), {})[name] = None

    def _note(self, shard: str, columns: tuple[str, ...], name: str, first: int = 0) -> None:
        self._found.setdefault((shard, columns), {})[name] = None
        self._first.setdefault((shard, columns), set()).add(first)

    def _spoken(self, shard: str, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Columns of a shard in the query's words: those of a state are called `k1` …."""
        key = {f"k{place}": text for place, text in enumerate(self._keys.get(shard, ()), 1)}
        key |= {DUE: _NEXT, **self._columns.get(shard, {})}
        return tuple(key.get(one, one) for one in columns)


def _in_words(state: ChoiceState) -> dict[str, str]:
    """The columns of a state by their names there, in the query's words."""
    columns = read_sequence(state.source.plan.projectList())
    return {str(one.name()): _text(one.child()) for one in columns}
