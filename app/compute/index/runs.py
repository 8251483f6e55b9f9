"""Updates in the order of the hashes of a key: sorted runs, in pieces that fit into memory.

    maker = RunMaker(arrow, key=("carrier",), store_table=…)
    run = maker.run_of(chunks, since)           of tables, each of which is sorted by itself
    run = maker.merged([run, …], since)         one run of several, range by range of the hash
    run.found(hashes, None, most)               the updates with these hashes, piece by piece
    piece.by(key, order).first_of(…)            of each hash only those that come first in an order

A run of tens of millions of updates cannot be sorted in memory at once, and need not be: a look-up
searches a few pieces as well as one. So a run is a number of pieces, each an Arrow table of about
`PIECE_BYTES` in the order of the hashes, which is put into a file of its own as soon as it is made.
One that is made of chunks has a piece for each, over all hashes: making it reads and writes each
row once. One that is merged has a piece for each range of hashes. The ranges are cut so that what
all runs have in one of them fits into a piece: equal rows have equal hashes, so that they meet in
it and cancel. Where one hash alone has more rows, these are cut by a hash of all their columns.

Invariants:
    Each update of what a run is made of is in one of its pieces, unless it was added up to nothing.
    Pieces may have hashes in common: a look-up asks each that can have the hash.
    Making a piece takes about four times its bytes of memory, whatever the run's size, and half of
    it, at least, are the piece's own buffers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.compute.index.order_codes import Codes, OrderBy, codes_of
from shardline.datasource.schema import DIFF, TS, contiguous, surrogate
from shardline.datasource.updates import advance_times, consolidate, take

__all__ = [
    "NOT_CUT",
    "SHORT",
    "FirstRows",
    "Hashes",
    "Keep",
    "Piece",
    "Run",
    "RunMaker",
    "cut",
    "hashes_of",
]

Hashes: TypeAlias = npt.NDArray[np.uint64]
Places: TypeAlias = npt.NDArray[np.uint32]
Keep: TypeAlias = Callable[[pa.Table], pa.Table]
_By: TypeAlias = tuple[tuple[str, ...] | None, OrderBy | None]

_log = logging.getLogger(__name__)

PIECE_BYTES: Final = 128 << 20
"""Of the updates of a piece, about, before they are sorted: 3 million of three numbers each."""

SHORT: Final = 64
"""So few rows of a hash are always taken together, and in no order: most keys have no more."""

NOT_CUT: Final = np.iinfo(np.int64).max
"""The code up to which all updates are there, where none is left out: no code is greater."""

_HASH: Final = "_hash"
_PLACE: Final = "_place"
_CODE: Final = "_code"
_HASH_MAX: Final = (1 << 64) - 1

_SAMPLE: Final = 1_000
"""Rows that are looked at to tell whether many are equal; so few are added up at once."""

_STRETCH: Final = 100
"""Rows that are looked at together, one behind the other in the order of hashes."""

_DISTINCT: Final = 0.9
"""Share of rows that differ, above which adding up equal ones is left out."""


class FirstRows(NamedTuple):
    """The first updates of some hashes, within an order.

    Attributes:
        updates: Them.
        owners: For each one the place of its hash among those that were asked for.
        last_codes: For each hash the code up to which all of its updates are there; `NOT_CUT` if
            there are no others.
    """

    updates: pa.Table
    owners: npt.NDArray[np.intp]
    last_codes: Codes


@dataclass(frozen=True, slots=True)
class _Order:
    """The rows of a run in the order of the hashes of a key.

    Attributes:
        hashes: Sorted.
        places: The row of each of them; None if the run's rows are in this order themselves.
        codes: Those of the rows, which are in their order wherever more than `SHORT` have one hash;
            None without an order within a key, or if there are nowhere so many.
    """

    hashes: Hashes
    places: Places | None
    codes: Codes | None = None

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (self.hashes, self.places, self.codes) if one is not None)

    def rows_of(self, hashed: Hashes, updates: pa.Table, most: int | None) -> pa.Table | int:
        """The updates whose key has one of these hashes, which are sorted; their number if more.

        Args:
            hashed: Hashes, each once.
            updates: Those of the run.
            most: How many are worth taking; None for any number.
        """
        if not len(self.hashes):
            return updates
        # Most of those that a run is asked for are in other pieces, if each has its own range.
        first, last = np.searchsorted(hashed, self.hashes[[0, -1]])
        hashed = hashed[first : last + 1]
        start = np.searchsorted(self.hashes, hashed, "left")
        lengths = np.searchsorted(self.hashes, hashed, "right") - start
        count = int(lengths.sum())
        if most is not None and count > most:
            return count
        if len(hashed) == 1 and self.places is None:
            return updates.slice(int(start[0]), count)
        return self._taken(updates, _stretches(start, lengths))

    def first_of(
        self, hashed: Hashes, needed: npt.NDArray[np.int64], updates: pa.Table
    ) -> FirstRows:
        """The first updates of each hash, and those that have the same code as the last of them.

        Args:
            hashed: Sorted, each once.
            needed: How many of each, at least `SHORT`.
            updates: Those of the run.
        """
        start = np.searchsorted(self.hashes, hashed, "left")
        end = np.searchsorted(self.hashes, hashed, "right")
        last_codes = np.full(len(hashed), NOT_CUT)
        if self.codes is not None:
            for place in np.flatnonzero(end - start > needed):
                codes = self.codes[start[place] : end[place]]
                last = codes[needed[place] - 1]
                number = int(np.searchsorted(codes, last, "right"))
                if number < len(codes):
                    end[place], last_codes[place] = start[place] + number, last
        lengths = end - start
        owners = np.repeat(np.arange(len(hashed)), lengths)
        return FirstRows(self._taken(updates, _stretches(start, lengths)), owners, last_codes)

    def _taken(self, updates: pa.Table, found: npt.NDArray[np.intp]) -> pa.Table:
        return take(updates, found if self.places is None else self.places[found].astype(np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Updates in the order of the hashes of a key; consolidated, unless they are many that differ.

    Attributes:
        updates: Them.
        order: That of its rows.
        first: The least of their times.
        last: The greatest.
        size_bytes: Of the updates: to add up the buffers of all runs at each look-up takes long.
        store_table: Puts a table where it is to stay.
    """

    updates: pa.Table
    order: _Order
    first: int
    last: int
    size_bytes: int
    store_table: Keep
    _others: dict[_By, _Order] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def nbytes(self) -> int:
        """Memory of its rows and of all orders."""
        # Each once: where no key has many rows, an order within it is that of the key.
        orders = {id(one): one for one in (self.order, *list(self._others.values()))}
        return self.size_bytes + sum(one.nbytes for one in orders.values())

    def nbytes_by(self, key: tuple[str, ...] | None) -> int:
        """Memory of the rows, and of the orders of a key as far as they were needed already."""
        orders = {id(one): one for by, one in list(self._others.items()) if by[0] == key}
        if key is None:
            orders[id(self.order)] = self.order
        return self.size_bytes + sum(one.nbytes for one in orders.values())

    def by(self, key: tuple[str, ...] | None, within: OrderBy | None = None) -> _Order:
        """The order of another key, and of the rows of one within it; None for its own."""
        if key is None and within is None:
            return self.order
        with self._lock:  # a large piece takes a second: not twice at a time
            found = self._others.get((key, within))
            if found is None:
                found = self._ordered(key) if within is None else self._ordered_within(key, within)
                self._others[key, within] = found
        return found

    def within(self, low: int, high: int) -> tuple[int, int]:
        """The first of its rows with a hash in `[low, high]`, and the one behind the last."""
        hashes = self.order.hashes
        first = np.searchsorted(hashes, np.uint64(low), "left")
        return int(first), int(np.searchsorted(hashes, np.uint64(high), "right"))

    def _ordered(self, key: tuple[str, ...] | None) -> _Order:
        if key is None:
            return self.order
        hashes = hashes_of(self.updates, key)
        places = np.argsort(hashes, kind="stable").astype(np.uint32)
        return _Order(*self._stored({_HASH: hashes[places], _PLACE: places}))

    def _ordered_within(self, key: tuple[str, ...] | None, within: OrderBy) -> _Order:
        """The rows in the order of a key, those of one hash in an order of their own."""
        plain = self._others.get((key, None)) or self._ordered(key)
        changes = np.flatnonzero(plain.hashes[1:] != plain.hashes[:-1]) + 1
        starts, ends = np.append(0, changes), np.append(changes, len(plain.hashes))
        is_long = ends - starts > SHORT
        if not is_long.any():
            return plain
        codes = codes_of(self.updates, within)
        places = np.arange(len(codes), dtype=np.uint32)
        if plain.places is not None:
            places, codes = plain.places.copy(), codes[plain.places]
        lengths = (ends - starts)[is_long]
        mine = _stretches(starts[is_long], lengths)
        order = np.lexsort((codes[mine], np.repeat(np.arange(len(lengths)), lengths)))
        places[mine], codes[mine] = places[mine][order], codes[mine][order]
        return _Order(plain.hashes, *self._stored({_PLACE: places, _CODE: codes}))

    def _stored(self, columns: Mapping[str, npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
        """The columns of an order, kept where the rows are."""
        made = pa.table(dict(columns))
        try:
            made = self.store_table(made)
        except OSError:
            _log.warning("places of rows are kept in memory", exc_info=True)
        return (made.column(name).chunk(0).to_numpy() for name in columns)


@dataclass(frozen=True, slots=True)
class Run:
    """Updates in the order of the hashes of a key, in pieces.

    Attributes:
        pieces: At least one.
        records: Number of updates.
    """

    pieces: tuple[Piece, ...]
    records: int

    @property
    def last(self) -> int:
        """The greatest of the updates' times."""
        return max(piece.last for piece in self.pieces)

    def found(
        self, key: tuple[str, ...] | None, hashed: Hashes, most: int | None
    ) -> list[tuple[Piece, pa.Table]] | None:
        """The updates with one of these hashes of a key, by piece; None if they are too many.

        Args:
            key: As of `Piece.by`.
            hashed: Sorted, each once.
            most: How many are worth taking; None for any number.
        """
        found = []
        for piece in self.pieces:
            part = piece.by(key).rows_of(hashed, piece.updates, most)
            if isinstance(part, int):
                return None
            if part.num_rows:
                found.append((piece, part))
            most = None if most is None else most - part.num_rows
        return found


class RunMaker:
    """Makes the runs of one arrangement."""

    def __init__(self, arrow: pa.Schema, key: tuple[str, ...], store_table: Keep) -> None:
        """Runs of tables.

        Args:
            arrow: Columns of the updates.
            key: Columns by whose hash they are sorted.
            store_table: Puts the rows of a new piece where they are to stay.
        """
        self._arrow = arrow
        self._key = key
        self._store_table = store_table

    def run_of(self, chunks: Iterable[pa.Table], since: int) -> Run | None:
        """The updates of `chunks` as a run, with a piece for each; None if they cancel.

        Args:
            chunks: Each of about `PIECE_BYTES` at most.
            since: Earlier times are moved to it.
        """
        made = (self._piece_of(chunk, since) for chunk in chunks)
        return _run_of([piece for piece in made if piece is not None])

    def merged(self, runs: Sequence[Run], since: int) -> Run | None:
        """The updates of several runs as one; None if they cancel."""
        pieces = [piece for run in runs for piece in run.pieces]
        return self.run_of(_by_ranges(pieces, self._arrow.names), since)

    def _piece_of(self, updates: pa.Table, since: int) -> Piece | None:
        table = advance_times(updates.select(self._arrow.names), since)
        if table.num_rows <= _SAMPLE:
            table = consolidate(table)
        hashes, order = self._in_order(table)
        left = _without_cancelled(table, hashes, order)
        if left is not table:
            table = left
            hashes, order = self._in_order(table)
        if table.num_rows > _SAMPLE and _many_are_equal(table, order):
            table = consolidate(table)
            hashes, order = self._in_order(table)
        if not table.num_rows:
            return None
        bounds = pc.min_max(table.column(TS)).as_py()
        # Contiguous: look-ups slice it, and a slice of many chunks costs as many.
        placed = take(table, order).combine_chunks()
        kept = self._store_table(placed.append_column(_HASH, pa.array(hashes[order])))
        # By its place: the rows may have a column of this name.
        place = kept.num_columns - 1
        rows, ordered = kept.remove_column(place), kept.column(place).chunk(0).to_numpy()
        first, last, own_order = bounds["min"], bounds["max"], _Order(ordered, None)
        return Piece(rows, own_order, first, last, int(rows.nbytes), self._store_table)

    def _in_order(self, table: pa.Table) -> tuple[Hashes, npt.NDArray[np.intp]]:
        """The hashes of the rows, and the rows' places in the order of these."""
        hashes = hashes_of(table, self._key)
        return hashes, np.argsort(hashes, kind="stable")


def _stretches(start: npt.NDArray[np.intp], lengths: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The places from each start on, as many as its length says, one stretch after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(start - before, lengths) + np.arange(lengths.sum())


def cut(updates: pa.Table) -> Iterator[pa.Table]:
    """The same updates in chunks for pieces."""
    rows = _rows_max(updates.num_rows, updates.nbytes)
    for first in range(0, updates.num_rows, rows):
        yield updates.slice(first, rows)


def _rows_max(rows: int, size_bytes: int) -> int:
    """How many rows a piece has at most, where so many have this size together."""
    return max(PIECE_BYTES * rows // max(size_bytes, 1), 1)


def _run_of(pieces: Sequence[Piece]) -> Run | None:
    if not pieces:
        return None
    return Run(tuple(pieces), sum(piece.updates.num_rows for piece in pieces))


def _by_ranges(pieces: Sequence[Piece], names: Sequence[str]) -> Iterator[pa.Table]:
    """The updates of all pieces, in tables that have all those that are equal to one of theirs."""
    total = sum(piece.updates.num_rows for piece in pieces)
    most = _rows_max(total, sum(piece.size_bytes for piece in pieces))
    low = 0
    while low <= _HASH_MAX:
        high = _end_of_range(pieces, low, most)
        bounds = [piece.within(low, high) for piece in pieces]
        slices = [
            piece.updates.slice(first, end - first)
            for piece, (first, end) in zip(pieces, bounds, strict=True)
            if end > first
        ]
        count = sum(part.num_rows for part in slices)
        if count > most:
            yield from _by_values(slices, [n for n in names if n not in (TS, DIFF)], most)
        elif count:
            yield pa.concat_tables(slices)
        low = high + 1


def _end_of_range(pieces: Sequence[Piece], low: int, most: int) -> int:
    """The greatest hash up to which there are at most so many rows from `low` on; else `low`."""

    def count(high: int) -> int:
        return sum(end - first for first, end in (piece.within(low, high) for piece in pieces))

    if count(_HASH_MAX) <= most:
        return _HASH_MAX
    fits, too_far = low, _HASH_MAX
    while too_far - fits > 1:
        middle = (fits + too_far) // 2
        if count(middle) <= most:
            fits = middle
        else:
            too_far = middle
    return fits


def _by_values(slices: Sequence[pa.Table], names: Sequence[str], most: int) -> Iterator[pa.Table]:
    """Rows of one hash, in tables of about so many: by another hash, of all of their columns.

    All of them are hashed for each table: that of one is as much memory as can be spent.
    """
    parts = -(-sum(part.num_rows for part in slices) // most)
    for number in range(parts):
        found = []
        for part in slices:
            # Its lower bits are no better than chance where hashes of columns were added up.
            mixed = (hashes_of(part, names) >> np.uint64(16)) % np.uint64(parts)
            found.append(part.filter(pa.array(mixed == np.uint64(number))))
        table = pa.concat_tables(found)
        if table.num_rows:
            yield table


def _without_cancelled(updates: pa.Table, hashes: Hashes, order: npt.NDArray[np.intp]) -> pa.Table:
    """The updates, of which those are added up that may be equal to one that takes rows away.

    The same table if there are none. Others are not sorted by all columns, which is dear.

    Args:
        updates: In any order.
        hashes: Of their keys.
        order: Their places in the order of these.
    """
    taken = pc.less_equal(updates.column(DIFF), 0).to_numpy()
    if not taken.any() or updates.num_rows <= _SAMPLE:
        return updates
    wanted = np.unique(hashes[taken])
    ordered = hashes[order]
    start = np.searchsorted(ordered, wanted, "left")
    lengths = np.searchsorted(ordered, wanted, "right") - start
    concerned = np.zeros(updates.num_rows, np.bool_)
    concerned[order[_stretches(start, lengths)]] = True
    added_up = consolidate(updates.filter(pa.array(concerned)))
    return pa.concat_tables([updates.filter(pa.array(~concerned)), added_up])


def _many_are_equal(updates: pa.Table, order: npt.NDArray[np.intp]) -> bool:
    """True if many of more than `_SAMPLE` rows are equal: to sort all by all columns is dear.

    Args:
        updates: In any order.
        order: Their places in the order of their hashes, where equal rows are neighbours.
    """
    # Whole stretches: single rows would be equal to none of the others, however often each comes.
    stretches = np.array_split(order, len(order) // _STRETCH)
    some = stretches[:: max(len(stretches) * _STRETCH // _SAMPLE, 1)]
    sample = take(updates, np.concatenate(some))
    return bool(consolidate(sample).num_rows <= _DISTINCT * sample.num_rows)


def hashes_of(table: pa.Table, columns: Sequence[str]) -> Hashes:
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
