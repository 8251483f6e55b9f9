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
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.compute.index.order_codes import Codes, OrderBy, codes_of
from shardline.app.compute.index.runs import SHORT, FirstRows, Hashes, Run, hashes_of
from shardline.datasource.schema import DIFF, TS
from shardline.datasource.updates import consolidate_snapshot

__all__ = ["FirstOfKeys", "first_of_keys"]

_OWNER: Final = "_owner"
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
    keys = _keys_of(asked, key)
    if keys is None:
        return None
    last_codes = np.full(len(keys.hashes), np.iinfo(np.int64).max)
    is_cut = np.zeros(len(keys.hashes), np.bool_)
    pieces = [piece for run in runs for piece in run.pieces]
    orders = [(piece.by(by, asked.order), piece.updates) for piece in pieces]
    left = np.arange(len(keys.hashes)) if pieces else np.arange(0)
    number = np.maximum(keys.needed, SHORT)
    parts: list[pa.Table] = []
    looked_at = 0
    while len(left):
        found = _Taken.of(
            [one.first_of(keys.hashes[left], number[left], updates) for one, updates in orders],
            asked,
            as_of,
        )
        looked_at += found.looked_at
        if looked_at > rows_max:
            return None
        enough = found.has_enough(key, keys.needed[left])
        if enough is None:
            return None
        parts.append(found.of_keys(enough))
        last_codes[left], is_cut[left] = found.last_codes, found.is_cut
        left = left[~enough]
        number[left] *= _MORE
    return [*parts, _gone_behind(asked, keys, last_codes, is_cut)]


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys that are asked for.

    Attributes:
        hashes: Sorted, each once.
        needed: How many of the first rows of each may be among the first at any time.
        gone: The updates by which rows go.
        owners: For each of these the place of its key.
    """

    hashes: Hashes
    needed: npt.NDArray[np.int64]
    gone: pa.Table
    owners: npt.NDArray[np.intp]


def _keys_of(asked: FirstOfKeys, key: tuple[str, ...]) -> _Keys | None:
    """The keys of the changes; None if two of them have one hash."""
    hashes = np.unique(hashes_of(asked.changes, key))
    if asked.changes.group_by(list(key)).aggregate([]).num_rows != len(hashes):
        return None
    gone = asked.changes.filter(pc.less(asked.changes.column(DIFF), 0))
    owners = np.searchsorted(hashes, hashes_of(gone, key))
    # A row is at most as many places behind as rows in front of it go. Beyond what fits, all rows
    # are taken.
    number = np.bincount(owners, -gone.column(DIFF).to_numpy().astype(float), len(hashes))
    needed = asked.number + np.minimum(number, 1e15).astype(np.int64)
    return _Keys(hashes, needed, gone, owners)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What was taken of some keys.

    Attributes:
        updates: All of their first updates, and no others; with the place of the key.
        last_codes: For each key the code up to which all updates are there.
        is_cut: For each key, True if there are others.
        looked_at: How many updates were taken for these.
    """

    updates: pa.Table
    last_codes: Codes
    is_cut: npt.NDArray[np.bool_]
    looked_at: int

    @classmethod
    def of(cls, found: Sequence[FirstRows], asked: FirstOfKeys, as_of: int) -> _Taken:
        """The updates until a time that are the first of their keys, of those of each piece."""
        last_codes = np.min([one.last_codes for one in found], axis=0)
        together = pa.concat_tables(
            one.updates.append_column(_OWNER, pa.array(one.owners, pa.int64())) for one in found
        )
        owners = together.column(_OWNER).to_numpy()
        # Of what is behind the first cut of a key, other pieces have some, and this one not all.
        kept = codes_of(together, asked.order) <= last_codes[owners]
        kept &= together.column(TS).to_numpy() <= as_of
        is_cut = np.any([one.is_cut for one in found], axis=0)
        return cls(asked.kept(together.filter(pa.array(kept))), last_codes, is_cut, len(owners))

    def has_enough(
        self, key: tuple[str, ...], needed: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_] | None:
        """For each key, True if no more need be taken; None if two keys have one hash."""
        rows = consolidate_snapshot(self.updates)
        owners = rows.column(_OWNER).to_numpy()
        is_cut = self.is_cut[owners]
        # What is known is of the hash: another key would take the places of this one.
        of_cut = rows.select([_OWNER, *key]).filter(pa.array(is_cut))
        keys = of_cut.group_by([_OWNER, *key]).aggregate([]).num_rows
        if keys != len(np.unique(owners[is_cut])):
            return None
        copies = rows.column(DIFF).to_numpy().astype(float)
        number = np.bincount(owners, copies, len(needed))
        enough: npt.NDArray[np.bool_] = ~self.is_cut | (number >= needed)
        return enough

    def of_keys(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The updates of some of the keys, as they are in the runs."""
        owners = self.updates.column(_OWNER).to_numpy()
        return self.updates.filter(pa.array(chosen[owners])).drop_columns([_OWNER])


def _gone_behind(
    asked: FirstOfKeys, keys: _Keys, last_codes: Codes, is_cut: npt.NDArray[np.bool_]
) -> Any:
    """Rows that go and are behind what was found, as additions: the changes take them away again.

    One that comes and goes in the changes alone is added as well: it is behind all that counts.
    """
    codes = codes_of(keys.gone, asked.order)
    behind = is_cut[keys.owners] & (codes > last_codes[keys.owners])
    found = keys.gone.filter(pa.array(behind))
    place = found.column_names.index(DIFF)
    return found.set_column(place, DIFF, pc.negate(found.column(DIFF)))
