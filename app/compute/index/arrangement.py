"""An arrangement holds an object's updates in memory by key: contents between two frontiers.

Differential dataflow's arrangement, as Arrow tables: an index must answer at several times at once,
since every query reads at its own, and a plain map of the latest rows cannot do that.

    arranged = Arrangement(schema, key=("carrier",), since=100)
    arranged.append(updates, upper=200)
    arranged.lookup(("AA",), as_of=150)      rows of one key
    arranged.gather(keys, as_of=150)         rows of many keys
    arranged.first(asked, as_of=150, …)      of keys that are about to change the first in an order
    arranged.scan(as_of=150)                 all rows

Updates are in a few sorted *runs*: Arrow tables in the order of a 64-bit hash of the key, so that a
look-up is a binary search in each, or in each piece of a large one (`runs`). Runs are merged when
four of them are of about one size, and all of them when those behind the first are more than it:
there are O(log n) runs, each update is moved O(log n) times, and what is taken away again goes
before it is as much as what stays. A hash only finds candidates; values decide which of them have
the key.

    other = arranged.by(("day",))            the same contents by another key

The rows are there once, whatever they are looked up by: for another key each piece has the places
of its rows in the order of that key's hashes, twelve bytes a row, made when they are first needed.

Invariants:
    Contents are exact at every `as_of` with `since <= as_of < upper`, and refused elsewhere.
    since and upper only grow. Updates before since may be merged.
    Readers never wait: they take one immutable view, and a writer puts the next one in its place.
    One thread appends and compacts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.compute.index.first_of_keys import FirstOfKeys, first_of_keys
from shardline.app.compute.index.runs import Hashes, Keep, Run, RunMaker, cut, hashes_of
from shardline.app.compute.results import too_large
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.schema import DIFF, TS, ShardSchema, contiguous, surrogate
from shardline.datasource.updates import (
    consolidate_snapshot,
    expand_copies,
    update_schema,
)

__all__ = ["Arrangement", "ArrangementView"]

Mask = Callable[[pa.Table], pa.ChunkedArray]
"""Chooses rows of a table; equal rows must get the same answer, or their diffs do not add up."""

_GROWTH: Final = 4
"""So many runs of about one size are merged into one: with more of them rows are moved less often,
and look-ups search more runs."""


@dataclass(frozen=True, slots=True)
class ArrangementView:
    """An arrangement at one moment; immutable.

    Attributes:
        since: First time at which contents are exact.
        upper: Frontier up to which they are, exclusive.
        runs: The updates, most often the largest run first.
    """

    since: int
    upper: Frontier
    runs: tuple[Run, ...] = ()

    @property
    def records(self) -> int:
        """Number of updates."""
        return sum(run.records for run in self.runs)

    @property
    def nbytes(self) -> int:
        """Memory of all runs, in bytes, for all keys."""
        return sum(piece.nbytes for run in self.runs for piece in run.pieces)

    def is_readable(self, as_of: int) -> bool:
        """True if contents at `as_of` are exact."""
        return self.since <= as_of and self.upper.is_beyond(as_of)

    def changed(self, after: int, until: int) -> pa.Table | None:
        """Times and diffs of the updates with `after < time <= until`.

        None if compaction has merged some of them into earlier times.
        """
        if after < self.since:
            return None
        found = [
            piece.updates.select([TS, DIFF]).filter(_between(piece.updates, after, until))
            for run in self.runs
            for piece in run.pieces
            if piece.last > after and piece.first <= until
        ]
        empty = update_schema(pa.schema([])).empty_table()
        return pa.concat_tables(found) if found else empty


class _Contents:
    """The runs of arrangements that have the same contents, in the order of the first one's key."""

    def __init__(
        self, arrow: pa.Schema, key: tuple[str, ...], since: int, keep: Keep | None
    ) -> None:
        self.key = key
        self.view = ArrangementView(since, Frontier(since))
        self._lock = threading.Lock()
        self._maker = RunMaker(arrow, key, keep or _as_it_is)

    def append(self, chunks: Iterable[pa.Table], upper: Frontier) -> None:
        old = self.view
        assert old.upper <= upper, (old.upper, upper)
        run = self._maker.run_of(chunks, old.since)
        assert run is None or upper.is_beyond(run.last), (run, upper)
        runs = old.runs if run is None else self._merge_runs((*old.runs, run), old.since)
        # One assignment publishes rows and upper together: a reader sees both or neither, and
        # keeps the view that it has taken.
        with self._lock:
            self.view = ArrangementView(self.view.since, upper, runs)

    def compact(self, since: int) -> None:
        # By any thread, so that an append in between must not be taken back.
        with self._lock:
            old = self.view
            last = since if old.upper.time is None else old.upper.time - 1
            if min(since, last) > old.since:
                self.view = replace(old, since=min(since, last))

    def _merge_runs(self, runs: tuple[Run, ...], since: int) -> tuple[Run, ...]:
        """Merge the last runs while `_GROWTH` are of about one size; all if the first is small."""
        found = list(runs)
        while len(found) > 1 and (number := _mergeable([run.records for run in found])):
            one = self._maker.merged(found[-number:], since)
            del found[-number:]
            if one is not None:
                found.append(one)
        return tuple(found)


class Arrangement:
    """Updates by key, of which readers take views; one thread appends and compacts."""

    def __init__(
        self,
        schema: ShardSchema,
        key: Sequence[str],
        since: int,
        keep: Keep | None = None,
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
        self._arrow = update_schema(schema.arrow)
        self._contents = _Contents(self._arrow, self.key, since, keep)
        self._other: tuple[str, ...] | None = None

    def by(self, key: Sequence[str]) -> Arrangement:
        """The same contents by another key, now and as they go on."""
        found = copy(self)
        found._set_key(key)  # noqa: SLF001 - its own
        return found

    def _set_key(self, key: Sequence[str]) -> None:
        self.key = self.schema.select(key).names
        self._other = None if self.key == self._contents.key else self.key

    @property
    def view(self) -> ArrangementView:
        """The present view."""
        return self._contents.view

    @property
    def nbytes(self) -> int:
        """Memory of its rows, and of their order by its key, in bytes."""
        pieces = [piece for run in self.view.runs for piece in run.pieces]
        return sum(piece.nbytes_by(self._other) for piece in pieces)

    def append(self, updates: pa.Table, upper: Frontier) -> None:
        """Take in all updates from the present upper to the new one.

        Args:
            updates: The schema's columns, `_ts`, `_diff`, in any order; the first append has the
                contents at since, as updates at it.
            upper: The new upper, beyond every time of `updates`.
        """
        self.append_chunks(cut(updates), upper)

    def append_chunks(self, chunks: Iterable[pa.Table], upper: Frontier) -> None:
        """As `append`, of updates that are too many for one table: they are taken one by one.

        If one of them raises, nothing is appended.

        Args:
            chunks: Each of about `runs.PIECE_BYTES` at most.
            upper: The new upper.
        """
        self._contents.append(chunks, upper)

    def compact(self, since: int) -> None:
        """Move the since, at most to the last settled time; the next merge frees the memory."""
        self._contents.compact(since)

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
        hashed = hashes_of(key, self.key)[:1]
        found = self._parts(view, hashed, None)
        if not found:
            return self._rows_of([], bytes_max)
        wanted = [surrogate(contiguous(key.column(name)))[0].as_py() for name in self.key]
        kept = [self._matching(part, wanted, as_of) for part, _ in found]
        return self._rows_of([part for part in kept if part.num_rows], bytes_max)

    def gather(
        self,
        keys: pa.Table,
        as_of: int,
        rows_max: int | None = None,
        *,
        bytes_max: int | None = None,
    ) -> pa.Table | None:
        """The rows of many keys at `as_of`, and perhaps some of others: a hash finds them.

        Args:
            keys: The columns of the key, and perhaps others; a key may be there several times.
            as_of: A time within the frontiers of `view`.
            rows_max: The result is None if more updates than this would have to be looked at.
            bytes_max: Most bytes of the result, copies included; None for no limit.

        Raises:
            InvalidUsage: `NOT_ARRANGED`: `as_of` is not within the frontiers; or
                `RESULT_TOO_LARGE`.
        """
        view = self._readable(as_of)
        found = self._parts(view, np.unique(hashes_of(keys, self.key)), rows_max)
        if found is None:
            return None
        parts = [_until(part, last, as_of) for part, last in found]
        return self._rows_of([part for part in parts if part.num_rows], bytes_max)

    def first(
        self, asked: FirstOfKeys, as_of: int, rows_max: int, *, bytes_max: int | None = None
    ) -> pa.Table | None:
        """The first rows of many keys in an order, and all that are about to go.

        With the changes, at each of their times, these have the same first rows as all.

        Args:
            asked: The order, how many rows of each key, and the changes: columns of the schema,
                `_ts`, `_diff`. Those that are in no key and not in the order may have any value.
            as_of: A time within the frontiers of `view`, before the changes.
            rows_max: The result is None if more updates than this would have to be looked at.
            bytes_max: Most bytes of the result, copies included; None for no limit.

        Raises:
            InvalidUsage: As of `gather`.
        """
        view = self._readable(as_of)
        parts = first_of_keys(
            view.runs, self._other, self.key, asked, as_of=as_of, rows_max=rows_max
        )
        if parts is None:
            return None
        names = self._arrow.names
        # Not by a cast: it refuses what is NULL though no column of the schema is, and unread.
        same = [
            pa.table([part.column(name) for name in names], schema=self._arrow) for part in parts
        ]
        return self._rows_of([part for part in same if part.num_rows], bytes_max)

    def _parts(
        self, view: ArrangementView, hashed: Hashes, most: int | None
    ) -> list[tuple[pa.Table, int]] | None:
        """The updates of these hashes, and a time that none is beyond; None if more than `most`."""
        found: list[tuple[pa.Table, int]] = []
        for run in view.runs:
            parts = run.found(self._other, hashed, most)
            if parts is None:
                return None
            found += [(part, piece.last) for piece, part in parts]
            most = None if most is None else most - sum(part.num_rows for _, part in parts)
        return found

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
        pieces = [piece for run in self._readable(as_of).runs for piece in run.pieces]
        for piece in pieces:
            part = _until(piece.updates, piece.last, as_of)
            if mask is not None:
                part = part.filter(mask(part))
            if part.num_rows:
                found.append(part)
        return self._rows_of(found, bytes_max)

    def _readable(self, as_of: int) -> ArrangementView:
        view = self.view
        if view.is_readable(as_of):
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


def _as_it_is(table: pa.Table) -> pa.Table:
    return table


def _mergeable(sizes: Sequence[int]) -> int:
    """How many of the last runs are to be merged, by their sizes; 0 for none."""
    if sum(sizes[1:]) > sizes[0]:
        return len(sizes)
    is_level = len(sizes) >= _GROWTH and sizes[-_GROWTH] < _GROWTH * sizes[-1]
    return _GROWTH if is_level else 0


def _until(updates: pa.Table, last: int, as_of: int) -> pa.Table:
    """The updates at times until `as_of`; `last` is none of theirs, or the greatest."""
    return updates.filter(pc.less_equal(updates.column(TS), as_of)) if last > as_of else updates


def _between(updates: pa.Table, after: int, until: int) -> pa.ChunkedArray:
    times = updates.column(TS)
    return pc.and_(pc.greater(times, after), pc.less_equal(times, until))
