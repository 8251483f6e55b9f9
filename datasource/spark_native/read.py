"""Reads shards in batches by Spark's own Parquet reader: `shardline.snapshot` and `changes`.

A frame may be run long after it was made, and several times. So its plan is made once, under
leases that the driver renews for as long as the frame, or one made of it, can run (`leases.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition

from shardline.datasource.arguments import (
    Pathname,
    Time,
    names_of,
    option_text,
    place_options,
    store_options,
    time_text,
)
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import TIME_MIN, Frontier
from shardline.datasource.lease import Lease
from shardline.datasource.read import contents_of, current_schema, history_gone_error
from shardline.datasource.rows.updates import update_schema
from shardline.datasource.shard.plan import plan_changes, volume_of
from shardline.datasource.shard_source.batch_reader import ShardBatchReader
from shardline.datasource.shard_source.fetch_task import PlanLease, ShardPartition
from shardline.datasource.shard_source.options import SourceOptions, parse_source
from shardline.datasource.shard_source.partition_planner import (
    PartitionPlanner,
    open_client,
    take_batch_lease,
)
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.spark_native.classic_session import check_classic
from shardline.datasource.spark_native.frames import make_native_frame
from shardline.datasource.spark_native.jvm import pad_chars
from shardline.datasource.spark_native.leases import LEASE_KEEPER, LeaseUser
from shardline.datasource.types.schema import TS

__all__ = [
    "Time",
    "changes",
    "every_update",
    "keep_leases",
    "leases_of",
    "make_leased_frame",
    "snapshot",
    "times_of_changes",
    "updates_in_driver",
]


def snapshot(
    spark: SparkSession,
    path: Pathname | None = None,
    *,
    location: Pathname | None = None,
    shard: str | None = None,
    as_of: Time | None = None,
    columns: Sequence[str] | None = None,
    where: str | Column | None = None,
    storage: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
    by_driver: int = 0,
    pads: bool = True,
) -> DataFrame:
    """The contents of a shard at one time, decoded by Spark's own Parquet reader.

    The same rows under the same schema as `spark.read.format("shard")` gives. The plan is made
    now: the frame shows this time whenever it is run, and its parts are kept for as long as it, or
    any frame made of it, can be run by this driver.

    Args:
        spark: The session to read with.
        path: Location and shard in one, `s3://lake/shards/orders`; or give the next two.
        location: URL of the persist location.
        shard: Name of the shard.
        as_of: Updates at this time and before count. Default: the latest that can be read.
        columns: Names of the columns, in order. Default: all.
        where: Only rows for which this is true, as `DataFrame.where` takes it.
        storage: Options of the store, such as `s3.endpoint`.
        options: Any other option of the format for a batch read.
        by_driver: A plan of at most this many updates is read now, by this process, and the frame
            holds its rows: for a few thousand of them Spark takes longer to open a file. Not if
            they are large.
        pads: False leaves text as it was written where a table has its column as `CHAR(n)`, which
            Spark else pads by the settings of the session. What is read beside other ways to the
            same rows, by which nothing is padded, needs that.

    Raises:
        InvalidUsage: There is no such shard or column, or its history at `as_of` is gone.
        Determinate: `as_of` was not settled within `waitTimeout`, or is far ahead of the clock.
    """
    check_classic(spark, "snapshot", "spark.read.format('shard')", SparkSession)
    given = _format_options(spark, (path, location, shard), storage, options)
    given |= {} if as_of is None else {"timestampAsOf": time_text("as_of", as_of)}
    return _read(spark, given, columns, where, by_driver=by_driver, pads=pads)


def changes(
    spark: SparkSession,
    path: Pathname | None = None,
    *,
    location: Pathname | None = None,
    shard: str | None = None,
    start: Time | None = None,
    end: Time | None = None,
    columns: Sequence[str] | None = None,
    where: str | Column | None = None,
    storage: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
    by_driver: int = 0,
    pads: bool = True,
) -> DataFrame:
    """The updates of a shard with `start <= _ts < end`: its columns, `_ts`, `_diff`.

    Args:
        spark: As in `snapshot`, and so are the arguments not listed here.
        start: Inclusive. Default: the first time that compaction has not merged with others.
        end: Exclusive. Default: the shard's upper.

    Raises:
        InvalidUsage: There is no such shard or column, or history at `start` is gone.
        Determinate: `end` was not settled within `waitTimeout`, or is far ahead of the clock.
    """
    instead = "spark.read.format('shard') with readChangeFeed"
    check_classic(spark, "changes", instead, SparkSession)
    given = _format_options(spark, (path, location, shard), storage, options) | {
        "readChangeFeed": "true"
    }
    given |= {} if start is None else {"startingTimestamp": time_text("start", start)}
    given |= {} if end is None else {"endingTimestamp": time_text("end", end)}
    return _read(spark, given, columns, where, by_driver=by_driver, pads=pads)


def every_update(
    spark: SparkSession,
    *,
    location: str,
    shard: str,
    upper: int,
    storage: Mapping[str, str] | None = None,
) -> DataFrame:
    """All updates of a shard before `upper`, as `changes` gives them: their sum is the contents.

    Unlike `snapshot` this returns rows that were removed more often than they were added, which a
    repair has to see. Times at or before the shard's since have no meaning.

    Args:
        upper: A time at or before the shard's upper.

    Raises:
        InvalidUsage: There is no such shard, or nothing of it can be read any more.
    """
    given = _format_options(spark, (None, location, shard), storage, None) | {
        "readChangeFeed": "true"
    }
    parsed = parse_source(given)
    client = open_client(parsed)
    shape = RowShape.now(parsed, [current_schema(client.state(shard))])
    with LEASE_KEEPER.planning():
        since = client.state(shard).since.time or TIME_MIN
        guard = take_batch_lease(client, shard, max(upper - 1, since))
        [state] = client.readable(shard)
        planner = PartitionPlanner(parsed, state, shape, 0, guard)
        return make_leased_frame(
            spark, parsed, shape, planner.updates(plan_changes(state, TIME_MIN, upper))
        )


def times_of_changes(
    client: ShardClient, shard: str, *, start: int, end: int | None, rows_max: int
) -> frozenset[int] | None:
    """The times in `[start, end)` at which a shard changes; without a Spark job.

    Args:
        client: A client of the shard's location.
        shard: Name of the shard.
        start: Inclusive.
        end: Exclusive, and settled; None for the shard's upper.
        rows_max: The result is None if more updates than this would have to be read.

    Raises:
        InvalidUsage: There is no such shard; `HISTORY_GONE`, as `updates_in_driver`.
    """
    found = updates_in_driver(client, shard, start=start, end=end, rows_max=rows_max, columns=())
    return None if found is None else frozenset(pc.unique(found[TS]).to_pylist())


def updates_in_driver(
    client: ShardClient,
    shard: str,
    *,
    start: int | None,
    end: int | None,
    rows_max: int,
    bytes_max: int | None = None,
    columns: Collection[str] | None = None,
) -> pa.Table | None:
    """The updates with `start <= _ts < end`, read by this process; without a Spark job.

    Args:
        client: A client of the shard's location.
        shard: Name of the shard.
        start: Inclusive; None for all of history, whose times at or before the shard's since have
            no meaning: their sum is the contents.
        end: Exclusive, and settled; None for the shard's upper.
        rows_max: The result is None if more updates than this would have to be read.
        bytes_max: The same of bytes of parts; None for any number.
        columns: Those of the shard's columns that are wanted, one at least is read; None for all.

    Returns:
        Columns of the shard, `_ts`, `_diff`: unconsolidated, in no particular order.

    Raises:
        InvalidUsage: There is no such shard; `HISTORY_GONE`: what it was right before `start`, or
            right before `end` if all of history is asked for, is not known any more.
    """
    with LEASE_KEEPER.planning():
        [state] = client.readable(shard)
        since = state.since.time or TIME_MIN
        upper = state.upper.time if end is None else end
        latest = since if upper is None else upper - 1
        # Of changes, the time right before them: at `start` they would be mixed with older updates
        # that are advanced to it.
        held = max(latest, since) if start is None else max(start - 1, TIME_MIN)
        guard = take_batch_lease(client, shard, held)
        # Given up soon, unless a frame is made under the same lease.
        LEASE_KEEPER.renew_while_read(_lease_of(client, shard, guard))
        # Again: only what is read after the lease was taken is protected by it.
        [state] = client.readable(shard)
        asked = end if start is None else start
        if asked is not None and Frontier(max(asked - 1, TIME_MIN)) < state.since:
            raise history_gone_error(state, asked - 1, state.since)
        planned = plan_changes(state, TIME_MIN if start is None else start, end)
        volume = volume_of(planned)
        if volume.rows > rows_max or (bytes_max is not None and volume.size_bytes > bytes_max):
            return None
        names = current_schema(state).names
        if columns is not None:
            names = tuple(name for name in names if name in columns) or names[:1]
        contents = contents_of(client.machine(shard), state, names)
        batches = [batch for one in planned for batch in contents.changes(one)]
        return pa.Table.from_batches(batches, update_schema(contents.target.arrow))


def _format_options(
    spark: SparkSession,
    place: tuple[Pathname | None, Pathname | None, str | None],
    storage: Mapping[str, str] | None,
    options: Mapping[str, object] | None,
) -> dict[str, str]:
    """The arguments as options of the format."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    return {
        "timeZone": zone or "UTC",
        **{name: option_text(value) for name, value in (options or {}).items()},
        **store_options("storage", storage),
        **place_options(*place),
    }


def _read(
    spark: SparkSession,
    given: Mapping[str, str],
    columns: Sequence[str] | None,
    where: str | Column | None,
    *,
    by_driver: int,
    pads: bool,
) -> DataFrame:
    parsed = parse_source(given)
    if columns is not None:
        parsed = replace(parsed, columns=names_of("columns", columns))
    client = open_client(parsed)
    shape = RowShape.now(parsed, [current_schema(client.state(name)) for name in parsed.inputs])
    # Around the plan and the `keep` that follows: a lease that the plan shares with an older frame
    # must not be released between the two.
    with LEASE_KEEPER.planning():
        partitions = ShardBatchReader(parsed, shape).partitions()
        frame = make_leased_frame(spark, parsed, shape, partitions, by_driver)
    if pads:
        # In a plain read the analyzer does it, which knows its relation.
        frame = pad_chars(frame)
    return frame if where is None else frame.where(where)


def make_leased_frame(
    spark: SparkSession,
    parsed: SourceOptions,
    shape: RowShape,
    partitions: Sequence[InputPartition],
    by_driver: int = 0,
    *,
    looked_at: bool = False,
) -> DataFrame:
    """The rows of a plan, whose leases are renewed for as long as the rows can be read.

    Call it inside of `LEASE_KEEPER.planning()`, and the plan as well. `looked_at` says that its
    local parts have been found intact.
    """
    leases = leases_of(parsed, partitions)
    # Renewed while the frame is made, too: keys of retractions may be read now, by a job.
    keep_leases(leases)
    native = make_native_frame(
        spark, partitions, shape.struct, parsed.where, by_driver, looked_at=looked_at
    )
    keep_leases(leases, native.tokens)
    return native.frame


def keep_leases(leases: Iterable[Lease], users: Sequence[LeaseUser] = ()) -> None:
    """Renew the leases of a plan as long as it has users; without any, give them up soon."""
    for lease in leases:
        LEASE_KEEPER.renew_while_read(lease, *users)


def leases_of(parsed: SourceOptions, partitions: Sequence[object]) -> list[Lease]:
    """The leases that protect a plan."""
    client = open_client(parsed)
    found = {p.guard.reader: p for p in partitions if isinstance(p, ShardPartition)}
    return [_lease_of(client, p.options.shard, p.guard) for p in found.values()]


def _lease_of(client: ShardClient, shard: str, guard: PlanLease) -> Lease:
    """The lease that protects a plan."""
    return Lease(client.machine(shard), guard.reader, guard.lease_ms, Frontier(0), 0)
