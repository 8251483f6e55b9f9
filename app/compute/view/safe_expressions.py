"""Expressions that cannot fail are told from others by a list of their classes.

The contents of a view at a time are an error if its query fails at that time. A rule that evaluates
an expression on fewer rows than the query does may miss that. Spark's own `throwable` says less
than its name: casts, divisions and look-ups in arrays are not throwable by it.

Invariants:
    An expression is safe because its class is in the list, never because it is in no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from shardline.datasource.spark_native.java_names import read_sequence, scala_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cannot_fail"]

_SAFE: Final = frozenset(
    {
        "Alias",
        "And",
        "AttributeReference",
        "Between",
        "CaseWhen",
        "Coalesce",
        "CommonExpressionDef",
        "CommonExpressionRef",
        "Concat",
        "Contains",
        "EndsWith",
        "EqualNullSafe",
        "EqualTo",
        "GetStructField",
        "GreaterThan",
        "GreaterThanOrEqual",
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
        "Murmur3Hash",
        "Not",
        "Or",
        "StartsWith",
        "StringTrim",
        "Upper",
        "With",
        "XxHash64",
    }
)
"""They give a value, or NULL, for all values of the types that the analyzer lets through."""

_CAST: Final = "org.apache.spark.sql.catalyst.expressions.Cast"


def _can_be_evaluated(constant: Any) -> bool:
    """True if an expression without columns has a value: it is the same for all rows."""
    try:
        constant.eval(None)
    except (Py4JError, PySparkException):
        return False
    return True


def cannot_fail(spark: SparkSession, expression: Any) -> bool:
    """True if no row can make an expression fail; an expression of Spark's."""
    kind = str(expression.getClass().getSimpleName())
    if expression.foldable():
        return _can_be_evaluated(expression)
    if kind == "Like":
        pattern = expression.right()
        # Only what follows an escape can be wrong in a pattern.
        if not pattern.foldable() or "\\" in str(pattern) or expression.escapeChar() != "\\":
            return False
        return cannot_fail(spark, expression.left())
    if kind == "Cast":
        given, wanted = expression.child().dataType(), expression.dataType()
        if not scala_object(spark, _CAST).canUpCast(given, wanted):
            return False
    elif kind not in _SAFE:
        return False
    return all(cannot_fail(spark, child) for child in read_sequence(expression.children()))
