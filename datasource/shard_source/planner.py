"""Planning on the driver's side: from a plan of parts to Spark partitions, and batch leases.

Shared by batch and streaming reads; runs in Spark's planner processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from datasource.client import ShardClient, owner, shared_client
from datasource.commands.readers import SinceExceeded
from datasource.frontier import Frontier
from datasource.lease import Lease, take_lease
from datasource.plan import PlannedPart, SnapshotPlan, pack
from datasource.read import history_gone
from datasource.shard_source.options import ShardOptions, SourceOptions
from datasource.shard_source.partition import Guard, Kind, ShardPartition
from datasource.state import ShardState

__all__ = ["Planner", "batch_guard", "open_client"]


def open_client(options: ShardOptions, *, create: bool = False) -> ShardClient:
    """This process's client of the options' location."""
    return shared_client(
        options.location, options.storage, create=create, settings=options.settings
    )


@dataclass(frozen=True, slots=True)
class Planner:
    """Turns planned parts into partitions.

    Attributes:
        options: Of the read.
        state: What was planned from.
        columns: The columns wanted.
        guard: The lease that protects the plan.
    """

    options: SourceOptions
    state: ShardState
    columns: tuple[str, ...]
    guard: Guard

    def snapshot(self, plan: SnapshotPlan, as_of: int | None = None) -> list[ShardPartition]:
        """Partitions of a snapshot: plain parts bin-packed, every group on its own.

        Args:
            plan: What to read.
            as_of: Give updates at this time; None gives rows.
        """
        return [
            *self._packed("plain", plan.plain, as_of),
            *(self._partition("group", group, as_of) for group in plan.groups),
        ]

    def updates(self, planned: Sequence[PlannedPart]) -> list[ShardPartition]:
        """Partitions of an interval's updates, or of the rows it adds if no feed was asked for."""
        return self._packed("changes" if self.options.read_change_feed else "inserts", planned)

    def _packed(
        self, kind: Kind, planned: Sequence[PlannedPart], as_of: int | None = None
    ) -> list[ShardPartition]:
        size = sum(p.part.size_bytes for p in planned)
        count = -(-size // self.options.partition_bytes)
        return [self._partition(kind, parts, as_of) for parts in pack(planned, count)]

    def _partition(
        self, kind: Kind, parts: Iterable[PlannedPart], as_of: int | None
    ) -> ShardPartition:
        chosen = tuple(parts)
        ids = {self.state.schema_id, *(planned.part.schema for planned in chosen)}
        options = self.options
        return ShardPartition(
            options=ShardOptions(
                options.location, options.shard, options.storage, options.settings
            ),
            schemas={number: self.state.schemas[number] for number in ids},
            schema_id=self.state.schema_id,
            key=self.state.key,
            columns=self.columns,
            kind=kind,
            as_of=as_of,
            parts=chosen,
            guard=self.guard,
        )


_leases: dict[tuple[object, ...], tuple[Lease, int]] = {}
_leases_lock = threading.Lock()


def batch_guard(client: ShardClient, shard: str, as_of: int) -> Guard:
    """A lease for a batch job, which has no process on the driver that could renew it.

    Reads of one shard planned in this process within a quarter of the lease share one, so that a
    dashboard that polls does not fill the state with readers. The tasks renew it.

    Raises:
        InvalidUsage: History at `as_of` is gone.
    """
    machine = client.machine(shard)
    lease_ms = client.settings.lease_ms
    now_ms = client.clock.now_ms()
    with _leases_lock:
        key = (id(client), shard)
        found = _leases.get(key)
        if found is not None:
            lease, taken_ms = found
            fresh = now_ms - taken_ms < lease_ms / 4
            if fresh and lease.since <= Frontier(as_of) and lease.reader in machine.state().leased:
                return Guard(lease.reader, lease_ms, taken_ms, renew=True)
        taken = take_lease(
            machine, since=as_of, lease_ms=lease_ms, purpose=f"batch read by {owner()}"
        )
        if isinstance(taken, SinceExceeded):
            raise history_gone(machine.state(), as_of, taken.since)
        _leases[key] = (taken, now_ms)
        return Guard(taken.reader, lease_ms, now_ms, renew=True)
