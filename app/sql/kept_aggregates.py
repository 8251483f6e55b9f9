"""Decides if an aggregate follows from changes, by its functions and types.

A sum over changed rows, added to the sum that was there, is the sum over all rows: but only if
every order of the same rows gives the same bits. That holds for integers and decimals. What depends
on an order is left to the query: sums of floats, the first text of those that a collation takes for
equal, lists. `min` and `max` follow from rows that come, and from rows that go as long as these are
not the least or the greatest.

    refusal(aggregate)         why an aggregate must be computed anew, or ""
    aggregate_calls(plan)      the calls of one aggregate

Invariants:
    A function is kept because it is in the list, never because it is in no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from shardline.app.sql.safe_expressions import fails_by_itself
from shardline.datasource.frames import children_of, kind_of, read_sequence, type_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "AggregateCall",
    "aggregate_calls",
    "aggregate_expressions",
    "can_be_key",
    "has_one_form",
    "is_of_session",
    "refusal",
    "takes_values_once",
]

_FUNCTIONS: Final = {
    "Average": "avg",
    "Count": "count",
    "Max": "max",
    "Min": "min",
    "Sum": "sum",
}
"""Functions that can be kept, by Spark's names for them."""

_SIMPLE: Final = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    TimestampNTZType,
    TimestampType,
)
_FLOATS: Final = (DoubleType, FloatType)
_SESSION_WINDOW: Final = "spark.sessionWindow"
"""Metadata by which Spark's planner merges the windows of a session."""


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """A call of an aggregate function.

    Attributes:
        function: Its name in SQL.
        call: Spark's `AggregateExpression`.
        arguments: What it is called with: expressions of Spark.
        condition: Of FILTER: an expression; None if there is none.
    """

    function: str
    call: Any
    arguments: list[Any]
    condition: Any | None


def aggregate_calls(aggregate: Any) -> list[AggregateCall]:
    """The calls of an operator `Aggregate` that can be kept, in its order."""
    found: dict[int, AggregateCall] = {}
    for call in aggregate_expressions(aggregate):
        function, condition = call.aggregateFunction(), call.filter()
        found[int(call.resultId().id())] = AggregateCall(
            _FUNCTIONS[kind_of(function)],
            call,
            children_of(function),
            condition.get() if condition.isDefined() else None,
        )
    return list(found.values())


def refusal(spark: SparkSession, aggregate: Any) -> str:
    """Why an operator `Aggregate` must be computed anew; "" if it can be kept."""
    keys = read_sequence(aggregate.groupingExpressions())
    if keys and all(key.foldable() for key in keys):
        return "groups by a constant"
    if all(key.foldable() or is_of_session(key) for key in keys) and any(map(is_of_session, keys)):
        return "session windows without another key"
    for key in keys:
        if not key.foldable() and not can_be_key(type_of(key)):
            return f"groups by {key.dataType().sql()}"
    calls = list(aggregate_expressions(aggregate))
    refused = {_refusal_of_call(call) for call in calls} - {""}
    if not refused and _fails_despite_filter(spark, calls):
        refused.add("what it computes more than once may fail at rows that FILTER leaves out")
    return f"an aggregate ({', '.join(sorted(refused))})" if refused else ""


def _refusal_of_call(call: Any) -> str:
    function = call.aggregateFunction()
    kind = kind_of(function)
    name = str(function.prettyName())
    if kind not in _FUNCTIONS:
        return name
    if takes_values_once(call):
        return f"{name}(DISTINCT)"
    if kind == "Count":
        return ""
    (argument,) = children_of(function)[:1]
    given = type_of(argument)
    if kind in {"Max", "Min"}:
        return "" if has_one_form(given) else f"{name} of {argument.dataType().sql()}"
    added_up = isinstance(given, (DecimalType, IntegralType))
    return "" if added_up else f"{name} of {argument.dataType().sql()}"


def _fails_despite_filter(spark: SparkSession, calls: Sequence[Any]) -> bool:
    """True if the query may fail at a row that FILTER leaves out of the only calls that need it.

    What the functions of an aggregate compute more than once, in one call or in several, Spark
    computes once, before it looks at a FILTER. A state computes it for the rows of each call alone,
    and would miss the error.
    """
    guarded = [
        node
        for call in calls
        if call.filter().isDefined()
        for argument in children_of(call.aggregateFunction())
        for node in fails_by_itself(spark, argument)
    ]
    if not guarded:
        return False
    updates = [
        node
        for call in calls
        for update in read_sequence(call.aggregateFunction().updateExpressions())
        for node in _nodes(update)
    ]
    return any(sum(bool(node.semanticEquals(one)) for one in updates) > 1 for node in guarded)


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    for child in children_of(expression):
        yield from _nodes(child)


def takes_values_once(call: Any) -> bool:
    """True if a call of a function that can be kept takes each value once, and that matters."""
    kind = kind_of(call.aggregateFunction())
    return bool(call.isDistinct()) and kind in _FUNCTIONS.keys() - {"Max", "Min"}


def is_of_session(key: Any) -> bool:
    """True if an aggregate groups by a session window: its rows are not those of one key."""
    return kind_of(key) == "AttributeReference" and bool(key.metadata().contains(_SESSION_WINDOW))


def aggregate_expressions(aggregate: Any) -> Iterator[Any]:
    """Each call of an aggregate function in an operator's results."""
    ahead = list(reversed(read_sequence(aggregate.aggregateExpressions())))
    while ahead:
        expression = ahead.pop()
        if kind_of(expression) == "AggregateExpression":
            yield expression
        else:
            ahead += reversed(children_of(expression))


def has_one_form(kind: DataType) -> bool:
    """True if equal values of a type are the same bits, and have an order."""
    if isinstance(kind, StringType):
        return kind.collation == "UTF8_BINARY"
    return isinstance(kind, _SIMPLE)


def can_be_key(kind: DataType) -> bool:
    """True if all rows of a group show the same key; Spark shows -0.0 as 0.0, and one NaN."""
    match kind:
        case ArrayType():
            return can_be_key(kind.elementType)
        case StructType():
            return all(can_be_key(field.dataType) for field in kind.fields)
    return has_one_form(kind) or isinstance(kind, _FLOATS)
