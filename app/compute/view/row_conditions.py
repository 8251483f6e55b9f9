"""Reads off a query the conditions by which Arrow can decide which rows of an input may matter.

    found = ConditionReader(spark, traces, order).known(operators)
    rows_that_satisfy(rows, found[node])         those of an input that satisfy what is known

A filter of a query stands above joins as Spark has analysed it. What it says of the columns of one
input holds of each of that input's rows that comes to anything, wherever the row is met: among the
changes of a step, or when it was looked up. Without these rows less is looked up after them, and
Spark gets less to read. Optimizers know this as pushing predicates down; here Spark does it in its
own plan as well, for the rows that it is given, and remains the one that decides.

A condition is taken over where Arrow says the same of the same values: comparisons of columns with
constants or with each other, IN, LIKE for what a text is, contains, begins or ends with, IS NULL,
and their AND, OR and NOT. Of an AND the unknown sides are left out, and of other patterns of LIKE
all but the texts between their wildcards, which keeps more rows.

Invariants:
    A row that is left out is one for which the query's filter is not true.
    No expression that could fail at a row is evaluated by Spark before the filter that leaves it
    out, in whatever order Spark puts filters: an error of the query stays one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from shardline.app.compute.view.column_trace import ColumnTraces, InputColumn, inputs_of
from shardline.app.compute.view.evaluation_order import EvaluationOrder
from shardline.app.compute.view.join_tree import INNER, join_conditions
from shardline.app.sql.kept_aggregates import has_one_form
from shardline.app.sql.plan_nodes import conjuncts
from shardline.app.sql.query_tree import join_kind
from shardline.datasource.frames import kind_of, number_of, numbers_read, read_sequence, type_of
from shardline.datasource.java_names import scala_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.sql.query_tree import QueryNode

__all__ = ["ConditionReader", "Conditions", "RowCondition", "rows_that_satisfy"]

_CAST: Final = "org.apache.spark.sql.catalyst.expressions.Cast"

_COMPARISONS: Final[Mapping[str, str]] = {
    "EqualTo": "equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
}
"""Spark's comparisons, and those of Arrow that give NULL for the same arguments."""

_TURNED: Final = {
    "equal": "equal",
    "greater": "less",
    "greater_equal": "less_equal",
    "less": "greater",
    "less_equal": "greater_equal",
}
"""The comparison with its sides exchanged."""

_TEXT_FUNCTIONS: Final = {
    "Contains": "match_substring",
    "EndsWith": "ends_with",
    "StartsWith": "starts_with",
}
"""Spark's functions of texts, and those of Arrow that compare the same bytes."""

_TEXT_CALLS: Final = frozenset(_TEXT_FUNCTIONS.values())

_PATTERN: Final = re.compile(r"(%*)([^%_]*)(%*)")
"""Patterns of LIKE that are taken over whole: Spark decides these by bytes, or in a way that comes
to the same. For all others it reads characters, also out of bytes that are no UTF-8, of which
Arrow's regular expressions match none. But such bytes are read as a character that is in no
constant here: so what stands between the wildcards is in the bytes of each text that matches."""

_WILDCARDS: Final = re.compile("[%_]+")

_PATTERN_CALLS: Final = {
    (False, False): "equal",
    (False, True): "starts_with",
    (True, False): "ends_with",
    (True, True): "match_substring",
}
"""What a pattern asks for, by whether anything may be before its text, and behind it."""

_IN_MAX: Final = 1000
"""Constants of an IN: each is read from the JVM."""


@dataclass(frozen=True, slots=True)
class RowCondition:
    """A condition on the columns of a table: a call of Arrow's.

    Attributes:
        call: Its name in `pyarrow.compute`.
        arguments: Conditions, names of columns, and constants.
    """

    call: str
    arguments: tuple[RowCondition | _ColumnName | _Constant | _Constants, ...]

    def over(self, rows: pa.Table) -> pa.ChunkedArray:
        """True, False or NULL for each row of a table."""
        match self.call, self.arguments:
            case "is_in", (_ColumnName() as column, _Constants() as listed):
                # NULL is in no list, and not outside of one.
                kind = listed.values[0].type
                given = column.over(rows).cast(kind)  # as wide as the query compares them
                values = pa.array(listed.values, kind)
                found = pc.is_in(given, value_set=values)
                return pc.if_else(pc.is_valid(given), found, pa.scalar(None, pa.bool_()))
            case call, (_ColumnName() as column, _Constant() as text) if call in _TEXT_CALLS:
                options = pc.MatchSubstringOptions(text.value.as_py())
                return pc.call_function(call, [column.over(rows)], options)
        given = [one.over(rows) for one in self.arguments if not isinstance(one, _Constants)]
        return pc.call_function(self.call, given)


@dataclass(frozen=True, slots=True)
class _ColumnName:
    """A column of a table."""

    name: str

    def over(self, rows: pa.Table) -> pa.ChunkedArray:
        return rows.column(self.name)


@dataclass(frozen=True, slots=True)
class _Constant:
    """A value."""

    value: pa.Scalar

    def over(self, _rows: pa.Table) -> pa.Scalar:
        return self.value


@dataclass(frozen=True, slots=True)
class _Constants:
    """The values of a list."""

    values: tuple[pa.Scalar, ...]


Conditions: TypeAlias = tuple[RowCondition, ...]
"""All of them hold."""


def rows_that_satisfy(rows: pa.Table, *alternatives: Conditions) -> pa.Table:
    """The rows of a table for which all conditions of an alternative are true.

    The very table if that are all of them.
    """
    if not all(alternatives):
        return rows  # one of them has no condition
    masks = [
        reduce(pc.and_kleene, [one.over(rows) for one in conditions]) for conditions in alternatives
    ]
    kept = rows.filter(reduce(pc.or_kleene, masks))
    return rows if kept.num_rows == rows.num_rows else kept


def _conditions_of(node: QueryNode) -> Iterable[Any]:
    """What holds of each row that an operator returns, and of all rows that it is made of."""
    if node.kind == "Filter":
        return conjuncts(node.plan.condition())
    return join_conditions(node) if node.kind == "Join" and join_kind(node) in INNER else ()


class ConditionReader:
    """Reads conditions of Spark's as conditions on the rows of one input."""

    def __init__(self, spark: SparkSession, traces: ColumnTraces, order: EvaluationOrder) -> None:
        """Of one query.

        Args:
            spark: Any session of the application.
            traces: Columns of the operators.
            order: Says what can fail at a row.
        """
        self._traces = traces
        self._order = order
        self._casts = scala_object(spark, _CAST)

    def known(self, operators: Iterable[QueryNode]) -> dict[QueryNode, Conditions]:
        """What holds of all rows of an input that come to anything, for each input.

        Args:
            operators: Those whose conditions count (`EvaluationOrder.evaluated_first`).
        """
        found: dict[QueryNode, list[RowCondition]] = {}
        for node in operators:
            for condition in _conditions_of(node):
                for where, known in self.conditions(node, condition):
                    found.setdefault(where, []).append(known)
        return {node: tuple(dict.fromkeys(known)) for node, known in found.items()}

    def conditions(
        self, node: QueryNode, condition: Any
    ) -> Iterator[tuple[QueryNode, RowCondition]]:
        """What a condition of an operator says of the rows of an input, for each such input."""
        traced: dict[int, tuple[InputColumn, ...]] = {}
        for number in numbers_read(condition):
            below = (self._traces.of(child, number, all_values=True) for child in node.children)
            traced[number] = next((found for found in below if found), ())
        about = dict.fromkeys(column.input for found in traced.values() for column in found)
        for where in about:
            if not self._cannot_fail_before(node, where):
                continue
            names = {
                number: column.name
                for number, found in traced.items()
                for column in found
                if column.input is where
            }
            known = _Translation(self._casts, names).condition(condition)
            if known is not None:
                yield where, known

    def exactly(self, node: QueryNode, where: QueryNode) -> RowCondition | None:
        """A condition that is true of just those rows of an input that a filter lets through.

        None if there is none.

        Args:
            node: The filter.
            where: The input, each row of which is one row below the filter, or is left out there.
        """
        (below,) = node.children
        condition = node.plan.condition()
        traced = {number: self._traces.of(below, number) for number in numbers_read(condition)}
        if any([one.input for one in found] != [where] for found in traced.values()):
            return None
        names = {number: found[0].name for number, found in traced.items()}
        return _Translation(self._casts, names).condition(condition, exact=True)

    def _cannot_fail_before(self, node: QueryNode, where: QueryNode) -> bool:
        """True if nothing on the way of an input's rows up to an operator can fail at a row."""
        if node is where:
            return True
        if not self._order.is_safe(node):
            return False
        return all(
            self._cannot_fail_before(child, where)
            for child in node.children
            if where in inputs_of(child)
        )


@dataclass(frozen=True, slots=True)
class _Translation:
    """Of conditions into Arrow's.

    Attributes:
        casts: Spark's object of casts.
        names: Columns of the input, by the ids of those of the condition.
        common: Expressions that a condition uses several times, by their ids.
    """

    casts: Any
    names: Mapping[int, str]
    common: Mapping[str, Any] = field(default_factory=dict)

    def condition(self, expression: Any, *, exact: bool = False) -> RowCondition | None:
        """A condition that is true of all rows for which an expression is; None if none is known.

        Args:
            expression: Spark's condition.
            exact: False if it may be true of further rows; else it is what the expression is.
        """
        kind = kind_of(expression)
        match kind:
            case "Between":
                return self.condition(expression.replacement(), exact=exact)
            case "With":
                return self._with(expression).condition(expression.child(), exact=exact)
            case "And" | "Or":
                return self._both(expression, kind, exact=exact)
            case "Like":
                return self._like(expression, exact=exact)
            case kind if kind in _COMPARISONS:
                return self._compared(expression, _COMPARISONS[kind])
        read = {
            "Contains": self._has_text,
            "EndsWith": self._has_text,
            "In": self._is_in,
            "IsNotNull": self._is_null,
            "IsNull": self._is_null,
            "Not": self._not,
            "StartsWith": self._has_text,
        }.get(kind)
        return None if read is None else read(expression)

    def _both(self, expression: Any, kind: str, *, exact: bool) -> RowCondition | None:
        sides = [
            self.condition(one, exact=exact) for one in (expression.left(), expression.right())
        ]
        known = [one for one in sides if one is not None]
        if len(known) == len(sides):
            return RowCondition(f"{kind.lower()}_kleene", tuple(known))
        return known[0] if known and kind == "And" and not exact else None

    def _not(self, expression: Any) -> RowCondition | None:
        return _all_of("invert", self.condition(expression.child(), exact=True))

    def _is_null(self, expression: Any) -> RowCondition | None:
        call = "is_null" if kind_of(expression) == "IsNull" else "is_valid"
        return _all_of(call, self._column(expression.child()))

    def _with(self, expression: Any) -> _Translation:
        common = dict(self.common)
        for one in read_sequence(expression.defs()):
            common[str(one.id())] = one.child()
        return _Translation(self.casts, self.names, common)

    def _compared(self, expression: Any, call: str) -> RowCondition | None:
        left, right = self._value(expression.left()), self._value(expression.right())
        if left is None or right is None:
            return None
        if isinstance(left, _Constant):
            left, right, call = right, left, _TURNED[call]
        if isinstance(left, _Constant):
            return None
        if isinstance(right, _ColumnName) and not self._have_one_type(expression):
            return None
        return RowCondition(call, (left, right))

    def _have_one_type(self, expression: Any) -> bool:
        """True if both columns of a comparison have the type that they are compared by."""
        sides = [self._resolved(one) for one in (expression.left(), expression.right())]
        return all(kind_of(one) == "AttributeReference" for one in sides)

    def _is_in(self, expression: Any) -> RowCondition | None:
        column, listed = self._column(expression.value()), read_sequence(expression.list())
        if column is None or len(listed) > _IN_MAX:
            return None
        constants = [self._constant(one) for one in listed]
        if not constants or any(one is None or not one.value.is_valid for one in constants):
            return None
        values = tuple(one.value for one in constants if one is not None)
        return RowCondition("is_in", (column, _Constants(values)))

    def _like(self, expression: Any, *, exact: bool) -> RowCondition | None:
        column, pattern = self._column(expression.left()), self._constant(expression.right())
        if column is None or pattern is None or not pattern.value.is_valid:
            return None
        if "\\" in pattern.value.as_py() or str(expression.escapeChar()) != "\\":
            return None
        form = _PATTERN.fullmatch(pattern.value.as_py())
        if form is None:
            return None if exact else _has_texts_between(column, pattern.value.as_py())
        call = _PATTERN_CALLS[bool(form[1]), bool(form[3])]
        return RowCondition(call, (column, _Constant(pa.scalar(form[2]))))

    def _has_text(self, expression: Any) -> RowCondition | None:
        text = self._constant(expression.right())
        column = self._column(expression.left())
        if text is None or column is None or not text.value.is_valid:
            return None
        return RowCondition(_TEXT_FUNCTIONS[kind_of(expression)], (column, text))

    def _value(self, expression: Any) -> _ColumnName | _Constant | None:
        return self._column(expression) or self._constant(expression)

    def _resolved(self, expression: Any) -> Any:
        if kind_of(expression) == "CommonExpressionRef":
            return self._resolved(self.common[str(expression.id())])
        return expression

    def _column(self, expression: Any) -> _ColumnName | None:
        """The column that an expression has the values of, perhaps in a wider type of numbers."""
        expression = self._resolved(expression)
        while kind_of(expression) == "Cast":
            given = self._resolved(expression.child())
            if not (_is_exact(self._type(given)) and _is_exact(self._type(expression))):
                return None
            if not self.casts.canUpCast(given.dataType(), expression.dataType()):
                return None
            expression = given
        if kind_of(expression) != "AttributeReference" or not _is_known(self._type(expression)):
            return None
        name = self.names.get(number_of(expression))
        return None if name is None else _ColumnName(name)

    def _constant(self, expression: Any) -> _Constant | None:
        expression = self._resolved(expression)
        if not expression.foldable():
            return None
        kind = self._type(expression)
        read = _scalar_of(kind)
        if read is None:
            return None
        try:
            value = expression.eval(None)
        except (Py4JError, PySparkException):
            return None
        known = read(value)
        # It stands for bytes that are no text, which Spark compares as they are.
        is_text = pa.types.is_string(known.type) and known.is_valid
        return None if is_text and "\ufffd" in known.as_py() else _Constant(known)

    def _type(self, expression: Any) -> DataType:
        return type_of(expression)


def _all_of(call: str, *arguments: RowCondition | _ColumnName | None) -> RowCondition | None:
    """A call; None if one of its arguments is not known."""
    known = tuple(one for one in arguments if one is not None)
    return RowCondition(call, known) if len(known) == len(arguments) else None


def _has_texts_between(column: _ColumnName, pattern: str) -> RowCondition | None:
    """That a column has the texts between a pattern's wildcards; None if there are none."""
    first, *between, last = _WILDCARDS.split(pattern)
    inside = (("match_substring", text) for text in between)
    wanted = [("starts_with", first), *inside, ("ends_with", last)]
    known = [
        RowCondition(call, (column, _Constant(pa.scalar(text)))) for call, text in wanted if text
    ]
    if not known:
        return None
    return reduce(lambda one, other: RowCondition("and_kleene", (one, other)), known)


def _is_exact(kind: DataType) -> bool:
    return isinstance(kind, (IntegralType, DecimalType))


def _is_known(kind: DataType) -> bool:
    """True if Arrow compares values of a type as Spark does."""
    return has_one_form(kind) and _scalar_of(kind) is not None


def _scalar_of(kind: DataType) -> Callable[[Any], pa.Scalar] | None:
    """Makes a scalar of Arrow of a value as Catalyst has it; None for other types."""
    made: pa.DataType
    read: Callable[[Any], Any] = _as_it_is
    match kind:
        case BooleanType():
            made = pa.bool_()
        case DateType():
            made = pa.date32()
        case TimestampType():
            made = pa.timestamp("us", "UTC")
        case TimestampNTZType():
            made = pa.timestamp("us")
        case DecimalType():
            made, read = pa.decimal128(kind.precision, kind.scale), _decimal
        case IntegralType():
            made = pa.int64()
        case StringType():
            made, read = pa.string(), str
        case _:
            return None
    return lambda value: pa.scalar(None if value is None else read(value), made)


def _as_it_is(value: Any) -> Any:
    return value


def _decimal(value: Any) -> Decimal:
    return Decimal(value.toJavaBigDecimal())
