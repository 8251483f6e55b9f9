"""Appends a frame as the contents of an interval of times, and finds a micro-batch's interval.

    def each(frame, batch_id):
        interval = shardline.interval_of(frame, batch_id)         # [t0, t1) of all inputs
        shardline.compare_and_append(result, path, lower=t0, upper=t1, writer=("totals", t1))

`save` appends a frame at the time of its commit. Rows that are derived from other shards need the
times of their inputs instead, so that both show the same moment at each time; here the caller
chooses the interval of the shard that the frame fills.

    stage_interval(frame, …)      a Spark job; nothing refers to its files yet
    collect_interval(frame, …)    the same for few rows: collected here, and staged by `stage`
    staged.append(lower, upper)   one record; refused if the shard's upper is not `lower`

Invariants:
    An append happens once for each number of its writer, however often it is tried. A number that
    was committed for another interval is an error.
    An append that was refused leaves no files behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from shardline.datasource.arguments import (
    Pathname,
    place_options,
    store_options,
    whole_number,
    writer_number,
)
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.ids import check_owner_name, new_id
from shardline.datasource.offsets import Start, parse_offset
from shardline.datasource.parts.stage import Staged, UncommittedParts
from shardline.datasource.rows.updates import update_schema
from shardline.datasource.shard.batch import stamp_time
from shardline.datasource.shard.commands.append import UpperMismatch
from shardline.datasource.shard.covered_range import of_interval
from shardline.datasource.shard_sink.frame_columns import assign_roles
from shardline.datasource.shard_sink.target import WriteTarget, find_shard, resolve_target
from shardline.datasource.shard_source.options import SinkOptions, parse_sink
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.spark_native.classic_session import check_classic
from shardline.datasource.spark_native.micro_batch import source_of
from shardline.datasource.spark_native.save import plan_native_write, stage_in_driver
from shardline.datasource.spark_native.small_results import (
    BYTES_MAX,
    ROWS_MAX,
    collect_small,
    has_same_arrow_types,
)
from shardline.datasource.spark_native.transaction import stage_by_tasks
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.write import WriteHandle, WriteResult

__all__ = [
    "Interval",
    "SmallInterval",
    "SmallTarget",
    "StagedInterval",
    "collect_interval",
    "compare_and_append",
    "interval_of",
    "interval_of_offsets",
    "rows_to_write",
    "small_target",
    "stage_interval",
]


@dataclass(frozen=True, slots=True)
class Interval:
    """Times from `lower` on and before `upper`; None is the end of all times.

    Attributes:
        lower: Milliseconds since the epoch, inclusive. Of a stream's first range the time of its
            snapshot, which contains everything before.
        upper: Exclusive.
        starts: True if it is the stream's first range.
    """

    lower: int
    upper: int | None
    starts: bool = False


def interval_of(frame: DataFrame, batch_id: int, *, shard: str | None = None) -> Interval | None:
    """The interval that a micro-batch over `format("shard")` covers, of all shards that it reads.

    None if the source had nothing to read yet: Spark runs one such micro-batch, the first.

    Everything before its end is settled in all of them. Of a snapshot that is read in pieces, every
    piece but the last has an empty interval. Call it where `micro_batch` may be called.

    Args:
        frame: The frame that `foreachBatch` passed.
        batch_id: The number that `foreachBatch` passed.
        shard: A shard that the wanted source reads, if the query has several sources.

    Raises:
        InvalidUsage: As `micro_batch`.
    """
    return interval_of_offsets(*source_of(frame, batch_id, shard).offsets)


def interval_of_offsets(begun: Mapping[str, Any], ended: Mapping[str, Any]) -> Interval | None:
    """As `interval_of`, from a micro-batch's two offsets.

    Raises:
        InvalidUsage: They are not offsets of `format("shard")`, or are of a newer version.
    """
    start, end = parse_offset(dict(begun)), parse_offset(dict(ended))
    if isinstance(end, Start):
        return None
    if isinstance(start, Start):
        return Interval(end.as_of, end.frontier.time, starts=True)
    lower = start.frontier.time
    assert lower is not None, (begun, ended)
    return Interval(lower, end.frontier.time)


def compare_and_append(
    frame: DataFrame,
    path: Pathname | None = None,
    *,
    lower: int,
    upper: int | None,
    writer: tuple[str, int],
    location: Pathname | None = None,
    shard: str | None = None,
    storage: Mapping[str, str] | None = None,
) -> WriteResult:
    """Make a frame the contents of `[lower, upper)` of a shard, if the shard's upper is `lower`.

    Rows are updates: `_diff` is the number of copies added or removed (1 without that column),
    `_ts` their time, inside of the interval (`lower` without that column). A frame without rows
    moves the upper all the same. Rows are encoded by Spark's own Parquet writer, or by Arrow tasks
    where it cannot.

    Args:
        frame: Columns by name.
        path: Location and shard in one; or give `location` and `shard`.
        lower: The upper that the shard must have.
        upper: Its upper afterwards; None ends the shard: nothing more will ever come.
        writer: Name of a durable writer, and a number greater than all it used before: a number
            that was committed for this interval is not written again.
        location: URL of the persist location.
        shard: Name of the shard, which must exist.
        storage: Options of the store, such as `s3.endpoint`.

    Returns:
        `Appended`; `AlreadyCommitted` if this number was committed before; `UpperMismatch` with the
        shard's upper if that is not `lower`. Only the first has written anything.

    Raises:
        InvalidUsage: There is no such shard, the frame does not fit it, a time is outside, or the
            number was committed for another interval (`OTHER_RANGE`).
        Determinate: It certainly did not happen.
        Indeterminate: It may have happened: call again with the same writer and number.
    """
    check_classic(frame, "compare_and_append", "frame.write.format('shard')")
    name, sequence = writer_number("writer", writer)
    lower = whole_number("lower", lower)
    upper = None if upper is None else whole_number("upper", upper)
    given = _sink_options(path, location, shard, storage)
    staged = stage_interval(frame, given)
    covers = of_interval(lower, upper)
    return staged.append(lower, upper, writer=name, sequence=sequence, covers=covers)


def _sink_options(
    path: Pathname | None,
    location: Pathname | None,
    shard: str | None,
    storage: Mapping[str, str] | None,
) -> SinkOptions:
    return parse_sink({**store_options("storage", storage), **place_options(path, location, shard)})


def stage_interval(
    frame: DataFrame, options: SinkOptions, *, small: bool = False
) -> StagedInterval:
    """Stage a frame's rows by a Spark job: parts that no record refers to yet.

    Args:
        frame: As in `compare_and_append`.
        options: Options of the shard.
        small: True if few rows are expected: they are collected first, and if there are too many
            for that the frame is run once more.

    Raises:
        InvalidUsage: There is no such shard, or the frame does not fit it; names the column.
    """
    client, target = _target(frame.schema, options)
    saving = plan_native_write(frame, options, target)
    if small and saving is not None:
        rows = collect_small(saving, ROWS_MAX)
        if rows is not None:
            return SmallTarget(client, options, target).stage(rows)
    attempt = new_id("t", client.ids)
    staged = stage_by_tasks(frame, options, target) if saving is None else saving.stage(attempt)
    return _make_staged_interval(client, options.shard, target, attempt, staged)


def collect_interval(
    frame: DataFrame,
    options: SinkOptions,
    *,
    rows_max: int | None = None,
    bytes_max: int = BYTES_MAX,
    may_be_large: bool = False,
) -> SmallInterval | None:
    """Collect a frame's rows; None if they are too many, or if only tasks can write them.

    Errors as of `stage_interval`.

    Args:
        frame: As in `compare_and_append`.
        options: Options of the shard.
        rows_max: How many are not too many; `ROWS_MAX` if None.
        bytes_max: As much of Arrow.
        may_be_large: As of `collect_few`.
    """
    client, target = _target(frame.schema, options)
    saving = plan_native_write(frame, options, target)
    if saving is None:
        return None
    most = ROWS_MAX if rows_max is None else rows_max
    rows = collect_small(saving, most, bytes_max, may_be_large=may_be_large)
    return None if rows is None else SmallInterval(SmallTarget(client, options, target), rows)


def rows_to_write(frame: DataFrame, options: SinkOptions) -> DataFrame | None:
    """What `collect_interval` would collect, as a frame; None if it never does.

    Args and errors as `stage_interval`.
    """
    saving = plan_native_write(frame, options, _target(frame.schema, options)[1])
    rows = None if saving is None else saving.rows
    if saving is None or rows is None or not has_same_arrow_types(rows.schema, saving.schema):
        return None
    return rows


def small_target(columns: StructType, options: SinkOptions) -> SmallTarget:
    """Where rows of this process are staged that come from a frame with these columns.

    Raises:
        InvalidUsage: There is no such shard, or the columns do not fit it; names the column.
    """
    client, target = _target(columns, options)
    return SmallTarget(client, options, target)


@dataclass(frozen=True, slots=True)
class SmallTarget:
    """The shard for which rows of this process are staged."""

    _client: ShardClient
    _options: SinkOptions
    _target: WriteTarget

    @property
    def schema_id(self) -> int:
        """Number of the shard's columns: rows are in their order."""
        return self._target.schema_id

    def to_write(self, frame: DataFrame) -> DataFrame | None:
        """As `rows_to_write`."""
        return rows_to_write(frame, self._options)

    def collect(
        self,
        frame: DataFrame,
        *,
        rows_max: int | None = None,
        bytes_max: int = BYTES_MAX,
        may_be_large: bool = False,
    ) -> pa.Table | None:
        """The rows of `collect_interval`."""
        small = collect_interval(
            frame,
            self._options,
            rows_max=rows_max,
            bytes_max=bytes_max,
            may_be_large=may_be_large,
        )
        return None if small is None else small.rows

    def as_read(self, updates: pa.Table) -> pa.Table | None:
        """Updates as they would be read once they are appended; None if that is not certain."""
        schema = update_schema(ShardSchema.parse(self._target.schema).arrow)
        if not set(schema.names) <= set(updates.column_names):
            return None  # their time is given when they are appended
        rows = updates.select(schema.names)
        whole = not any(rows.column(name).null_count for name in (TS, DIFF))
        if not whole or rows.schema.types != schema.types:
            return None
        return pa.table(rows.columns, schema=schema)

    def stage(self, updates: pa.Table) -> StagedInterval:
        """Stage `updates`: the shard's columns, perhaps `_ts`, and `_diff`."""
        attempt = new_id("t", self._client.ids)
        staged = stage_in_driver(self._client, self._options, self._target, updates)
        return _make_staged_interval(
            self._client, self._options.shard, self._target, attempt, staged
        )


@dataclass(frozen=True, slots=True)
class SmallInterval:
    """Rows of a frame, collected into this process.

    Attributes:
        target: The shard that they are for.
        rows: Exactly the shard's columns, `_ts` if the frame has it, and `_diff`.
    """

    target: SmallTarget
    rows: pa.Table

    def stage(self, updates: pa.Table) -> StagedInterval:
        """Stage `updates`, which have the columns of `rows`, with or without `_ts`."""
        return self.target.stage(updates)


def _target(columns: StructType, options: SinkOptions) -> tuple[ShardClient, WriteTarget]:
    client = open_client(options)
    found = find_shard(client, options.shard)
    if found is None:
        raise InvalidUsage(
            f"there is no shard '{options.shard}' to append an interval to",
            code="SHARD_NOT_FOUND",
            hint="make it first: client.create(name, schema)",
        )
    return client, resolve_target(client, options, assign_roles(options, columns), found)


def _make_staged_interval(
    client: ShardClient, name: str, target: WriteTarget, attempt: str, staged: Staged
) -> StagedInterval:
    return StagedInterval(
        client,
        name,
        target.shard,
        ShardSchema.parse(target.schema),
        target.schema_id,
        target.key,
        attempt,
        staged,
    )


@dataclass(slots=True)
class StagedInterval:
    """Staged rows of a shard that wait for their one append.

    Losing it before `append` or `discard`, with its process, leaves files that no record refers to;
    the orphan sweep deletes them.

    Attributes:
        name: Name of the shard.
        shard: Id of the shard: one that was dropped and created again refuses the rows.
        attempt: Id of this staging.
        staged: The parts.
        uncommitted: The same parts, and what is known of their commit, for their deletion.
    """

    client: ShardClient
    name: str
    shard: str
    schema: ShardSchema
    schema_id: int
    key: Sequence[str]
    attempt: str
    staged: Staged
    uncommitted: UncommittedParts = field(init=False)

    def __post_init__(self) -> None:
        """Make `uncommitted`, to which no record refers yet."""
        self.uncommitted = UncommittedParts(self.client.location.blob, self.staged.runs)

    @property
    def rows(self) -> int:
        """The number of updates."""
        return self.staged.rows

    def append(
        self,
        lower: int,
        upper: int | None,
        *,
        writer: str,
        sequence: int,
        at: int | None = None,
        covers: str = "",
        writes_leader: bool = False,
    ) -> WriteResult:
        """Make the rows the contents of `[lower, upper)`; as `compare_and_append`. Call it once.

        Parts that were refused are deleted. After an unknown outcome they stay, and `discard`
        leaves them alone, too.

        Args:
            lower: The upper that the shard must have.
            upper: Its upper afterwards; None ends the shard.
            writer: Name of a durable writer.
            sequence: A number greater than all that the writer used before.
            at: Time of rows without `_ts`; None for `lower`.
            covers: The range that the number stands for, in the form of
                `shardline.datasource.shard.covered_range`; empty if the number alone identifies it.
            writes_leader: As of `WriteHandle`.
        """
        handle = WriteHandle(
            machine=self.client.machine(self.name),
            shard=self.shard,
            schema=self.schema,
            schema_id=self.schema_id,
            key=tuple(self.key),
            writer=check_owner_name("writer", writer),
            durable=True,
            redirect=self.client.redirect(self.name),
            covers=covers,
            writes_leader=writes_leader,
        )
        placed = replace(
            self.staged, runs=stamp_time(self.staged.runs, lower if at is None else at)
        )
        with self.uncommitted as parts:
            with parts.commit():
                outcome = handle.commit_at(
                    placed,
                    Frontier(lower),
                    upper=Frontier(upper),
                    sequence=sequence,
                    attempt=self.attempt,
                )
            # Not also for `AlreadyCommitted`: the request that landed may be an earlier one of this
            # very attempt, whose record names these parts.
            if isinstance(outcome, UpperMismatch):
                parts.note_refused()
        return outcome

    def discard(self) -> None:
        """Delete the staged parts, unless an append may have used them."""
        self.uncommitted.delete()
