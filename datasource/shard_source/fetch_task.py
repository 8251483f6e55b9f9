"""Fetches partitions in executors: a pickled `ShardPartition` becomes record batches.

A partition carries all that fetching needs, so a task reads blobs only, and ten thousand tasks
cost the shard's log no request. There are two exceptions: tasks renew the lease of a batch read
that outlives a quarter of it, since no process on the driver is left to do so; and a task that
finds a part missing or damaged reads the shard's state to say why.

(Materialize: `shard_source_fetch`, which every worker runs without access to consensus.)
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Final, Literal

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, InvalidUsage, MissingBlob, ShardError
from shardline.datasource.filters.parser import Where
from shardline.datasource.parts.contents import Contents
from shardline.datasource.parts.fetch import Fetcher
from shardline.datasource.parts.read_ahead import read_ahead
from shardline.datasource.shard.commands.readers import heartbeat
from shardline.datasource.shard.plan import PlannedPart
from shardline.datasource.shard.state import is_tombstone
from shardline.datasource.shard_source.options import ShardOptions
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.shared_client import shared_client
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import NO_STATS

__all__ = [
    "PartitionKind",
    "PlanLease",
    "ShardPartition",
    "error_of_part",
    "fetch_partition",
    "read_partition",
]


PartitionKind = Literal["plain", "group", "changes", "inserts"]

_LOCAL_SCHEMES: Final = ("file:", "memory:")
"""Stores that are read without reading ahead: decoding alone keeps the cores busy."""

_AHEAD: Final = 3
"""Record batches read ahead from a distant store: with them all row groups of its next request."""


@dataclass(frozen=True, slots=True)
class PlanLease:
    """The lease that protects the parts of a plan from garbage collection.

    If it is lost, a part may be deleted before its task has read it: the task then fails with code
    `LEASE_LOST`, and never yields fewer rows.

    Attributes:
        reader: Id of the leased reader.
        lease_ms: It expires this long after the last heartbeat.
        taken_ms: Time of the last heartbeat that the planner knows of (ms since the epoch).
        renew: True if tasks renew it; a stream's planner renews its own.
        shard: Id of the shard that the plan is of: its name may be another shard's by now.
    """

    reader: str
    lease_ms: int
    taken_ms: int
    renew: bool
    shard: str = ""


@dataclass(frozen=True, slots=True)
class ShardPartition(InputPartition):
    """One task's share of a read. Pickled it has its parts without their statistics.

    Attributes:
        options: Location, shard, and how to open them.
        schemas: Schemas by id, as JSON text; those that the parts need and the current one.
        schema_id: Id of the current schema, which rows come out under.
        key: The shard's key.
        row_shape: Columns and types of the rows.
        index: Index of the input among the read's.
        where: Filter that rows must pass; None passes all.
        kind: Of a snapshot, `plain` parts as they are or a `group` to be consolidated; of an
            interval, `changes` with their times and diffs or `inserts` without.
        as_of: For a snapshot that is read as updates: their time.
        parts: The parts to fetch.
        guard: The lease that protects the parts.
    """

    options: ShardOptions
    schemas: Mapping[int, str]
    schema_id: int
    key: tuple[str, ...]
    row_shape: RowShape
    index: int
    where: Where | None
    kind: PartitionKind
    as_of: int | None
    parts: tuple[PlannedPart, ...]
    guard: PlanLease

    @override
    def __reduce__(self) -> tuple[type[ShardPartition], tuple[object, ...]]:
        # Pruning is done before there are tasks, and statistics outweigh all else that is sent.
        sent = replace(self, parts=tuple(map(_without_stats, self.parts)))
        return ShardPartition, tuple(getattr(sent, one.name) for one in fields(sent))


def _without_stats(planned: PlannedPart) -> PlannedPart:
    part = msgspec.structs.replace(planned.part, encoded_stats=NO_STATS)
    return msgspec.structs.replace(planned, part=part)


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition, through this process's client; as `fetch_partition`.

    For a plan without partitions Spark makes one up, which is no `ShardPartition` and has no rows.
    """
    if isinstance(partition, ShardPartition):
        options = partition.options
        client = shared_client(
            options.location, options.storage, create=False, settings=options.settings
        )
        yield from fetch_partition(client, partition)


def fetch_partition(client: ShardClient, partition: ShardPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition, under exactly the schema that Spark planned with.

    Runs in an executor's Python worker, once per task attempt; several attempts may run at the
    same time. Writes nothing but heartbeats.

    Raises:
        MissingBlob: A part is gone; the code says if the lease was lost.
        InvalidUsage: A part is gone with its shard, which was dropped.
        Corrupt: A part is damaged; the message names the times concerned.
    """
    fetched = _rows(_contents(client, partition), partition)
    near = client.location.url.startswith(_LOCAL_SCHEMES)
    batches = fetched if near else read_ahead(fetched, _AHEAD)
    # Before the first request as well: the task may have waited for a slot for most of the lease.
    _renew(client, partition)
    try:
        for batch in partition.row_shape.rows(partition.index, batches):
            yield batch
            _renew(client, partition)
    except (MissingBlob, Corrupt) as error:
        raise _with_cause(client, partition, error) from error


def error_of_part(partition: ShardPartition, planned: PlannedPart) -> ShardError | None:
    """The error that a task of a partition meets in one of its parts; None if it is read.

    No other part is looked at. Nothing is merged: of a group, a task may read for minutes.
    """
    options = partition.options
    client = shared_client(
        options.location, options.storage, create=False, settings=options.settings
    )
    contents = _contents(client, partition)
    if partition.kind == "group":
        # All columns of it are read, since all of them decide if two rows are the same.
        read = replace(contents, columns=contents.fetcher.target.names).changes(planned)
    else:
        read = _rows(contents, replace(partition, parts=(planned,)))
    try:
        for _ in read:
            pass
    except (MissingBlob, Corrupt) as error:
        return _with_cause(client, partition, error)
    except ShardError as error:
        return error
    return None


def _contents(client: ShardClient, partition: ShardPartition) -> Contents:
    schemas = {number: ShardSchema.parse(text) for number, text in partition.schemas.items()}
    fetcher = Fetcher(client.location.blob, schemas, schemas[partition.schema_id], partition.where)
    return Contents(fetcher, partition.key, partition.row_shape.columns(partition.index))


def _rows(contents: Contents, partition: ShardPartition) -> Generator[pa.RecordBatch]:
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
                yield from contents.read_inserts(planned)


def _renew(client: ShardClient, partition: ShardPartition) -> None:
    """Send a heartbeat if the last one known here is over a quarter of the lease ago."""
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
    # Before the request, so that other tasks of this process do not send one at the same time.
    _renewed[guard.reader] = now_ms
    try:
        # A lease found gone is no error yet: the blobs may still be there.
        client.machine(partition.options.shard).apply(partial(heartbeat, reader=guard.reader))
    except ShardError:
        del _renewed[guard.reader]


_renewed: dict[str, int] = {}
"""Time of this process's last heartbeat, by lease (ms since the epoch)."""

_RENEWED_MAX = 1000


def _with_cause(
    client: ShardClient, partition: ShardPartition, error: MissingBlob | Corrupt
) -> ShardError:
    """`error` with its cause and times, which only the shard's state tells."""
    name = partition.options.shard
    state = client.machine(name).state()
    what = f"{error.detail} (shard '{name}', {_times(partition)})"
    reader, lease_ms = partition.guard.reader, partition.guard.lease_ms
    if isinstance(error, Corrupt):
        return Corrupt(what, code=error.code, hint=error.hint)
    # A shard that was made again under the name knows nothing of this read.
    is_other = partition.guard.shard not in ("", state.shard)
    if is_other or is_tombstone(state):
        again = " and made again" if is_other else ""
        return InvalidUsage(
            f"{what}: the shard was dropped{again} since this read was planned",
            code="SHARD_DROPPED",
            hint="read again with a fresh load(); a stream needs a new checkpoint",
        )
    # The lease decides whose fault it is: under a living one garbage collection deletes nothing of
    # this plan, so trying again would not help.
    if reader in state.leased:
        return MissingBlob(
            f"{what}, although lease {reader} of this read is alive",
            code="BLOB_DELETED",
            hint="something else than Shardline deleted it: restore it; nothing is skipped",
        )
    return MissingBlob(
        f"{what}: lease {reader} of this read was lost "
        f"(it lasts {lease_ms} ms without a heartbeat), so it may have been collected",
        code="LEASE_LOST",
        hint="read again with a fresh load() or restart the query; a longer leaseMs helps",
    )


def _times(partition: ShardPartition) -> str:
    """The times of the rows in a partition's parts, in words."""
    bounds = [planned.part.time_bounds for planned in partition.parts]
    known = [bound for bound in bounds if bound is not None]
    return f"times {min(a for a, _ in known)} to {max(b for _, b in known)}"
