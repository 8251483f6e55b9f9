"""Lists the classes of expressions that cannot fail, whatever the row.

The contents of a view at a time are an error if its query fails at that time. A rule that evaluates
an expression on fewer rows than the query does may miss that. Spark's own `throwable` says less
than its name: casts, divisions and look-ups in arrays are not throwable by it.

Invariants:
    An expression is safe because its class is in the list, never because it is in no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.types import DecimalType, DoubleType, FloatType

from shardline.datasource.frames import children_of, kind_of, type_of
from shardline.datasource.java_names import scala_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cannot_fail", "fails_by_itself"]

_SAFE: Final = frozenset(
    {
        "Alias",
        "And",
        "ArrayContains",
        "AttributeReference",
        "Between",
        "CaseWhen",
        "Coalesce",
        "CommonExpressionDef",
        "CommonExpressionRef",
        "Concat",
        "ConcatWs",
        "Contains",
        "DayOfMonth",
        "DayOfWeek",
        "DayOfYear",
        "EndsWith",
        "EqualNullSafe",
        "EqualTo",
        "GetStructField",
        "GreaterThan",
        "GreaterThanOrEqual",
        "Hour",
        "If",
        "In",
        "InSet",
        "IsNaN",
        "IsNotNull",
        "IsNull",
        "Length",
        "LessThan",
        "LessThanOrEqual",
        "Literal",
        "Lower",
        "Minute",
        "Month",
        "Murmur3Hash",
        "Not",
        "Or",
        "Quarter",
        "StartsWith",
        "StringTrim",
        "StringTrimLeft",
        "StringTrimRight",
        "Substring",
        "TruncDate",
        "Upper",
        "WeekDay",
        "WeekOfYear",
        "With",
        "XxHash64",
        "Year",
        "YearOfWeek",
    }
)
"""They give a value, or NULL, for all values of the types that the analyzer lets through."""

_ARITHMETIC: Final = frozenset({"Add", "Multiply", "Subtract"})
_CAST: Final = "org.apache.spark.sql.catalyst.expressions.Cast"
_TIMES: Final = frozenset({"timestamp", "timestamp_ntz"})


def cannot_fail(spark: SparkSession, expression: Any) -> bool:
    """True if no row can make an expression fail; an expression of Spark's."""
    return next(fails_by_itself(spark, expression), None) is None


def fails_by_itself(spark: SparkSession, expression: Any) -> Iterator[Any]:
    """The nodes of an expression that can fail though their arguments have values."""
    if expression.foldable():
        if not _can_be_evaluated(expression):
            yield expression
        return
    if not _is_safe(spark, expression):
        yield expression
    for child in children_of(expression):
        yield from fails_by_itself(spark, child)


def _can_be_evaluated(constant: Any) -> bool:
    """True if an expression without columns has a value: it is the same for all rows."""
    try:
        constant.eval(None)
    except (Py4JError, PySparkException):
        return False
    return True


def _is_safe(spark: SparkSession, expression: Any) -> bool:
    """True if an expression gives a value for all values of its arguments."""
    match kind_of(expression):
        case "Cast":
            given, wanted = expression.child().dataType(), expression.dataType()
            if str(given.typeName()) in _TIMES and str(wanted.typeName()) == "date":
                return True
            if str(wanted.typeName()) in _TIMES and given != wanted:
                return False  # Spark upcasts dates and times that microseconds cannot count
            return bool(scala_object(spark, _CAST).canUpCast(given, wanted))
        case "Like":
            # Only what follows an escape can be wrong in a pattern.
            pattern = expression.right()
            plain = pattern.foldable() and "\\" not in str(pattern)
            return plain and bool(expression.escapeChar() == "\\")
        case kind if kind in _ARITHMETIC:
            return _has_room(kind, expression)
        case kind:
            return kind in _SAFE


def _has_room(kind: str, arithmetic: Any) -> bool:
    """True if the type of a sum, a difference or a product has room for all values of it."""
    result = type_of(arithmetic)
    if isinstance(result, (DoubleType, FloatType)):
        return True
    given = [type_of(one) for one in (arithmetic.left(), arithmetic.right())]
    sides = [one for one in given if isinstance(one, DecimalType)]
    if not isinstance(result, DecimalType) or len(sides) < len(given):
        return False
    scales = [one.scale for one in sides]
    whole = [one.precision - one.scale for one in sides]
    if kind == "Multiply":
        digits, scale = sum(whole) + 1, sum(scales)
    else:
        digits, scale = max(whole) + 1, max(scales)
    # What Spark has cut to 38 digits has lost room for some of them.
    return bool(result.scale >= scale and result.precision - result.scale >= digits)
