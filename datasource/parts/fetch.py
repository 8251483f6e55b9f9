"""Fetches a planned part as Arrow record batches; reads blobs only, never Consensus.

This is the executor's half of a read (Materialize: shard_source_fetch). Thousands of tasks run it
at once, so all that it needs besides the blob is in the plan.

Row groups are decoded a few at a time, so memory does not grow with the part. A part that is
missing or damaged is an error that names it; it is never skipped, and no row after it is returned.

Rows have the target schema (those of older parts are migrated) and the part's order. They are
filtered by time and by the filter, and not consolidated.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.errors import STORE_REFUSALS, Corrupt, InvalidUsage, MissingBlob
from shardline.datasource.filters.parser import Where
from shardline.datasource.parts.part_file import (
    damaged_part_error,
    decode_inline,
    open_part,
    part_schema,
)
from shardline.datasource.parts.prune import is_audited
from shardline.datasource.parts.row_groups import RowGroups
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart, TimeFilter
from shardline.datasource.stores.location import Blob
from shardline.datasource.types.cast_to_schema import convert, migrate_rows
from shardline.datasource.types.python_values import python_values
from shardline.datasource.types.schema import DIFF, TS, ShardSchema

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["BATCH_ROWS", "Fetcher"]

BATCH_ROWS = 1 << 16
"""Most rows of a record batch; larger ones are hardly faster."""

_BATCH_BYTES: Final = 16 << 20
"""Approximate limit of the decoded size of a record batch: batches of wide rows have fewer rows."""

_REQUEST_BYTES: Final = 16 << 20
"""Encoded size of the row groups that are decoded together, and requested from a remote store at
once: large enough to hide the latency of a request, small enough to be held in memory."""

_WHOLE_BYTES: Final = 1 << 20
"""A part of at most this size is fetched by one request, whichever columns are needed: its footer
alone would be a second one. Then the checksum of the whole file is compared, which covers bytes
that the checksums of pages and footer do not."""


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Reads the parts of one shard. Plain data but for `blob`.

    Attributes:
        blob: The store that the parts are in.
        schemas: The shard's schemas by id.
        target: The schema of the returned rows: the current one, or a projection of it.
        where: Only rows that pass it are returned; its columns are among those of `target`.
        looks_first: True if row groups without a row that passes `where` are found by decoding its
            columns, before the others. Pays if these are few, and most row groups have no such row
            or many other columns.
    """

    blob: Blob
    schemas: Mapping[int, ShardSchema]
    target: ShardSchema
    where: Where | None = None
    looks_first: bool = False

    def fetch(
        self, planned: PlannedPart, *, with_ts: bool, with_diff: bool, prune: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one part: target columns, then `_ts` and `_diff` if requested.

        Args:
            planned: The part, or a share of its row groups. An audit returns no rows.
            with_ts: True to return times.
            with_diff: True to return diffs.
            prune: True if row groups in which no row passes `where` may be skipped.

        Raises:
            MissingBlob: The part is not there.
            Corrupt: Its bytes are not those that were written; or an audit found a row that passes
                the filter although its statistics exclude it.
        """
        if planned.audit:
            self._audit(planned)
            return
        part = planned.part
        written = self.schemas[part.schema]
        read_ts = part.ts is None and (with_ts or planned.needs_time)
        shared = [name for name in self.target.names if name in written]
        # If no column is needed, the diff is read all the same: its length is the number of rows.
        columns = [
            *shared,
            *([DIFF] if with_diff or not shared else []),
            *([TS] if read_ts else []),
        ]
        exact = part_schema(written, shared).equals(self.target.arrow)
        wanted = [*self.target.names, *([TS] if with_ts else []), *([DIFF] if with_diff else [])]
        for raw in self._decode_columns(planned, columns, prune=prune):
            batch = raw
            if planned.needs_time:
                batch = batch.filter(_time_mask(batch, planned))
            if with_ts and not read_ts:
                times = pa.repeat(pa.scalar(part.ts, pa.int64()), batch.num_rows)
                batch = batch.append_column(pa.field(TS, pa.int64(), nullable=False), times)
            if not exact:
                batch = migrate_rows(batch, written, self.target)
            if self.where is not None:
                batch = self.where.passes(batch)
            if batch.num_rows:
                yield batch.select(wanted)

    def _audit(self, planned: PlannedPart) -> None:
        """Check that no row passes the filter, as the statistics say.

        Raises:
            Corrupt: Some row does.
        """
        assert self.where is not None, planned
        names = [name for name in self.target.names if name in self.where.columns]
        if not names:
            return
        narrow = replace(self, target=self.target.select(names))
        every = msgspec.structs.replace(planned, audit=False, times=TimeFilter(None, None))
        for batch in narrow.fetch(every, with_ts=False, with_diff=False, prune=False):
            (row,) = python_values(batch.slice(0, 1).to_struct_array())
            raise Corrupt(
                f"statistics say that part '{planned.part.key}' has no row with "
                f'"{self.where.text:.300}", but it has {row}',
                code="FILTER_AUDIT",
                hint="reads with a filter on these columns miss rows: read without option 'where' "
                "until it is clear which program wrote the part or its statistics wrongly",
            )

    def _decode_columns(
        self, planned: PlannedPart, columns: Sequence[str], *, prune: bool
    ) -> Iterator[pa.RecordBatch]:
        """Columns as they were written, of all rows in the row groups that must be read."""
        part = planned.part
        written = self.schemas[part.schema]
        if part.inline is not None:
            yield decode_inline(part, written).select(columns)
            return
        try:
            file = self._open(part)
            groups = RowGroups(file.metadata, written)
            # A task with a share reads some of the row groups, so each checks the whole footer.
            if (rows := groups.rows(range(groups.count))) != part.rows:
                raise damaged_part_error(part, f"it has {rows} rows, not {part.rows}")
            chosen = planned.row_groups(groups.count)
            kept = self._row_groups_to_read(planned, groups, chosen) if prune else chosen
            schema = part_schema(written, columns)
            for some in groups.requests(kept, columns, _REQUEST_BYTES):
                rows = 0
                for batch in _decoded(file, groups, some, columns):
                    rows += batch.num_rows
                    yield _convert_to(batch, schema)
                if rows != groups.rows(some):
                    raise damaged_part_error(
                        part, f"of {groups.rows(some)} rows {rows} can be read"
                    )
        except (pa.ArrowException, OSError, KeyError, ValueError, InvalidUsage) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the store's trouble, not the part's
            if isinstance(error, InvalidUsage) and error.code in STORE_REFUSALS:
                raise  # the same: to restore the part, or to go without it, would be wrong
            raise damaged_part_error(part, str(error)) from error

    def _row_groups_to_read(
        self, planned: PlannedPart, groups: RowGroups, chosen: range
    ) -> Sequence[int]:
        """The row groups in which some row may pass; a sample of the others is audited first."""
        if self.where is None:
            return chosen
        kept = []
        for group in chosen:
            if groups.may_pass(group, self.where):
                if not self.looks_first or self._finds_row(planned, group, groups.count):
                    kept.append(group)
            elif is_audited(f"{planned.part.key}#{group}"):
                self._audit(msgspec.structs.replace(planned, share=(group, groups.count)))
        return kept

    def _finds_row(self, planned: PlannedPart, group: int, count: int) -> bool:
        """True if some row of a row group passes the filter, by decoding only its columns."""
        assert self.where is not None, planned
        names = [name for name in self.target.names if name in self.where.columns]
        narrow = replace(self, target=self.target.select(names), looks_first=False)
        one = msgspec.structs.replace(planned, share=(group, count))
        found = narrow.fetch(one, with_ts=False, with_diff=False, prune=False)
        return any(batch.num_rows for batch in found)

    def _open(self, part: Part) -> pq.ParquetFile:
        source = self.blob.open(part.key, part.size_bytes)
        if source is None:
            raise MissingBlob(
                f"part '{part.key}' ({part.rows} rows) is not there",
                hint="if the reader's lease was lost, start the read again; "
                "otherwise restore the blob: nothing is skipped",
            )
        if source.size() != part.size_bytes:
            raise damaged_part_error(part, f"it has {source.size()} bytes, not {part.size_bytes}")
        distant = isinstance(source, pa.PythonFile)
        if part.size_bytes <= _WHOLE_BYTES:
            source, distant = pa.BufferReader(_read_and_check(source, part)), False
        # From a remote store, all columns of a read's row groups are requested at once.
        return open_part(source, part, pre_buffer=distant)


def _read_and_check(source: pa.NativeFile, part: Part) -> pa.Buffer:
    """All bytes of a part, compared with its checksum if the description has one."""
    value = source.read_buffer()
    if part.crc32 is not None and zlib.crc32(value) != part.crc32:
        raise damaged_part_error(part, "its checksum does not match")
    return value


def _decoded(
    file: pq.ParquetFile, groups: RowGroups, some: Sequence[int], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The columns of the row groups `some`, in batches of bounded size."""
    # Dictionary-encoded columns are larger in memory than the footer says. The writer has bounded
    # row groups by their decoded size, so no batch may have more rows than a row group.
    rows = min(
        BATCH_ROWS,
        max(groups.rows([one]) for one in some),
        int(_BATCH_BYTES / max(groups.row_bytes(some), 1)),
    )
    # Tasks run in parallel already: threads of Arrow would only compete with them.
    batches: Iterator[pa.RecordBatch] = file.iter_batches(
        max(rows, 1), row_groups=list(some), columns=list(columns), use_threads=False
    )
    return batches


def _convert_to(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema` from a decoded batch, with exactly the types of `schema`.

    The batch may have more columns, because Arrow takes a dot in a name for a path. Parquet loses
    which nested fields are nullable and the name of a list's child; the buffers are the same.
    Arrow's own cast fails for columns of nulls inside of lists, so `convert` is used.
    """
    columns = [convert(batch.column(field.name), field.type, (field.name,)) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _time_mask(batch: pa.RecordBatch, planned: PlannedPart) -> pa.Array:
    times = batch.column(TS)
    lower, upper = planned.times.lower, planned.times.upper
    if lower is None:
        return pc.less(times, upper)
    if upper is None:
        return pc.greater_equal(times, lower)
    return pc.and_(pc.greater_equal(times, lower), pc.less(times, upper))
