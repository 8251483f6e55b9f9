"""Adds up, advances and expands updates: tables of a row's columns, its time `_ts` and `_diff`.

    stamp(rows, ts, diff=1)            rows -> updates at one time
    negate(updates)                    the updates that undo these
    advance_times(updates, since)      times before `since` become `since`
    consolidate(updates, columns)      one update per row and time, none with diff 0
    consolidate_snapshot(updates, …)   one update per row whatever the times, diffs >= 1, no `_ts`
    expand_copies(snapshot, rows_max)  diff n -> n copies, without `_diff`, in bounded tables
    sort_rows(table, columns)          rows in the order of `row_keys`

`columns` are the columns to sort by (a shard's key, or nothing). The other columns of the row
follow in table order, then `_ts`: the result is the same for every order of the input, except
which of several representations of one value (NaN payloads, orders of map entries) is kept.

Invariants:
    - Consolidated output is sorted, its rows differ, and it means what the input meant.
    - Input that is consolidated already comes back as it is, without a copy.
    - A sum of diffs is exact or an error, never wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.rows.sorting import Order, order_rows, take
from shardline.datasource.types.schema import DIFF, TS

__all__ = [
    "DIFF",
    "TS",
    "advance_times",
    "consolidate",
    "consolidate_snapshot",
    "expand_copies",
    "negate",
    "row_columns",
    "sort_rows",
    "stamp",
    "update_schema",
]

Diffs = npt.NDArray[np.int64]

_UPDATE_FIELDS = (
    pa.field(TS, pa.int64(), nullable=False),
    pa.field(DIFF, pa.int64(), nullable=False),
)


def update_schema(rows: pa.Schema) -> pa.Schema:
    """The Arrow schema of updates to rows of schema `rows`."""
    return pa.schema([*rows, *_UPDATE_FIELDS])


def row_columns(table: pa.Table, first: Sequence[str] = ()) -> list[str]:
    """The columns of the row without `_ts` and `_diff`: `first`, then the others in table order."""
    rest = (n for n in table.column_names if n not in (TS, DIFF) and n not in first)
    return [*first, *rest]


def stamp(rows: pa.Table, ts: int, diff: int = 1) -> pa.Table:
    """An update per row: each takes effect at time `ts` with `diff`."""
    times = pa.array(np.full(rows.num_rows, ts, np.int64))
    diffs = pa.array(np.full(rows.num_rows, diff, np.int64))
    return rows.append_column(_UPDATE_FIELDS[0], times).append_column(_UPDATE_FIELDS[1], diffs)


def negate(updates: pa.Table) -> pa.Table:
    """The updates that undo `updates`, at the same times."""
    return _with_column(updates, DIFF, pc.negate_checked(updates.column(DIFF)))


def advance_times(updates: pa.Table, since: int) -> pa.Table:
    """`updates` with every time before `since` moved up to it; not consolidated."""
    times = updates.column(TS)
    if updates.num_rows == 0 or pc.min(times).as_py() >= since:
        return updates
    return _with_column(updates, TS, pc.max_element_wise(times, pa.scalar(since, pa.int64())))


def sort_rows(table: pa.Table, columns: Sequence[str] = ()) -> pa.Table:
    """`table` sorted by `columns`, then its other row columns, then `_ts` if it has one."""
    return order_rows(table, _sort_columns(table, columns)).apply(table)


def consolidate(updates: pa.Table, columns: Sequence[str] = ()) -> pa.Table:
    """The sum of `updates`: sorted, at most one update per row and time, no diff 0.

    Raises:
        InvalidUsage: `DIFF_OVERFLOW` if a sum of diffs is no int64.
    """
    order = order_rows(updates, _sort_columns(updates, columns))
    return _summed(updates, order)


def consolidate_snapshot(updates: pa.Table, columns: Sequence[str] = ()) -> pa.Table:
    """The contents after `updates`: each row once, its number of copies in `_diff`, no `_ts`.

    Raises:
        Corrupt: `NEGATIVE_MULTIPLICITY` if a row was removed more often than it was added.
        InvalidUsage: `DIFF_OVERFLOW` if a sum of diffs is no int64.
    """
    rows = updates.drop_columns([TS]) if TS in updates.column_names else updates
    total = _summed(rows, order_rows(rows, row_columns(rows, columns)))
    negative = pc.sum(pc.less(total.column(DIFF), 0)).as_py()
    if negative:
        raise Corrupt(
            f"{negative} of {total.num_rows} distinct rows have been removed more often than "
            "they were added",
            code="NEGATIVE_MULTIPLICITY",
            hint="a writer retracted rows that were never there; find it in the change feed by "
            "its negative diffs, and add the rows back to repair the shard",
        )
    return total


def expand_copies(snapshot: pa.Table, rows_max: int = 65_536) -> Iterator[pa.Table]:
    """Repeat each row of a consolidated snapshot `_diff` times.

    Args:
        snapshot: Rows with diffs >= 0: those of `consolidate_snapshot`, or of a part that retracts
            nothing, where an older writer may have left a row of which there is no copy.
        rows_max: Most rows of one result table: bounds memory for any diffs.
    """
    rows = snapshot.drop_columns([DIFF])
    for start in range(0, rows.num_rows, rows_max):
        some = rows.slice(start, rows_max)
        copies = _int64(snapshot.slice(start, rows_max), DIFF)
        if copies.min() == copies.max() == 1:
            yield some
        else:
            yield from _copies(some, copies, rows_max)


def _copies(rows: pa.Table, copies: Diffs, rows_max: int) -> Iterator[pa.Table]:
    # A single diff may be close to 2**63: never materialise more than one result at a time.
    left = copies.copy()
    while len(unfinished := np.flatnonzero(left)):
        row = int(unfinished[0])
        ends = np.cumsum(np.minimum(left[row:], rows_max))
        counts = np.diff(np.minimum(ends, rows_max), prepend=0)
        yield take(rows, np.repeat(np.arange(row, len(left)), counts))
        left[row:] -= counts


def _sort_columns(table: pa.Table, columns: Sequence[str]) -> list[str]:
    every = row_columns(table, columns)
    return [*every, TS] if TS in table.column_names else every


def _summed(table: pa.Table, order: Order) -> pa.Table:
    """One row per run of equal rows of `order`, with the sum of their diffs, if that is not 0."""
    diffs = _int64(table, DIFF)
    if order.starts is None:
        return _nonzero(table, order, diffs)
    sorted_diffs = diffs if order.indices is None else diffs[order.indices]
    sums = _exact_sums(sorted_diffs, order.starts)
    kept = np.flatnonzero(sums)
    places = order.starts[kept]
    chosen = places if order.indices is None else order.indices[places]
    return _with_column(take(table, chosen), DIFF, pa.array(sums[kept]))


def _nonzero(table: pa.Table, order: Order, diffs: Diffs) -> pa.Table:
    """`table` in `order`, all rows of which differ, without those of diff 0."""
    if diffs.all():
        return order.apply(table)
    indices = np.arange(order.count) if order.indices is None else order.indices
    return take(table, indices[diffs[indices] != 0])


def _exact_sums(diffs: Diffs, starts: npt.NDArray[np.int64]) -> Diffs:
    """The sum of each run of `diffs` that begins at `starts`."""
    extreme = max(int(diffs.max()), -int(diffs.min()))
    if extreme * len(diffs) < 2**63:
        sums: Diffs = np.add.reduceat(diffs, starts)
        return sums
    # Sums of 32-bit halves cannot overflow below 2**31 rows; a total beyond int64 shows in `high`.
    low = np.add.reduceat(diffs & 0xFFFFFFFF, starts)
    high = np.add.reduceat(diffs >> 32, starts) + (low >> 32)
    if high.max() >= 2**31 or high.min() < -(2**31):
        raise InvalidUsage(
            "the diffs of one row add up to more than an int64 holds",
            code="DIFF_OVERFLOW",
            hint="a diff counts copies of a row; write smaller ones",
        )
    exact: Diffs = (high << 32) | (low & 0xFFFFFFFF)
    return exact


def _int64(table: pa.Table, name: str) -> Diffs:
    values: Diffs = table.column(name).to_numpy()
    assert values.dtype == np.int64, f"{name} has nulls or is {table.column(name).type}"
    return values


def _with_column(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    position = table.schema.get_field_index(name)
    return table.set_column(position, table.schema.field(position), values)
