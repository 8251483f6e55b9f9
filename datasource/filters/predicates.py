"""Evaluates filters on rows, and on sets of rows of which only statistics are known.

A read leaves out a part without fetching it only if the part's statistics prove that no row passes.
So each predicate has two evaluations that must agree: of rows, and of bounds. A predicate is a tree
of plain data, bound to the types of a shard's schema (`parser` makes one from SQL text). It follows
SQL's three-valued logic with Spark's comparison rules: NaN equals NaN and exceeds every number,
-0.0 equals 0.0, text is compared by its bytes, null is unknown.

    predicate.mask(data) -> pa.Array          per row: true, false, or null
    predicate.outcomes(known) -> Outcomes     those of the three that some row may have
    may_be_true(predicate, known) -> bool     False proves that no row passes

Invariants:
    Literals are values of the column's own type, rounded when the leaf was made (`x > 1.5` on
    integers is `x >= 2`).
    `outcomes` of a set of rows contains the outcome of each row in it. Missing statistics widen it:
    a column without statistics may have any value.
"""

from __future__ import annotations

import functools
import math
import operator as operators
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from shardline.datasource.types.spark_types import Field, Record
from shardline.datasource.types.stats import Bound, Kind

__all__ = [
    "ABSENT",
    "FALSE",
    "NULL",
    "TRUE",
    "And",
    "ColumnKnowledge",
    "ColumnLookup",
    "Compare",
    "Constant",
    "In",
    "IsNull",
    "Not",
    "Operator",
    "Or",
    "Outcomes",
    "Path",
    "Predicate",
    "StartsWith",
    "as_kind",
    "field_at",
    "may_be_true",
]

Path = tuple[str, ...]
"""The name of a column, followed by names of struct fields inside of it."""

Operator = Literal["=", "<", "<=", ">", ">="]

Data: TypeAlias = "pa.Table | pa.RecordBatch"


Outcomes = int
"""The values that a predicate may have over a set of rows: a set of `TRUE`, `FALSE` and `NULL`, as
bits. (No enum: a plan evaluates a filter for each of 100,000 parts.)"""

TRUE: Final[Outcomes] = 1
FALSE: Final[Outcomes] = 2
NULL: Final[Outcomes] = 4

_NONE: Final[Outcomes] = 0
_ANY: Final[Outcomes] = TRUE | FALSE | NULL


class ColumnKnowledge(msgspec.Struct, frozen=True, gc=False):
    """Statistics of one column's values in a set of rows; a flag that is not known is True.

    Attributes:
        nulls: True if some may be null.
        nans: True if some may be NaN.
        values: True if some may be neither.
        kind: The kind of the bounds; None if there are none.
        lo, hi: Bounds of the values that are neither null nor NaN, inclusive; None when unknown.
    """

    nulls: bool
    nans: bool
    values: bool
    kind: Kind | None = None
    lo: Bound | None = None
    hi: Bound | None = None


ABSENT: Final = ColumnKnowledge(nulls=True, nans=False, values=False)
"""Statistics of a column that the rows were written without: null in all of them."""

ColumnLookup = Callable[[Path], ColumnKnowledge | None]
"""Returns the statistics of a column; None if there are none."""


def field_at(record: Record, path: Path) -> Field | None:
    """The field that `path` names; None if there is none."""
    found: Field | None = None
    for name in path:
        found = next((one for one in record.fields if one.name == name), None)
        if found is None:
            return None
        record = found.type if isinstance(found.type, Record) else Record(())
    return found


def may_be_true(predicate: Predicate, known: ColumnLookup) -> bool:
    """True if some row may pass; False proves that none does."""
    return bool(predicate.outcomes(known) & TRUE)


class Predicate(Protocol):
    """A boolean expression over the columns of a row."""

    @property
    def columns(self) -> frozenset[str]:
        """The top-level columns that it needs."""
        ...

    def mask(self, data: Data) -> pa.Array | pa.ChunkedArray:
        """Its value for each row of `data`, which has its columns under the shard's types."""
        ...

    def outcomes(self, known: ColumnLookup) -> Outcomes:
        """The values that it may have over the rows that `known` describes; never too few."""
        ...


# --- connectives ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Constant(Predicate):
    """One value for every row."""

    value: bool | None

    @property
    @override
    def columns(self) -> frozenset[str]:
        return frozenset()

    @override
    def mask(self, data: Data) -> pa.Array:
        return pa.repeat(pa.scalar(self.value, pa.bool_()), data.num_rows)

    @override
    def outcomes(self, known: ColumnLookup) -> Outcomes:
        if self.value is None:
            return NULL
        return TRUE if self.value else FALSE


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """The negation of `part`; null stays null."""

    part: Predicate

    @property
    @override
    def columns(self) -> frozenset[str]:
        return self.part.columns

    @override
    def mask(self, data: Data) -> pa.Array | pa.ChunkedArray:
        return pc.invert(self.part.mask(data))

    @override
    def outcomes(self, known: ColumnLookup) -> Outcomes:
        return _not(self.part.outcomes(known))


@dataclass(frozen=True, slots=True)
class And(Predicate):
    """All of `parts`, of which there is at least one."""

    parts: tuple[Predicate, ...]

    @property
    @override
    def columns(self) -> frozenset[str]:
        return frozenset().union(*(part.columns for part in self.parts))

    @override
    def mask(self, data: Data) -> pa.Array | pa.ChunkedArray:
        mask = self.parts[0].mask(data)
        for part in self.parts[1:]:
            mask = pc.and_kleene(mask, part.mask(data))
        return mask

    @override
    def outcomes(self, known: ColumnLookup) -> Outcomes:
        # Parts are taken as independent. That can only add outcomes, and too many are safe.
        found = self.parts[0].outcomes(known)
        for part in self.parts[1:]:
            if found == FALSE:
                break
            found = _AND[found][part.outcomes(known)]
        return found


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """Any of `parts`, of which there is at least one."""

    parts: tuple[Predicate, ...]

    @property
    @override
    def columns(self) -> frozenset[str]:
        return frozenset().union(*(part.columns for part in self.parts))

    @override
    def mask(self, data: Data) -> pa.Array | pa.ChunkedArray:
        mask = self.parts[0].mask(data)
        for part in self.parts[1:]:
            mask = pc.or_kleene(mask, part.mask(data))
        return mask

    @override
    def outcomes(self, known: ColumnLookup) -> Outcomes:
        found = self.parts[0].outcomes(known)
        for part in self.parts[1:]:
            found = _not(_AND[_not(found)][_not(part.outcomes(known))])
        return found


# --- leaves --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IsNull(Predicate):
    """`column is null`: true or false, never null."""

    column: Path

    @property
    @override
    def columns(self) -> frozenset[str]:
        return frozenset(self.column[:1])

    @override
    def mask(self, data: Data) -> pa.Array | pa.ChunkedArray:
        return pc.is_null(_values(data, self.column))

    @override
    def outcomes(self, known: ColumnLookup) -> Outcomes:
        found = known(self.column)
        if found is None:
            return TRUE | FALSE
        true = TRUE if found.nulls else _NONE
        return true | (FALSE if found.values or found.nans else _NONE)


@dataclass(frozen=True, slots=True)
class Compare(Predicate):
    """`column operator value`.

    Attributes:
        kind: The column's kind of bounds; `value` has the form of such a bound.
        value: A value of the column's own type, never null; a double for both float types.
    """

    column: Path
    kind: Kind
    operator: Operator
    value: Bound

    @property
    @override
    def columns(self) -> frozenset[str]:
        return frozenset(self.column[:1])

    @override
    def mask(self, data: Data) -> pa.Array | pa.ChunkedArray:
        values = _values(data, self.column)
        if self.kind != "float":
            return _COMPARE[self.operator](values, _scalar(self.value, values.type))
        nan = pc.is_nan(values)
        if math.isnan(float(self.value)):
            return _COMPARE[self.operator](nan, pa.scalar(True))
        found = _COMPARE[self.operator](
            pc.cast(values, pa.float64()), pa.scalar(float(self.value), pa.float64())
        )
        return pc.or_(found, nan) if self.operator in (">", ">=") else found

    @override
    def outcomes(self, known: ColumnLookup) -> Outcomes:
        found = known(self.column)
        if found is None:
            return _ANY
        result = NULL if found.nulls else _NONE
        nan = self.kind == "float" and math.isnan(float(self.value))
        if found.nans:
            # The rows' NaN is equal to a literal NaN, and above any number.
            holds = self.operator in (("=", "<=", ">=") if nan else (">", ">="))
            result |= TRUE if holds else FALSE
        if found.values and nan:
            result |= TRUE if self.operator in ("<", "<=") else FALSE
        elif found.values:
            result |= _within(*_bounds(found, self.kind), self.operator, self.value)
        return result


@dataclass(frozen=True, slots=True)
class In(Predicate):
    """`column in (values)`; without values it is false, and null for null.

    Attributes:
        kind: As in `Compare`.
        values: Values of the column's own type, none of them null.
        null: True if the list also has a null: a value that is not found is then unknown.
    """

    column: Path
    kind: Kind
    values: tuple[Bound, ...]
    null: bool = False

    @property
    @override
    def columns(self) -> frozenset[str]:
        return frozenset(self.column[:1])

    @override
    def mask(self, data: Data) -> pa.Array | pa.ChunkedArray:
        values = _values(data, self.column)
        wanted = list(self.values)
        if self.kind == "float":
            values = pc.cast(values, pa.float64())
            # `is_in` goes by hashes, which differ for -0.0 and 0.0; to SQL they are equal.
            wanted += [-value for value in wanted if value == 0]
        found = pc.is_in(values, pa.array(wanted, values.type))
        if any(value != value for value in wanted):  # noqa: PLR0124 - only NaN differs
            # Hashes of NaNs differ, too: that of 0.0 / 0.0 has a sign.
            found = pc.or_(found, pc.fill_null(pc.is_nan(values), False))
        unknown = pc.is_null(values)
        if self.null:
            unknown = pc.or_(unknown, pc.invert(found))
        return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)

    @override
    def outcomes(self, known: ColumnLookup) -> Outcomes:
        found = known(self.column)
        if found is None:
            return _ANY
        result = NULL if found.nulls else _NONE
        nan = any(value != value for value in self.values)  # noqa: PLR0124 - only NaN differs
        if found.nans:
            result |= TRUE if nan else self._absent
        if found.values:
            lo, hi = _bounds(found, self.kind)
            inside = [v for v in self.values if _within(lo, hi, "=", v) & TRUE]
            result |= TRUE if inside else _NONE
            if lo is None or lo != hi or not inside:
                result |= self._absent
        return result

    @property
    def _absent(self) -> Outcomes:
        return NULL if self.null else FALSE


@dataclass(frozen=True, slots=True)
class StartsWith(Predicate):
    """`column like 'prefix%'`: true for text that begins with `prefix`."""

    column: Path
    prefix: str

    @property
    @override
    def columns(self) -> frozenset[str]:
        return frozenset(self.column[:1])

    @override
    def mask(self, data: Data) -> pa.Array | pa.ChunkedArray:
        return pc.starts_with(_values(data, self.column), self.prefix)

    @override
    def outcomes(self, known: ColumnLookup) -> Outcomes:
        found = known(self.column)
        if found is None:
            return _ANY
        result = NULL if found.nulls else _NONE
        if found.values:
            lo, hi = _bounds(found, "str")
            # Text with the prefix sorts after the prefix itself, and before all text whose first
            # characters are greater.
            above = hi is not None and str(hi) < self.prefix
            below = lo is not None and str(lo)[: len(self.prefix)] > self.prefix
            result |= _NONE if above or below else TRUE
            ends = [bound is not None and str(bound).startswith(self.prefix) for bound in (lo, hi)]
            result |= _NONE if all(ends) else FALSE
        return result


# --- values --------------------------------------------------------------------------------------


def _values(data: Data, path: Path) -> pa.Array | pa.ChunkedArray:
    values = data.column(path[0])
    for name in path[1:]:
        values = pc.struct_field(values, [values.type.get_field_index(name)])  # null where it is
    return values


def _scalar(value: Bound, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(bool(value) if pa.types.is_boolean(kind) else value, kind)


_COMPARE: Final[Mapping[Operator, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


# --- statistics ----------------------------------------------------------------------------------

_DAY_US: Final = 86_400_000_000


def as_kind(bound: Bound, written: Kind, wanted: Kind) -> Bound | None:
    """A bound of a column as a bound of the same column under a wider type; None if unknown."""
    if written == wanted:
        return None if written == "coll" else bound
    match written, wanted:
        case "int", "dec":
            return bound
        case "int", "float":
            return float(bound)
        case "date", "ntz":
            return int(bound) * _DAY_US
    return None


def _bounds(known: ColumnKnowledge, wanted: Kind) -> tuple[Any, Any]:
    if known.kind is None:
        return None, None
    lo = None if known.lo is None else as_kind(known.lo, known.kind, wanted)
    return lo, None if known.hi is None else as_kind(known.hi, known.kind, wanted)


def _within(lo: Any, hi: Any, operator: Operator, literal: Any) -> Outcomes:
    """Outcomes of `value operator literal` for values from `lo` to `hi` (None: no limit)."""
    less = lo is None or lo < literal
    more = hi is None or hi > literal
    same = (lo is None or lo <= literal) and (hi is None or hi >= literal)
    match operator:
        case "=":
            true, false = same, less or more
        case "<":
            true, false = less, same or more
        case "<=":
            true, false = less or same, more
        case ">":
            true, false = more, same or less
        case _:
            true, false = more or same, less
    return (TRUE if true else _NONE) | (FALSE if false else _NONE)


def _each(outcomes: Outcomes) -> list[Outcomes]:
    return [one for one in (TRUE, FALSE, NULL) if one & outcomes]


def _and(a: Outcomes, b: Outcomes) -> Outcomes:
    """The outcome of `a and b` for two single outcomes."""
    if FALSE in (a, b):
        return FALSE
    return NULL if NULL in (a, b) else TRUE


def _not(a: Outcomes) -> Outcomes:
    """The outcomes of `not a` for any set of outcomes."""
    return (a & NULL) | (TRUE if a & FALSE else _NONE) | (FALSE if a & TRUE else _NONE)


def _union(some: Iterable[Outcomes]) -> Outcomes:
    return functools.reduce(operators.or_, some, _NONE)


_SETS: Final = range(_ANY + 1)
_AND: Final = [
    [_union(_and(x, y) for x in _each(a) for y in _each(b)) for b in _SETS] for a in _SETS
]
"""The outcomes of `a and b` by the outcomes of both."""
