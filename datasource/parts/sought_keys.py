"""Finds the rows of a part that have one of many sought keys, without decoding the other rows.

An upsert reads what a shard holds under the keys of its new rows. These may be one row in a hundred
of every part, so statistics leave out little, and the search itself has to be cheap (Delta and
Iceberg: the first scan of a MERGE, of the key's columns alone):

    statistics    of parts and row groups: no sought key is between their bounds
    key columns   of the row groups that are left: those without a hit are not decoded (`Fetcher`)
    rows          each key is looked up in the sought ones

Keys of numbers, dates and times are looked up by one hash of all key columns, among those sought
keys that the record batch's range of the first column may have: parts are sorted by it, so these
are few. Other keys are looked up column by column.

Invariants:
    A row that has a sought key passes. Some others may pass, too: the caller compares keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from shardline.datasource.filters.parser import Where
from shardline.datasource.filters.predicates import (
    FALSE,
    TRUE,
    ColumnKnowledge,
    ColumnLookup,
    Outcomes,
    Path,
    Predicate,
)
from shardline.datasource.parts.contents import Contents
from shardline.datasource.shard.plan import PlannedPart
from shardline.datasource.types.row_keys import contiguous, surrogate
from shardline.datasource.types.spark_types import path_text
from shardline.datasource.types.stats import Bound, PartStats, bounds

__all__ = ["filter_by_keys", "keeps_keys"]

_SOUGHT_ROWS: Final = 1 << 22
"""Up to this many new rows, their keys are kept in memory to drop old rows before the merge: 64 MB
of numbers. Beyond, every row passes."""

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
"""Spreads bits as the golden ratio does; the hash only has to tell most keys apart."""

Hashes = npt.NDArray[np.uint64]


def keeps_keys(new: Sequence[PlannedPart]) -> bool:
    """True if `filter_by_keys` looks rows up; otherwise all of a part pass that may have a key."""
    return sum(planned.part.rows for planned in new) <= _SOUGHT_ROWS


def filter_by_keys(contents: Contents, new: Sequence[PlannedPart]) -> Where:
    """The filter of rows that passes all those which have the key of a row in `new`.

    Args:
        contents: Reads the parts of `new`, by their schema, and has the key.
        new: The parts with the sought keys.
    """
    stats = [planned.part.stats for planned in new]
    key = contents.key
    text = f"({', '.join(key)}) is among the keys to replace"
    if not keeps_keys(new):
        return Where(text, _MayHaveKey(stats, key[:1], {}, None))
    narrow = replace(contents.fetcher, target=contents.fetcher.target.select(key))
    batches = [
        batch for planned in new for batch in narrow.fetch(planned, with_ts=False, with_diff=False)
    ]
    keys = pa.Table.from_batches(batches, narrow.target.arrow)
    found = [surrogate(contiguous(keys.column(name))) for name in key]
    hashed = _HashedKeys.of(key, found)
    values = {} if hashed else {n: pc.unique(v) for n, v in zip(key, found, strict=True)}
    return Where(text, _MayHaveKey(stats, key[:1], values, hashed))


@dataclass(frozen=True, slots=True)
class _HashedKeys:
    """Sought keys of numbers.

    Attributes:
        names: The key's columns.
        firsts: Values of the first one, ascending.
        hashes: Of the keys that have them.
    """

    names: tuple[str, ...]
    firsts: npt.NDArray[Any]
    hashes: Hashes

    @classmethod
    def of(cls, names: tuple[str, ...], columns: Sequence[pa.Array]) -> Self | None:
        """The keys with these surrogates; None if some are no numbers, or null."""
        if not all(pa.types.is_integer(one.type) and not one.null_count for one in columns):
            return None
        order = np.argsort(columns[0].to_numpy())
        return cls(names, columns[0].to_numpy()[order], _hashes(columns)[order])

    def mask(self, data: pa.Table | pa.RecordBatch) -> pa.Array:
        """True for each row that may have one of the keys."""
        columns = [surrogate(contiguous(data.column(name))) for name in self.names]
        if not data.num_rows:
            return pa.array([], pa.bool_())
        # A row with a null in its key has none of these keys, whatever it hashes to.
        valid = [column.is_valid() for column in columns if column.null_count]
        filled = [pc.fill_null(column, 0) if column.null_count else column for column in columns]
        first = filled[0].to_numpy()
        begin = int(np.searchsorted(self.firsts, first.min(), "left"))
        end = int(np.searchsorted(self.firsts, first.max(), "right"))
        mask = pc.is_in(pa.array(_hashes(filled)), value_set=pa.array(self.hashes[begin:end]))
        for one in valid:
            mask = pc.and_(mask, one)
        return mask


def _hashes(columns: Sequence[pa.Array]) -> Hashes:
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        # As 64 bits first: two widths of one type must hash alike.
        found = (found ^ column.to_numpy().astype(np.int64).view(np.uint64)) * _MIX
        found ^= found >> np.uint64(32)
    return found


@dataclass(frozen=True, slots=True)
class _MayHaveKey(Predicate):
    """A filter on old rows that passes those whose key may be among the new ones.

    Attributes:
        new: Statistics of the parts that have the new rows; None where there are none.
        path: The first key column, which parts are sorted by: row groups are left out by it.
        values: For each key column the surrogates of the values that new rows have; empty if they
            are in `hashed`, or too many to keep: then every row passes.
        hashed: The keys of new rows, if they are numbers.
    """

    new: Sequence[PartStats | None]
    path: Path
    values: Mapping[str, pa.Array]
    hashed: _HashedKeys | None

    @property
    @override
    def columns(self) -> frozenset[str]:
        return frozenset((*self.path, *self.values, *(self.hashed.names if self.hashed else ())))

    @override
    def mask(self, data: pa.Table | pa.RecordBatch) -> pa.Array:
        if self.hashed:
            return self.hashed.mask(data)
        mask = pa.repeat(pa.scalar(True), data.num_rows)
        for name, values in self.values.items():
            column = surrogate(contiguous(data.column(name)))
            mask = pc.and_(mask, pc.is_in(column, value_set=values))
        return mask

    @override
    def outcomes(self, known: ColumnLookup) -> Outcomes:
        found = known(self.path)
        if found is None or any(self._meets(found, stats) for stats in self.new):
            return TRUE | FALSE
        return FALSE

    def _meets(self, known: ColumnKnowledge, stats: PartStats | None) -> bool:
        """True if a value that `known` describes may be in a part with these statistics."""
        name = path_text(self.path)
        column = stats.columns.get(name) if stats else None
        if stats is None or column is None or (known.nulls and column.nulls):
            return True
        if known.nans and column.nans:
            return True
        if not known.values:
            return False
        lo, hi = bounds(stats, name)
        if known.kind != column.kind or None in (lo, hi, known.lo, known.hi):
            return True
        return not (_less(hi, known.lo) or _less(known.hi, lo))


def _less(a: Bound | None, b: Bound | None) -> bool:
    return a < b  # type: ignore[operator]  # both are there, and of one kind
