"""Columns of a part's file: a dictionary for values that come again far off, none for others."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.datasource.parts.dictionary_columns import dictionary_columns
from shardline.datasource.parts.part_file import encode_parquet

ROWS: Final = 20_000
GROUP: Final = 10_000

_numbers = random.Random(7)

_many = [_numbers.randrange(GROUP // 10) for _ in range(ROWS)]

BARE: Final = {
    "id": pa.array(range(ROWS), pa.int64()),
    "text": [f"{_numbers.getrandbits(60):x}" for _ in range(ROWS)],
    "ratio": [_numbers.random() for _ in range(ROWS)],
    "price": [Decimal(_numbers.getrandbits(50)).scaleb(-2) for _ in range(ROWS)],
    "at": pa.array(_numbers.sample(range(10**9), ROWS), pa.timestamp("us")),
    "holes": [None if n % 4 == 0 else n for n in range(ROWS)],
    "sorted": pa.array([n // 3 for n in range(ROWS)], pa.int64()),
    "updated": [_many[n // 2] for n in range(ROWS)],
    "updated and inserted": [_many[n - (n % 5 in (1, 3))] for n in range(ROWS)],
}
REPEATED: Final = {
    "kind": [f"kind {n % 7}" for n in range(ROWS)],
    "random": _many,
    "few updated": [_many[n // 2] % 200 for n in range(ROWS)],
    "mostly inserted": [_many[n - (n % 5 == 1)] for n in range(ROWS)],
    "rare": [n if n % 100 == 0 else None for n in range(ROWS)],
    "none": pa.nulls(ROWS, pa.int32()),
    "nested": [{"a": n % 2, "b": [n]} for n in range(ROWS)],
}
TABLE: Final = pa.table({**BARE, **REPEATED})


def encoded(table: pa.Table) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(encode_parquet(table, row_group_rows=GROUP)))


def test_only_values_that_come_again_far_off_have_a_dictionary() -> None:
    file = encoded(TABLE)
    leaves = [file.metadata.row_group(0).column(i) for i in range(file.metadata.num_columns)]
    found = {leaf.path_in_schema: leaf.has_dictionary_page for leaf in leaves}
    assert {path for path, has in found.items() if not has} == set(BARE)
    assert {"nested.a", "nested.b.list.element"} <= set(found)
    assert file.read().equals(TABLE)


def test_file_without_useless_dictionaries_is_smaller() -> None:
    """Than the Parquet library's own, of the same rows."""
    table = pa.table(BARE)
    own = pa.BufferOutputStream()
    pq.write_table(table, own, compression="zstd", compression_level=1, row_group_size=GROUP)
    ours = encode_parquet(table, row_group_rows=GROUP)
    assert len(ours) < 0.9 * own.tell()


@pytest.mark.parametrize("rows", [0, 1, 4095])
def test_few_rows_are_not_looked_at(rows: int) -> None:
    """What a small commit would gain is less than looking costs."""
    assert dictionary_columns(TABLE.slice(0, rows), GROUP) is True
    assert dictionary_columns(TABLE, rows) is True
