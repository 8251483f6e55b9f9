"""Decides which columns of a Parquet file get a dictionary: those whose values come again far off.

A dictionary of values that hardly repeat is the column once more, and an index for each row beside
it: the file is greater (indexes of random values do not compress), and both writing and reading
take longer. The Parquet library gives such a dictionary up only when it has reached 1 MB, which is
more than a row group of ours has in one column of numbers. So a sample is looked at.

    rows of 12 columns, 7 of them nearly unique: 0.69 of the bytes, written in 0.43 of the
    processor time, read by Spark in 0.6 of it and by Arrow in 0.7

Many values that repeat from one row to the next get none either: the parts of a key by which rows
are sorted, and what an update leaves as it was, since its retraction and its insertion are
neighbours. An index of more than a byte begins within a byte, so the compression does not see that
the index before comes again; the value before it does see.

    15,000 updates of TPC-H lineitem: 0.68 of the bytes, in the same processor time
"""

from __future__ import annotations

from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.parts.nan_bounds import leaf_arrays

__all__ = ["dictionary_columns"]

_BLOCKS: Final = 4
"""Pieces of a sample: some columns repeat from row to row, and some at a distance."""

_BLOCK_ROWS: Final = 512
"""Rows of one piece. Looking at a column takes about 0.1 ms, and a useless dictionary 6 to 16."""

_SAMPLE_ROWS: Final = _BLOCKS * _BLOCK_ROWS

_INDEXES_OF_A_BYTE: Final = 256
"""A dictionary of no more values has indexes that compress well."""

_REPEATS: Final = 1 / 3
"""Share of the rows that have the value of the row before from which a column needs no dictionary.
At a fourth, random dates take the same bytes with and without."""


def dictionary_columns(table: pa.Table, row_group_rows: int) -> list[str] | Literal[True]:
    """The leaves of `table` that get a dictionary, by Parquet's names; True for all.

    Args:
        table: The rows of one file.
        row_group_rows: Rows of its row groups, each of which has dictionaries of its own.
    """
    rows = min(table.num_rows, row_group_rows)
    if rows < 2 * _SAMPLE_ROWS:
        return True
    step = (rows - _BLOCK_ROWS) // (_BLOCKS - 1)
    sample = pa.concat_tables(table.slice(i * step, _BLOCK_ROWS) for i in range(_BLOCKS))
    bare = {
        name
        for name, column in zip(sample.column_names, sample.columns, strict=True)
        if _can_be_counted(column.type) and _is_smaller_bare(column, rows)
    }
    if not bare:
        return True
    leaves = (leaf_arrays(field.name, pa.array([], field.type)) for field in table.schema)
    return [path for found in leaves for path, _ in found if path not in bare]


_COUNTED: Final = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_temporal,
    pa.types.is_string,
    pa.types.is_binary,
)


def _can_be_counted(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in _COUNTED)


def _is_smaller_bare(sample: pa.ChunkedArray, rows: int) -> bool:
    """True if the values of a row group, of which this is a sample, take less than a dictionary."""
    known: int = len(sample) - sample.null_count
    if known < _SAMPLE_ROWS // 2:
        return False
    distinct: int = pc.count_distinct(sample, mode="only_valid").as_py()
    # Values that come twice or less on average: of `d` values in equal numbers, `n` rows drawn at
    # random show about `n - n * n / 2d`.
    if distinct * rows >= known * (rows - known):
        return True
    return distinct > _INDEXES_OF_A_BYTE and _repeated(sample) >= _REPEATS * known


def _repeated(sample: pa.ChunkedArray) -> int:
    """The number of rows that have the same value as the row before."""
    values = sample.combine_chunks()
    same: int | None = pc.sum(pc.equal(values[1:], values[:-1])).as_py()
    return same or 0
