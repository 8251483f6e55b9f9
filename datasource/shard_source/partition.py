"""The executor's half of a read: a pickled partition becomes record batches.

A `ShardPartition` carries all that fetching needs, so a task looks at blobs only. The one exception
is a batch read that outlives a quarter of its lease: no process of the driver's is left to renew
it, so the tasks do, and when a part turns out to be missing they look whether it was the lease that
was lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from datasource.client import ShardClient, shared_client
from datasource.commands.readers import heartbeat
from datasource.contents import Contents
from datasource.errors import MissingBlob, ShardError
from datasource.fetch import Fetcher
from datasource.plan import PlannedPart
from datasource.schema import ShardSchema
from datasource.shard_source.options import ShardOptions

__all__ = ["Guard", "Kind", "ShardPartition", "read_partition"]


Kind = Literal["plain", "group", "changes", "inserts"]


@dataclass(frozen=True, slots=True)
class Guard:
    """The lease that protects a plan.

    Attributes:
        reader: Id of the leased reader.
        lease_ms: How long it lives without a heartbeat.
        taken_ms: When it was taken or renewed last, by the planner's clock.
        renew: Whether tasks renew it.
    """

    reader: str
    lease_ms: int
    taken_ms: int
    renew: bool


@dataclass(frozen=True, slots=True)
class ShardPartition(InputPartition):
    """One task's share of a read.

    Attributes:
        options: Where the shard is.
        schemas: Schemas by id, as JSON text; those that the parts need and the current one.
        schema_id: The current one.
        key: The shard's key.
        columns: Columns wanted, in order.
        kind: Of a snapshot, `plain` parts as they are or a `group` to be consolidated; of an
            interval, `changes` with their times and diffs or `inserts` without.
        as_of: For a snapshot that is read as updates: their time.
        parts: What to fetch.
        guard: What keeps it from being deleted.
    """

    options: ShardOptions
    schemas: Mapping[int, str]
    schema_id: int
    key: tuple[str, ...]
    columns: tuple[str, ...]
    kind: Kind
    as_of: int | None
    parts: tuple[PlannedPart, ...]
    guard: Guard


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, exactly under the schema that Spark was told.

    For a plan without partitions Spark makes one up, which has no rows.

    Runs in an executor's Python worker, once per task attempt; several attempts may run at the
    same time. Reads only.

    Raises:
        MissingBlob: A part is gone; says whether the lease was lost or not.
        Corrupt: A part is damaged.
    """
    if not isinstance(partition, ShardPartition):
        return
    options = partition.options
    client = shared_client(
        options.location, options.storage, create=False, settings=options.settings
    )
    schemas = {number: ShardSchema.parse(text) for number, text in partition.schemas.items()}
    fetcher = Fetcher(client.location.blob, schemas, schemas[partition.schema_id])
    contents = Contents(fetcher, partition.key, partition.columns)
    _renew(client, partition)
    try:
        for batch in _rows(contents, partition):
            yield batch
            _renew(client, partition)
    except MissingBlob as error:
        raise _explained(client, partition, error) from error


def _rows(contents: Contents, partition: ShardPartition) -> Iterator[pa.RecordBatch]:
    match partition.kind:
        case "group":
            yield from contents.group(partition.parts, partition.as_of)
        case "plain":
            for planned in partition.parts:
                yield from contents.plain(planned, partition.as_of)
        case "changes":
            for planned in partition.parts:
                yield from contents.changes(planned)
        case "inserts":
            for planned in partition.parts:
                yield from contents.inserts(planned)


def _renew(client: ShardClient, partition: ShardPartition) -> None:
    """Send a heartbeat when a quarter of the lease has passed since the last one heard of."""
    guard = partition.guard
    if not guard.renew:
        return
    known = _renewed.get(guard.reader, guard.taken_ms)
    now_ms = client.clock.now_ms()
    # Spread over a tenth of the lease, or all tasks of a job would beat at once.
    jitter = client.ids.jitter() * guard.lease_ms / 10
    if now_ms - known < guard.lease_ms / 4 + jitter:
        return
    if len(_renewed) > _RENEWED_MAX:
        _renewed.clear()
    _renewed[guard.reader] = now_ms
    try:
        # A lease found gone is no error yet: the blobs may still be there.
        client.machine(partition.options.shard).apply(partial(heartbeat, reader=guard.reader))
    except ShardError:
        del _renewed[guard.reader]


_renewed: dict[str, int] = {}
"""When this process last renewed which lease (ms)."""

_RENEWED_MAX = 1000


def _explained(client: ShardClient, partition: ShardPartition, error: MissingBlob) -> MissingBlob:
    state = client.machine(partition.options.shard).state()
    reader = partition.guard.reader
    if reader in state.leased:
        return MissingBlob(
            f"{error.detail}, although lease {reader} of this read is alive",
            code="BLOB_DELETED",
            hint="something else than Shardline deleted it: restore it; nothing is skipped",
        )
    return MissingBlob(
        f"{error.detail}: lease {reader} of this read was lost "
        f"(it lasts {partition.guard.lease_ms} ms without a heartbeat)",
        code="LEASE_LOST",
        hint="read again with a fresh load() or restart the query; a longer leaseMs helps",
    )
