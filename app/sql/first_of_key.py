"""Finds windows and aggregates that use the first rows of each key alone, in an order.

    WHERE place <= 10, and the place is the rank of a bid by its price, among those of its auction

Of an auction with a million bids the ten highest ones are shown. So a step need not look at all of
them, if no row behind the tenth place has any effect (Spark has InferWindowGroupLimit, which sorts
fewer rows for the same reason). Nor does `max_by(price, at)` depend on any rows of an auction but
those with the greatest `at`.

Invariants:
    The functions of a window depend on rows in front of a row, and on those that tie with it.
    A condition that leaves a row out by its place is evaluated before all that can fail at a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardline.app.sql.kept_aggregates import aggregate_expressions
from shardline.app.sql.path_above import KEPT_SIDE, WITH_COLUMNS_BELOW
from shardline.app.sql.plan_nodes import conjuncts, plain
from shardline.app.sql.query_tree import QueryNode, join_kind
from shardline.app.sql.touched_keys import Region
from shardline.datasource.frames import children_of, kind_of, number_of, read_sequence

__all__ = ["FirstOfKey", "find_first_of_keys"]

_PLACES: Final = frozenset({"Rank", "RowNumber"})
"""Functions whose value is not less than the number of rows in front, plus one; or of those that
tie with the first of its equals."""

_OF_ROWS_IN_FRONT: Final = _PLACES | {"DenseRank"}

_OF_EXTREMES: Final = {"Max": True, "MaxBy": True, "Min": False, "MinBy": False}
"""Aggregates of rows that have an extreme value, by whether that is the greatest."""

_NUMBER_MAX: Final = 100_000
"""Above it most keys have no more rows than are needed."""

_Places = Mapping[int, int]
"""Columns, by their number, with the greatest value with which a row comes to anything."""


@dataclass(frozen=True, slots=True)
class FirstOfKey:
    """The rows of each key that count, and those that tie with the last of them.

    Attributes:
        number: How many.
        column: Number of the first column of the order.
        descends: True if its greatest value comes first.
        nulls_first: True if NULL comes before all values.
    """

    number: int
    column: int
    descends: bool
    nulls_first: bool


def find_first_of_keys(
    roots: Collection[QueryNode],
    regions: Mapping[QueryNode, Region],
    first: Collection[QueryNode],
) -> dict[Region, FirstOfKey]:
    """The regions that are such a window, or such an aggregate.

    Args:
        roots: The last operators of a query, and of what its states are made of.
        regions: All regions, by their last operators.
        first: Operators that are evaluated before all that can fail at a row.
    """
    of_groups = {
        region: one
        for region in regions.values()
        if region.top.kind == "Aggregate" and (one := _extreme_of(region)) is not None
    }
    if not any(node.kind == "Window" for node in regions):
        return of_groups  # before all filters of the query are read
    found: dict[Region, set[FirstOfKey | None]] = {}
    for root in roots:
        for window, places in _windows(root, {}, first):
            if window in regions:
                region = regions[window]
                found.setdefault(region, set()).add(_first_of(region, places))
    # One that is read in two places needs what both need.
    return of_groups | {
        region: one for region, all_of in found.items() if len(all_of) == 1 for one in all_of if one
    }


def _windows(
    node: QueryNode, places: _Places, first: Collection[QueryNode]
) -> Iterator[tuple[QueryNode, _Places]]:
    """The windows at and below a node, with the places that count of their columns.

    Args:
        node: An operator.
        places: Those of its columns.
        first: As of `find_first_of_keys`.
    """
    # Rows that nobody computes fail nowhere: so nothing above may fail at one.
    if node not in first:
        places = {}
    if node.kind == "Window":
        yield node, places
    elif node.kind == "Filter" and node in first:
        places = _least([places, *map(_place_of, conjuncts(node.plan.condition()))])
    for place, child in enumerate(node.children):
        yield from _windows(child, _below(node, place, places), first)


def _below(node: QueryNode, place: int, places: _Places) -> _Places:
    """The places of columns of a node's child; none if its rows do more than come through."""
    if node.kind in WITH_COLUMNS_BELOW:
        return places
    if node.kind == "Project":
        below = {}
        for column in read_sequence(node.plan.projectList()):
            given = column.child() if kind_of(column) == "Alias" else column
            if kind_of(given) == "AttributeReference" and number_of(column) in places:
                below[number_of(given)] = places[number_of(column)]
        return below
    if node.kind == "Join":
        kind = join_kind(node)
        return places if KEPT_SIDE.get(kind, place) == place and kind != "FullOuter" else {}
    return {}


def _least(found: Collection[_Places]) -> _Places:
    """All of them; of a column that comes several times the least."""
    least: dict[int, int] = {}
    for one in found:
        for number, most in one.items():
            least[number] = min(most, least.get(number, most))
    return least


def _place_of(condition: Any) -> _Places:
    """The greatest value of a column with which a condition can be true, if it says so."""
    for column, bounds, more in _bounds_of(condition):
        given = plain(column)
        values = [one.eval(None) for one in bounds if one.foldable()]
        # An exact type: a truth value is a number to Python.
        numbers: list[int] = [one for one in values if type(one) is int]
        if given is not None and numbers and len(numbers) == len(bounds):
            return {number_of(given): max(numbers) + more}
    return {}


def _bounds_of(condition: Any) -> Iterator[tuple[Any, Sequence[Any], int]]:
    """What may be a column, the values it may be compared with, and how much more it may be."""
    match kind_of(condition):
        case "EqualTo" | "EqualNullSafe":
            yield condition.left(), [condition.right()], 0
            yield condition.right(), [condition.left()], 0
        case "LessThanOrEqual":
            yield condition.left(), [condition.right()], 0
        case "LessThan":
            yield condition.left(), [condition.right()], -1
        case "GreaterThanOrEqual":
            yield condition.right(), [condition.left()], 0
        case "GreaterThan":
            yield condition.right(), [condition.left()], -1
        case "Between":
            yield condition.input(), [condition.upper()], 0
        case "In":
            yield condition.value(), read_sequence(condition.list()), 0


def _extreme_of(region: Region) -> FirstOfKey | None:
    """The rows that an aggregate depends on, if all of its functions do so on the same."""
    if not _is_alone(region, read_sequence(region.top.plan.groupingExpressions())):
        return None
    found = {_ordered_by(call) for call in aggregate_expressions(region.top.plan)}
    one = found.pop() if len(found) == 1 else None
    if one is None:
        return None
    column, descends = one
    return FirstOfKey(number=1, column=column, descends=descends, nulls_first=False)


def _ordered_by(call: Any) -> tuple[int, bool] | None:
    """The column whose extreme value a call of an aggregate is about, and if it is the greatest."""
    function = call.aggregateFunction()
    kind = kind_of(function)
    if kind not in _OF_EXTREMES or call.isDistinct() or call.filter().isDefined():
        return None
    column = children_of(function)[-1]
    if kind_of(column) != "AttributeReference":
        return None
    return number_of(column), _OF_EXTREMES[kind]


def _is_alone(region: Region, keys: Sequence[Any]) -> bool:
    """True if a region is one operator over one source, by all that the operator has as its key."""
    if len(region.nodes) > 1 or len(region.sources) > 1:
        return False
    return len([one for one in keys if not one.foldable()]) == len(region.sources[0].keys)


def _first_of(region: Region, places: _Places) -> FirstOfKey | None:
    """The rows of each partition of a window that come to anything, if these are the first ones."""
    window = region.top
    if not _is_alone(region, read_sequence(window.plan.partitionSpec())):
        return None
    functions = {
        number_of(one): kind_of(one.child().windowFunction())
        for one in read_sequence(window.plan.windowExpressions())
    }
    orders = read_sequence(window.plan.orderSpec())
    numbers = [places[one] for one, kind in functions.items() if kind in _PLACES and one in places]
    if (
        not set(functions.values()) <= _OF_ROWS_IN_FRONT
        or not orders
        or not numbers
        or not 0 < min(numbers) <= _NUMBER_MAX
        or kind_of(orders[0].child()) != "AttributeReference"
    ):
        return None
    return FirstOfKey(
        number=min(numbers),
        column=number_of(orders[0].child()),
        descends=str(orders[0].direction().sql()) == "DESC",
        nulls_first=str(orders[0].nullOrdering().sql()) == "NULLS FIRST",
    )
