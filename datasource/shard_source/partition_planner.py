"""Turns planned parts into Spark partitions, and takes the leases of batch reads.

A partition is pickled once per task, so it carries all that fetching needs and nothing else: the
parts, only the schemas that they need, and the lease that protects them. Parts that the filter
excludes by statistics are left out here, before any task exists.

Shared by batch and streaming reads; runs in Spark's planner processes.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from shardline.datasource.client import ShardClient, process_name
from shardline.datasource.filters.parser import Where
from shardline.datasource.frontier import Frontier
from shardline.datasource.lease import Lease, take_lease
from shardline.datasource.parts.prune import Pruner
from shardline.datasource.read import current_schema, history_gone_error
from shardline.datasource.shard.commands.readers import SinceExceeded
from shardline.datasource.shard.plan import PlannedPart, SnapshotPlan, pack_parts
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard_source.fetch_task import PartitionKind, PlanLease, ShardPartition
from shardline.datasource.shard_source.options import ShardOptions, SourceOptions
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.shared_client import shared_client

__all__ = ["PartitionPlanner", "forget_batch_leases", "open_client", "take_batch_lease"]


def open_client(options: ShardOptions, *, create: bool = False) -> ShardClient:
    """This process's client of the options' location."""
    return shared_client(
        options.location, options.storage, create=create, settings=options.settings
    )


@dataclass(frozen=True, slots=True)
class PartitionPlanner:
    """Makes partitions of one input's planned parts.

    Attributes:
        options: The read's options, for this input alone.
        state: The state that the parts were planned from.
        row_shape: Columns and types of the rows.
        index: Index of the input among the read's.
        guard: The lease that protects the plan.
    """

    options: SourceOptions
    state: ShardState
    row_shape: RowShape
    index: int
    guard: PlanLease

    def snapshot(self, plan: SnapshotPlan, as_of: int | None = None) -> list[ShardPartition]:
        """Partitions of a snapshot: plain parts bin-packed, every group on its own.

        Args:
            plan: The parts to read.
            as_of: Time of the updates that tasks make of the rows; None makes plain rows.
        """
        pruner = self._pruner
        kept = plan if pruner is None else pruner.prune_snapshot(plan)
        return [
            *self._packed("plain", kept.plain, as_of),
            *self._partitions("group", kept.groups, as_of),
        ]

    def updates(self, planned: Sequence[PlannedPart]) -> list[ShardPartition]:
        """Partitions of an interval's updates; without a change feed, of the rows it adds."""
        pruner = self._pruner
        kept = planned if pruner is None else pruner.prune(planned)
        return self._packed("changes" if self.options.read_change_feed else "inserts", kept)

    @property
    def where(self) -> Where | None:
        """The read's filter, bound to this input's columns; None if there is none.

        Raises:
            InvalidUsage: It names a column that the input lacks, or compares unlike types.
        """
        condition = self.options.where
        return None if condition is None else condition.bind(current_schema(self.state))

    @property
    def _pruner(self) -> Pruner | None:
        where = self.where
        return None if where is None else Pruner(where, self.state.schemas)

    def _packed(
        self, kind: PartitionKind, planned: Sequence[PlannedPart], as_of: int | None = None
    ) -> list[ShardPartition]:
        return self._partitions(kind, pack_parts(planned, self.options.partition_bytes), as_of)

    def _partitions(
        self, kind: PartitionKind, shares: Iterable[Iterable[PlannedPart]], as_of: int | None
    ) -> list[ShardPartition]:
        """One partition for each of `shares`."""
        state, given = self.state, self.options
        options = ShardOptions(given.location, given.shard, given.storage, given.settings)
        where = self.where
        partitions = []
        for parts in shares:
            chosen = tuple(parts)
            ids = {state.schema_id, *(planned.part.schema for planned in chosen)}
            partitions.append(
                ShardPartition(
                    options=options,
                    schemas={number: state.schemas[number] for number in ids},
                    schema_id=state.schema_id,
                    key=state.key,
                    row_shape=self.row_shape,
                    index=self.index,
                    where=where,
                    kind=kind,
                    as_of=as_of,
                    parts=chosen,
                    guard=self.guard,
                )
            )
        return partitions


@dataclass(slots=True)
class _SharedLease:
    """The lease that the reads of one shard share.

    Losing the lease (an admin expires it, or nothing renews it in time) loses no rows unnoticed: a
    task that misses a part fails with `LEASE_LOST`. Losing this entry, with its process, costs one
    more lease at the next read.

    Attributes:
        lock: Held over requests to the store, so that others wait for the answer and share it.
        lease: The lease; None if none was taken yet.
        taken_ms: When it was taken, in ms.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    lease: Lease | None = None
    taken_ms: int = 0


_leases: dict[tuple[object, ...], _SharedLease] = {}
_leases_lock = threading.Lock()
"""For the dictionary alone, and never held over a request: a store that hangs would hold up the
plans of all locations, and the thread that renews leases with them."""


def take_batch_lease(client: ShardClient, shard: str, as_of: int) -> PlanLease:
    """Take, or share, a lease for a batch job, which has no process on the driver to renew it.

    Reads of one shard planned in this process within a quarter of the lease share one, so that a
    dashboard that polls does not fill the state with readers. The tasks renew it. It is never
    given up: it expires when no task has renewed it.

    Losing it before the last task has read its parts lets them be collected: a task that misses one
    fails with `LEASE_LOST`, and the read must be planned again.

    Raises:
        InvalidUsage: History at `as_of` is gone.
    """
    machine = client.machine(shard)
    lease_ms = client.settings.lease_ms
    key = (id(client), shard)
    with _leases_lock:
        shared = _leases.setdefault(key, _SharedLease())
    with shared.lock:
        # Not before: waiting for the lock may have taken as long as a store hangs.
        now_ms = client.clock.now_ms()
        found = shared.lease
        # Tasks start to renew after a quarter of the lease, so an older one is not shared: it
        # could expire before the first task runs. The state is asked, too, since an admin may
        # have expired the lease, and a plan under it would have no protection from the start.
        if (
            found is not None
            and now_ms - shared.taken_ms < lease_ms / 4
            and found.since <= Frontier(as_of)
            and found.reader in machine.state().leased
            and _is_shared(key, shared)
        ):
            return PlanLease(found.reader, lease_ms, shared.taken_ms, renew=True)
        taken = take_lease(
            machine, since=as_of, lease_ms=lease_ms, purpose=f"batch read by {process_name()}"
        )
        if isinstance(taken, SinceExceeded):
            raise history_gone_error(machine.state(), as_of, taken.since)
        shared.lease, shared.taken_ms = taken, now_ms
        return PlanLease(taken.reader, lease_ms, now_ms, renew=True)


def _is_shared(key: tuple[object, ...], shared: _SharedLease) -> bool:
    """False once its lease was forgotten, as it may be while the store is asked about it."""
    with _leases_lock:
        return _leases.get(key) is shared


def forget_batch_leases(readers: Collection[str]) -> None:
    """Share the leases of these readers with no further read: they are about to be given up.

    A read that is being planned may have one of them already.
    """
    if not readers:
        return
    with _leases_lock:
        for key, shared in list(_leases.items()):
            if shared.lease is not None and shared.lease.reader in readers:
                del _leases[key]
