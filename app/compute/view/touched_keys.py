"""Touched keys: the change of a region of a query comes from the rows of those keys that changed.

A region (`sql.touched_keys`) is operators that are a function of all rows of a key over what they
read, its sources. Where rows of a source have changed, the region is computed anew for their keys,
at each time at which they did, and nothing else of it is:

    T   = the keys that changed, each at each of its times;  next = the next time of the same key
    X   = T ⋈ H(S) on the key, and row._ts <= T.time: the rows of each key at each of its times
    O'  = the region over X, with T.time as one more column to group, partition or join by
    ΔO  = each row of O' twice: it comes at T.time, and goes at `next` if there is one

What a region gave before the step goes at the first time of its key. It is evaluated with the rest,
at the time BEFORE, if the region's results are decided to the last bit. Of any other it is taken
from what the view has shown, or from a state of the region's own results, which is right whatever
made it so: no order is completed, and of rows that tie any answer of Spark's stays until its key is
touched again.

Rows are added up as row keys, as a shard compares them (`correction`), and repeated by their diffs.

Invariants:
    Every expression of the query is the one of its analysed plan; one more column goes through.
    A row that comes and goes in one step is evaluated once.
    A sum of diffs below 0, or one that is too large to be repeated, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import LongType, StructField, StructType

from shardline.app.compute.view.accumulators import BEFORE, NEGATIVE, same_key
from shardline.app.compute.view.change_operators import Change, ChangeOperators
from shardline.app.compute.view.correction import correction_frame
from shardline.app.compute.view.kept_plan import Leaf, Operator, columns_of, plan_of
from shardline.app.compute.view.look_up import LookUps
from shardline.app.sql.query_tree import QueryNode, join_kind, query_tree
from shardline.app.sql.touched_keys import Region, Source
from shardline.datasource.frames import analyse_query, empty_frame, read_sequence
from shardline.datasource.java_names import java_class, scala_object
from shardline.datasource.schema import DIFF, TS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shardline.app.compute.view.first_look_up import FirstLookUp

__all__ = ["OUTPUT", "Shown", "TouchedRule"]

OUTPUT: Final = "the output"
"""Names, as an input, what the view has shown before the step; no object has such a name."""

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"
_COPIES_MAX: Final = 1_000_000
"""More rows are not made of one: the step is recomputed."""

_AT, _NEXT = "_at", "_next"
_SPANS: Final = StructType(
    [StructField(_AT, LongType(), nullable=False), StructField(_NEXT, LongType())]
)

ChangeOf = Callable[["QueryNode"], Change]
"""The change of an operator of the query."""


@dataclass(frozen=True, slots=True)
class _Keyed:
    """An operator over the rows of touched keys.

    Attributes:
        operator: Returns the columns of the query's operator, and perhaps others.
        at: The column of the time of which its rows are.
        next: That of the next time of their key.
    """

    operator: Operator
    at: Any
    next: Any


@dataclass(frozen=True, slots=True)
class Shown:
    """What has been shown of a query, or of a part of it that is a state.

    Attributes:
        name: Names it, as an input.
        columns: Its columns.
        schema: The same, with their types.
    """

    name: str
    columns: Sequence[Any]
    schema: StructType


class TouchedRule:
    """Makes the changes of regions."""

    def __init__(
        self, session: SparkSession, exact: SparkSession, operators: ChangeOperators
    ) -> None:
        """For the application of `session`; `exact` raises where a number does not fit."""
        self._spark = session
        self._exact = exact
        self._operators = operators

    def change(
        self,
        region: Region,
        look_ups: LookUps,
        change_of: ChangeOf,
        first: FirstLookUp | None = None,
    ) -> Change:
        """The change of a region; of one that is not decided, without what goes first (`gone`).

        Args:
            region: The region.
            look_ups: Those of the plan, with the names of inputs that have changed.
            change_of: The rule for what it reads.
            first: Which rows of its one source are needed of each key; None for all.
        """
        changes = _changes(region, look_ups.changed, change_of)
        moved = self._moved(region, changes)
        touched = self._touched(region, moved, before=region.decided)
        over = {
            source.node: self._consolidated_rows(
                source,
                self._rows(
                    source,
                    changes.get(source.node),
                    moved,
                    touched,
                    look_ups.touched(source.node, source.keys, _keyed(region, changes), first),
                ),
            )
            for source in region.sources
        }
        return self._coming_and_going(self._rebuilt(region.top, over))

    def number_of_rows(
        self, region: Region, look_ups: LookUps, change_of: ChangeOf
    ) -> list[Operator]:
        """How many rows a region's change is computed from; numbers to be added up.

        Args and meaning as of `change`: rows of touched keys, as often as their keys have times.
        """
        changes = _changes(region, look_ups.changed, change_of)
        moved = self._moved(region, changes)
        touched = self._touched(region, moved, before=region.decided)
        return [
            self._program(
                "SELECT count(*) AS n FROM rows",
                {"rows": self._rows(source, changes.get(source.node), moved, touched, {})},
            )
            for source in region.sources
        ]

    def gone(
        self,
        region: Region,
        look_ups: LookUps,
        change_of: ChangeOf,
        shown: Shown,
    ) -> Change:
        """What has been shown for keys that have changed, going at the first of their times.

        Args:
            region: One that is not decided.
            look_ups: Those of the plan, with the names of inputs that have changed.
            change_of: The rule for what it reads.
            shown: Where it has been shown.
        """
        changes = _changes(region, look_ups.changed, change_of)
        moved = self._moved(region, changes)
        touched = self._touched(region, moved, before=False)
        names = [shown.schema.names[place] for place in region.shown]
        leaf = look_ups.from_output(shown.name, names, _keyed(region, changes))
        empty = empty_frame(self._exact, shown.schema)
        there = Operator(
            self._operators.plans.empty(read_sequence(plan_of(empty).output())), (), leaf
        )
        held = read_sequence(there.plan.output())
        wanted = [held[place] for place in region.shown]
        names = [f"c{place}" for place in range(len(held))]
        keys = _names("k", wanted)
        given = self._named(
            [*zip(wanted, keys, strict=True), *zip(held, names, strict=True)], there
        )
        same = same_key("held", "first", keys)
        text = (
            f"SELECT {_listed('held', names)}, first.{_AT} AS {TS}, -1L AS {DIFF} FROM held "  # noqa: S608
            f"JOIN (SELECT {', '.join(keys)}, min({_AT}) AS {_AT} FROM touched "
            f"GROUP BY {', '.join(keys)}) first ON {same}"
        )
        found = self._program(text, {"held": given, "touched": touched})
        return self._renamed(found, shown.columns)

    def consolidated(self, change: Change, columns: Sequence[Any]) -> Change:
        """A change whose rows that come and go at one time are added up."""
        names = _names("c", columns)
        given = self._named(
            [*zip(columns, names, strict=True), *zip(change.hidden, (TS, DIFF), strict=True)],
            change.operator,
        )
        text = f"SELECT {', '.join(names)}, {TS}, {DIFF} FROM given"  # noqa: S608
        found = self._program(text, {"given": given}, lambda frame: correction_frame(frame, None))
        return self._renamed(found, columns)

    # -- below the region ------------------------------------------------------------------------

    def _moved(self, region: Region, changes: Mapping[QueryNode, Change]) -> Operator:
        """The keys of all rows that change, and the times: `k0` …, `_ts`."""
        keys = _names("k", region.sources[0].keys)
        given = [
            self._named(
                [*zip(source.keys, keys, strict=True), (changes[source.node].hidden[0], TS)],
                changes[source.node].operator,
            )
            for source in region.sources
            if source.node in changes
        ]
        if len(given) == 1:
            return given[0]
        return Operator(self._operators.plans.union([one.plan for one in given]), tuple(given))

    def _touched(self, region: Region, moved: Operator, *, before: bool) -> Operator:
        """Each key that changes at each of its times, and at BEFORE if wanted: `_at`, `_next`."""
        times = f"array({BEFORE}L, {TS})" if before else f"array({TS})"
        listed = ", ".join(_names("k", region.sources[0].keys))
        text = (
            f"SELECT {listed}, {_AT}, lead({_AT}) OVER (PARTITION BY {listed} ORDER BY {_AT}) "  # noqa: S608
            f"AS {_NEXT} FROM (SELECT DISTINCT {listed}, {_AT} FROM moved "
            f"LATERAL VIEW explode({times}) AS {_AT})"
        )
        return self._program(text, {"moved": moved})

    def _rows(
        self,
        source: Source,
        change: Change | None,
        moved: Operator,
        touched: Operator,
        needed: Mapping[QueryNode, Leaf],
    ) -> Operator:
        """The rows of a source that touched keys have by each of their times: `c0` …, diffs.

        Args:
            source: The source.
            change: Its change; None if it has none.
            moved: The keys that have changed.
            touched: These at each of their times.
            needed: What inputs of the source stand for, where not all rows are needed.
        """
        keys, names = _names("k", source.keys), _names("c", source.columns)
        wanted = [
            *zip(source.keys, keys, strict=True),
            *zip(source.columns, names, strict=True),
        ]
        there = self._operators.plans.over(source.node, before=True, found=needed)
        given = {"moved": moved, "touched": touched, "held": self._named(wanted, there)}
        listed = ", ".join([*keys, *names])
        # A semi join first: Spark takes it down to the inputs, through joins and groups.
        rows = (
            f"SELECT {listed}, {BEFORE}L AS {TS}, 1L AS {DIFF} FROM held "  # noqa: S608
            f"LEFT SEMI JOIN moved ON {same_key('held', 'moved', keys)}"
        )
        if change is not None:
            pair = zip(change.hidden, (TS, DIFF), strict=True)
            given["news"] = self._named([*wanted, *pair], change.operator)
            rows = f"{rows} UNION ALL SELECT {listed}, {TS}, {DIFF} FROM news"  # noqa: S608
        text = (
            f"SELECT {_listed('one', names)}, {_AT}, {_NEXT}, one.{DIFF} FROM touched "  # noqa: S608
            f"JOIN ({rows}) one ON {same_key('touched', 'one', keys)} AND one.{TS} <= {_AT}"
        )
        return self._program(text, given)

    def _consolidated_rows(self, source: Source, rows: Operator) -> _Keyed:
        """The rows of a source at each time, under the query's attributes, as often as they are."""
        names = _names("c", source.columns)
        text = f"SELECT {', '.join(names)}, {_AT}, {_NEXT}, {DIFF} FROM rows"  # noqa: S608
        found = self._program(text, {"rows": rows}, _repeated(names))
        *columns, at, following = read_sequence(found.plan.output())
        named = [
            self._operators.named(one, wanted.name(), wanted.exprId())
            for one, wanted in zip(columns, source.columns, strict=True)
        ]
        return _Keyed(self._project([*named, at, following], found), at, following)

    # -- the region, and what is above it --------------------------------------------------------

    def _rebuilt(self, node: QueryNode, over: Mapping[QueryNode, _Keyed]) -> _Keyed:
        """An operator of the query over the rows of touched keys."""
        if node in over:
            return over[node]
        below = [self._rebuilt(child, over) for child in node.children]
        if node.kind == "Join":
            return self._joined(node, *below)
        (one,) = below
        pair = [one.at, one.next]
        match node.kind:
            case "Aggregate":
                plan = self._operators.plans.make(
                    "Aggregate",
                    self._with(node.plan.groupingExpressions(), pair),
                    self._with(node.plan.aggregateExpressions(), pair),
                    one.operator.plan,
                    node.plan.hint(),
                )
            case "Project":
                plan = self._operators.plans.make(
                    "Project", self._with(node.plan.projectList(), pair), one.operator.plan
                )
            case "Window":
                plan = self._operators.plans.make(
                    "Window",
                    self._operators.plans.sequence(
                        self._partitioned(named, one.at)
                        for named in read_sequence(node.plan.windowExpressions())
                    ),
                    self._with(node.plan.partitionSpec(), [one.at]),
                    node.plan.orderSpec(),
                    one.operator.plan,
                    node.plan.hint(),
                )
            case _:
                plan = node.plan.withNewChildren(
                    self._operators.plans.sequence([one.operator.plan])
                )
        return _Keyed(Operator(plan, (one.operator,)), one.at, one.next)

    def _partitioned(self, named: Any, at: Any) -> Any:
        """A window function under its name, with one more column to partition by."""
        call = named.child()
        spec = call.windowSpec()
        wider = self._expression(
            "WindowSpecDefinition",
            self._with(spec.partitionSpec(), [at]),
            spec.orderSpec(),
            spec.frameSpecification(),
        )
        over = self._expression("WindowExpression", call.windowFunction(), wider)
        return named.withNewChildren(self._operators.plans.sequence([over]))

    def _joined(self, node: QueryNode, left: _Keyed, right: _Keyed) -> _Keyed:
        """A join of the rows of two sides, each with those of its own time."""
        same = self._expression("EqualTo", left.at, right.at)
        given = node.plan.condition()
        condition = self._expression("And", given.get(), same) if given.isDefined() else same
        option = scala_object(self._spark, "scala.Option").apply(condition)
        sides = left.operator, right.operator
        plan = self._operators.plans.make(
            "Join",
            *(side.plan for side in sides),
            node.plan.joinType(),
            option,
            scala_object(
                self._spark, "org.apache.spark.sql.catalyst.plans.logical.JoinHint"
            ).NONE(),
        )
        joined = Operator(plan, sides)
        kind = join_kind(node)
        if kind == "FullOuter":
            pairs = ((left.at, right.at), (left.next, right.next))
            either = [
                self._operators.named(
                    self._expression("Coalesce", self._operators.plans.sequence(pair)), name
                )
                for pair, name in zip(pairs, (_AT, _NEXT), strict=True)
            ]
            both = self._project([*node.output, *either], joined)
            at, following = (one.toAttribute() for one in either)
            return _Keyed(both, at, following)
        kept = right if kind == "RightOuter" else left
        return _Keyed(joined, kept.at, kept.next)

    def _coming_and_going(self, region: _Keyed) -> Change:
        """The change of what a region gives at each time."""
        # Made anew: two regions of a query may meet in a join, and share no column.
        doubled = _Doubled(self._exact)
        times = [
            self._operators.named(given, wanted.name(), wanted.exprId())
            for given, wanted in zip((region.at, region.next), doubled.times, strict=True)
        ]
        columns = read_sequence(region.operator.plan.output())
        operator = self._project([*columns, *times], region.operator)
        for plan in (doubled.generate, doubled.only_times):
            made = plan.withNewChildren(self._operators.plans.sequence([operator.plan]))
            operator = Operator(made, (operator,))
        return Change(operator, doubled.hidden)

    # -- operators -------------------------------------------------------------------------------

    def _program(
        self,
        text: str,
        given: Mapping[str, Operator],
        then: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    ) -> Operator:
        """A query of our own, over operators by name."""
        empty = {
            name: empty_frame(self._exact, columns_of(one.plan)) for name, one in given.items()
        }
        return self._placed(
            query_tree(plan_of(then(analyse_query(self._exact, text, empty)))), given
        )

    def _placed(self, node: QueryNode, given: Mapping[str, Operator]) -> Operator:
        """A query of our own, with operators in the place of its inputs."""
        if node.input:
            operator = given[node.input]
            columns = zip(read_sequence(operator.plan.output()), node.output, strict=True)
            return self._project(
                [self._operators.named(one, own.name(), own.exprId()) for one, own in columns],
                operator,
            )
        children = tuple(self._placed(child, given) for child in node.children)
        if not children:
            return Operator(node.plan)
        plan = node.plan.withNewChildren(
            self._operators.plans.sequence(one.plan for one in children)
        )
        return Operator(plan, children)

    def _named(self, columns: Iterable[tuple[Any, str]], below: Operator) -> Operator:
        """Expressions over an operator, by names."""
        return self._project([self._operators.named(one, name) for one, name in columns], below)

    def _renamed(self, found: Operator, columns: Sequence[Any]) -> Change:
        """A result of ours under the attributes of these columns, and its time and diff."""
        *own, time, diff = read_sequence(found.plan.output())
        named = [
            self._operators.named(one, wanted.name(), wanted.exprId())
            for one, wanted in zip(own, columns, strict=True)
        ]
        return Change(self._project([*named, time, diff], found), [time, diff])

    def _project(self, columns: Iterable[Any], below: Operator) -> Operator:
        plan = self._operators.plans.make(
            "Project", self._operators.plans.sequence(columns), below.plan
        )
        return Operator(plan, (below,))

    def _with(self, columns: Any, more: Sequence[Any]) -> Any:
        return self._operators.plans.sequence([*read_sequence(columns), *more])

    def _expression(self, name: str, *fields: Any) -> Any:
        return java_class(self._spark, f"{_EXPRESSIONS}.{name}")(*fields)


class _Doubled:
    """The operators that make of a row with a time and a next time two updates.

    Attributes:
        times: The columns of the two times, which they read.
        generate: Makes two rows.
        only_times: Keeps those that are in the step.
        hidden: The time and the diff of an update.
    """

    def __init__(self, exact: SparkSession) -> None:
        text = (
            f"SELECT * FROM given LATERAL VIEW inline(array(named_struct('{TS}', {_AT}, '{DIFF}', "  # noqa: S608
            f"1L), named_struct('{TS}', {_NEXT}, '{DIFF}', -1L))) one WHERE one.{TS} > {BEFORE}L"
        )
        empty = empty_frame(exact, _SPANS)
        node = query_tree(plan_of(analyse_query(exact, text, {"given": empty})))
        found: dict[str, QueryNode] = {}
        while not node.input:
            found[node.kind] = node
            (node,) = node.children
        self.times = node.output
        self.generate = found["Generate"].plan
        self.only_times = found["Filter"].plan
        self.hidden = read_sequence(self.generate.output())[-2:]


def _repeated(names: Sequence[str]) -> Callable[[DataFrame], DataFrame]:
    """Rows as often as their diffs at one time add up to: these columns, and the two times."""

    def rows(frame: DataFrame) -> DataFrame:
        summed = correction_frame(frame, None)
        copies = (
            F.when(F.col(DIFF) < 0, F.raise_error(F.lit(NEGATIVE)).cast("bigint"))
            .when(
                F.col(DIFF) > _COPIES_MAX,
                F.raise_error(F.lit("too many copies of a row")).cast("bigint"),
            )
            .otherwise(F.col(DIFF))
        )
        repeated = summed.withColumn(
            "_copy", F.explode(F.sequence(F.lit(1).cast("bigint"), copies))
        )
        return repeated.select(*names, _AT, _NEXT)

    return rows


def _changes(
    region: Region, changed: frozenset[str], change_of: ChangeOf
) -> dict[QueryNode, Change]:
    """The changes of those sources of a region that have one."""
    return {
        source.node: change_of(source.node)
        for source in region.sources
        if source.node.inputs & changed
    }


def _keyed(
    region: Region, changes: Mapping[QueryNode, Change]
) -> list[tuple[QueryNode, Sequence[Any]]]:
    """The sources of a region that have changed, each with the key over its columns."""
    return [(source.node, source.keys) for source in region.sources if source.node in changes]


def _names(letter: str, columns: Sequence[Any]) -> list[str]:
    return [f"{letter}{place}" for place in range(len(columns))]


def _listed(table: str, names: Iterable[str]) -> str:
    return ", ".join(f"{table}.{name}" for name in names)
