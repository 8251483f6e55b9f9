"""Finds the pieces of a query that can be computed anew for some keys alone: its regions.

An aggregate is a function of the rows of each group, a window function of those of each partition,
and of an outer join each side's rows depend on those of the other one with the same key. Operators
one above the other that have a key in common are one region: what it gives for a key depends on
what its sources have for that key, and on nothing else.

    regions = Regions(spark, tree, kept)       `kept` tells aggregates that are states
    regions.by_top[node]                       the region below an operator, and including it
    regions.choices[node]                      rows that are a state, by the operator they are of
    regions.verdicts()                         what `strategy` says of the query

What has been shown for a key must go before it comes anew. A region whose results are decided
(`decided_values`) is computed for the time before, too. Of any other the rows are taken from what
the view itself has shown, if the key is among the columns of the query as it is, and nothing but
operators that take rows one by one is above the region. Else its results are a state, and are taken
from that: a choice.

Any part of a key is one, too: more rows share it. So a key that is not shown, or that a lower
operator does not have, is left out as long as another one is left.

Invariants:
    An operator is in a region because it is in a list, never because it is in no other.
    A key of no columns is none: its rows are all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from shardline.app.sql.decided_values import holds_map, holds_opaque, is_decided
from shardline.app.sql.first_rows import find_first_rows
from shardline.app.sql.kept_aggregates import is_of_session, refusal
from shardline.app.sql.path_above import (
    INNER_JOINS,
    KEPT_SIDE,
    WITH_COLUMNS_BELOW,
    Condition,
    PathAbove,
    Places,
    renamed,
)
from shardline.app.sql.plan_nodes import needed_columns
from shardline.app.sql.query_tree import QueryNode, join_kind, query_tree
from shardline.app.sql.stored_types import can_be_stored
from shardline.app.sql.strategy import JUDGED, LINEAR, Verdict
from shardline.app.sql.temporal_filters import split_condition
from shardline.datasource.frames import kind_of, number_of, numbers_read, read_sequence, type_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Choice", "Region", "Regions", "Source", "judge"]

_LINEAR_IN_A_SIDE: Final = frozenset(KEPT_SIDE) - {"LeftSingle"}
"""They follow that side without a key, too."""

_NUMBERING: Final = frozenset(
    {"DenseRank", "Lag", "Lead", "NTile", "PercentRank", "Rank", "RowNumber"}
)
"""Spark's functions over windows that have no meaning without an order."""

_AS_THEY_COME: Final = "a LIMIT for each key, of rows in no order of the query's"
_INCOMPARABLE: Final = "a column below it whose values cannot be compared, nor rows added up"
"""Why an operator is not computed anew by key, if it is because of a variant or a geometry."""

_EQUALITIES: Final = frozenset({"EqualTo", "EqualNullSafe"})


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What a region reads.

    Attributes:
        node: The last operator below the region.
        keys: The key: expressions over its columns.
        columns: Those of its columns that the region uses.
    """

    node: QueryNode
    keys: tuple[Any, ...]
    columns: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Operators of which one is on top, and which have a key in common.

    Attributes:
        top: The last one.
        nodes: All of them.
        sources: What they read, in order. A key is of as many expressions in each.
        decided: True if the same rows below always give the same results.
        shown: If it is not decided: the places of the key's columns among those of the query.
    """

    top: QueryNode
    nodes: frozenset[QueryNode]
    sources: tuple[Source, ...]
    decided: bool
    shown: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Rows that are a state: results that are not decided, with more above them than the view.

    Attributes:
        last: The operator of which they are; from the region's last one up to it each takes rows
            one by one.
        region: The region that gives the results.
        keys: The columns of its key, which its last operator has, or can have.
        conditions: Those from above without which none of the rows comes to anything.
    """

    last: QueryNode
    region: Region
    keys: tuple[Any, ...]
    conditions: tuple[Condition, ...]


_Key = Mapping[QueryNode, Any]
"""A column of a key: an expression over each source."""


class Regions:
    """The regions of one query.

    Attributes:
        root: The query.
        by_top: The regions by their last operators.
        choices: What must be a state, by the operator of which it is.
        refused: Why an operator that needs a region has none; "" if its kind says why.
        first_rows: Each LIMIT that needs the first rows of an order alone.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: QueryNode,
        kept: Callable[[QueryNode], bool] = lambda _: False,
        below: Sequence[QueryNode] = (),
        chosen: Collection[QueryNode] = (),
    ) -> None:
        """Find them.

        Args:
            spark: Any session of the application.
            root: The query, in its normal form.
            kept: True of an aggregate that is kept as a state, and so of what has changes.
            below: What states are of that the query reads. With them nothing more is chosen.
            chosen: Those of them that are of choices: like the query, they show what they keep.
        """
        self._spark = spark
        self.root = root
        self._kept = kept
        self.by_top: dict[QueryNode, Region] = {}
        self.choices: dict[QueryNode, Choice] = {}
        self._over_states = bool(below)
        self._inside: set[QueryNode] = set()
        self.refused: dict[QueryNode, str] = {}
        self._incomparable: set[QueryNode] = set()
        self._walk(root, PathAbove(_places(root)))
        for other in below:
            self._walk(other, PathAbove(_places(other) if other in chosen else None))
        self.first_rows = [] if below else find_first_rows(root, self._follows)

    def verdicts(self) -> list[Verdict]:
        """What there is to say of each operator that is judged, in the order of the plan."""
        first = {node for one in self.first_rows for node in (one.sort, *one.limits)}
        few = {node for one in self.first_rows if one.are_few for node in one.limits}
        kept = {choice.region.top for choice in self.choices.values()}
        return [*self._verdicts(self.root, first, few, kept)]

    def _verdicts(
        self,
        node: QueryNode,
        first: AbstractSet[QueryNode],
        few: AbstractSet[QueryNode],
        kept: AbstractSet[QueryNode],
    ) -> Iterator[Verdict]:
        if node.input:
            return
        if node.kind in JUDGED:
            yield Verdict(
                self.refused.get(node, ""),
                by_key=node in self._inside,
                first_rows=node in first,
                can_be_state=node in few,
                is_state=node in kept,
            )
        for child in node.children:
            yield from self._verdicts(child, first, few, kept)

    # -- the query, from its last operator on ----------------------------------------------------

    def _walk(self, node: QueryNode, path: PathAbove) -> None:
        """Find the regions at and below an operator of the query, which has this above it."""
        if node.input or not node.inputs:
            return
        region = None
        if self._can_be_top(node):
            region = self._region(node, path.shown) or self._chosen(node, path)
        if region is not None:
            self.by_top[node] = region
            self._inside |= region.nodes
            for source, above in _paths(node, path, {one.node for one in region.sources}):
                # Operators of the region are in no state below it: their conditions remain.
                self._walk(source, PathAbove(conditions=above.conditions))
            return
        if self._must_be_top(node):
            self.refused[node] = self._why_refused(node)
        for side, child in enumerate(node.children):
            self._walk(child, path.below(node, side))

    def _can_be_top(self, node: QueryNode) -> bool:
        if node.kind == "Aggregate":
            return not self._kept(node)
        if node.kind != "Join" or join_kind(node) not in INNER_JOINS:
            return node.kind in {"Join", "Window"}
        # An inner join has a rule of its own, over sides that can be computed once more.
        return not self._is_plain(node)

    def _must_be_top(self, node: QueryNode) -> bool:
        if node.kind == "Join":
            return join_kind(node) not in INNER_JOINS and join_kind(node) not in _LINEAR_IN_A_SIDE
        return node.kind == "Window" or (node.kind == "Aggregate" and not self._kept(node))

    def _why_refused(self, node: QueryNode) -> str:
        if node.kind == "Aggregate":
            return refusal(self._spark, node.plan)
        if _goes_by_the_order_of_rows(node):
            return _AS_THEY_COME
        return _INCOMPARABLE if node in self._incomparable else ""

    def _follows(self, node: QueryNode) -> bool:
        """True if the change of an aggregate, a join or a window is known, whatever changes."""
        if node.kind == "Join" and join_kind(node) not in INNER_JOINS:
            return node in self._inside
        return node not in self.refused

    # -- one region ------------------------------------------------------------------------------

    def _region(self, top: QueryNode, shown: Places | None) -> Region | None:
        """The region below a node, if it has a key and what it has shown can be retracted."""
        inner = top.kind == "Join" and join_kind(top) in INNER_JOINS
        # With all that has the key in common; else the one operator, if its sources have changes.
        for is_source in (self._is_plain, lambda _: True):
            nodes, sources = _until(top, is_source)
            if any(map(_goes_by_the_order_of_rows, nodes)):
                return None
            decided = self._is_decided(top, nodes, sources)
            if inner and decided:
                return None
            found = self._with_key(top, nodes, sources, decided=decided, shown=shown)
            if found is not None:
                return found
        return None

    def _chosen(self, top: QueryNode, path: PathAbove) -> Region | None:
        """The region below a node, if its results can be a state."""
        # Of an inner join a side is: then its rows are not computed anew with those of the other.
        if self._over_states or (top.kind == "Join" and join_kind(top) in INNER_JOINS):
            return None
        below = self._below_state(top, path)
        if not below:
            return None
        columns = _own_columns(top)
        own = {
            number_of(column): place
            for place, column in enumerate(columns)
            if can_be_stored(type_of(column))
        }
        # As if the query showed these. A region that is decided needs none, and was found before.
        found = self._region(top, own)
        if found is not None:
            keys = tuple(columns[place] for place in found.shown)
            conditions = tuple(one for one in path.conditions if one[0] not in below)
            self.choices[below[-1]] = Choice(below[-1], found, keys, conditions)
        return found

    def _below_state(self, top: QueryNode, path: PathAbove) -> tuple[QueryNode, ...]:
        """The operators from `top` up to the last one whose rows can be a state; none without one.

        Those from further up may compute what can be stored of what cannot be.
        """
        found, ahead = 0, [top]
        for node in path.one_by_one:
            if node.kind == "Filter" and self._is_temporal(node):
                break  # it is a state itself
            ahead.append(node)
        for place, node in enumerate(ahead, 1):
            needed = (one for one in node.distinct_output if number_of(one) in self.needed)
            if all(can_be_stored(type_of(one)) for one in needed):
                found = place
        return tuple(ahead[:found])

    @cached_property
    def needed(self) -> frozenset[int]:
        """Ids of all columns that something in the query refers to."""
        return needed_columns(self.root.plan)

    def _is_temporal(self, node: QueryNode) -> bool:
        return split_condition(self._spark, node.plan.condition()) is not None

    def _with_key(
        self,
        top: QueryNode,
        nodes: Sequence[QueryNode],
        sources: Sequence[QueryNode],
        *,
        decided: bool,
        shown: Places | None,
    ) -> Region | None:
        keys: list[_Key] = []
        places: list[int] = []
        for given, columns in _candidates(top):
            if any(holds_map(type_of(one)) for _, one in given):
                continue  # Spark groups by a map, but has no DISTINCT of one
            key = _reached(given, frozenset(sources))
            place = next((shown[one] for one in columns if one in shown), None) if shown else None
            if key is not None and (decided or place is not None):
                keys.append(key)
                places.append(-1 if place is None else place)
        if not keys:
            return None
        used = _used(top, nodes)
        read = tuple(
            Source(
                node,
                tuple(key[node] for key in keys),
                tuple(one for one in node.distinct_output if number_of(one) in used),
            )
            for node in sources
        )
        used_types = (type_of(one) for source in read for one in source.columns)
        if any(map(holds_opaque, used_types)):
            # Rows of before a step and of the step are added up, by all of these columns.
            self._incomparable.add(top)
            return None
        return Region(top, frozenset(nodes), read, decided, () if decided else tuple(places))

    def _is_decided(
        self, top: QueryNode, nodes: Sequence[QueryNode], sources: Sequence[QueryNode]
    ) -> bool:
        if not all(is_decided(node) for node in nodes):
            return False
        used = _used(top, nodes)
        read = (one for node in sources for one in node.output if number_of(one) in used)
        return not any(holds_map(type_of(one)) for one in read)

    def _is_plain(self, node: QueryNode) -> bool:
        """True if the rules for changes of rows and of inner joins are all that a node needs."""
        if node.input or not node.inputs:
            return True
        if node.kind == "Aggregate":
            return self._kept(node)
        joined = node.kind == "Join" and join_kind(node) in INNER_JOINS
        return (joined or node.kind in LINEAR) and all(map(self._is_plain, node.children))


def judge(spark: SparkSession, plan: Any) -> list[Verdict]:
    """What there is to say of each aggregate, window, join and order of a plan, from the last on.

    Args:
        spark: Any session of the application.
        plan: A plan in its normal form, whose inputs are temporary views.
    """
    return Regions(spark, query_tree(plan), lambda node: not refusal(spark, node.plan)).verdicts()


def _places(node: QueryNode) -> Places:
    """All columns of an operator, as what is shown."""
    return {number: place for place, number in enumerate(node.numbers)}


def _own_columns(top: QueryNode) -> list[Any]:
    """The columns that an operator has, or can have without any change of its rows."""
    if top.kind != "Aggregate":
        return top.output
    keys = read_sequence(top.plan.groupingExpressions())
    more = {number_of(key): key for key in keys if _is_column(key)}
    return list({**more, **{number_of(one): one for one in top.output}}.values())


def _paths(
    node: QueryNode, path: PathAbove, sources: AbstractSet[QueryNode]
) -> Iterator[tuple[QueryNode, PathAbove]]:
    """What is above each source of a region, at and below an operator of it."""
    for side, child in enumerate(node.children):
        below = path.below(node, side)
        if child in sources:
            yield child, below
        else:
            yield from _paths(child, below, sources)


def _until(
    top: QueryNode, is_source: Callable[[QueryNode], bool]
) -> tuple[list[QueryNode], list[QueryNode]]:
    """The operators from `top` on down to its sources, and these; each once, in order."""
    nodes: list[QueryNode] = [top]
    sources: list[QueryNode] = []
    for child in top.children:
        if is_source(child):
            sources.append(child)
        else:
            below = _until(child, is_source)
            nodes += below[0]
            sources += below[1]
    return nodes, sources


def _goes_by_the_order_of_rows(node: QueryNode) -> bool:
    """True of a window that numbers rows as they come.

    No query can ask for one. Spark makes it of a correlated LIMIT whose order is not just below it.
    Over the rows of some keys alone they would come otherwise; and Spark does not analyse it again.
    """
    if node.kind != "Window" or not node.plan.orderSpec().isEmpty():
        return False
    functions = (
        one.child().windowFunction() for one in read_sequence(node.plan.windowExpressions())
    )
    return any(kind_of(one) in _NUMBERING for one in functions)


def _candidates(top: QueryNode) -> Iterator[tuple[list[tuple[QueryNode, Any]], list[int]]]:
    """What may be a column of the key of a region: an expression over each child of its top.

    With it, the numbers of the top's columns that are its value.
    """
    match top.kind:
        case "Aggregate":
            columns = read_sequence(top.plan.aggregateExpressions())
            for key in read_sequence(top.plan.groupingExpressions()):
                if _is_column(key) and not is_of_session(key):
                    given = [one for one in columns if _is_same(renamed(one), key)]
                    yield [(top.children[0], key)], [*map(number_of, given), number_of(key)]
        case "Window":
            for key in read_sequence(top.plan.partitionSpec()):
                if not key.foldable():
                    numbers = _same_columns(top.children[0], key) if _is_column(key) else []
                    yield [(top.children[0], key)], numbers
        case "Join":
            kind = join_kind(top)
            for sides in _equalities(top):
                shown = sides if kind in INNER_JOINS else []
                if kind in KEPT_SIDE:
                    shown = [sides[KEPT_SIDE[kind]]]
                numbers = [number_of(one) for one in shown if _is_column(one)]
                yield list(zip(top.children, sides, strict=True)), numbers


def _same_columns(node: QueryNode, column: Any) -> list[int]:
    """The numbers of an operator's columns that are one of them, perhaps under another name."""
    if node.kind != "Project":
        return [number_of(column)]
    given = {number_of(one): renamed(one) for one in read_sequence(node.plan.projectList())}
    same = given.get(number_of(column))
    others = (number for number, one in given.items() if same is not None and _is_same(one, same))
    return list(dict.fromkeys([number_of(column), *others]))


def _reached(given: list[tuple[QueryNode, Any]], sources: frozenset[QueryNode]) -> _Key | None:
    """The same column over the sources; None if an operator in between does not have it."""
    found: dict[QueryNode, Any] = {}
    for node, key in given:
        if node in sources:
            found[node] = key
            continue
        below = _below(node, key) if _is_column(key) else None
        reached = None if below is None else _reached(below, sources)
        if reached is None:
            return None
        found |= reached
    return found


def _below(node: QueryNode, key: Any) -> list[tuple[QueryNode, Any]] | None:
    """A column of an operator that decides which rows belong together, over its children."""
    if node.kind in WITH_COLUMNS_BELOW:
        (child,) = node.children
        return [(child, key)] if _has(child, key) else None
    match node.kind:
        case "Project":
            columns = read_sequence(node.plan.projectList())
            given = [renamed(one) for one in columns if number_of(one) == number_of(key)]
            return [(node.children[0], given[0])] if given and given[0] is not None else None
        case "Aggregate" | "Join" | "Window":
            for below, numbers in _candidates(node):
                if number_of(key) in numbers:
                    return below
    return None


def _equalities(join: QueryNode) -> Iterator[list[Any]]:
    """The pairs of expressions, one over each side, that a join's condition says are equal."""
    condition = join.plan.condition()
    ahead = [condition.get()] if condition.isDefined() else []
    left, right = (side.plan.outputSet() for side in join.children)
    while ahead:
        one = ahead.pop()
        kind = kind_of(one)
        if kind == "And":
            ahead += [one.right(), one.left()]
        elif kind in _EQUALITIES and not (one.left().foldable() or one.right().foldable()):
            for sides in ([one.left(), one.right()], [one.right(), one.left()]):
                over_left, over_right = (side.references() for side in sides)
                if over_left.subsetOf(left) and over_right.subsetOf(right):
                    yield sides
                    break


def _used(top: QueryNode, nodes: Sequence[QueryNode]) -> set[int]:
    """The numbers of all columns that operators refer to, or that the last of them returns."""
    used = set(top.numbers)
    for node in nodes:
        used.update(numbers_read(node.plan))
    return used


def _is_column(expression: Any) -> bool:
    return kind_of(expression) == "AttributeReference"


def _is_same(one: Any | None, other: Any) -> bool:
    return one is not None and number_of(one) == number_of(other)


def _has(node: QueryNode, column: Any) -> bool:
    return number_of(column) in node.numbers
