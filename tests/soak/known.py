"""Rows that are known in advance: what append `number` of a writer holds, and what all make.

Every append adds rows and takes away those that the append before the last three had added, all
but the first. So the contents stay small however long a soak runs, while the row that stays is a
trace of each append for ever: one that is lost or comes twice is seen at any later time.
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import TypeAlias

import pyarrow as pa

from shardline.datasource.types.schema import ShardSchema

__all__ = [
    "COPIES",
    "KEY",
    "SHARDS",
    "SOURCE",
    "Contents",
    "contents_of",
    "difference",
    "known_schema",
    "updates",
]

SOURCE = "in"
"""The shard that writers append to."""

COPIES = ("arrow", "native")
"""The shards that queries copy it to, each called like its query."""

SHARDS = (SOURCE, *COPIES)

KEY = ("writer", "number", "item")

Row: TypeAlias = tuple[str, int, int, str]
Contents: TypeAlias = "Counter[Row]"

_SCHEMA = pa.schema(
    [
        pa.field("writer", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("item", pa.int64()),
        pa.field("text", pa.string()),
    ]
)

_SIZES = (1, 40, 1, 1500)
"""Rows of appends in turn: single ones stay inside the state, others become files."""

_KEPT = 4
"""How many newest appends are whole."""


def known_schema() -> ShardSchema:
    """The schema of the rows."""
    return ShardSchema.from_arrow(_SCHEMA)


def _rows(writer: str, number: int) -> list[Row]:
    """The rows that append `number` adds."""
    texts = (zlib.crc32(f"{writer} {number} {i}".encode()) for i in range(_SIZES[number % 4]))
    return [(writer, number, item, f"{text:08x}" * 4) for item, text in enumerate(texts)]


def updates(writer: str, number: int) -> pa.Table:
    """Append `number` (from 1) of a writer: rows with their diffs."""
    added = _rows(writer, number)
    gone = _rows(writer, number - _KEPT)[1:] if number > _KEPT else []
    columns = [list(column) for column in zip(*added, *gone, strict=True)]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, _SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=_SCHEMA)
    diffs = pa.array([1] * len(added) + [-1] * len(gone), pa.int64())
    return table.append_column("_diff", diffs)


def contents_of(writer: str, last: int) -> Contents:
    """What the appends 1 to `last` of a writer make together."""
    found: Contents = Counter()
    for number in range(1, last + 1):
        rows = _rows(writer, number)
        found.update(rows if number > last - _KEPT else rows[:1])
    return found


def difference(found: Contents, wanted: Contents) -> str:
    """In what `found` is not `wanted`, in a few words; empty if they are equal."""
    missing, surplus = wanted - found, found - wanted
    if not missing and not surplus:
        return ""
    return (
        f"{missing.total()} rows missing such as {sorted(missing)[:3]}, "
        f"{surplus.total()} too many such as {sorted(surplus)[:3]}"
    )
