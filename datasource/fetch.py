"""Fetching: a planned part becomes Arrow record batches. Looks at blobs only, never at Consensus.

Decoding streams, a row group's pages at a time, so memory does not grow with the part. A part that
is missing or damaged is an error that names it; it is never skipped, and no row after it comes out.

Rows come out under the schema that was asked for (older parts are migrated), in the part's order,
filtered by time, not consolidated.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datasource.batch import Part
from datasource.convert import convert, migrate
from datasource.errors import InvalidUsage, MissingBlob, ShardError
from datasource.location import Blob
from datasource.partfile import damaged, decode_inline, part_schema
from datasource.plan import PlannedPart
from datasource.schema import DIFF, TS, ShardSchema

__all__ = ["BATCH_ROWS", "Fetcher"]

BATCH_ROWS = 1 << 16
"""Rows per record batch: where throughput levels off."""


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Reads the parts of one shard. Plain data but for `blob`.

    Attributes:
        blob: Where the parts are.
        schemas: The shard's schemas by id.
        target: The schema of the rows that come out: the current one, or a projection of it.
    """

    blob: Blob
    schemas: Mapping[int, ShardSchema]
    target: ShardSchema

    def fetch(
        self, planned: PlannedPart, *, with_ts: bool, with_diff: bool
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one part: target columns, then `_ts` and `_diff` if asked for.

        Raises:
            MissingBlob: The part is not there.
            Corrupt: It is not what was written.
        """
        part = planned.part
        written = self.schemas[part.schema]
        read_ts = part.ts is None and (with_ts or planned.needs_time)
        columns = [name for name in self.target.names if name in written]
        if with_diff or not columns:
            columns.append(DIFF)  # also where only the number of rows is wanted
        if read_ts:
            columns.append(TS)
        narrow = written.select([name for name in self.target.names if name in written])
        exact = narrow.arrow == self.target.arrow
        wanted = [*self.target.names, *([TS] if with_ts else []), *([DIFF] if with_diff else [])]
        for raw in self._raw(part, written, columns):
            batch = raw
            if planned.needs_time:
                batch = batch.filter(_time_mask(batch, planned))
                if batch.num_rows == 0:
                    continue
            if with_ts and not read_ts:
                times = pa.repeat(pa.scalar(part.ts, pa.int64()), batch.num_rows)
                batch = batch.append_column(pa.field(TS, pa.int64(), nullable=False), times)
            if not exact:
                batch = migrate(batch, narrow, self.target)
            yield batch.select(wanted)

    def _raw(
        self, part: Part, written: ShardSchema, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        if part.inline is not None:
            yield decode_inline(part, written).select(columns)
            return
        try:
            file = self._open(part)
            schema = part_schema(written, columns)
            rows = 0
            # Tasks run side by side already: threads of Arrow's own would only get in their way.
            for batch in file.iter_batches(BATCH_ROWS, columns=list(columns), use_threads=False):
                rows += batch.num_rows
                yield _exactly(batch, schema)
            if rows != part.rows:
                raise damaged(part, f"it has {rows} rows, not {part.rows}")
        except (pa.ArrowException, OSError, KeyError, ValueError, InvalidUsage) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the store's trouble, not the part's
            raise damaged(part, str(error)) from error

    def _open(self, part: Part) -> pq.ParquetFile:
        source = self.blob.open(part.key, part.size_bytes)
        if source is None:
            raise MissingBlob(
                f"part '{part.key}' ({part.rows} rows) is not there",
                hint="if the reader's lease was lost, start the read again; "
                "otherwise restore the blob: nothing is skipped",
            )
        if source.size() != part.size_bytes:
            raise damaged(part, f"it has {source.size()} bytes, not {part.size_bytes}")
        return pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)

    def verify(self, part: Part) -> ShardError | None:
        """What is wrong with a part, all of its bytes considered; None if nothing is."""
        if part.inline is not None:
            return None
        data = self.blob.get(part.key)
        if data is None:
            return MissingBlob(f"part '{part.key}' ({part.rows} rows) is not there")
        if part.crc32 is not None and zlib.crc32(data) != part.crc32:
            return damaged(part, "its checksum does not match")
        return None


def _exactly(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema` out of what Parquet gave, which may be more: a dot in a name selects.

    Parquet forgets which nested fields are nullable and what a list's child is called; the buffers
    are the same. Arrow's own cast breaks columns of nulls inside of lists.
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
