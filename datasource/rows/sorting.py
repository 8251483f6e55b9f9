"""Sorts the rows of a table by many columns, paying only for the columns that decide.

Rows are ordered by the first column; only rows that tie are compared by the next one, and so on.
One or two columns decide almost all data, and rows that still tie at the end are equal, which is
what consolidation looks for. A column that is in order already is checked and not sorted.

    order_rows(table, columns) -> Order      .indices, .starts, .apply(table)
    take(table, indices)                     for tables of any size
    compare_rows(a, i, b, j, columns)        -1, 0 or 1: two rows, of one or of two tables

The order is that of `types.row_keys`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.types import row_keys as rowkey

__all__ = ["Order", "compare_rows", "order_rows", "take"]

Rows = npt.NDArray[np.int64]

_PACKED_BITS = 63


@dataclass(frozen=True, slots=True)
class Order:
    """The rows of a table in order.

    Attributes:
        count: Number of rows.
        indices: Row numbers in order; None when the table is in order as it is.
        starts: Positions in that order at which a row differs from the one before it, the first
            included; None when all rows differ.
    """

    count: int
    indices: Rows | None
    starts: Rows | None

    def apply(self, table: pa.Table) -> pa.Table:
        """`table` in this order; `table` itself when it is in order."""
        return table if self.indices is None else take(table, self.indices)


def order_rows(table: pa.Table, columns: Sequence[str]) -> Order:
    """The order of `table` by `columns`; rows equal in all of them are adjacent."""
    ties = _Ties(table.num_rows)
    for name in columns:
        if ties.none_left:
            break
        ties.refine(table.column(name))
    return Order(table.num_rows, ties.order, ties.starts())


class _Ties:
    """An unfinished order, and the rows that are still equal to a neighbour in it.

    `position` holds the places, ascending, of all rows that tie with a neighbour; `group` numbers
    the ties, ascending. All other rows have their final place.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.order: Rows | None = None
        self.position: Rows | None = None  # None: every place
        self.group: Rows | None = None  # None: all tie with each other

    @property
    def none_left(self) -> bool:
        return self.count <= 1 if self.position is None else len(self.position) == 0

    def refine(self, column: pa.ChunkedArray) -> None:
        """Order the rows that tie by one more column."""
        rows = self._rows()
        if rows is None:
            values = rowkey.contiguous(column)
            local = np.arange(self.count)
        else:
            # Only rows that still tie are converted: encoding nested values costs most.
            values = rowkey.contiguous(_take_column(column, pa.array(rows)))
            local = np.arange(len(rows))
        for word in rowkey.sort_words(rowkey.surrogate(values)):
            local = self._refine_by(word(local), local)
            if len(local) == 0:
                return

    def _rows(self) -> Rows | None:
        """The row numbers that tie, in their present order; None for all, as they are."""
        if self.position is None:
            return self.order
        return self.position if self.order is None else self.order[self.position]

    def _refine_by(self, values: npt.NDArray[Any], local: Rows) -> Rows:
        """Sort each tie by `values`; returns the entries of `local` whose rows still tie."""
        group = self.group
        border = np.zeros(len(values) - 1, np.bool_) if group is None else group[1:] != group[:-1]
        if ((values[1:] < values[:-1]) & ~border).any():
            moved = _sorted_within(values, group)
            self._move(moved)
            values, local = values[moved], local[moved]
        step = (values[1:] != values[:-1]) | border
        if group is not None and np.array_equal(step, border):
            return local  # all values are equal within each tie
        first = np.concatenate([[True], step])
        tied = ~(first & np.concatenate([step, [True]]))
        position = self.position[tied] if self.position is not None else np.flatnonzero(tied)
        self.position = position
        self.group = np.cumsum(first[tied])
        remaining: Rows = local[tied]
        return remaining

    def _move(self, moved: Rows) -> None:
        if self.position is None:
            self.order = moved if self.order is None else self.order[moved]
            return
        if self.order is None:
            self.order = np.arange(self.count)
        self.order[self.position] = self.order[self.position[moved]]

    def starts(self) -> Rows | None:
        """Places at which a new value begins; None when every row is a value of its own."""
        if self.count == 0 or self.position is None:
            return None if self.count <= 1 else np.zeros(1, np.int64)
        if len(self.position) == 0:
            return None
        assert self.group is not None, "ties without groups"
        first = np.ones(self.count, np.bool_)
        repeated = np.flatnonzero(self.group[1:] == self.group[:-1]) + 1
        first[self.position[repeated]] = False
        return np.flatnonzero(first)


def _sorted_within(values: npt.NDArray[Any], group: Rows | None) -> Rows:
    """The permutation that sorts `values` within each group; `group` is ascending."""
    if group is None:
        unstable: Rows = np.argsort(values)
        return unstable
    least, most = int(values.min()), int(values.max())
    span = most - least + 1
    if (int(group[-1]) + 1) * span < 2**_PACKED_BITS:
        # One key for both: sorting once beats sorting twice.
        wide = values.dtype if values.dtype.kind == "u" else np.dtype(np.int64)
        small = (values.astype(wide) - wide.type(least)).astype(np.int64)
        packed: Rows = np.argsort(group * span + small, kind="stable")
        return packed
    in_two: Rows = np.lexsort((values, group))
    return in_two


def take(table: pa.Table, indices: Rows) -> pa.Table:
    """The rows of `table` at `indices`, one chunk per column unless it would pass 2 GiB."""
    chosen = pa.array(indices)
    columns = [_take_column(column, chosen) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _take_column(column: pa.ChunkedArray, indices: pa.Array) -> pa.Array | pa.ChunkedArray:
    if column.num_chunks == 1 and column.nbytes <= rowkey.CONTIGUOUS_BYTES:
        return column.chunk(0).take(indices)
    if column.nbytes <= rowkey.CONTIGUOUS_BYTES:
        return rowkey.contiguous(column).take(indices)
    return _take_large(column, indices)


def _take_large(column: pa.ChunkedArray, indices: pa.Array) -> pa.ChunkedArray:
    """Take in pieces, each of which has at most as much text as 32-bit offsets allow."""
    pieces = -(-column.nbytes // rowkey.CONTIGUOUS_BYTES) * 2
    size = max(1, -(-len(indices) // pieces))
    whole = rowkey.contiguous(column)
    parts = []
    for start in range(0, len(indices), size):
        parts.extend(_narrowed(whole.take(indices.slice(start, size)), column.type))
    return pa.chunked_array(parts, column.type)


def _narrowed(array: pa.Array, kind: pa.DataType) -> list[pa.Array]:
    """`array` as `kind` with 32-bit offsets, halved until it fits."""
    if array.type == kind:
        return [array]
    if array.nbytes > rowkey.CONTIGUOUS_BYTES and len(array) > 1:
        half = len(array) // 2
        return [*_narrowed(array[:half], kind), *_narrowed(array[half:], kind)]
    return [pc.cast(array, kind)]


def compare_rows(a: pa.Table, i: int, b: pa.Table, j: int, columns: Sequence[str]) -> int:
    """Compare row `i` of `a` with row `j` of `b` by `columns`: -1, 0 or 1."""
    for name in columns:
        left, right = _one(a, name, i), _one(b, name, j)
        if left is None or right is None:
            if left is not right:
                return -1 if left is None else 1
        elif left != right:
            return -1 if left < right else 1
    return 0


def _one(table: pa.Table, name: str, row: int) -> Any:
    value = table.column(name).slice(row, 1)
    return rowkey.surrogate(rowkey.contiguous(value))[0].as_py()
