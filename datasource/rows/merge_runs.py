"""Merges sorted runs into one, and consolidates them, in memory that does not grow with the runs.

    merge(runs, columns, since)        updates -> consolidated updates, times advanced to `since`
    merge_loaded(updates, …)           the same of one table, in any order
    merge_snapshot(runs, columns)      updates -> consolidated snapshot (`_diff` >= 1, no `_ts`)

A run is an iterator of tables (or record batches) of one schema, with `_ts` and `_diff`, sorted by
`columns` in the order of `row_keys` within and across its tables; rows that agree in `columns` may
be in any order. Take the last loaded row of each run, and the least of these: no run can still load
a row before it. So each run contributes its rows before that one, found by binary search, and these
prefixes are consolidated as one window.

A consumer takes results one by one and may stop at any time. Compaction merges the parts of
several batches, an overwrite merges the old snapshot, negated, with the new rows, and a reader
merges what it fetches.

Invariants:
    - Output is sorted by `columns`, then the other columns of the row, then `_ts`, within and
      across tables; no two updates of it agree in row and time.
    - Per run, fewer than two tables are held in memory, unless a group of rows that agree in
      `columns` is larger than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from shardline.datasource.errors import Corrupt
from shardline.datasource.rows.sorting import compare_rows, take
from shardline.datasource.rows.updates import (
    advance_times,
    consolidate,
    consolidate_snapshot,
    row_columns,
)

__all__ = ["ROWS_OUT", "Run", "merge", "merge_loaded", "merge_snapshot"]

Run = Iterable[pa.Table | pa.RecordBatch]
Reduce = Callable[[pa.Table], pa.Table]

ROWS_OUT: Final = 65_536
"""Rows of one result, unless it is the last: large enough to be worth a call."""


def merge(
    runs: Sequence[Run],
    columns: Sequence[str] = (),
    since: int | None = None,
    rows_out: int = ROWS_OUT,
) -> Iterator[pa.Table]:
    """The sum of all runs as one run of updates.

    Args:
        runs: Each sorted by `columns` (by all columns of the row when there are none).
        columns: Columns that the runs are sorted by, most significant first.
        since: Earlier times become this one; None leaves times alone.
        rows_out: Rows per result.

    Raises:
        Corrupt: `RUN_NOT_SORTED` when a run steps back from one table to the next.
        InvalidUsage: `DIFF_OVERFLOW`.
    """
    return _merged(runs, columns, partial(_reduce, columns=columns, since=since), rows_out)


def merge_loaded(
    updates: pa.Table, columns: Sequence[str] = (), since: int | None = None
) -> pa.Table:
    """As `merge`, of updates in any order that are in memory already; they are sorted once.

    Raises:
        InvalidUsage: `DIFF_OVERFLOW`.
    """
    return _reduce(updates, columns, since)


def merge_snapshot(
    runs: Sequence[Run], columns: Sequence[str] = (), rows_out: int = ROWS_OUT
) -> Iterator[pa.Table]:
    """The contents after the updates of all runs: each row once, its copies in `_diff`.

    Raises:
        Corrupt: `NEGATIVE_MULTIPLICITY`, or as `merge`.
        InvalidUsage: `DIFF_OVERFLOW`.
    """
    return _merged(runs, columns, partial(consolidate_snapshot, columns=columns), rows_out)


def _reduce(updates: pa.Table, columns: Sequence[str], since: int | None) -> pa.Table:
    return consolidate(updates if since is None else advance_times(updates, since), columns)


def _merged(
    runs: Sequence[Run], columns: Sequence[str], reduce: Reduce, rows_out: int
) -> Iterator[pa.Table]:
    return _regrouped(_windows(runs, columns, reduce), rows_out)


def _windows(runs: Sequence[Run], columns: Sequence[str], reduce: Reduce) -> Iterator[pa.Table]:
    """Consolidated windows in order; no row of one agrees in `columns` with a row of another."""
    cursors = [_Cursor(run, columns) for run in runs]
    while live := [c for c in cursors if c.fill()]:
        prefixes = _next_prefixes(live)
        # Dropped before the consumer sees the result: it may hold that for long, and the inputs of
        # a window are several times larger.
        window = reduce(pa.concat_tables(prefixes))
        del prefixes
        if window.num_rows:
            yield window
        del window


def _next_prefixes(live: list[_Cursor]) -> list[pa.Table]:
    """The loaded rows of every run that precede all rows that may still be loaded; at least one."""
    while True:
        open_ended = [c for c in live if not c.exhausted]
        if not open_ended:
            return [c.take_all() for c in live]
        limit = open_ended[0]
        for cursor in open_ended[1:]:
            if cursor.compare_last(limit) < 0:
                limit = cursor
        counts = [c.count_before(limit) for c in live]
        if any(counts):
            return [c.take(n) for c, n in zip(live, counts, strict=True) if n]
        # No row is strictly before the limit: all that are not after it tie with it, and more of
        # their group may come. It is consolidated only when it is complete.
        for cursor in open_ended:
            if cursor.compare_last(limit) == 0:
                cursor.load()


class _Cursor:
    """A run, with its rows that are loaded and not yet consumed."""

    def __init__(self, run: Run, columns: Sequence[str]) -> None:
        self._source = iter(run)
        self._columns = columns
        self._buffer: pa.Table | None = None
        self._last: pa.Table | None = None  # a copy: a slice would keep its whole table alive
        self._enough = 1
        self.exhausted = False

    @property
    def buffer(self) -> pa.Table:
        assert self._buffer is not None, "nothing is loaded"
        return self._buffer

    def fill(self) -> bool:
        """Load rows, at least half a table of them if there are; False when the run has ended."""
        # Not just one row: the loaded rows of runs that advance together would run out one after
        # the other, a few rows apart, and each such end would make a tiny window.
        while not self.exhausted and self._loaded() < self._enough:
            self.load()
        return self._loaded() > 0

    def _loaded(self) -> int:
        return 0 if self._buffer is None else self._buffer.num_rows

    def load(self) -> None:
        """Load one more table, or find the run exhausted."""
        for loaded in self._source:
            if loaded.num_rows:
                self._enough = max(1, loaded.num_rows // 2)
                self._extend(_as_table(loaded))
                return
        self.exhausted = True

    def _extend(self, more: pa.Table) -> None:
        if not self._columns:
            self._columns = row_columns(more)
        if self._last and compare_rows(self._last, 0, more, 0, self._columns) > 0:
            raise Corrupt(
                "a run is not sorted: a table begins before the end of the one before it",
                code="RUN_NOT_SORTED",
                hint="the part was written by other software or is damaged",
            )
        self._last = take(more.select(list(self._columns)), np.array([more.num_rows - 1]))
        held = self._buffer
        self._buffer = pa.concat_tables([held, more]) if held and held.num_rows else more

    def compare_last(self, other: _Cursor) -> int:
        """Compare the last loaded row with that of `other`: negative, 0 or positive."""
        mine, theirs = self.buffer, other.buffer
        return compare_rows(mine, mine.num_rows - 1, theirs, theirs.num_rows - 1, self._columns)

    def count_before(self, limit: _Cursor) -> int:
        """The number of loaded rows strictly before the last loaded one of `limit`."""
        low, high = 0, self.buffer.num_rows
        last = limit.buffer.num_rows - 1
        while low < high:
            middle = (low + high) // 2
            if compare_rows(self.buffer, middle, limit.buffer, last, self._columns) < 0:
                low = middle + 1
            else:
                high = middle
        return low

    def take(self, count: int) -> pa.Table:
        """Consume the first `count` loaded rows."""
        taken = self.buffer.slice(0, count)
        self._buffer = self.buffer.slice(count) if count < self.buffer.num_rows else None
        return taken

    def take_all(self) -> pa.Table:
        """Consume all loaded rows."""
        return self.take(self.buffer.num_rows)


def _as_table(loaded: pa.Table | pa.RecordBatch) -> pa.Table:
    return loaded if isinstance(loaded, pa.Table) else pa.Table.from_batches([loaded])


def _regrouped(tables: Iterator[pa.Table], rows_out: int) -> Iterator[pa.Table]:
    """The same rows in tables of `rows_out` rows; the last one may be shorter."""
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        while count >= rows_out:
            whole = pa.concat_tables(held)
            yield whole.slice(0, rows_out).combine_chunks()
            count -= rows_out
            held = [whole.slice(rows_out)] if count else []
    if count:
        yield pa.concat_tables(held).combine_chunks()
