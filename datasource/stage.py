"""Staging: updates become parts in the blob store, before any state refers to them.

A `Stager` takes Arrow data in any number of batches and writes sorted Parquet parts of bounded size
under fresh names. It never looks at state and never commits: it runs wherever the rows are, in an
executor's task as well as in a plain program. What it returns is small, and can be sent to whoever
appends it. Parts that are never appended are garbage; whoever knows them may delete them, and the
sweeper takes the rest.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import msgspec
import pyarrow as pa

from datasource.batch import Part, Run
from datasource.clock import Clock, IdGenerator
from datasource.convert import check_data
from datasource.errors import InvalidUsage, ShardError
from datasource.ids import new_id
from datasource.location import Blob
from datasource.partfile import decode_inline, encode_inline, encode_parquet
from datasource.schema import DIFF, TS, ShardSchema
from datasource.settings import ShardSettings
from datasource.stats import encode_stats
from datasource.stats_collect import collect
from datasource.update import sort_rows

__all__ = ["Staged", "Stager", "delete_blobs", "discard"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Staged:
    """Parts that wait for their commit.

    Attributes:
        runs: Where the updates are.
        staged_ms: When the first part was begun (ms since the epoch, this process's clock).
        rows: Number of updates.
        size_bytes: Encoded size.
    """

    runs: tuple[Run, ...]
    staged_ms: int
    rows: int
    size_bytes: int

    @property
    def blob_keys(self) -> tuple[str, ...]:
        """Keys of the blobs that were written."""
        return tuple(p.key for run in self.runs for p in run.parts if p.inline is None)


@dataclass(frozen=True)
class Stager:
    """Writes parts for one shard.

    Attributes:
        blob: Where to.
        directory: The shard's directory.
        schema: Schema of the updates, as registered under `schema_id`.
        key: The shard's key columns; with the other columns after them, the sort order.
        may_inline: Whether a tiny part may be returned inside its description.
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

    def stage(self, data: Iterable[pa.RecordBatch | pa.Table]) -> Staged:
        """Write all updates of `data` as parts; each batch is checked against the schema first.

        Args:
            data: Tables or record batches with the schema's columns by name, in any order, and
                optionally `_ts` and `_diff`. Without `_ts` the commit sets the time, and then all
                must be without; without `_diff` every row is added once.

        Raises:
            InvalidUsage: The data do not fit the schema; the message names the column. Or some
                have `_ts` and others have not. Parts written before are deleted.
        """
        staged_ms = self.clock.now_ms()
        runs: list[Run] = []
        try:
            for table in self._buffers(data):
                runs.append(Run((self._part(table),)))  # noqa: PERF401 - kept if a later one fails
        except BaseException:
            discard(self.blob, runs)
            raise
        parts = [part for run in runs for part in run.parts]
        rows, size = sum(p.rows for p in parts), sum(p.size_bytes for p in parts)
        return Staged(tuple(runs), staged_ms, rows, size)

    def _buffers(self, data: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
        """Checked updates, cut into tables of about `part_buffer_bytes`."""
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
            for piece, size in _slices(with_diff(check_data(table, self.schema)), limit):
                pieces.append(piece)
                held += size
                if held >= limit:
                    yield pa.concat_tables(pieces)
                    pieces, held = [], 0
        if pieces:
            yield pa.concat_tables(pieces)

    def _part(self, table: pa.Table) -> Part:
        if table.num_rows > 1:
            table = sort_rows(table, self.key)
        payload = self._inline(table)
        data = payload if payload is not None else self._parquet(table)
        name = new_id("p", self.ids)
        key = name if payload is not None else f"{self.directory}/part/{name}.parquet"
        if payload is None:
            self.blob.set(key, data)
        times = table.column(TS).to_numpy() if TS in table.column_names else None
        diffs = table.column(DIFF).to_numpy()
        return Part(
            key=key,
            rows=table.num_rows,
            size_bytes=len(data),
            schema=self.schema_id,
            ts_min=None if times is None else int(times.min()),
            ts_max=None if times is None else int(times.max()),
            diff_sum=int(diffs.sum()),
            diff_min=int(diffs.min()),
            diff_max=int(diffs.max()),
            crc32=zlib.crc32(data),
            encoded_stats=self._stats(table, tiny=payload is not None),
            inline=payload,
        )

    def _stats(self, table: pa.Table, *, tiny: bool) -> msgspec.Raw:
        """Statistics; of an inline part only what tells whom it can have rows in common with.

        The rest would be as large as the rows themselves, and there is no fetch for it to save.
        """
        schema = self._first if tiny else self.schema
        return encode_stats(collect(table, schema, self._first.names, self.settings.stats_bytes))

    @cached_property
    def _first(self) -> ShardSchema:
        """The column that rows are sorted by before all others, as a schema."""
        return self.schema.select(self.key[:1] or self.schema.names[:1])

    def flush(self, part: Part) -> Part:
        """An inline part as a blob of its own; any other part as it is."""
        if part.inline is None:
            return part
        data = self._parquet(pa.Table.from_batches([decode_inline(part, self.schema)]))
        key = f"{self.directory}/part/{part.key}.parquet"
        self.blob.set(key, data)
        return msgspec.structs.replace(
            part, key=key, size_bytes=len(data), crc32=zlib.crc32(data), inline=None
        )

    def _inline(self, table: pa.Table) -> bytes | None:
        """The table's message, if it is small enough to live in state."""
        limit = self.settings.inline_part_bytes
        if not self.may_inline or table.nbytes > limit:
            return None
        payload = encode_inline(table)
        return payload if len(payload) <= limit else None

    def _parquet(self, table: pa.Table) -> memoryview:
        return encode_parquet(table, key=self.key, row_group_rows=self.settings.row_group_rows)


def discard(blob: Blob, runs: Iterable[Run]) -> None:
    """Delete the blobs of parts that certainly were not, and will never be, appended."""
    delete_blobs(blob, [p.key for run in runs for p in run.parts if p.inline is None])


def delete_blobs(blob: Blob, keys: Iterable[str]) -> None:
    """Delete what nothing refers to; what cannot be deleted now is left to the sweeper.

    Raises nothing of the store's: the caller's own outcome, or error, is what must be told.
    """
    for key in keys:
        try:
            blob.delete(key)
        except ShardError:
            _log.warning("unused blob not deleted", exc_info=True, extra={"context": {"key": key}})


def with_diff(table: pa.Table) -> pa.Table:
    """`table` with a `_diff` column: each row once, unless it has one already."""
    if DIFF in table.column_names:
        return table
    ones = pa.repeat(pa.scalar(1, pa.int64()), table.num_rows)
    return table.append_column(pa.field(DIFF, pa.int64(), nullable=False), ones)


def _slices(table: pa.Table, limit: int) -> Iterator[tuple[pa.Table, int]]:
    """`table` in pieces of at most about `limit` bytes, none of them empty, each with its size."""
    if table.num_rows == 0:
        return
    size = table.nbytes
    pieces = max(1, -(-size // limit))
    step = -(-table.num_rows // pieces)
    for start in range(0, table.num_rows, step):
        yield table.slice(start, step), size // pieces
