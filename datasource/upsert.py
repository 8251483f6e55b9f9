"""Upserting replaces the rows of a shard that have the keys of new rows, by one atomic difference.

For each key among the new rows one of them wins (Delta: MERGE). Everything that the shard holds
under that key is retracted and the winner is added, unless it is a delete. A winner that the shard
holds already, once, costs nothing. Old and new rows are merged as sorted streams, in bounded
memory, and only those old parts and row groups are read whose keys may be among the new ones.

The rows are staged as *carriers*: the columns of the row, a value by which the winner among several
new rows of a key is chosen, and a flag that is false for a delete (`carrier_schema`).

    key columns | ORDER, if there is an order | TIE, if it has one | LIVE | the other columns

Sorted by these columns, as parts are, the last new row of a key is its winner. Old rows have nulls
in ORDER, TIE and LIVE, so they sort before all new ones of their key.

Where ORDER says nothing between the partitions of a source, carriers have two columns more, behind
LIVE: PARTITION, and AT. Then the last new row of each partition is found first, and of these the
one with the greatest AT wins.

Invariants:
    - The result is a function of the contents and of the multiset of new rows: neither how they
      are spread over parts nor their order matters.
    - Keys are equal as rows are: null equals null and NaN equals NaN.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from shardline.datasource.difference import Difference, commit_difference, plan_staged, sorted_runs
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import TIME_MIN
from shardline.datasource.parts.contents import Contents
from shardline.datasource.parts.fetch import Fetcher
from shardline.datasource.parts.sought_keys import filter_by_keys, keeps_keys
from shardline.datasource.parts.stage import Staged
from shardline.datasource.read import current_schema
from shardline.datasource.rows.merge_runs import merge
from shardline.datasource.rows.sorting import order_rows, take
from shardline.datasource.rows.updates import consolidate
from shardline.datasource.shard.commands.append import AlreadyCommitted, Appended
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.plan import PlannedPart
from shardline.datasource.shard.state import ShardState
from shardline.datasource.types.python_values import python_values
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.types.spark_types import Atomic, Field, Record, SparkType, path_text
from shardline.datasource.types.stats import PartStats, may_overlap
from shardline.datasource.write import WriteHandle

__all__ = [
    "AT",
    "CARRIER_ID",
    "LIVE",
    "ORDER",
    "PARTITION",
    "TIE",
    "carrier_schema",
    "upsert",
    "upsert_difference",
]

ORDER: Final = "_shardline_order"
"""Column of a carrier: of the rows of one key, the one with the greatest value wins."""

TIE: Final = "_shardline_tie"
"""Column of a carrier: text that decides between rows of one key with one order: without it a row
wins over a delete, and the greater of two rows."""

LIVE: Final = "_shardline_live"
"""Column of a carrier: false if the rows of the key are to be deleted; null in an old row."""

PARTITION: Final = "_shardline_partition"
"""Column of a carrier: the part of a source, as text, in which ORDER means something."""

AT: Final = "_shardline_at"
"""Column of a carrier: of the last rows of several partitions the one with the greatest wins."""

CARRIER_ID: Final = -1
"""The schema id of staged carriers: no schema of a shard has it."""

_KEY_NUMBER: Final = pa.field("_shardline_key", pa.int64(), nullable=False)
"""Column that a difference has while it is computed: which of a table's keys a row has."""

_THREADS: Final = min(4, os.cpu_count() or 1)
"""Threads that decode old rows: Arrow holds no lock of Python meanwhile."""

Places = npt.NDArray[np.int64]


def carrier_schema(
    schema: ShardSchema,
    key: Sequence[str],
    order: SparkType | None = None,
    *,
    tie: bool = False,
    partitioned: bool = False,
) -> ShardSchema:
    """The schema of the carriers of rows of `schema`.

    Args:
        schema: The shard's schema.
        key: The shard's key, at least one column.
        order: Type of `ORDER`; None if new rows of one key have no order.
        tie: True if they have a `TIE`.
        partitioned: True if they have a `PARTITION` and `AT`.

    Raises:
        InvalidUsage: A column has a name that is reserved for carriers.
    """
    for name in schema.names:
        if name.lower() in {ORDER, TIE, LIVE, PARTITION, AT, _KEY_NUMBER.name}:
            raise InvalidUsage(
                f"column '{name}' has a name that an upsert keeps for itself",
                code="RESERVED_COLUMN",
                hint="rename the column",
            )
    # Deletes have nulls in columns that otherwise must not be null.
    others = [
        Field(f.name, f.type, nullable=True, metadata=f.metadata)
        for f in schema.record.fields
        if f.name not in key
    ]
    ordered = [] if order is None else [Field(ORDER, order, nullable=True)]
    if tie:
        ordered.append(Field(TIE, Atomic("string"), nullable=True))
    flags = [Field(LIVE, Atomic("boolean"), nullable=True)]
    if partitioned:
        flags.append(Field(PARTITION, Atomic("string"), nullable=True))
        flags.append(Field(AT, Atomic("long"), nullable=True))
    keys = [schema.field(name) for name in key]
    return ShardSchema(Record((*keys, *ordered, *flags, *others)))


def upsert(
    handle: WriteHandle, new: Staged, carriers: ShardSchema, *, sequence: int, attempt: str
) -> Appended | AlreadyCommitted:
    """Replace the rows that have the keys of `new` by the rows of `new`.

    Args:
        handle: A writer of the shard, which has a key.
        new: Carriers, staged under `CARRIER_ID`. Their blobs are deleted in the end, unless an
            unknown outcome leaves them to the orphan sweep.
        carriers: Their schema, made by `carrier_schema`.
        sequence: Number of this append of the writer.
        attempt: Id of the attempt that staged them.

    Raises:
        Determinate: Others appended faster than the difference could follow.
        InvalidUsage: Several new rows of one key differ, and there is no order among them.
    """
    difference = upsert_difference(handle.machine, carriers, new)
    return commit_difference(handle, new, difference, sequence=sequence, attempt=attempt)


def upsert_difference(machine: Machine, carriers: ShardSchema, new: Staged) -> Difference:
    """The difference by which the carriers of `new` replace the rows of their keys."""
    return _Replacements(machine, carriers, plan_staged(new))


@dataclass(slots=True)
class _Replacements(Difference):
    """Retracts the rows of the new rows' keys and adds the winners.

    Attributes:
        closed: False once some key was found of which rows are retracted and others stay.
    """

    machine: Machine
    carriers: ShardSchema
    new: Sequence[PlannedPart]
    closed: bool = True

    @property
    @override
    def closes(self) -> bool:
        return self.closed

    @override
    def against(
        self, state: ShardState, there: Sequence[PlannedPart], *, whole: bool
    ) -> Iterator[pa.Table]:
        self.closed = True
        stats = [planned.part.stats for planned in self.new]
        touched = [planned for planned in there if _may_touch(planned, stats, state.key)]
        if not self.new or not (whole or touched):
            return
        contents = self._contents(state)
        schema = current_schema(state)
        # Without the keys most rows pass: they are not looked at twice, nor decoded ahead.
        few = keeps_keys(self.new)
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="upsert")
        try:
            runs = sorted_runs(contents, self.new)
            if touched:
                where = filter_by_keys(contents, self.new)
                fetcher = replace(contents.fetcher, where=where, looks_first=few)
                runs += sorted_runs(
                    replace(contents, fetcher=fetcher), touched, pool if few else None
                )
            # All times are advanced to one, at or after every one of them, so that equal rows meet
            # whenever they were added.
            merged = merge(runs, state.key, since=state.upper.time or TIME_MIN)
            for group in _whole_keys(merged, state.key):
                if (found := self._resolved(group, state, schema, whole=whole)).num_rows:
                    yield found
        finally:
            # What is decoded ahead is of no use after an error.
            pool.shutdown(cancel_futures=True)

    def _contents(self, state: ShardState) -> Contents:
        """A reader that gives old rows and new ones alike as carriers of the newest schema."""
        schemas = {number: ShardSchema.parse(text) for number, text in state.schemas.items()}
        order = self.carriers.field(ORDER).type if ORDER in self.carriers else None
        target = carrier_schema(
            schemas[state.schema_id],
            state.key,
            order,
            tie=TIE in self.carriers,
            partitioned=PARTITION in self.carriers,
        )
        fetcher = Fetcher(
            self.machine.location.blob, {**schemas, CARRIER_ID: self.carriers}, target
        )
        return Contents(fetcher, state.key, target.names)

    def _resolved(
        self, group: pa.Table, state: ShardState, schema: ShardSchema, *, whole: bool
    ) -> pa.Table:
        """The difference for `group`, which holds all rows of each of its keys."""
        starts, ends = _bounds(group, state.key)
        # Only old rows have a null here: a delete is false.
        added = group.column(LIVE).is_valid().to_numpy()
        news = np.add.reduceat(added.astype(np.int64), starts)
        if ORDER not in self.carriers and (news > 1).any():
            raise self._ambiguous(group, starts[int(np.argmax(news > 1))], state)
        gone = np.flatnonzero(np.repeat(news > 0, ends - starts) & ~added)
        last = _newest(group, starts) if PARTITION in self.carriers else ends[news > 0] - 1
        lives = (
            group.column(LIVE).combine_chunks().take(pa.array(last)).to_numpy(zero_copy_only=False)
        )
        # Winners are added once, with the whole contents. What later appends bring of their keys is
        # only retracted.
        won = last[lives.astype(np.bool_)] if whole else last[:0]
        diffs = group.column(DIFF).to_numpy()
        places = np.concatenate([gone, won])
        chosen = take(group.select([*schema.names, TS]), places)
        signed = np.concatenate([-diffs[gone], np.ones(len(won), np.int64)])
        # Equal rows have one key, so its number changes nothing of what is added up.
        numbers = np.repeat(np.arange(len(starts)), ends - starts)
        difference = chosen.append_column(_KEY_NUMBER, pa.array(numbers[places])).append_column(
            pa.field(DIFF, pa.int64(), nullable=False), pa.array(signed)
        )
        found = consolidate(difference, state.key)
        held = np.add.reduceat(np.where(added, 0, diffs), starts)
        # A row that was retracted more often than it was there hides, in the sum of its key, copies
        # of another row that stay.
        self.closed = (
            self.closed and bool((diffs[gone] > 0).all()) and _takes_back_whole_keys(found, held)
        )
        return found.drop_columns([TS, _KEY_NUMBER.name])

    def _ambiguous(self, group: pa.Table, row: int, state: ShardState) -> InvalidUsage:
        key = group.select(list(state.key)).slice(row, 1)
        named = ", ".join(f"{name}={python_values(key[name])[0]!r}" for name in state.key)
        return InvalidUsage(
            f"several different rows with the key {named} are to replace one another in shard "
            f"'{state.name}' at once",
            code="AMBIGUOUS_KEY",
            hint="set option orderingColumn to what tells the latest, or keep one row of each key",
        )


def _newest(group: pa.Table, starts: Places) -> Places:
    """The positions of the winners of all keys that have new rows, of several partitions.

    Args:
        group: Sorted carriers, with all rows of each of their keys.
        starts: The positions at which the rows of each key begin.
    """
    added = np.flatnonzero(group.column(LIVE).is_valid().to_numpy())
    keys = np.repeat(np.arange(len(starts)), np.diff(starts, append=group.num_rows))[added]
    new = group.select([PARTITION, AT]).take(pa.array(added)).combine_chunks()
    partitions = new.column(PARTITION).dictionary_encode().combine_chunks().indices.to_numpy()
    # Stable: rows of one partition stay in their order, and the last of them is its newest.
    by_partition = np.lexsort((partitions, keys))
    last = by_partition[_changes(keys[by_partition], partitions[by_partition])]
    # Of equal times the row that sorts last wins: any, but always the same one.
    by_time = last[np.lexsort((last, new.column(AT).to_numpy()[last], keys[last]))]
    return added[by_time[_changes(keys[by_time])]]


def _changes(*columns: Places) -> npt.NDArray[np.bool_]:
    """True for the last of equal rows that follow one another."""
    differs = np.ones(len(columns[0]), np.bool_)
    differs[:-1] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return differs


def _takes_back_whole_keys(difference: pa.Table, held: Places) -> bool:
    """True if of each key all copies of all rows are retracted, or none.

    A winner that is equal to an old row cancels with its retraction. If that is all that there is
    of the key, nothing is left to retract; but other rows of the key may be left.

    Args:
        difference: Consolidated, with the number of each row's key.
        held: By the key's number, how many rows the shard holds.
    """
    diffs = difference.column(DIFF).to_numpy()
    taken = np.bincount(
        difference.column(_KEY_NUMBER.name).to_numpy()[diffs < 0],
        weights=-diffs[diffs < 0].astype(np.float64),
        minlength=len(held),
    )
    # Sums beyond 2**53 are not exact, and then it is only said of less.
    return bool(((taken == 0) | ((taken == held) & (taken < 2**53))).all())


def _bounds(table: pa.Table, key: Sequence[str]) -> tuple[Places, Places]:
    """The positions at which the rows of each key begin and end in a table sorted by key."""
    starts = order_rows(table, key).starts
    if starts is None:
        starts = np.arange(table.num_rows)
    return starts, np.append(starts[1:], table.num_rows)


def _whole_keys(tables: Iterator[pa.Table], key: Sequence[str]) -> Iterator[pa.Table]:
    """The same rows, cut so that all rows of a key are in one table."""
    held: pa.Table | None = None
    for table in tables:
        joined = table if held is None else pa.concat_tables([held, table])
        starts, _ = _bounds(joined, key)
        cut = int(starts[-1])
        if cut:
            yield joined.slice(0, cut).combine_chunks()
        held = joined.slice(cut)
    if held is not None:
        yield held.combine_chunks()


def _may_touch(planned: PlannedPart, new: Sequence[PartStats | None], key: Sequence[str]) -> bool:
    """True if a part may have rows of the new rows' keys, by its statistics."""
    old = planned.part.stats
    columns = [path_text((name,)) for name in key]
    return old is None or any(stats is None or may_overlap(old, stats, columns) for stats in new)
