"""Stages updates: writes them as parts to the blob store, before any state refers to them.

A `Stager` takes Arrow data in any number of batches and writes sorted Parquet parts of bounded size
under fresh names. It never reads the shard's state and never commits, so it runs wherever the rows
are, in an executor's task as well as in a plain program. Its result is small and can be sent to the
process that appends it.

Parts that are never appended are garbage. `UncommittedParts` is the one place that deletes them
before the orphan sweep does, and it needs proof that no record names them: a record that names a
deleted part makes the shard unreadable for ever, whereas a part too many costs some bytes for a
day. An error of a commit is such a proof only if its class says that nothing happened
(`Determinate`, `InvalidUsage`).

Invariants:
    A part is in the store, durably, before its description leaves this module.
    No two parts share a key, not even those of one attempt and its repetition.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import Determinate, InvalidUsage, ShardError
from shardline.datasource.ids import new_id
from shardline.datasource.parts.collect_stats import collect_part_stats
from shardline.datasource.parts.part_file import (
    decode_inline,
    encode_inline,
    encode_parquet,
    footer_of,
)
from shardline.datasource.rows.updates import sort_rows
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.batch import Part, Run
from shardline.datasource.stores.location import Blob
from shardline.datasource.types.cast_to_schema import check_data
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.types.stats import encode_stats

__all__ = ["Staged", "Stager", "UncommittedParts", "delete_blobs"]

_log = logging.getLogger(__name__)

_ONES_MAX: Final = 1 << 10
_DIFF_FIELD: Final = pa.field(DIFF, pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class Staged:
    """Parts that are written and not committed yet.

    Attributes:
        runs: The parts, one run for each.
        staged_ms: When staging began (ms since the epoch, this process's clock). A commit that
            comes too long after it is refused, because the sweep may have taken the parts.
        rows: Number of updates.
        size_bytes: Encoded size of all parts.
    """

    runs: tuple[Run, ...]
    staged_ms: int
    rows: int
    size_bytes: int

    @property
    def blob_keys(self) -> tuple[str, ...]:
        """Keys of the written blobs; inline parts have none."""
        return tuple(_blob_keys(self.runs))


@dataclass(frozen=True)
class Stager:
    """Writes parts for one shard.

    Attributes:
        blob: The store that parts are written to.
        directory: The shard's directory in it.
        schema: Schema of the updates, registered in the shard under `schema_id`.
        key: The shard's key columns; rows are sorted by these, then by the other columns.
        may_inline: True if a tiny part may be returned inside of its description.
    """

    blob: Blob
    directory: str
    schema: ShardSchema
    schema_id: int
    key: tuple[str, ...]
    settings: ShardSettings
    clock: Clock
    ids: IdGenerator
    may_inline: bool = True

    def stage(self, data: Iterable[pa.RecordBatch | pa.Table], *, in_order: bool = False) -> Staged:
        """Write all updates of `data` as parts; each batch is checked against the schema first.

        Args:
            data: Tables or record batches with the schema's columns by name, in any order, and
                optionally `_ts` and `_diff`. Without `_ts` the commit sets the time, and then all
                must be without; without `_diff` every row is added once.
            in_order: True if all rows are in the shard's sort order, over all tables.

        Raises:
            InvalidUsage: The data do not fit the schema; the message names the column. Or some
                have `_ts` and others have not. Parts that were written already are deleted.
        """
        staged_ms = self.clock.now_ms()
        runs: list[Run] = []
        with UncommittedParts(self.blob) as uncommitted:
            for table in self._buffers(data):
                run = Run((self._part(table, in_order=in_order),))
                uncommitted.add((run,))
                runs.append(run)
            uncommitted.hand_over(runs)
        parts = [part for run in runs for part in run.parts]
        rows, size = sum(p.rows for p in parts), sum(p.size_bytes for p in parts)
        return Staged(tuple(runs), staged_ms, rows, size)

    def _buffers(self, data: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
        """Checked updates, none with diff 0, cut into tables of about `part_buffer_bytes`."""
        limit = self.settings.part_buffer_bytes
        pieces: list[pa.Table] = []
        held = 0
        timed: bool | None = None
        for item in data:
            table = item if isinstance(item, pa.Table) else pa.Table.from_batches([item])
            if timed not in (None, TS in table.column_names):
                raise InvalidUsage(
                    f"some of the data have the column '{TS}' and some have not",
                    code="MIXED_TIMES",
                    hint="give every row a time, or none",
                )
            timed = TS in table.column_names
            updates = with_diff(check_data(table, self.schema))
            for piece, size in _slices(_without_zeros(updates), limit):
                pieces.append(piece)
                held += size
                if held >= limit:
                    yield pa.concat_tables(pieces)
                    pieces, held = [], 0
        if pieces:
            yield pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)

    def _part(self, table: pa.Table, *, in_order: bool) -> Part:
        if table.num_rows > 1 and not in_order:
            table = sort_rows(table, self.key)
        payload = self._inline(table)
        data = payload if payload is not None else self._parquet(table)
        key = new_id("p", self.ids) if payload is not None else self._fresh_key()
        if payload is None:
            self.blob.set(key, data)
        first, last = _bounds(table, TS) if TS in table.column_names else (None, None)
        least, most = _bounds(table, DIFF)
        diffs = table.column(DIFF).to_numpy()
        return Part(
            key=key,
            rows=table.num_rows,
            size_bytes=len(data),
            schema=self.schema_id,
            ts_min=first,
            ts_max=last,
            diff_sum=int(diffs.sum()),
            diff_min=least,
            diff_max=most,
            crc32=zlib.crc32(data),
            encoded_stats=self._stats(table, tiny=payload is not None),
            inline=payload,
            footer=None if payload is not None else footer_of(data),
            nan_safe=payload is None,
        )

    def _stats(self, table: pa.Table, *, tiny: bool) -> msgspec.Raw:
        """Encoded statistics; those of an inline part cover only the first sort column.

        That column tells which other parts may have the same rows. Statistics of the others would
        be as large as the rows themselves, and an inline part needs no fetch that they could save.
        """
        schema = self._first_sort_column if tiny else self.schema
        return encode_stats(
            collect_part_stats(
                table, schema, self._first_sort_column.names, self.settings.stats_bytes
            )
        )

    @cached_property
    def _first_sort_column(self) -> ShardSchema:
        """A schema of only the first sort column."""
        return self.schema.select(self.key[:1] or self.schema.names[:1])

    def flush(self, part: Part) -> Part:
        """Write an inline part as a blob; any other part is returned unchanged.

        The key is fresh each time. Two processes may flush the same part, to different bytes,
        because settings and versions differ. With one key for both, the second would overwrite the
        file whose checksum the first has committed.
        """
        if part.inline is None:
            return part
        data = self._parquet(pa.Table.from_batches([decode_inline(part, self.schema)]))
        key = self._fresh_key()
        self.blob.set(key, data)
        return msgspec.structs.replace(
            part,
            key=key,
            size_bytes=len(data),
            crc32=zlib.crc32(data),
            inline=None,
            footer=footer_of(data),
            nan_safe=True,
        )

    def _fresh_key(self) -> str:
        return f"{self.directory}/part/{new_id('p', self.ids)}.parquet"

    def _inline(self, table: pa.Table) -> bytes | None:
        """The table as an Arrow message; None if it is too large to live in the state."""
        limit = self.settings.inline_part_bytes
        if not self.may_inline or table.nbytes > limit:
            return None
        payload = encode_inline(table)
        return payload if len(payload) <= limit else None

    def _parquet(self, table: pa.Table) -> memoryview:
        return encode_parquet(table, row_group_rows=self.settings.row_group_rows)


class UncommittedParts:
    """Staged parts, deleted at the end of a `with` unless a record may name them.

        with UncommittedParts(blob, staged.runs) as parts:
            check(staged)  # after any error here no record names the parts: they are deleted
            with parts.commit():
                outcome = machine.apply(append)  # from here on they are kept, unless refused
            if isinstance(outcome, UpperMismatch):
                parts.note_refused()

    Losing this object, in a crash, leaves the parts to the orphan sweep and does no other harm.

    Args:
        blob: The store that they are in.
        runs: The parts; inline ones have no blob, and are ignored.
    """

    def __init__(self, blob: Blob, runs: Iterable[Run] = ()) -> None:
        self._blob = blob
        self._keys: dict[str, None] = {}
        self._may_be_used = False
        self._may_have_been_used = False
        self.add(runs)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Delete the parts unless a record names them, or may name them."""
        self.delete()

    def add(self, runs: Iterable[Run]) -> None:
        """Take charge of more parts; they are kept or deleted together with the others."""
        self._keys |= dict.fromkeys(_blob_keys(runs))

    def hand_over(self, runs: Iterable[Run]) -> None:
        """Give up charge of these parts; another owner deletes them if they are not committed."""
        for key in _blob_keys(runs):
            self._keys.pop(key, None)

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Surround the call that may write a record that names the parts.

        Afterwards the parts are kept, until `note_refused` notes that they were refused. An error
        proves a refusal only if its class says so: an interrupt, damage that was met meanwhile or
        an unexpected error say nothing about a request that was sent.
        """
        self._may_have_been_used = self._may_be_used
        # Before the attempt: an interrupt in the middle of it must not delete the parts.
        self._may_be_used = True
        try:
            yield
        except (Determinate, InvalidUsage):
            self.note_refused()
            raise

    def note_refused(self) -> None:
        """Note that the last commit certainly does not name them; an earlier one still may."""
        self._may_be_used = self._may_have_been_used

    def delete(self) -> None:
        """Delete the parts now, unless a record may name them; then the orphan sweep decides."""
        if not self._may_be_used:
            keys, self._keys = self._keys, {}
            delete_blobs(self._blob, keys)


def _blob_keys(runs: Iterable[Run]) -> list[str]:
    return [part.key for run in runs for part in run.parts if part.inline is None]


def delete_blobs(blob: Blob, keys: Iterable[str]) -> None:
    """Delete blobs that nothing refers to; failures are logged and left to the orphan sweep.

    Raises no error of the store, which would hide the caller's own outcome or error.
    """
    for key in keys:
        try:
            blob.delete(key)
        except ShardError:
            _log.warning("unused blob not deleted", exc_info=True, extra={"context": {"key": key}})


def with_diff(table: pa.Table) -> pa.Table:
    """`table` with a `_diff` column: 1 for each row, unless it has the column already."""
    if DIFF in table.column_names:
        return table
    rows = table.num_rows
    ones = _ones()[:rows] if rows <= _ONES_MAX else pa.repeat(pa.scalar(1, pa.int64()), rows)
    return table.append_column(_DIFF_FIELD, ones)


def _without_zeros(updates: pa.Table) -> pa.Table:
    """`updates` without those of diff 0, which change nothing and would look like rows of a part.

    A part without retractions is read row by row, since nothing has to be added up.
    """
    diffs = updates.column(DIFF)
    return updates if diffs.to_numpy().all() else updates.filter(pc.not_equal(diffs, 0))


@cache
def _ones() -> pa.Array:
    # Not when the module is loaded: to make a value pyarrow loads pandas, which takes long, and
    # commands that stage nothing shall start fast.
    return pa.repeat(pa.scalar(1, pa.int64()), _ONES_MAX)


def _bounds(table: pa.Table, name: str) -> tuple[int, int]:
    """Least and greatest value of an int64 column without nulls."""
    values = table.column(name).to_numpy()
    if len(values) == 1:
        return int(values[0]), int(values[0])  # in tiny appends the calls themselves are the work
    return int(values.min()), int(values.max())


def _slices(table: pa.Table, limit: int) -> Iterator[tuple[pa.Table, int]]:
    """`table` cut into non-empty pieces of about `limit` bytes at most, each with its size."""
    if table.num_rows == 0:
        return
    size = table.nbytes
    pieces = max(1, -(-size // limit))
    step = -(-table.num_rows // pieces)
    for start in range(0, table.num_rows, step):
        yield table.slice(start, step), size // pieces
