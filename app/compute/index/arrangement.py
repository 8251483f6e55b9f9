"""An arrangement holds an object's updates in memory by key: contents between two frontiers.

Differential dataflow's arrangement, as Arrow tables: an index must answer at several times at once,
since every query reads at its own, and a plain map of the latest rows cannot do that.

    arranged = Arrangement(schema, key=("carrier",), since=100)
    arranged.append(updates, upper=200)
    arranged.lookup(("AA",), as_of=150)      rows of one key
    arranged.gather(keys, as_of=150)         rows of many keys
    arranged.scan(as_of=150)                 all rows

Updates are in a few sorted *runs*: Arrow tables in the order of a 64-bit hash of the key, so that a
look-up is a binary search in each. A new run is merged into the one before it unless that is at
least twice as large: there are O(log n) runs, and each update is moved O(log n) times. A hash only
finds candidates; values decide which of them have the key.

Invariants:
    Contents are exact at every `as_of` with `since <= as_of < upper`, and refused elsewhere.
    since and upper only grow. Updates before since may be merged.
    Readers never wait: they take one immutable view, and a writer puts the next one in its place.
    One thread appends and compacts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.compute.peek.results import too_large
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.row_keys import contiguous, surrogate
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.updates import (
    advance_times,
    consolidate,
    consolidate_snapshot,
    expand_copies,
    take,
    update_schema,
)

__all__ = ["Arrangement", "ArrangementView"]

Hashes = npt.NDArray[np.uint64]

Mask = Callable[[pa.Table], pa.ChunkedArray]
"""Chooses rows of a table; equal rows must get the same answer, or their diffs do not add up."""

_HASH: Final = "_hash"
_GROWTH: Final = 2
"""Least ratio of the sizes of a run and the next one."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Consolidated updates in the order of their keys' hashes."""

    updates: pa.Table
    hashes: Hashes
    first: int
    last: int

    @property
    def nbytes(self) -> int:
        return int(self.updates.nbytes) + self.hashes.nbytes

    def slice_of(self, hashed: np.uint64) -> pa.Table | None:
        """The updates whose key has this hash; None if there are none."""
        start = int(np.searchsorted(self.hashes, hashed, "left"))
        end = int(np.searchsorted(self.hashes, hashed, "right"))
        return self.updates.slice(start, end - start) if end > start else None


@dataclass(frozen=True, slots=True)
class ArrangementView:
    """An arrangement at one moment; immutable.

    Attributes:
        since: First time at which contents are exact.
        upper: Frontier up to which they are, exclusive.
        runs: The updates, the largest run first.
    """

    since: int
    upper: Frontier
    runs: tuple[_Run, ...] = ()

    @property
    def records(self) -> int:
        """Number of updates."""
        return sum(run.updates.num_rows for run in self.runs)

    @property
    def nbytes(self) -> int:
        """Memory of all runs, in bytes."""
        return sum(run.nbytes for run in self.runs)

    def readable(self, as_of: int) -> bool:
        """True if contents at `as_of` are exact."""
        return self.since <= as_of and self.upper.is_beyond(as_of)

    def changed(self, after: int, until: int) -> pa.Table | None:
        """Times and diffs of the updates with `after < time <= until`.

        None if compaction has merged some of them into earlier times.
        """
        if after < self.since:
            return None
        found = [
            run.updates.select([TS, DIFF]).filter(_between(run.updates, after, until))
            for run in self.runs
            if run.last > after and run.first <= until
        ]
        empty = update_schema(pa.schema([])).empty_table()
        return pa.concat_tables(found) if found else empty


class Arrangement:
    """Updates by key, of which readers take views; one thread appends and compacts."""

    def __init__(
        self,
        schema: ShardSchema,
        key: Sequence[str],
        since: int,
        keep: Callable[[pa.Table], pa.Table] | None = None,
    ) -> None:
        """An empty arrangement, whose upper is `since`, too.

        Args:
            schema: Columns of the rows.
            key: Columns whose values a look-up gives; () for all of them.
            since: The first time that will be readable.
            keep: Puts the rows of a new run where they are to stay; None for memory.

        Raises:
            InvalidUsage: `UNKNOWN_COLUMN`: the key names a column that is not there.
        """
        self.schema = schema
        self.key = schema.select(key).names if key else schema.names
        self._keep = keep
        self._arrow = update_schema(schema.arrow)
        self._view = ArrangementView(since, Frontier(since))

    @property
    def view(self) -> ArrangementView:
        """The present view."""
        return self._view

    def append(self, updates: pa.Table, upper: Frontier) -> None:
        """Take in all updates from the present upper to the new one.

        Args:
            updates: The schema's columns, `_ts`, `_diff`, in any order; the first append has the
                contents at since, as updates at it.
            upper: The new upper, beyond every time of `updates`.
        """
        old = self._view
        assert old.upper <= upper, (old.upper, upper)
        run = self._make_run(updates, old.since)
        assert run is None or upper.is_beyond(run.last), (run, upper)
        runs = old.runs if run is None else self._merge_runs((*old.runs, run), old.since)
        # One assignment publishes rows and upper together: a reader sees both or neither, and
        # keeps the view that it has taken.
        self._view = ArrangementView(old.since, upper, runs)

    def compact(self, since: int) -> None:
        """Move the since, at most to the last settled time; the next merge frees the memory."""
        old = self._view
        last = since if old.upper.time is None else old.upper.time - 1
        if min(since, last) > old.since:
            self._view = replace(old, since=min(since, last))

    def lookup(
        self, values: Sequence[Any] | pa.Table, as_of: int, *, bytes_max: int | None = None
    ) -> pa.Table:
        """The rows whose key is `values` at `as_of`, one for each copy.

        Keys are compared as values of a shard: null is equal to null, -0.0 is not 0.0.

        Args:
            values: One for each column of the key, or a table of one row.
            as_of: A time within the frontiers of `view`.
            bytes_max: Most bytes of the result; None for no limit.

        Raises:
            InvalidUsage: `NOT_ARRANGED`: `as_of` is not within the frontiers; `INVALID_KEY`: a
                value is not of its column's type; or `RESULT_TOO_LARGE`.
        """
        view = self._readable(as_of)
        key = values if isinstance(values, pa.Table) else self._key_of(values)
        hashed = _hashes(key, self.key)[0]
        found = [part for run in view.runs if (part := run.slice_of(hashed)) is not None]
        if not found:
            return self._rows_of([], bytes_max)
        wanted = [surrogate(contiguous(key.column(name)))[0].as_py() for name in self.key]
        kept = [self._matching(part, wanted, as_of) for part in found]
        return self._rows_of([part for part in kept if part.num_rows], bytes_max)

    def gather(self, keys: pa.Table, as_of: int, rows_max: int | None = None) -> pa.Table | None:
        """The rows of many keys at `as_of`, and perhaps some of others: a hash finds them.

        Args:
            keys: The columns of the key, and perhaps others; a key may be there several times.
            as_of: A time within the frontiers of `view`.
            rows_max: The result is None if more updates than this would have to be looked at.

        Raises:
            InvalidUsage: `NOT_ARRANGED`: `as_of` is not within the frontiers.
        """
        view = self._readable(as_of)
        hashed = np.unique(_hashes(keys, self.key))
        found, updates = [], 0
        for run in view.runs:
            start = np.searchsorted(run.hashes, hashed, "left")
            lengths = np.searchsorted(run.hashes, hashed, "right") - start
            updates += int(lengths.sum())
            if rows_max is not None and updates > rows_max:
                return None
            # The places from each start on, one after the other.
            shifts = np.repeat(start - np.cumsum(lengths) + lengths, lengths)
            part = take(run.updates, shifts + np.arange(len(shifts)))
            if run.last > as_of:
                part = part.filter(pc.less_equal(part.column(TS), as_of))
            if part.num_rows:
                found.append(part)
        return self._rows_of(found, None)

    def scan(
        self, as_of: int, *, mask: Mask | None = None, bytes_max: int | None = None
    ) -> pa.Table:
        """All rows at `as_of`, one for each copy.

        Args:
            as_of: A time within the frontiers of `view`.
            mask: Chooses rows; None for all.
            bytes_max: Most bytes of the result; None for no limit.

        Raises:
            InvalidUsage: `NOT_ARRANGED`: `as_of` is not within the frontiers; or
                `RESULT_TOO_LARGE`.
        """
        found = []
        for run in self._readable(as_of).runs:
            part = run.updates
            if run.last > as_of:
                part = part.filter(pc.less_equal(part.column(TS), as_of))
            if mask is not None:
                part = part.filter(mask(part))
            if part.num_rows:
                found.append(part)
        return self._rows_of(found, bytes_max)

    def _readable(self, as_of: int) -> ArrangementView:
        view = self._view
        if view.readable(as_of):
            return view
        raise InvalidUsage(
            f"the index has no contents at {as_of}: it has them from {view.since} on, before "
            f"{view.upper}",
            code="NOT_ARRANGED",
            hint="read at a time in between, or without the index",
        )

    def _key_of(self, values: Sequence[Any]) -> pa.Table:
        fields = [self._arrow.field(name) for name in self.key]
        if len(values) != len(fields):
            raise InvalidUsage(
                f"a key of {len(fields)} columns ({', '.join(self.key)}) got {len(values)} values",
                code="INVALID_KEY",
                hint="give one value for each of them",
            )
        try:
            arrays = [pa.array([v], f.type) for v, f in zip(values, fields, strict=True)]
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidUsage(
                f"{tuple(values)!r} is no key of ({', '.join(self.key)}): {error}",
                code="INVALID_KEY",
                hint="give values of the columns' types",
            ) from error
        return pa.table(arrays, names=list(self.key))

    def _matching(self, part: pa.Table, wanted: Sequence[Any], as_of: int) -> pa.Table:
        """The updates of `part` that have the key, at times until `as_of`."""
        times = part.column(TS).to_numpy()
        same = times <= as_of
        for name, value in zip(self.key, wanted, strict=True):
            found = surrogate(contiguous(part.column(name))).to_pylist()
            same &= np.fromiter((one == value for one in found), np.bool_, len(found))
        return part if same.all() else part.filter(pa.array(same))

    def _rows_of(self, parts: Sequence[pa.Table], bytes_max: int | None) -> pa.Table:
        """The rows that the sum of the updates stands for.

        The size is counted while copies are made: one row with many could exceed the memory.
        """
        empty = self.schema.arrow.empty_table()
        if not parts:
            return empty
        updates = pa.concat_tables(parts)
        if updates.num_rows == 1 and updates.column(DIFF)[0].as_py() == 1:
            return updates.select(self.schema.names)
        size, found = 0, [empty]
        for table in expand_copies(consolidate_snapshot(updates)):
            size += table.nbytes
            if bytes_max is not None and size > bytes_max:
                raise too_large(bytes_max)
            found.append(table)
        return pa.concat_tables(found)

    def _make_run(self, updates: pa.Table, since: int) -> _Run | None:
        """`updates` as a run; None if they cancel."""
        table = consolidate(advance_times(updates.select(self._arrow.names), since))
        if not table.num_rows:
            return None
        hashes = _hashes(table, self.key)
        order = np.argsort(hashes, kind="stable")
        times = table.column(TS)
        # In one piece: look-ups slice it, and a slice of many pieces costs as many.
        placed, ordered = take(table, order).combine_chunks(), hashes[order]
        bounds = pc.min_max(times).as_py()
        if self._keep is not None:
            kept = self._keep(placed.append_column(_HASH, pa.array(ordered)))
            placed, ordered = kept.drop_columns([_HASH]), kept.column(_HASH).chunk(0).to_numpy()
        return _Run(placed, ordered, bounds["min"], bounds["max"])

    def _merge_runs(self, runs: tuple[_Run, ...], since: int) -> tuple[_Run, ...]:
        """Merge from the end while a run is less than `_GROWTH` times as large as the next."""
        found = list(runs)
        while len(found) > 1 and found[-2].updates.num_rows < _GROWTH * found[-1].updates.num_rows:
            last, before = found.pop(), found.pop()
            both = self._make_run(pa.concat_tables([before.updates, last.updates]), since)
            if both is not None:
                found.append(both)
        return tuple(found)


def _between(updates: pa.Table, after: int, until: int) -> pa.ChunkedArray:
    times = updates.column(TS)
    return pc.and_(pc.greater(times, after), pc.less_equal(times, until))


def _hashes(table: pa.Table, columns: Sequence[str]) -> Hashes:
    """A hash of each row's `columns`, equal for equal rows, also of different tables."""
    total = np.zeros(table.num_rows, np.uint64)
    for name in columns:
        key = surrogate(contiguous(table.column(name)))
        with np.errstate(over="ignore"):
            total = total * np.uint64(0x9E3779B97F4A7C15) + _hashed(key)
    return total


def _hashed(key: pa.Array) -> Hashes:
    if pa.types.is_null(key.type):
        return np.zeros(len(key), np.uint64)
    if pa.types.is_integer(key.type):
        nulls = key.is_null().to_numpy(zero_copy_only=False)
        # One width: a column that was widened keeps its values.
        numbers = key.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return np.where(nulls, np.uint64(1), pd.util.hash_array(numbers))
    if pa.types.is_decimal(key.type):
        key = key.cast(pa.string())
    values = key.to_numpy(zero_copy_only=False)
    hashed: Hashes = pd.util.hash_array(values, categorize=False)
    return hashed
