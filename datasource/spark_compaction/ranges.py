"""Cuts a shard's rows, in their sort order, into ranges of about the same weight.

Rows are cut by the first column that they are sorted by, at values of it: rows that are equal in
the sort order are equal in that column, so they are always in one range. A range is a filter, so
that fetching leaves out row groups outside of it, and audits that as with any other filter.

The values that are cut at decide only how even the ranges are, never the result. They are taken
from the bounds of parts and row groups; where those are missing there are fewer ranges, down to
one. Columns whose bounds have another order than the rows (collations), or none (nested), are not
cut.

Invariants:
    Every row is in exactly one range, nulls in the first one and NaN in the last.
    The rows of a range come before those of the next one in the order of `row_keys`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from shardline.datasource.filters.predicates import (
    FALSE,
    TRUE,
    ColumnKnowledge,
    ColumnLookup,
    Outcomes,
    Predicate,
)
from shardline.datasource.shard.batch import Part
from shardline.datasource.types.row_keys import contiguous, surrogate
from shardline.datasource.types.spark_types import Field, path_text
from shardline.datasource.types.stats import Bound, Kind, bounds, kind_of

__all__ = [
    "RowRange",
    "WeightedSpan",
    "cut_kind",
    "known_of_part",
    "plan_cuts",
    "ranges_between",
    "weighted_span",
]

_DIRECT: Final = frozenset({"bool", "int", "date", "ts", "ntz", "dt", "time"})
"""Kinds whose bounds equal the surrogates of their values (`row_keys.surrogate`)."""


def cut_kind(field: Field) -> Kind | None:
    """The kind of bounds that a column can be cut at; None if it cannot be cut."""
    kind = kind_of(field)
    return None if kind == "coll" else kind


@dataclass(frozen=True, slots=True)
class WeightedSpan:
    """Rows with values from `lo` to `hi`, and their weight in bytes."""

    lo: Bound
    hi: Bound
    weight: int


def known_of_part(part: Part, column: str) -> ColumnKnowledge | None:
    """The statistics of a part's column; None if there are none. Decodes them: call it once."""
    stats = part.stats
    found = stats.columns.get(path_text((column,))) if stats else None
    if stats is None or found is None:
        return None
    lo, hi = bounds(stats, path_text((column,)))
    values = found.nulls + found.nans < stats.rows
    return ColumnKnowledge(found.nulls > 0, found.nans > 0, values, found.kind, lo, hi)


def weighted_span(known: ColumnKnowledge | None, kind: Kind, weight: int) -> WeightedSpan | None:
    """The piece of the rows that `known` describes; None if it has no bounds of that kind."""
    if known is None or known.kind != kind or known.lo is None or known.hi is None:
        return None
    return WeightedSpan(known.lo, known.hi, weight)


def plan_cuts(pieces: Iterable[WeightedSpan], count: int) -> list[Bound]:
    """Values, ascending, that cut the rows into `count` ranges of like weight; or fewer.

    Half the weight of a piece is taken to be at each of its ends.
    """
    ends: list[tuple[Any, int]] = [
        (end, piece.weight) for piece in pieces for end in (piece.lo, piece.hi)
    ]
    ends.sort(key=lambda one: one[0])
    total = sum(weight for _, weight in ends)
    cuts: list[Bound] = []
    before = 0
    for value, weight in ends:
        wanted = total * (len(cuts) + 1) / count
        # A cut at the least value of all would leave nothing before it.
        apart = value > (cuts[-1] if cuts else ends[0][0])
        if before >= wanted and apart and len(cuts) < count - 1:
            cuts.append(value)
        before += weight
    return cuts


def ranges_between(column: str, kind: Kind | None, cuts: Sequence[Bound]) -> list[RowRange]:
    """The ranges between `cuts`, one more than there are cuts."""
    ends = (None, *cuts, None)
    return [RowRange(column, kind, lo, hi) for lo, hi in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class RowRange(Predicate):
    """A filter for the rows with `lo <= column < hi` in the order of `row_keys`: plain data.

    Attributes:
        column: The first column that rows are sorted by.
        kind: The kind of the ends, as bounds.
        lo: None for no lower end; includes null.
        hi: None for no upper end; includes NaN.
    """

    column: str
    kind: Kind | None
    lo: Bound | None
    hi: Bound | None

    @property
    @override
    def columns(self) -> frozenset[str]:
        return frozenset((self.column,)) if self.is_cut else frozenset()

    @property
    def is_cut(self) -> bool:
        """True if some rows may be outside."""
        return self.lo is not None or self.hi is not None

    @override
    def mask(self, data: pa.Table | pa.RecordBatch) -> pa.Array:
        values = contiguous(data.column(self.column))
        keys = surrogate(values)
        inside = pa.repeat(pa.scalar(True), len(keys))
        if self.lo is not None:
            inside = pc.greater_equal(keys, self._key(self.lo, values, keys))
        if self.hi is not None:
            inside = pc.and_(inside, pc.less(keys, self._key(self.hi, values, keys)))
        return pc.if_else(pc.is_null(keys), self.lo is None, inside)

    def _key(self, end: Bound, values: pa.Array, keys: pa.Array) -> pa.Scalar:
        """The surrogate of an end, where `keys` are those of `values`."""
        if self.kind in _DIRECT:
            return pa.scalar(int(end), keys.type)
        if self.kind == "str":
            return pa.scalar(str(end).encode(), keys.type)
        if self.kind == "bin":
            return pa.scalar(end, keys.type)
        return surrogate(pa.array([end], values.type))[0]

    @override
    def outcomes(self, known: ColumnLookup) -> Outcomes:
        return TRUE | FALSE if self.may_hold(known((self.column,))) else FALSE

    def may_hold(self, known: ColumnKnowledge | None) -> bool:
        """True if some row that `known` describes may be inside; False proves that none is."""
        return known is None or self._may_hold_values(known)

    def _may_hold_values(self, known: ColumnKnowledge) -> bool:
        """True if some of the values may be inside."""
        if (known.nulls and self.lo is None) or (known.nans and self.hi is None):
            return True
        if not known.values:
            return False
        lo: Any = known.lo
        hi: Any = known.hi
        if known.kind != self.kind or lo is None or hi is None:
            return True
        # As bounds -0.0 and 0.0 are equal, and as rows they differ: a part with both may have rows
        # on both sides of a cut at zero.
        before = self.hi is not None and (lo > self.hi or (lo == self.hi and lo != 0))
        return not before and not (self.lo is not None and hi < self.lo)
