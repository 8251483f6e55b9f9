"""Verifies a part: all of its bytes are those that were written.

A fetch checks only the pages that it reads; a copy or a backup needs all of them checked. The
checksum of the whole file is compared if its writer recorded one; else (Spark's own writer does
not) that of the footer, and those that Parquet keeps of each page, by decoding all of them. The
file is read in pieces: memory does not grow with the part.
"""

from __future__ import annotations

import pyarrow as pa

from shardline.datasource.errors import Corrupt, MissingBlob, ShardError
from shardline.datasource.parts.part_file import crc32_of, damaged_part_error, open_part
from shardline.datasource.shard.batch import Part
from shardline.datasource.stores.location import Blob

__all__ = ["verify_part"]


def verify_part(blob: Blob, part: Part) -> ShardError | None:
    """The error that reading the part would meet; None if it is intact.

    Raises:
        Determinate: The store did not answer.
    """
    if part.inline is not None:
        return None
    source = blob.open(part.key, part.size_bytes)
    if source is None:
        return MissingBlob(f"part '{part.key}' ({part.rows} rows) is not there")
    if source.size() != part.size_bytes:
        return damaged_part_error(part, f"it has {source.size()} bytes, not {part.size_bytes}")
    try:
        return _read_error(source, part)
    except MissingBlob as error:
        # A remote store asks for nothing when it opens an object of known size: that one is gone,
        # or shorter, is found where it is read.
        return error


def _read_error(source: pa.NativeFile, part: Part) -> ShardError | None:
    if part.crc32 is None:
        return _decoding_error(source, part)
    if crc32_of(source) == part.crc32:
        return None
    return damaged_part_error(part, "its checksum does not match")


def _decoding_error(source: pa.NativeFile, part: Part) -> ShardError | None:
    try:
        file = open_part(source, part)
        rows = sum(batch.num_rows for batch in file.iter_batches(use_threads=False))
    except Corrupt as error:
        return error
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the store's trouble, not the part's
        return damaged_part_error(part, str(error))
    return (
        None
        if rows == part.rows
        else damaged_part_error(part, f"it has {rows} rows, not {part.rows}")
    )
