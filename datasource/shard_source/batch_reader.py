"""Plans batch reads: the contents of shards at one time, or their changes over an interval.

A batch read has no living process on the driver once its plan is made, so nothing there could renew
a lease: the plan is protected by a lease that the tasks renew (`take_batch_lease`). While the plan
waits for a time that is not settled there are no tasks yet, and it renews them itself.

Invariants:
    A lease is registered before the state that is planned from is read.
    The leases of all shards are taken before the first of them is waited for.
    All shards of one read are read at one `as_of`, or over one interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.read import (
    WAIT_MS,
    check_begun,
    check_may_come,
    current_schema,
    first_sort_column,
    history_gone_error,
    latest_readable,
    not_yet_readable_error,
)
from shardline.datasource.shard.commands.readers import heartbeat
from shardline.datasource.shard.plan import plan_changes, plan_snapshot
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard_source.fetch_task import PlanLease, ShardPartition, read_partition
from shardline.datasource.shard_source.options import SourceOptions, check_batch
from shardline.datasource.shard_source.partition_planner import (
    PartitionPlanner,
    open_client,
    take_batch_lease,
)
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.shard_source.worker_errors import as_one_sentence

__all__ = ["ShardBatchReader"]

_LEASES_MAX: Final = 3
"""Leases of a shard that one plan takes, each after the one before was gone: what the first has
waited for is there now."""

_STARTS_MAX: Final = 16
"""Attempts at a plan of the latest contents, each of which compaction may overtake."""


class ShardBatchReader(DataSourceReader):
    """Plans and reads one `load()`.

    Spark makes it in a helper process of the driver, calls `partitions` once per loaded DataFrame
    (later actions reuse the plan), and ships it to executors for `read`.
    """

    def __init__(self, options: SourceOptions, shape: RowShape) -> None:
        """Store options and row shape; no I/O.

        Raises:
            InvalidUsage: An option means nothing to a batch read of contents.
        """
        check_batch(options)
        self._options = options
        self._row_shape = shape

    @override
    @as_one_sentence
    def partitions(self) -> Sequence[InputPartition]:
        """Take leases, then plan from states that were read after them.

        Several shards are read at one time, or over one interval: together they are consistent.

        Raises:
            InvalidUsage: The time asked for is before a shard's since, or before it began.
            Determinate: It was not settled within `waitTimeout`, or is far ahead of the clock.
        """
        client = open_client(self._options)
        options = self._options
        asked = options.starting_timestamp if options.read_change_feed else options.timestamp_as_of
        for _ in range(_STARTS_MAX - 1):
            try:
                return self._planned(client)
            except InvalidUsage as error:
                # Between reading the state and taking the lease, the since may have passed the time
                # that was chosen. A time that the user chose is not replaced by another one.
                if error.code != "HISTORY_GONE" or asked is not None:
                    raise
        return self._planned(client)

    def _planned(self, client: ShardClient) -> list[ShardPartition]:
        states = client.readable(*self._options.inputs)
        if self._options.read_change_feed:
            return self._changes(client, states)
        asked = self._options.timestamp_as_of
        as_of = common_time(states) if asked is None else asked
        if asked is not None:
            self._check_may_come(client, states, asked)
        leases = _PlanLeases(client)
        for name in self._options.inputs:
            leases.take(name, as_of)
        planners = [self._planner(leases, index, as_of, as_of) for index in range(len(states))]
        if self._options.as_of_date:
            for planner in planners:
                check_begun(planner.state, as_of)
        return [
            partition
            for planner in planners
            for partition in planner.snapshot(
                plan_snapshot(planner.state, as_of, first_sort_column(planner.state))
            )
        ]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; runs in executors, once per task attempt."""
        return read_partition(partition)

    def _changes(self, client: ShardClient, states: list[ShardState]) -> list[ShardPartition]:
        start, end = self._options.starting_timestamp, self._options.ending_timestamp
        # At since itself older updates have been advanced to it, so changes at that time are mixed
        # with changes before it. A since of 0 has nothing before it.
        firsts = [state.since.time + 1 if state.since.time else 0 for state in states]
        lower = max(firsts) if start is None else start
        for state, first in zip(states, firsts, strict=True):
            if lower < first:
                raise history_gone_error(state, lower - 1, state.since, start=lower)
        latest = meet(state.upper for state in states)
        upper = latest if end is None else Frontier(end)
        # An end at the upper may be one that was chosen for all loads of a query; a since beyond
        # it leaves nothing to read.
        if end is not None and start is None and end < lower and upper < latest:
            oldest = max(states, key=lambda state: state.since)
            raise history_gone_error(oldest, end - 1, oldest.since, end=end)
        if upper <= Frontier(lower):
            return []
        settled = lower if upper.time is None else upper.time - 1
        if end is not None:
            self._check_may_come(client, states, settled)
        leases, before = _PlanLeases(client), [max(lower, first) - 1 for first in firsts]
        for name, as_of in zip(self._options.inputs, before, strict=True):
            leases.take(name, as_of)
        planners = [
            self._planner(leases, index, as_of, settled) for index, as_of in enumerate(before)
        ]
        return [
            partition
            for planner in planners
            for partition in planner.updates(plan_changes(planner.state, lower, upper.time))
        ]

    def _check_may_come(
        self, client: ShardClient, states: Sequence[ShardState], settled: int
    ) -> None:
        """Errors as `check_may_come`; a wait that is asked for is no error."""
        # Before a lease is taken: nobody would give it up.
        if self._options.wait_timeout_ms is None:
            for state in states:
                check_may_come(state, settled, client.clock.now_ms(), ask="give `waitTimeout`")

    def _planner(
        self, leases: _PlanLeases, index: int, as_of: int, settled: int
    ) -> PartitionPlanner:
        """A planner over a state that is protected at `as_of` and has an upper beyond `settled`."""
        name = self._options.inputs[index]
        # First the lease, then the wait for the state that is planned from: a plan from a state
        # that is older than its lease could name parts that are deleted already.
        state, guard = self._settled(leases, name, as_of, settled)
        self._row_shape.check(index, name, current_schema(state))
        guard = replace(guard, shard=state.shard)
        return PartitionPlanner(self._options.of(name), state, self._row_shape, index, guard)

    def _settled(
        self, leases: _PlanLeases, name: str, as_of: int, settled: int
    ) -> tuple[ShardState, PlanLease]:
        """A state with an upper beyond `settled`, and the lease in it that protects `as_of`."""
        timeout, client = self._options.wait_timeout_ms, leases.client
        timeout = WAIT_MS if timeout is None else timeout

        def look() -> ShardState:
            leases.renew_old()
            return client.shard_views.state(name)

        taken = 1
        while True:
            state = client.machine(name).wait_for_upper_past(settled, timeout, look)
            if state is None:
                raise not_yet_readable_error(look(), settled, timeout)
            # It is gone all the same if this process was suspended, or an admin has cut it off. In
            # the end it is planned without: a task that misses a part says so.
            if leases.protects(state) or taken == _LEASES_MAX:
                return state, leases.of(name)
            leases.take(name, as_of)
            taken += 1


@dataclass(frozen=True, slots=True)
class _PlanLeases:
    """The leases of one plan, until its tasks renew them.

    Losing one while its shard is planned from fails the read, as a part may be missing by then.
    """

    client: ShardClient
    _guards: dict[str, PlanLease] = field(default_factory=dict)

    def take(self, name: str, as_of: int) -> None:
        """Take, or share, a lease of shard `name`; errors as `take_batch_lease`."""
        self._guards[name] = take_batch_lease(self.client, name, max(as_of, 0))

    def of(self, name: str) -> PlanLease:
        """The lease of shard `name`."""
        return self._guards[name]

    def protects(self, state: ShardState) -> bool:
        """True if the lease of this shard is in its state, and young enough for its tasks."""
        guard = self._guards[state.name]
        return guard.reader in state.leased and self._age_ms(guard) < guard.lease_ms / 4

    def renew_old(self) -> None:
        """Renew each that is a quarter of its duration old: also those of shards that are ready."""
        for name, guard in list(self._guards.items()):
            if self._age_ms(guard) < guard.lease_ms / 4:
                continue
            now_ms = self.client.clock.now_ms()
            # Without an answer it is tried again at the next look. One that is gone is no error
            # yet: another one may be taken.
            with suppress(ShardError):
                self.client.machine(name).apply(partial(heartbeat, reader=guard.reader))
                self._guards[name] = replace(guard, taken_ms=now_ms)

    def _age_ms(self, guard: PlanLease) -> int:
        return self.client.clock.now_ms() - guard.taken_ms


def common_time(states: Sequence[ShardState]) -> int:
    """The greatest time at which all shards can be read now.

    Raises:
        InvalidUsage: One of them has no contents yet, or was dropped.
    """
    open_ends = [state for state in states if not state.upper.is_empty]
    if not open_ends:
        return max(map(latest_readable, states))
    # A shard's history may begin only after the least upper: then the read waits for the others.
    since = max(state.since.time or 0 for state in states)
    return max(min(map(latest_readable, open_ends)), since)
