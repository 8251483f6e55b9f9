"""Values that Arrow's own checks refuse are read back as they were written, inline as of a blob.

Arrow never looks at values by itself, so other programs hand over strings that are no UTF-8, times
past midnight, and decimals of more digits than their type has.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pytest

from shardline.datasource.errors import Corrupt
from shardline.datasource.maintenance.compact import flush_inline
from shardline.datasource.parts.part_file import decode_inline
from shardline.datasource.read import current_schema
from support.models.shards import SETTINGS, World, schema_of

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient

QUIET: Final = replace(SETTINGS, compact_inline_bytes=0)
BLOBS: Final = replace(QUIET, inline_part_bytes=0)

BINARY: Final = pa.array([b"ok", b"\xff\xfe", None], pa.binary())
WIDE: Final = pa.array([Decimal("12345678.90"), None, Decimal(0)], pa.decimal128(12, 2))
LATE: Final = pa.array([86_400 * 10**9, None, 0], pa.int64())

ODD: Final = {
    "no UTF-8": pa.Array.from_buffers(pa.string(), 3, BINARY.buffers()),
    "too many digits": pa.Array.from_buffers(pa.decimal128(5, 2), 3, WIDE.buffers()),
    "past midnight": LATE.view(pa.time64("ns")),
}


def table_of(odd: str) -> pa.Table:
    return pa.table({"id": pa.array([0, 1, 2], pa.int64()), "v": ODD[odd]})


def as_bytes(value: pa.ChunkedArray) -> list[str]:
    """The values by their bytes: in Python they cannot all be."""
    plain = {pa.string(): pa.binary(), pa.time64("ns"): pa.int64()}.get(value.type, pa.binary(16))
    return sorted(map(repr, value.combine_chunks().view(plain).to_pylist()))


def written(world: World, odd: str, *, inline: bool) -> ShardClient:
    client = world.client(QUIET if inline else BLOBS)
    client.create("s", schema_of(table_of(odd).schema))
    for _ in range(2):
        client.writer("s").append_now(table_of(odd))
    parts = [part for batch in client.state("s").trace.batches for part in batch.parts]
    assert [part.inline is not None for part in parts] == [inline] * 2
    return client


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("odd", ODD)
def test_they_are_read_merged_and_flushed(world: World, odd: str, inline: bool) -> None:
    """An acknowledged append is never what makes a shard unreadable."""
    client = written(world, odd, inline=inline)
    once = pa.chunked_array([ODD[odd]])
    wanted = as_bytes(pa.chunked_array([*once.chunks, *once.chunks]))

    def values() -> list[str]:
        with world.client().reader("s") as reader:
            return as_bytes(reader.snapshot().column("v"))

    assert values() == wanted
    assert flush_inline(client.machine("s")) == inline
    assert values() == wanted
    client.writer("s").append_now(table_of(odd).slice(0, 0))
    client.compact("s", force=True)
    assert values() == wanted


@pytest.mark.parametrize("odd", ODD)
def test_without_a_checksum_values_are_checked(world: World, odd: str) -> None:
    """Nothing else says then that they are what was written; text may be any bytes all the same."""
    client = written(world, odd, inline=True)
    state = client.state("s")
    (part,) = state.trace.batches[0].parts
    assert part.inline is not None
    assert part.crc32 == zlib.crc32(part.inline)
    assert decode_inline(part, current_schema(state)).num_rows == 3
    unproved = msgspec.structs.replace(part, crc32=None)
    if odd == "no UTF-8":
        assert decode_inline(unproved, current_schema(state)).num_rows == 3
        return
    with pytest.raises(Corrupt, match="CORRUPT_PART"):
        decode_inline(unproved, current_schema(state))
