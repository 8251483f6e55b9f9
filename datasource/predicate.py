"""Evaluates filters on statistics: whether a part may hold a row that a filter keeps.

    may_match(stats, predicates) -> bool

`predicates` are joined by AND. False is a proof that no row of the part satisfies all of them under
SQL's three-valued logic, with Spark's comparison rules (NaN equals NaN and exceeds every number,
-0.0 equals 0.0). True says nothing: whatever is unknown, of another type or not understood counts
as a possible match, and the filter is applied to the rows again.

A literal is compared only where its Python type is the exact counterpart of the column's: int for
integers, float for floats, Decimal or int for decimals, str, bytes, bool, date, datetime (aware for
timestamps, naive for those without a zone), timedelta and time. Spark would widen other pairs with
rounding of its own. Strings with a collation are never compared.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

from datasource.sparktype import path_text
from datasource.stats import ColumnStats, Kind, PartStats, bounds

__all__ = ["Operator", "Predicate", "may_match"]

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "in", "is null", "is not null"]

_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - stands for timestamps without a zone
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Predicate:
    """`column operator value`.

    Attributes:
        column: Path of the column: its name, then names of struct fields.
        operator: What relates them.
        value: A literal; a tuple of them for "in"; ignored for "is null" and "is not null".
    """

    column: tuple[str, ...]
    operator: Operator
    value: object = None


def may_match(stats: PartStats, predicates: Iterable[Predicate]) -> bool:
    """Whether some row may satisfy all of `predicates`."""
    return stats.rows > 0 and all(_may_be_true(stats, p) for p in predicates)


def _may_be_true(stats: PartStats, predicate: Predicate) -> bool:
    path = path_text(predicate.column)
    column = stats.columns.get(path)
    if column is None:
        return True
    if predicate.operator == "is null":
        return column.nulls > 0
    if predicate.operator == "is not null" or column.kind is None:
        return column.nulls < stats.rows
    if predicate.operator == "in":
        values = predicate.value if isinstance(predicate.value, tuple) else (predicate.value,)
        return any(_may_compare(stats, path, column, "=", v) for v in values if v is not None)
    return _may_compare(stats, path, column, predicate.operator, predicate.value)


def _may_compare(
    stats: PartStats, path: str, column: ColumnStats, operator: Operator, value: object
) -> bool:
    if value is None:
        return False  # a comparison with NULL is NULL
    assert column.kind is not None, path
    literal = _COMPARABLE[column.kind](value)
    if literal is None:
        return True
    if isinstance(literal, float) and math.isnan(literal):
        return _may_compare_nan(stats, column, operator)
    if column.nans and operator in ("!=", ">", ">="):
        return True  # NaN exceeds every number
    numbers = stats.rows - column.nulls - column.nans
    return numbers > 0 and _within(*bounds(stats, path), operator, literal)


def _may_compare_nan(stats: PartStats, column: ColumnStats, operator: Operator) -> bool:
    if operator in ("=", ">="):
        return column.nans > 0
    if operator in ("!=", "<"):
        return column.nulls + column.nans < stats.rows
    return operator != ">"


def _within(lo: Any, hi: Any, operator: Operator, literal: Any) -> bool:
    """Whether a value between `lo` and `hi` (None: no limit) may relate to `literal`."""
    may_be = {
        "<": lo is None or lo < literal,
        "<=": lo is None or lo <= literal,
        ">": hi is None or hi > literal,
        ">=": hi is None or hi >= literal,
    }
    may_be["="] = may_be["<="] and may_be[">="]
    may_be["!="] = may_be["<"] or may_be[">"]
    return may_be.get(operator, True)


def _as_is(*kinds: type) -> Callable[[object], Any]:
    return lambda value: value if type(value) in kinds else None


def _decimal(value: object) -> Any:
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    return value if type(value) is int else None


def _days(value: object) -> Any:
    return value.toordinal() - _EPOCH.toordinal() if type(value) is dt.date else None


def _micros_utc(value: object) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return (value - _EPOCH_UTC) // _MICROSECOND
    return None


def _micros(value: object) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return (value - _EPOCH) // _MICROSECOND
    return None


def _span(value: object) -> Any:
    return value // _MICROSECOND if isinstance(value, dt.timedelta) else None


def _nanos_of_day(value: object) -> Any:
    if not isinstance(value, dt.time) or value.tzinfo is not None:
        return None
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return (seconds * 1_000_000 + value.microsecond) * 1000


_COMPARABLE: Final[Mapping[Kind, Callable[[object], Any]]] = {
    "bool": _as_is(bool),
    "int": _as_is(int),
    "float": _as_is(float),
    "dec": _decimal,
    "str": _as_is(str),
    "coll": _as_is(),
    "bin": _as_is(bytes),
    "date": _days,
    "ts": _micros_utc,
    "ntz": _micros,
    "dt": _span,
    "time": _nanos_of_day,
}
"""A literal as bounds of that kind are decoded; None when the two are not exact counterparts."""
