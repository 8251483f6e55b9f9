"""Keeps the contents of a small output in memory, so that a recomputation need not read them.

A recomputation appends the difference between the query's result and the output. To read an output
of a few rows back from the store by Spark costs more than all the rest of such a step.

    held = contents.at(upper)              read once, as long as it is small; None if it is not
    contents.become(upper, rows)           after an append that made them so
    contents.moved(lower, upper)           after an append without updates

Contents before an upper never change, whichever writer appends later: so contents that are known at
an upper of a shard are known for ever, and need no check before they are used.

Invariants:
    Rows are consolidated: each once, with its copies in `_diff`, equal as a shard compares them
    (`shardline.datasource.types.row_keys`).
    No more is kept than `ROWS_MAX` rows and `BYTES_MAX` bytes.
"""

from __future__ import annotations

import pyarrow as pa

from shardline.datasource.client import ShardClient
from shardline.datasource.frames import BYTES_MAX, ROWS_MAX
from shardline.datasource.frontier import TIME_MIN
from shardline.datasource.read import contents_of
from shardline.datasource.schema import TS
from shardline.datasource.state import plan_changes, volume_of
from shardline.datasource.updates import consolidate, negate, update_schema

__all__ = ["OutputContents", "correct_in_memory"]


class OutputContents:
    """The contents of one output, a cache: losing it costs one read. For one thread at a time."""

    def __init__(self, client: ShardClient, name: str) -> None:
        """An empty cache for shard `name`."""
        self._client = client
        self._name = name
        self._known: tuple[str, int | None, pa.Table] | None = None

    def at(self, upper: int) -> pa.Table | None:
        """The contents right before `upper`, which is the shard's; None if they are not small."""
        if self._known is None or self._known[:2] != (self._shard, upper):
            self._known = None
            rows = self._read(upper)
            if rows is not None:
                self.become(upper, rows)
        return None if self._known is None else self._known[2]

    def become(self, upper: int | None, rows: pa.Table) -> None:
        """Remember `rows`, consolidated, as the contents right before `upper`."""
        small = rows.num_rows <= ROWS_MAX and rows.nbytes <= BYTES_MAX
        self._known = (self._shard, upper, rows) if small else None

    def moved(self, lower: int, upper: int | None) -> None:
        """Take contents that are known at `lower` for those at `upper`: nothing has changed."""
        if self._known is not None and self._known[:2] == (self._shard, lower):
            self._known = (self._known[0], upper, self._known[2])

    @property
    def _shard(self) -> str:
        """Id of the shard that has the name now, as it was last looked at."""
        # Part of what is known: under the same name another shard may have been made.
        state = self._client.machine(self._name).cached
        return "" if state is None else state.shard

    def _read(self, upper: int) -> pa.Table | None:
        since = self._client.state(self._name).since.time or TIME_MIN
        with self._client.reader(
            self._name, since=max(upper - 1, since), purpose="what a view holds"
        ) as reader:
            [state] = self._client.readable(self._name)
            planned = plan_changes(state, TIME_MIN, upper)
            if not volume_of(planned).is_at_most(ROWS_MAX, BYTES_MAX):
                return None
            source = contents_of(reader.machine, state)
            batches = [batch for one in planned for batch in source.changes(one)]
        schema = update_schema(source.target.arrow)
        return consolidate(pa.Table.from_batches(batches, schema).drop_columns([TS]))


def correct_in_memory(desired: pa.Table, held: pa.Table) -> pa.Table:
    """The updates that turn `held` into `desired`, both with `_diff`; the same as `difference`."""
    taken = negate(held).select(desired.column_names)
    schema = desired.schema
    # Not cast to the types that it has already, as Arrow refuses that for a struct that is NULL and
    # has fields that never are.
    is_same = taken.schema.types == schema.types
    taken = pa.table(taken.columns, schema=schema) if is_same else taken.cast(schema)
    return consolidate(pa.concat_tables([desired, taken]))
