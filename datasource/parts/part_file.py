"""The bytes of a part: Parquet in a blob, or, when tiny, one Arrow record batch message in state.

A part holds the shard's columns, then `_ts` unless all rows share a time that only metadata knows,
then `_diff`. The Parquet is ordinary, with page checksums; any reader can read it. The message
leaves its schema out: the shard's registry has it.

A Parquet file has checksums of its pages and none of its footer, and the Parquet library ends the
process on some damaged ones. So a part's description has a checksum of its footer, and nothing of
ours hands a part to that library but `open_part` and `read_metadata`, which look at it first.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from shardline.datasource.errors import Corrupt
from shardline.datasource.parts.nan_bounds import bounded_columns
from shardline.datasource.shard.batch import Footer, Part
from shardline.datasource.types.nested_arrays import unmasked
from shardline.datasource.types.schema import DIFF, TS, ShardSchema

__all__ = [
    "damaged",
    "decode_inline",
    "encode_inline",
    "encode_parquet",
    "footer_of",
    "open_part",
    "part_schema",
    "read_footer",
    "read_metadata",
]

_ZSTD_LEVEL = 1
"""Level 1 writes TPC-H lineitem 1.4 times as fast as level 3, for files 4 % larger."""


_ROW_GROUP_BYTES = 32 << 20
"""Most Arrow bytes of a row group, so that rows as wide as documents are read, split and pruned in
pieces that fit into memory many times over; ordinary rows reach their number first."""


_TAIL_BYTES = 8
"""What a Parquet file ends with: the length of its footer, and a magic number."""

_FOOTER_BYTES = 64 << 10
"""What is read of the end of a file whose footer's length is not known: nearly always all of it."""


def part_schema(written: ShardSchema, names: Sequence[str]) -> pa.Schema:
    """The Arrow schema of the columns `names` of a part, `_ts` and `_diff` among them."""
    own = {name: pa.field(name, pa.int64(), nullable=False) for name in (TS, DIFF)}
    return pa.schema([own.get(name) or written.arrow.field(name) for name in names])


def encode_inline(table: pa.Table) -> bytes:
    """All rows of `table` as one message."""
    message: bytes = table.combine_chunks().to_batches()[0].serialize().to_pybytes()
    return message


def decode_inline(part: Part, written: ShardSchema) -> pa.RecordBatch:
    """The rows of an inline part.

    Raises:
        Corrupt: The message is not what was written.
    """
    assert part.inline is not None, part.key
    if part.crc32 is not None and zlib.crc32(part.inline) != part.crc32:
        raise damaged(part, "its checksum does not match")
    names = [*written.names, *([] if part.ts_min is None else [TS]), DIFF]
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(part.inline), part_schema(written, names))
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise damaged(part, str(error)) from error
    if batch.num_rows != part.rows:
        raise damaged(part, f"it has {batch.num_rows} rows, not {part.rows}")
    return batch


def encode_parquet(table: pa.Table, *, key: Sequence[str], row_group_rows: int) -> memoryview:
    """The table as a Parquet file.

    Args:
        key: The columns it is sorted by, noted in the file's metadata for other readers.
        row_group_rows: Rows per row group; fewer where rows are wide.
    """
    sink = pa.BufferOutputStream()
    nested = [i for i, kind in enumerate(table.schema.types) if pa.types.is_nested(kind)]
    for position in nested:
        chunks = [unmasked(chunk) for chunk in table.column(position).chunks]
        field = table.schema.field(position)
        table = table.set_column(position, field, pa.chunked_array(chunks, field.type))
    order = [pq.SortingColumn(table.column_names.index(name)) for name in key]
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=_ZSTD_LEVEL,
        write_page_checksum=True,
        write_page_index=True,
        # As Spark does: integers decode 1.6 times as fast as bytes of fixed length.
        store_decimal_as_integer=True,
        # Of footer and page index alike. A list of the others, because none is the default then.
        write_statistics=bounded_columns(table),
        sorting_columns=order or None,
    ) as writer:
        fitting = _ROW_GROUP_BYTES * table.num_rows // max(table.nbytes, 1)
        writer.write_table(table, row_group_size=max(1, min(row_group_rows, fitting)))
    return memoryview(sink.getvalue())


def footer_of(data: bytes | memoryview | pa.Buffer) -> Footer:
    """The footer at the end of `data`: a Parquet file, or no less of its end than the footer."""
    view = memoryview(data)
    size = int.from_bytes(view[-_TAIL_BYTES:][:4], "little") + _TAIL_BYTES
    assert size <= len(view), (size, len(view))
    return Footer(size, zlib.crc32(view[-size:]))


def read_footer(source: pa.NativeFile) -> pa.Buffer:
    """The end of a Parquet file that was just written, from the footer's first byte on.

    Raises:
        ValueError: It is no Parquet file.
    """
    size = source.size()
    tail = _tail(source, size, min(size, _FOOTER_BYTES))
    wanted = int.from_bytes(tail[-_TAIL_BYTES:][:4].to_pybytes(), "little") + _TAIL_BYTES
    if tail[-4:].to_pybytes() != b"PAR1" or wanted > size:
        raise ValueError("it does not end as a Parquet file does")
    return tail[-wanted:] if wanted <= len(tail) else _tail(source, size, wanted)


def read_metadata(source: pa.NativeFile, part: Part) -> pq.FileMetaData:
    """What the footer of a part's file says; from a store one request for exactly its bytes.

    Raises:
        Corrupt: The footer is not what was written. Only a part whose description does not know
            its footer comes before the Parquet library unchecked.
        pa.ArrowException, OSError, ValueError: That library does not understand it.
    """
    if part.footer is None:
        return pq.read_metadata(source)
    if part.footer.size_bytes > source.size():
        raise damaged(part, "it is shorter than its footer")
    tail = _tail(source, source.size(), part.footer.size_bytes)
    if zlib.crc32(tail) != part.footer.crc32:
        raise damaged(part, "the checksum of its footer does not match")
    # The library takes the end of a file for the file: it looks for the footer from the end.
    return pq.read_metadata(pa.BufferReader(tail))


def open_part(source: pa.NativeFile, part: Part, *, pre_buffer: bool = False) -> pq.ParquetFile:
    """A part's file, whose footer was checked and whose pages will be; errors as `read_metadata`.

    Args:
        source: All of its bytes.
        part: Its description.
        pre_buffer: Whether to ask for all columns of some row groups at once, as is best from afar.
    """
    # Given the footer, the library does not read it again.
    metadata = None if part.footer is None else read_metadata(source, part)
    return pq.ParquetFile(
        source, metadata=metadata, page_checksum_verification=True, pre_buffer=pre_buffer
    )


def _tail(source: pa.NativeFile, size: int, wanted: int) -> pa.Buffer:
    """The last bytes of a file of `size`, `wanted` of them."""
    source.seek(size - wanted)
    return source.read_buffer(wanted)


def damaged(part: Part, why: str) -> Corrupt:
    """The error for a part whose bytes are not what was written."""
    return Corrupt(
        f"part '{part.key}' is damaged: {why:.300}",
        code="CORRUPT_PART",
        hint="restore the blob from a backup: nothing is skipped",
    )
