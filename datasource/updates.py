"""Functions on updates in Arrow tables, for callers that keep a shard's contents or changes.

The public face of the room `rows`: what a reader does with the tables that `read` gives it.

    consolidate(table, schema)   merge equal rows at equal times into one, with the sum of diffs
    advance, expand, negate      bring times up to a since; repeat rows by diff; negate diffs
    stamp(rows, ts)              rows as updates at one time
    update_schema(schema)        the Arrow schema of updates: the columns, `_ts`, `_diff`
    take(table, indices)         rows by position, also of tables of many chunks
"""

from shardline.datasource.rows.sorting import take
from shardline.datasource.rows.updates import (
    advance_times,
    consolidate,
    consolidate_snapshot,
    expand_copies,
    negate,
    stamp,
    update_schema,
)

__all__ = [
    "advance_times",
    "consolidate",
    "consolidate_snapshot",
    "expand_copies",
    "negate",
    "stamp",
    "take",
    "update_schema",
]
