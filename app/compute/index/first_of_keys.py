"""Finds the first rows of keys in an order, where all rows of a key are too many to look at.

    asked = FirstOfKeys(OrderBy("price", …), 10, changes)
    first_of_keys(runs, None, ("auction",), asked, as_of=…, rows_max=…)

A query that shows the ten highest bids of each auction needs, when bids of an auction change, its
ten highest ones of before, and as many more as of its bids go. What is found is exactly that: of
the keys of `changes` so many rows that the first ten are the same at each time, whether `changes`
come to these rows or to all. Rows that go are among what is found, also those far behind.

Each piece of a run has the rows of one key in the order, but they are updates: a row that comes in
one may go in another. So of each piece the first updates are taken, and of all that is taken what
is not behind the place where any piece was cut: up to there nothing is missing. If too little is
left of a key, since much of it has gone, more is taken. (Materialize keeps the first rows of a key
in a hierarchy of buckets, in memory: here they are the beginning of what is sorted anyway.)

Invariants:
    Of a key whose rows are cut, all rows up to a code of the order are found, and no other one that
        stays; without `changes` these are at least as many as are needed and as go.
    None says nothing about the rows: another way is to be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.compute.index.order_codes import Codes, OrderBy, codes_of
from shardline.app.compute.index.runs import NOT_CUT, SHORT, FirstRows, Hashes, Run, hashes_of
from shardline.datasource.schema import DIFF, TS
from shardline.datasource.updates import consolidate_snapshot

__all__ = ["FirstOfKeys", "first_of_keys"]

_MORE: Final = 4
"""How many times as many are taken where too few were left."""


def _all_of(rows: pa.Table) -> pa.Table:
    return rows


@dataclass(frozen=True, slots=True)
class FirstOfKeys:
    """The first rows of some keys.

    Attributes:
        order: That of the rows of one key.
        number: How many of each are needed, at each time of the changes.
        changes: Updates that are about to come to the rows, whose keys are asked for.
        kept: Leaves out rows that do not count; equal rows are treated alike.
    """

    order: OrderBy
    number: int
    changes: pa.Table
    kept: Callable[[pa.Table], pa.Table] = _all_of


def first_of_keys(
    runs: Sequence[Run],
    by: tuple[str, ...] | None,
    key: tuple[str, ...],
    asked: FirstOfKeys,
    *,
    as_of: int,
    rows_max: int,
) -> list[pa.Table] | None:
    """Updates that stand for the first rows of keys at a time; None if they are too many.

    None, too, in the rare case that two keys have the same hash.

    Args:
        runs: Of an arrangement.
        by: As of `Piece.by`.
        key: Columns of the key.
        asked: What is needed.
        as_of: Later updates are not meant.
        rows_max: How many updates may be looked at.
    """
    gone = asked.changes.filter(pc.less(asked.changes.column(DIFF), 0))
    keys = _keys_of(asked, key, gone)
    if keys is None:
        return None
    last_codes = np.full(len(keys.hashes), NOT_CUT)
    pieces = [piece for run in runs for piece in run.pieces]
    orders = [(piece.by(by, asked.order), piece.updates) for piece in pieces]
    left = np.arange(len(keys.hashes)) if pieces else np.arange(0)
    number = np.maximum(keys.needed, SHORT)
    parts: list[pa.Table] = []
    looked_at = 0
    while len(left):
        chosen = keys.some(left)
        found = _Taken.of(
            [one.first_of(chosen.hashes, number[left], updates) for one, updates in orders],
            asked,
            as_of,
        )
        looked_at += found.looked_at
        if looked_at > rows_max:
            return None
        enough = found.has_enough(chosen)
        if enough is None:
            return None
        parts.append(found.updates.filter(pa.array(enough[chosen.owners_of(found.updates)])))
        last_codes[left] = found.last_codes
        left = left[~enough]
        number[left] *= _MORE
    return [*parts, _gone_behind(asked.order, gone, keys, last_codes)]


@dataclass(frozen=True, slots=True)
class _Keys:
    """Some keys.

    Attributes:
        columns: Of the key.
        hashes: Sorted, each once.
        values: The key of each.
        needed: How many of the first rows of each may be among the first at any time.
    """

    columns: tuple[str, ...]
    hashes: Hashes
    values: pa.Table
    needed: npt.NDArray[np.int64]

    def owners_of(self, rows: pa.Table) -> npt.NDArray[np.intp]:
        """For each row, whose key has the hash of one of these, the place of that."""
        return np.searchsorted(self.hashes, hashes_of(rows, self.columns))

    def some(self, places: npt.NDArray[np.intp]) -> _Keys:
        """Those at some places, in order."""
        values, needed = self.values.take(places), self.needed[places]
        return _Keys(self.columns, self.hashes[places], values, needed)


def _keys_of(asked: FirstOfKeys, key: tuple[str, ...], gone: pa.Table) -> _Keys | None:
    """The keys of the changes; None if two of them have one hash.

    Args:
        asked: What is needed.
        key: Columns of the key.
        gone: The updates by which rows go.
    """
    values = _each_once(asked.changes.select(list(key)))
    hashes, order = np.unique(hashes_of(values, key), return_index=True)
    if len(hashes) < values.num_rows:
        return None
    all_of = _Keys(key, hashes, values.take(order), np.full(len(hashes), asked.number))
    # A row is at most as many places behind as rows in front of it go. Beyond what fits, all rows
    # are taken.
    diffs = gone.column(DIFF).to_numpy().astype(float)
    number = np.bincount(all_of.owners_of(gone), -diffs, len(hashes))
    return replace(all_of, needed=all_of.needed + np.minimum(number, 1e15).astype(np.int64))


def _each_once(keys: pa.Table) -> pa.Table:
    """Rows without those that are equal to others."""
    # Arrow would read a name that begins with a dot as a path.
    names = [f"k{place}" for place in range(keys.num_columns)]
    found = keys.rename_columns(names).group_by(names).aggregate([])
    return found.rename_columns(keys.column_names)


@dataclass(frozen=True, slots=True)
class _Taken:
    """The updates that were taken of some keys.

    Attributes:
        updates: All of their first updates, and no others.
        last_codes: For each key the code up to which all updates are there.
        looked_at: How many updates were taken for these.
    """

    updates: pa.Table
    last_codes: Codes
    looked_at: int

    @classmethod
    def of(cls, found: Sequence[FirstRows], asked: FirstOfKeys, as_of: int) -> _Taken:
        """The updates until a time that are the first of their keys, of those of each piece."""
        last_codes = np.min([one.last_codes for one in found], axis=0)
        together = pa.concat_tables(one.updates for one in found)
        owners = np.concatenate([one.owners for one in found])
        # Of what is behind the first cut of a key, other pieces have some, and this one not all.
        kept = codes_of(together, asked.order) <= last_codes[owners]
        kept &= together.column(TS).to_numpy() <= as_of
        return cls(asked.kept(together.filter(pa.array(kept))), last_codes, len(owners))

    def has_enough(self, keys: _Keys) -> npt.NDArray[np.bool_] | None:
        """For each key, True if no more need be taken; None if another one has its hash."""
        rows = consolidate_snapshot(self.updates)
        owners, is_cut = keys.owners_of(rows), self.last_codes < NOT_CUT
        # What is known is of the hash: another key would take the places of this one, be it alone
        # among these rows or beside it.
        mine = keys.values.filter(pa.array(is_cut))
        of_cut = rows.select(mine.column_names).filter(pa.array(is_cut[owners]))
        both = pa.concat_tables([mine, of_cut], promote_options="permissive")
        if _each_once(both).num_rows > mine.num_rows:
            return None
        copies = rows.column(DIFF).to_numpy().astype(float)
        number = np.bincount(owners, copies, len(keys.hashes))
        enough: npt.NDArray[np.bool_] = ~is_cut | (number >= keys.needed)
        return enough


def _gone_behind(order: OrderBy, gone: pa.Table, keys: _Keys, last_codes: Codes) -> Any:
    """Rows that go and are behind what was found, as additions: the changes take them away again.

    One that comes and goes in the changes alone is added as well: it is behind all that counts.
    """
    behind = codes_of(gone, order) > last_codes[keys.owners_of(gone)]
    found = gone.filter(pa.array(behind))
    place = found.column_names.index(DIFF)
    return found.set_column(place, DIFF, pc.negate(found.column(DIFF)))
