"""A shard follower reads one shard under a lease, by plain Python and without a Spark job.

Indexes, subscriptions and peeks need small reads within milliseconds, and a Spark job costs more
than most of them. Each would otherwise take its lease, check the shard's columns and release what
it has read in its own way.

    with closing(ShardFollower.open(client, "delays", since=as_of, purpose="…")) as shard:
        state = shard.look()
        shard.contents(state, as_of)          updates at `as_of`: each row once, with its copies
        shard.changes(state, lower, upper)    updates in between
        shard.release_before(upper - 1, state)

It is a `ReadHandle` whose states its owner holds: the lease, the states and their checks are the
handle's. `listen` of that does not fit here: a peek, a subscription or an index reads several
shards at one time, and so from states that it has looked at together; it reads by batches, not by
whole tables, and by filters and columns; a wait ends when it is cancelled; and a lease that follows
every step would write a record for each of many small ones. The columns are fixed, too: whoever
keeps rows in memory has to begin again with others.

Invariants:
    Every read is from a state that contains the lease and is readable at the times asked for.
    A follower at frontier F holds the since at F - 1, never at F (see `shardline.datasource.read`):
    contents at F - 1 and the changes from F on must both stay readable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from shardline.datasource.client import ShardClient
from shardline.datasource.conditions import Pruner, Where
from shardline.datasource.errors import Determinate
from shardline.datasource.frontier import TIME_MIN, Frontier
from shardline.datasource.read import (
    ReadHandle,
    contents_of,
    current_schema,
    first_sort_column,
)
from shardline.datasource.schema import ShardSchema
from shardline.datasource.state import ShardState, SnapshotPlan, plan_changes, plan_snapshot

__all__ = ["RELEASE_EVERY_MS", "ShardFollower"]

RELEASE_EVERY_MS: Final = 2000
"""A lease or hold that follows what is read moves at most so often: each move is a record in the
shard's log."""


@dataclass(slots=True)
class ShardFollower:
    """A shard, read under a lease of its own.

    The lease is a capability: while it lives, history from its since on stays readable. When it is
    lost (`LeaseExpired`), parts that are still to be read may be deleted, and nothing more may be
    read through it: the reader starts again from a new one. One that is never closed holds back the
    shard's since until it expires.

    Attributes:
        name: Name of the shard.
        shard: Its id, which no other shard of that name has.
        schema: Columns of the rows that are returned; fixed when the follower was opened.
        key: Key columns of the shard.
    """

    name: str
    shard: str
    schema: ShardSchema
    key: tuple[str, ...]
    _handle: ReadHandle
    _released_ms: float = field(default=0.0)

    @classmethod
    def open(
        cls, client: ShardClient, name: str, *, since: int | None, purpose: str
    ) -> ShardFollower:
        """Hold shard `name` from `since` on; None for its since.

        Raises:
            InvalidUsage: There is no such shard, or its history at `since` is gone; names its
                since.
        """
        handle = client.reader(name, since=since, purpose=purpose)
        try:
            # After the lease is taken: columns of an older state need not be those of what the
            # lease protects.
            state = client.state(name)
        except BaseException:
            handle.close()
            raise
        return cls(name, state.shard, current_schema(state), state.key, handle)

    def close(self) -> None:
        """Give up the lease."""
        self._handle.close()

    def look(self) -> ShardState:
        """The state that readers see, no older than this call.

        Raises:
            InvalidUsage: The shard was dropped.
            LeaseExpired: The lease is gone.
            Determinate: The columns have changed since it was opened.
        """
        state = self._handle.look()
        if current_schema(state) != self.schema:
            raise Determinate(
                f"the columns of '{self.name}' have changed",
                code="SCHEMA_CHANGED",
                hint="start the read again: it then has the new columns",
            )
        return state

    def contents(self, state: ShardState, as_of: int) -> Iterator[pa.RecordBatch]:
        """The contents at `as_of` as updates: `_ts` is `as_of`, `_diff` the number of copies.

        A row of parts without retractions may come in several updates; their diffs add up.

        Raises:
            InvalidUsage: History at `as_of` is gone.
            Corrupt: More copies of a row were retracted than added.
        """
        self._handle.check(state, as_of)
        reader = contents_of(self._handle.machine, state)
        yield from reader.snapshot(plan_snapshot(state, as_of, first_sort_column(state)), as_of)

    def plan(self, state: ShardState, as_of: int, where: Where | None) -> SnapshotPlan:
        """The parts that must be read for the rows at `as_of` that pass `where`.

        Raises:
            InvalidUsage: History at `as_of` is gone.
        """
        self._handle.check(state, as_of)
        plan = plan_snapshot(state, as_of, first_sort_column(state))
        return plan if where is None else Pruner(where, state.schemas).prune_snapshot(plan)

    def rows(
        self, state: ShardState, plan: SnapshotPlan, columns: Sequence[str], where: Where | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a plan that pass `where`, with `columns`; a row comes once for each copy."""
        reader = contents_of(self._handle.machine, state, columns)
        reader = replace(reader, fetcher=replace(reader.fetcher, where=where))
        yield from reader.snapshot(plan)

    def changes(self, state: ShardState, lower: int, upper: int | None) -> Iterator[pa.RecordBatch]:
        """The updates with `lower <= time < upper`, not consolidated; None for all from `lower`.

        Raises:
            InvalidUsage: History right before `lower` is gone.
        """
        # Before time 0 there is nothing, and so nothing that could be gone.
        self._handle.check(state, max(lower - 1, 0))
        reader = contents_of(self._handle.machine, state)
        for planned in plan_changes(state, lower, upper):
            yield from reader.changes(planned)

    def every_update(self, state: ShardState, as_of: int) -> Iterator[pa.RecordBatch]:
        """All updates before the upper: summed up, the contents at each time from `as_of` on.

        Times before `as_of` have no meaning. Unlike `contents`, nothing is consolidated.

        Raises:
            InvalidUsage: History at `as_of` is gone.
        """
        self._handle.check(state, as_of)
        reader = contents_of(self._handle.machine, state)
        for planned in plan_changes(state, TIME_MIN, state.upper.time):
            yield from reader.changes(planned)

    def release_before(self, time: int, state: ShardState) -> None:
        """Let history before `time` be compacted; takes effect within about two seconds.

        Args:
            time: The last time before the frontier up to which the shard was read.
            state: The last state that was read; earlier ones are no longer needed.

        Raises:
            LeaseExpired: The lease is gone.
        """
        now = self._handle.machine.clock.elapsed_ms()
        if now - self._released_ms < RELEASE_EVERY_MS:
            return
        self._released_ms = now
        self._handle.lease.downgrade(Frontier(max(time, 0)), state.seqno)
