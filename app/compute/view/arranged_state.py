"""A state's groups are kept in memory by key, as long as that is little, so that none is searched.

A step touches few of a state's groups. To find them by Spark it would read all of the shard. Here
the rows of a state are an arrangement: runs in the order of the key's hash, to which each step adds
its own change; large ones are mapped from files. It is a cache: it is read from the shard when it
is first used, and again whenever it is not of the shard's present upper.

Invariants:
    What is found are the rows of the keys at the state's upper, and perhaps others.
    No more than `_BYTES_MAX` are kept, of which no run above `_IN_MEMORY_MAX` is in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa

from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.index.mapped_table import mapped
from shardline.app.compute.view.input_changes import volume_of_shards
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import TIME_MIN, Frontier
from shardline.datasource.read import contents_of
from shardline.datasource.shard.plan import plan_changes
from shardline.datasource.shard.state import ShardState
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.updates import update_schema

__all__ = ["ArrangedState"]

_BYTES_MAX: Final = 1 << 30
"""Of one state; a row of a few columns takes a hundred bytes."""

_UPDATES_MAX: Final = 4_000_000
"""Above that a state is not even tried: to decode and sort its rows takes seconds, and memory."""

_IN_MEMORY_MAX: Final = 4 << 20
"""A run with no more bytes needs no file."""


class ArrangedState:
    """The groups of one state by key. Used by one thread at a time."""

    def __init__(self, client: ShardClient, name: str, folder: Path) -> None:
        """An empty cache for shard `name`, whose files are on the disk of `folder`."""
        self._client = client
        self._folder = folder
        self._name = name
        self._known: tuple[str, Arrangement] | None = None
        self._too_large: tuple[str, int] = ("", 0)
        """A shard, and a number of its updates that were too many."""

    def rows(self, state: ShardState, keys: pa.Table) -> pa.Table | None:
        """The rows of these keys at the state's upper; None if they are not kept in memory.

        Args:
            state: Of the shard, as it is now.
            keys: Columns of the key, `k0` or `k1` …, and perhaps others.
        """
        arranged = self._arranged(state, [name for name in keys.column_names if name[0] == "k"])
        settled = state.upper.time
        return None if arranged is None or settled is None else arranged.gather(keys, settled - 1)

    def append(self, state: ShardState, updates: pa.Table, upper: int | None) -> None:
        """Take in what was appended to the shard, up to its new upper.

        Args:
            state: Of the shard before.
            updates: Its columns, `_ts` and `_diff`.
            upper: The new upper.
        """
        if self._known is None or not self._is_of(state):
            return
        arranged = self._known[1]
        wanted = update_schema(arranged.schema.arrow)
        # Spark says of more columns than the shard does that they are never null.
        arranged.append(updates.select(wanted.names).cast(wanted), Frontier(upper))
        if upper is None:
            self._known = None
        else:
            arranged.compact(upper - 1)
            self._bound(state.shard, arranged)

    def _arranged(self, state: ShardState, key: list[str]) -> Arrangement | None:
        if not self._is_of(state):
            self._known = None
            updates = volume_of_shards([state]).rows
            shard, too_many = self._too_large
            if updates <= _UPDATES_MAX and not (shard == state.shard and updates >= too_many):
                self._bound(state.shard, self._read(state, key))
        return None if self._known is None else self._known[1]

    def _is_of(self, state: ShardState) -> bool:
        return self._known is not None and (self._known[0], self._known[1].view.upper) == (
            state.shard,
            state.upper,
        )

    def _bound(self, shard: str, arranged: Arrangement) -> None:
        if arranged.view.nbytes > _BYTES_MAX:
            self._known, self._too_large = None, (shard, arranged.view.records)
        else:
            self._known = (shard, arranged)

    def _read(self, state: ShardState, key: list[str]) -> Arrangement:
        upper = state.upper.time
        assert upper is not None, self._name
        schema = ShardSchema.parse(state.schemas[state.schema_id])
        arranged = Arrangement(schema, key, upper - 1, self._keep)
        since = state.since.time or TIME_MIN
        with self._client.reader(
            self._name, since=max(upper - 1, since), purpose="what a view's state holds"
        ) as reader:
            source = contents_of(reader.machine, state)
            planned = plan_changes(state, TIME_MIN, upper)
            batches = [batch for one in planned for batch in source.changes(one)]
        rows = pa.Table.from_batches(batches, update_schema(source.target.arrow))
        arranged.append(rows, state.upper)
        return arranged

    def _keep(self, run: pa.Table) -> pa.Table:
        if run.nbytes <= _IN_MEMORY_MAX:
            return run
        self._folder.mkdir(parents=True, exist_ok=True)
        return mapped(run, self._folder)
