"""Encodes and decodes a part: Parquet in a blob, or, when tiny, one Arrow message in the state.

A part holds the shard's columns, then `_ts` unless all rows share one time, which then stands in
the part's description only (so a commit can set it without rewriting the part), then `_diff`. The
Parquet is ordinary, with page checksums; any reader can read it. The Arrow message has no schema:
the shard's state has it.

A Parquet file has checksums of its pages but not of what follows them: the page index and the
footer. The Parquet library aborts the process on some damaged footers, and Spark's reader leaves
out pages by the index: a wrong bound there would lose rows without a word. So a part's description
has a checksum of all that follows the pages, and only `open_part` and `read_metadata`, which
compare it first, pass a part's file to that library.

Invariants:
    No file of a part whose description knows its footer reaches the Parquet library unchecked.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from shardline.datasource.errors import Corrupt
from shardline.datasource.parts.dictionary_columns import dictionary_columns
from shardline.datasource.parts.nan_bounds import bounded_columns
from shardline.datasource.shard.batch import Footer, Part
from shardline.datasource.types.nested_arrays import without_masked_nulls
from shardline.datasource.types.schema import DIFF, TS, ShardSchema

__all__ = [
    "crc32_of",
    "damaged_part_error",
    "decode_inline",
    "describe_end",
    "encode_inline",
    "encode_parquet",
    "footer_bytes",
    "footer_of",
    "open_part",
    "part_schema",
    "read_end",
    "read_metadata",
]

_ZSTD_LEVEL = 1
"""Level 1 writes TPC-H lineitem 1.4 times as fast as level 3, for files 4 % larger."""


_ROW_GROUP_BYTES = 32 << 20
"""Greatest size of a row group in Arrow bytes, so that rows as wide as documents are read, split
and pruned in pieces that are small in memory. Ordinary rows reach the limit of rows first."""


_TAIL_BYTES = 8
"""The end of a Parquet file: the length of its footer (4 bytes), and a magic number (4 bytes)."""

_FOOTER_BYTES = 64 << 10
"""Bytes read from the end of a file if nothing of it is known; enough for most footers."""

_PIECE_BYTES = 8 << 20


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
        Corrupt: The message is not the one that was written.
    """
    assert part.inline is not None, part.key
    if part.crc32 is not None and zlib.crc32(part.inline) != part.crc32:
        raise damaged_part_error(part, "its checksum does not match")
    names = [*written.names, *([] if part.ts_min is None else [TS]), DIFF]
    schema, message = part_schema(written, names), pa.py_buffer(part.inline)
    try:
        batch = pa.ipc.read_record_batch(message, schema)
        # Values are looked at only where no checksum has proved that they are what was written. A
        # writer may append a string that is no UTF-8, a time past midnight, or a decimal of too
        # many digits: of a blob they are read, and refused here they would make the shard
        # unreadable for good, as a merge reads them, too.
        if part.crc32 is None:
            # Text as bytes: Spark can make strings that are no UTF-8, and they are no damage.
            as_bytes = pa.schema([field.with_type(_bytes_for_text(field.type)) for field in schema])
            pa.ipc.read_record_batch(message, as_bytes).validate(full=True)
        batch.validate()
    except (pa.ArrowException, OSError) as error:
        raise damaged_part_error(part, str(error)) from error
    if batch.num_rows != part.rows:
        raise damaged_part_error(part, f"it has {batch.num_rows} rows, not {part.rows}")
    return batch


def _bytes_for_text(kind: pa.DataType) -> pa.DataType:
    """A type with binary in the place of text, whose arrays have the same buffers."""
    types = pa.types
    if types.is_string(kind):
        return pa.binary()
    if types.is_map(kind):
        inside = (_bytes_for_text(one) for one in (kind.key_type, kind.item_type))
        return pa.map_(*inside)
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_bytes_for_text(kind.value_type)))
    if types.is_struct(kind):
        fields = (kind.field(place) for place in range(kind.num_fields))
        return pa.struct([one.with_type(_bytes_for_text(one.type)) for one in fields])
    return kind


def encode_parquet(table: pa.Table, *, row_group_rows: int) -> memoryview:
    """The table as a Parquet file.

    Args:
        table: The rows.
        row_group_rows: Most rows of a row group; fewer where rows are wide.
    """
    sink = pa.BufferOutputStream()
    nested = [i for i, kind in enumerate(table.schema.types) if pa.types.is_nested(kind)]
    for position in nested:
        chunks = [without_masked_nulls(chunk) for chunk in table.column(position).chunks]
        field = table.schema.field(position)
        table = table.set_column(position, field, pa.chunked_array(chunks, field.type))
    fitting = _ROW_GROUP_BYTES * table.num_rows // max(table.nbytes, 1)
    group_rows = max(1, min(row_group_rows, fitting))
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=_ZSTD_LEVEL,
        use_dictionary=dictionary_columns(table, group_rows),
        write_page_checksum=True,
        write_page_index=True,
        # As Spark does: integers decode 1.6 times as fast as bytes of fixed length.
        store_decimal_as_integer=True,
        # Applies to footer and page index. With a list, columns that are not in it get none.
        write_statistics=bounded_columns(table),
        # No `sorting_columns`, although rows are sorted: a reader that merges files by them would
        # need our order of collated text, of NaN, and of 0.0 and -0.0.
    ) as writer:
        writer.write_table(table, row_group_size=group_rows)
    return memoryview(sink.getvalue())


def footer_of(data: bytes | memoryview) -> Footer:
    """Size and checksum of what follows the pages of a whole Parquet file."""
    footer, _ = describe_end(pa.BufferReader(data))
    return footer


def describe_end(source: pa.NativeFile) -> tuple[Footer, pq.FileMetaData]:
    """The end of a Parquet file that was just written, and its decoded footer.

    Raises:
        ValueError: It is not a Parquet file.
    """
    end, metadata = read_end(source)
    return Footer(end.size, zlib.crc32(end)), metadata


def read_end(source: pa.NativeFile) -> tuple[pa.Buffer, pq.FileMetaData]:
    """What follows the pages of a Parquet file, page index and footer; and the decoded footer.

    Raises:
        ValueError: It is not a Parquet file.
    """
    size = source.size()
    tail = _tail(source, size, min(size, _FOOTER_BYTES))
    footer = footer_bytes(tail[-_TAIL_BYTES:].to_pybytes())
    if tail[-4:].to_pybytes() != b"PAR1" or footer > size:
        raise ValueError("it does not end as a Parquet file does")
    if footer > tail.size:
        tail = _tail(source, size, footer)
    metadata = pq.read_metadata(pa.BufferReader(tail))
    wanted = size - _end_of_pages(metadata, size - footer)
    return tail[-wanted:] if wanted <= tail.size else _tail(source, size, wanted), metadata


def footer_bytes(end: bytes) -> int:
    """Size of a Parquet file's footer, by its last bytes; length and magic number included."""
    return int.from_bytes(end[-_TAIL_BYTES:][:4], "little") + _TAIL_BYTES


def _end_of_pages(metadata: pq.FileMetaData, footer_begins: int) -> int:
    """Offset of what follows the pages: an index of pages where there is one, or the footer."""
    if not metadata.num_row_groups:
        return footer_begins
    group = metadata.row_group(metadata.num_row_groups - 1)
    ends = []
    for number in range(group.num_columns):
        chunk = group.column(number)
        # A column without a dictionary has no offset of one, or the offset 0.
        begins = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
        ends.append(int(begins + chunk.total_compressed_size))
    return max(ends)


def read_metadata(source: pa.NativeFile, part: Part) -> pq.FileMetaData:
    """The decoded footer of a part's file; costs one request, for the bytes with the checksum.

    Raises:
        Corrupt: The footer is not the one that was written. It is checked unless the part's
            description does not know it (a part of an older version).
        pa.ArrowException, OSError, ValueError: The Parquet library cannot decode it.
    """
    if part.footer is None:
        return pq.read_metadata(source)
    if part.footer.size_bytes > source.size():
        raise damaged_part_error(part, "it is shorter than its footer")
    tail = _tail(source, source.size(), part.footer.size_bytes)
    if zlib.crc32(tail) != part.footer.crc32:
        raise damaged_part_error(part, "the checksum of its footer does not match")
    # The library finds the footer from the end of a file, so the end alone is enough for it.
    return pq.read_metadata(pa.BufferReader(tail))


def open_part(source: pa.NativeFile, part: Part, *, pre_buffer: bool = False) -> pq.ParquetFile:
    """A part's file with its footer checked; pages are checked when read. Errors: `read_metadata`.

    Args:
        source: The whole file.
        part: Its description.
        pre_buffer: True to request all columns of a read's row groups at once, as is best for a
            remote store.
    """
    # Given the footer, the library does not read it again.
    metadata = None if part.footer is None else read_metadata(source, part)
    return pq.ParquetFile(
        source, metadata=metadata, page_checksum_verification=True, pre_buffer=pre_buffer
    )


def crc32_of(source: pa.NativeFile | BinaryIO) -> int:
    """The checksum of a file from where it stands; read in pieces, so that memory does not grow."""
    found = 0
    while piece := source.read(_PIECE_BYTES):
        found = zlib.crc32(piece, found)
    return found


def _tail(source: pa.NativeFile, size: int, wanted: int) -> pa.Buffer:
    """The last `wanted` bytes of a file of `size` bytes."""
    source.seek(size - wanted)
    return source.read_buffer(wanted)


def damaged_part_error(part: Part, why: str) -> Corrupt:
    """The error for a part whose bytes are not those that were written."""
    return Corrupt(
        f"part '{part.key}' is damaged: {why:.300}",
        code="CORRUPT_PART",
        hint="restore the blob from a backup: nothing is skipped",
    )
