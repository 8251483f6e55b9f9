"""Decides if rows determine a result to the last bit, by its functions, types and frames.

A result is decided if every order of the same rows gives the same bits. Only then it may be
computed once more to be retracted: of any other, what comes out may be another value than the one
that was shown. Sums of floats are not decided, nor what ties decide: `first`, lists, `max_by`,
`row_number`, frames of ROWS.

    is_decided(node)        of what one operator gives over the same rows

Invariants:
    A function is decided because it is in a list, never because it is in no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegralType,
    MapType,
    StructType,
    VariantType,
)

from shardline.app.sql.kept_aggregates import aggregate_expressions, can_be_key, has_one_form
from shardline.datasource.frames import children_of, kind_of, read_sequence, type_of

if TYPE_CHECKING:
    from shardline.app.sql.query_tree import QueryNode

__all__ = ["holds_map", "holds_opaque", "is_decided"]

_OF_ANYTHING: Final = frozenset({"Count"})
_OF_ONE_FORM: Final = frozenset({"HyperLogLogPlusPlus", "Max", "Min"})
"""Equal values of their arguments must be the same bits."""

_OF_INTEGERS: Final = frozenset({"BitAndAgg", "BitOrAgg", "BitXorAgg"})
_OF_EXACT_NUMBERS: Final = frozenset({"Percentile", "PercentileCont", "PercentileDisc", "Sum"})
"""A percentile sorts values. The average of integers is not here: Spark adds up doubles for it."""

_RANKS: Final = frozenset({"CumeDist", "DenseRank", "PercentRank", "Rank"})
"""Window functions for which rows that tie are one."""

_WHOLE: Final = ["UnboundedPreceding", "UnboundedFollowing"]


def is_decided(node: QueryNode) -> bool:
    """True if the same rows below an operator always give the same bits; row by row others do."""
    match node.kind:
        case "Aggregate":
            keys = read_sequence(node.plan.groupingExpressions())
            return all(can_be_key(type_of(key)) for key in keys) and all(
                _is_decided_call(call) for call in aggregate_expressions(node.plan)
            )
        case "Window":
            named = read_sequence(node.plan.windowExpressions())
            return all(_is_decided_window(one) for one in named)
    return True


def holds_map(kind: DataType) -> bool:
    """True if a type is, or has inside, a map: of equal maps the entries may have other orders."""
    match kind:
        case ArrayType():
            return holds_map(kind.elementType)
        case StructType():
            return any(holds_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType)


def holds_opaque(kind: DataType) -> bool:
    """True if a type is, or has inside, one whose values Spark cannot compare, nor group by."""
    match kind:
        case ArrayType():
            return holds_opaque(kind.elementType)
        case MapType():
            return holds_opaque(kind.keyType) or holds_opaque(kind.valueType)
        case StructType():
            return any(holds_opaque(field.dataType) for field in kind.fields)
    return isinstance(kind, VariantType) or kind.typeName() in {"geometry", "geography"}


def _is_decided_call(call: Any) -> bool:
    """True of an aggregate function, whatever the order of rows."""
    function = call.aggregateFunction()
    kind, arguments = _kind(function), children_of(function)
    if kind in _OF_ANYTHING:
        return True
    given = type_of(arguments[0]) if arguments else None
    match given:
        case IntegralType() if kind in _OF_INTEGERS | _OF_EXACT_NUMBERS:
            return True
        case DecimalType() if kind in {"Average", *_OF_EXACT_NUMBERS}:
            return True
    return given is not None and kind in _OF_ONE_FORM and has_one_form(given)


def _is_decided_window(named: Any) -> bool:
    """True of a window function under a name."""
    call = children_of(named)[0]
    if _kind(call) != "WindowExpression":
        return False
    function, spec = call.windowFunction(), call.windowSpec()
    if _kind(function) in _RANKS:
        return True
    if _kind(function) != "AggregateExpression":
        return False
    frame = spec.frameSpecification()
    if _kind(frame) != "SpecifiedWindowFrame":
        return False
    # A frame of RANGE has all rows that tie, or none of them.
    whole = [_kind(frame.lower()), _kind(frame.upper())] == _WHOLE
    by_value = _kind(frame.frameType()) == "RangeFrame"
    return (whole or by_value) and _is_decided_call(function)


def _kind(node: Any) -> str:
    return kind_of(node).rstrip("$")
