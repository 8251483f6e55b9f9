"""Rows of the model as tables, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from shardline.datasource.types.schema import ShardSchema
from simulation.model import Row, Update

__all__ = ["changes_of", "rows_of", "table_of", "timed"]


def table_of(schema: ShardSchema, rows: Sequence[tuple[Row, int]]) -> pa.Table:
    """Rows `(id, v)` with their diffs, under a schema that may have more columns."""
    data: dict[str, list[Any]] = {
        "id": [row[0] for row, _ in rows],
        "v": [row[1] for row, _ in rows],
    }
    columns = [
        pa.array(data.get(name, [None] * len(rows)), schema.arrow.field(name).type)
        for name in schema.names
    ]
    made = pa.Table.from_arrays(columns, schema=schema.arrow)
    return made.append_column("_diff", pa.array([diff for _, diff in rows], pa.int64()))


def timed(schema: ShardSchema, updates: Sequence[Update]) -> pa.Table:
    """Updates with their times."""
    made = table_of(schema, [(row, diff) for row, _, diff in updates])
    return made.append_column("_ts", pa.array([time for _, time, _ in updates], pa.int64()))


def rows_of(table: pa.Table) -> Counter[Row]:
    """The rows of a table; columns that came later are null."""
    return Counter(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))


def changes_of(table: pa.Table) -> Counter[tuple[Row, int]]:
    """Updates as the model has them."""
    total = Counter[tuple[Row, int]]()
    names = ("id", "v", "_ts", "_diff")
    for key, value, time, diff in zip(*(table[n].to_pylist() for n in names), strict=True):
        total[(key, value), time] += diff
    return Counter({key: count for key, count in total.items() if count})
