"""Updates in memory, for those who keep a shard's contents or changes as Arrow tables.

The public face of the room `rows`: what a reader does with the tables that `read` gives it.

    consolidate(table, schema)   equal rows at equal times become one, with the sum of their diffs
    advance, expand, negate      times brought up to a since; copies of rows; the opposite changes
    update_schema(schema)        the Arrow schema of updates: the columns, `_ts`, `_diff`
    take(table, indices)         rows by position, of tables of many chunks, too
"""

from shardline.datasource.rows.sorting import take
from shardline.datasource.rows.updates import (
    advance,
    consolidate,
    consolidate_snapshot,
    expand,
    negate,
    update_schema,
)

__all__ = [
    "advance",
    "consolidate",
    "consolidate_snapshot",
    "expand",
    "negate",
    "take",
    "update_schema",
]
