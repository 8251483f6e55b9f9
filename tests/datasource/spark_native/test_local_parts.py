"""Damage behind the pages of a local part is seen before Spark reads by it."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.parts.part_file import footer_bytes
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.batch import Footer, Part
from shardline.datasource.spark_native.local_parts import is_intact, seen_file
from shardline.datasource.types.schema import ShardSchema

ROWS = pa.table({"id": pa.array(range(300)), "v": [f"{n}" for n in range(300)]})


class Local:
    """A location on the local disk with one part."""

    def __init__(self, folder: Path) -> None:
        self.root = f"file:{folder}"
        client = ShardClient.open(f"{folder}", settings=ShardSettings(inline_part_bytes=0))
        client.create("in", ShardSchema.from_arrow(ROWS.schema))
        client.writer("in").append_now(ROWS)
        self.part: Part
        [self.part] = client.state("in").trace.batches[-1].parts
        self.file = folder / self.part.key
        self.data = self.file.read_bytes()

    def is_intact(self, part: Part, data: bytes) -> bool:
        """Whether it is said to be intact when its file has these bytes."""
        self.file.unlink()  # a file of another number: times of change may be equal
        self.file.write_bytes(data)
        return is_intact(self.root, part)


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path)


def flipped(data: bytes, at: int) -> bytes:
    """`data` with a bit of the byte at `at`, from the end, flipped."""
    return data[:-at] + bytes([data[-at] ^ 4]) + data[len(data) - at + 1 :]


def test_every_byte_behind_the_pages_counts(local: Local) -> None:
    """Page index, footer, its length and the magic number; and once mended it is intact again."""
    assert local.part.footer is not None
    for at in range(1, local.part.footer.size_bytes + 1):
        assert not local.is_intact(local.part, flipped(local.data, at)), at
    assert local.is_intact(local.part, local.data)


def test_the_page_index_of_a_part_of_an_earlier_version(local: Local) -> None:
    """Its checksum of the end is that of the footer alone: that of the whole file decides."""
    size = footer_bytes(local.data)
    old = msgspec.structs.replace(local.part, footer=Footer(size, zlib.crc32(local.data[-size:])))
    assert local.is_intact(old, local.data)
    for at in (1, size, size + 1, size + 20):
        assert not local.is_intact(old, flipped(local.data, at)), at
    # Nothing tells what was written.
    unknown = msgspec.structs.replace(old, crc32=None)
    assert local.is_intact(unknown, flipped(local.data, size + 1))
    assert not local.is_intact(unknown, flipped(local.data, size))


def test_what_tells_a_file_from_another_one(local: Local) -> None:
    """Number and time of change as it was found intact last; of an old part nothing is known."""
    assert local.part.footer is not None
    end = f"{local.part.footer.size_bytes} {local.part.footer.crc32}"
    assert seen_file(local.root, local.part) == f"0 0 {end}"
    assert local.is_intact(local.part, local.data)
    found = local.file.stat()
    stamp = f"{found.st_ino} {found.st_mtime_ns}"
    assert seen_file(local.root, local.part) == f"{stamp} {end}"
    assert not local.is_intact(local.part, flipped(local.data, 1))
    assert seen_file(local.root, local.part) == f"{stamp} {end}"
    old = msgspec.structs.replace(local.part, footer=None)
    assert seen_file(local.root, old) == "0 0 0 0"
