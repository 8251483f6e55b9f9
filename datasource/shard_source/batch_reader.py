"""Batch reads: the contents of a shard at one time, or its change feed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from datasource.client import ShardClient
from datasource.frontier import Frontier
from datasource.plan import plan_changes, plan_snapshot
from datasource.read import (
    first_sort_column,
    history_gone,
    latest_readable,
    not_yet,
)
from datasource.shard_source.options import SourceOptions
from datasource.shard_source.partition import ShardPartition, read_partition
from datasource.shard_source.planner import Planner, batch_guard, open_client

__all__ = ["ShardBatchReader"]


class ShardBatchReader(DataSourceReader):
    """Plans and reads one `load()`.

    Spark makes it in a helper process of the driver, calls `partitions` once per loaded DataFrame
    (later actions reuse the plan), and ships it to executors for `read`.
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        """Remember what to read; no I/O."""
        self._options = options
        self._columns = columns

    @override
    def partitions(self) -> Sequence[InputPartition]:
        """Take a lease, then plan from a state read after it.

        Raises:
            InvalidUsage: The time asked for is before the shard's since.
            Determinate: It was not settled within `waitTimeout`.
        """
        client = open_client(self._options)
        if self._options.read_change_feed:
            return self._changes(client)
        state = client.state(self._options.shard)
        asked = self._options.timestamp_as_of
        as_of = latest_readable(state) if asked is None else asked
        planner = self._planner(client, as_of, as_of)
        plan = plan_snapshot(planner.state, as_of, first_sort_column(planner.state))
        return planner.snapshot(plan)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; runs in executors, once per task attempt."""
        return read_partition(partition)

    def _changes(self, client: ShardClient) -> list[ShardPartition]:
        state = client.state(self._options.shard)
        start, end = self._options.starting_timestamp, self._options.ending_timestamp
        since = state.since.time or 0
        # At since itself older updates have been advanced to it: what happened there is not known
        # apart from what happened before, unless nothing was ever compacted away.
        first = since + 1 if since else 0
        lower = first if start is None else start
        if lower < first:
            raise history_gone(state, lower - 1, state.since)
        upper = state.upper if end is None else Frontier(end)
        if upper <= Frontier(lower):
            return []
        settled = lower if upper.time is None else upper.time - 1
        planner = self._planner(client, max(lower - 1, since), settled)
        return planner.updates(plan_changes(planner.state, lower, upper.time))

    def _planner(self, client: ShardClient, as_of: int, settled: int) -> Planner:
        """A planner over a state, protected at `as_of`, whose upper is beyond `settled`."""
        name = self._options.shard
        guard = batch_guard(client, name, as_of)
        timeout = self._options.wait_timeout_ms
        state = client.machine(name).wait_for_upper_past(settled, timeout)
        if state is None:
            raise not_yet(client.state(name), settled, timeout)
        return Planner(self._options, state, self._columns, guard)
