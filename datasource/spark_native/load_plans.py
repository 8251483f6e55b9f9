"""Plans one load of `format("shard")` natively: chooses its time, and makes the frame of its rows.

Batch reads are planned by `ShardBatchReader`, as by Spark's own planner process; here only the time
is chosen before, so that all loads of a query agree on it. Micro-batches have been planned by their
stream already: its partitions are taken as they are, under its own holds.

Invariants:
    No part is chosen here, and no range.
    Loads of the latest contents of one shard in one query are read at one time. A load of several
    shards has one time for all of them: that of the query if they have one in common.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.shard.plan import volume_of
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard_source.batch_reader import ShardBatchReader, common_time
from shardline.datasource.shard_source.fetch_task import ShardPartition
from shardline.datasource.shard_source.options import ShardOptions, SourceOptions, parse_source
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.spark_native.blob_paths import (
    hadoop_url,
    reaches_object,
    store_name,
    was_reached,
)
from shardline.datasource.spark_native.frames import make_native_frame
from shardline.datasource.spark_native.leases import LEASE_KEEPER
from shardline.datasource.spark_native.local_parts import is_intact, is_local
from shardline.datasource.spark_native.read import keep_leases, leases_of, make_leased_frame

__all__ = ["NOT_SETTLED", "SMALL_ROWS", "NotNativeError", "plan_load", "plan_micro_batch"]

_STARTS_MAX: Final = 16
"""Attempts at a plan of the latest contents, each of which compaction may overtake."""


SMALL_ROWS: Final = 5_000
"""Updates of a micro-batch up to which Python workers that run are as fast: Spark plans and opens
files for 10 to 20 ms of processor time. What was measured is in docs/native-plans.md."""


EMPTY: Final = "the range is empty"
"""Why a range without parts is left. `ShardScanRule.java` knows it by these words: such a range is
not the first one of a run."""


NOT_SETTLED: Final = "the time is not settled yet"
"""Why a read is left that would have to wait for its time: the Python workers' planner waits."""


class NotNativeError(Exception):
    """A read that is left to the Python workers; its text says why."""


def plan_load(
    spark: SparkSession,
    options: Mapping[str, str],
    schema: str,
    times: MutableMapping[str, int],
) -> DataFrame:
    """The rows of one batch load, whose parts are held while anything can read them.

    Args:
        spark: The session of the query.
        options: The options of the load.
        schema: The load's schema, as JSON text.
        times: The times chosen for the query under way, by place; the load's own is added.

    Raises:
        NotNativeError: Spark has no way to the location, a part cannot be read, or the time is not
            settled yet.
        ShardError: The read is refused.
    """
    # No wait: it would hold the optimizer up, and the Python path waits once more in the end.
    parsed = replace(parse_source(options), wait_timeout_ms=0)
    client = open_client(parsed)
    root = hadoop_url(spark, client.location.url)
    if root is None:
        raise NotNativeError(f"Spark has no file system for '{_scheme(client)}'")
    shape = RowShape.of(parsed, StructType.fromJson(json.loads(schema)))
    with LEASE_KEEPER.planning():
        try:
            partitions = _partitions(client, parsed, shape, times)
        except Determinate as refusal:
            if refusal.code != "NOT_YET_READABLE":
                raise
            raise NotNativeError(NOT_SETTLED) from refusal
        try:
            _check_parts(spark, root, partitions)
            return make_leased_frame(spark, parsed, shape, partitions, looked_at=True)
        except Exception:
            keep_leases(
                leases_of(parsed, partitions)
            )  # for nobody: Python workers have leases of their own
            raise


def plan_micro_batch(
    spark: SparkSession,
    options: Mapping[str, str],
    schema: str,
    pickled: Sequence[bytes],
    *,
    is_first: bool,
) -> DataFrame:
    """The rows of a range that its stream has planned; without operators that keep state.

    Args:
        spark: The session of the stream.
        options: The options of the load.
        schema: The load's schema, as JSON text.
        pickled: The stream's partitions.
        is_first: True of the first range of a run of the stream that has a part. It may be the only
            one, and Python workers would take a second to start, where none run yet.

    Raises:
        NotNativeError: Some part of it needs the Python workers.
    """
    partitions: list[InputPartition] = [
        pickle.loads(bytes(one))  # noqa: S301 - our own
        for one in pickled
    ]
    own = [one for one in partitions if isinstance(one, ShardPartition)]
    if not own:
        raise NotNativeError(EMPTY)
    rows = volume_of(planned for one in own for planned in one.parts).rows
    if rows < SMALL_ROWS and not is_first:
        raise NotNativeError("the range is small")
    if any(planned.audit for one in own for planned in one.parts):
        raise NotNativeError("a part that the filter leaves out is read to check its bounds")
    if any(one.kind == "group" for one in own):
        # An aggregation in the plan of a micro-batch would keep its state.
        raise NotNativeError("parts of a snapshot need consolidation")
    parsed = parse_source(options)
    root = hadoop_url(spark, open_client(parsed).location.url)
    if root is None:
        raise NotNativeError(f"Spark has no file system for '{_scheme(open_client(parsed))}'")
    _check_parts(spark, root, own)
    struct = StructType.fromJson(json.loads(schema))
    native = make_native_frame(spark, partitions, struct, parsed.where, looked_at=True)
    if native.by_tasks:
        raise NotNativeError("parts have rows or types that Spark does not read as they are")
    return native.frame


def _scheme(client: ShardClient) -> str:
    return client.location.url.partition("://")[0]


# --- the time of a load ------------------------------------------------------------------------


def _partitions(
    client: ShardClient,
    parsed: SourceOptions,
    shape: RowShape,
    times: MutableMapping[str, int],
) -> Sequence[ShardPartition]:
    """The plan of the load at the time asked for, or at one that suits its query."""
    end = parsed.ending_timestamp if parsed.read_change_feed else parsed.timestamp_as_of
    if end is not None:
        return _planned(parsed, shape)
    for _ in range(_STARTS_MAX - 1):
        states = client.readable(*parsed.inputs)
        given = _time_of_query(client, parsed, states, times)
        try:
            as_of = _latest(parsed, states) if given is None else given
            partitions = _planned(_pinned(parsed, as_of), shape)
        except InvalidUsage as error:
            # Compaction may have passed a time that was chosen here. A time that another load of
            # the query shows, or a start that the user gave, is not replaced by another one.
            asked = given if parsed.starting_timestamp is None else parsed.starting_timestamp
            if error.code != "HISTORY_GONE" or asked is not None:
                raise
            continue
        # The end of a change feed may lie before any time that contents can be read at.
        if as_of is not None and all(0 <= (state.since.time or 0) <= as_of for state in states):
            for name in parsed.inputs:
                times.setdefault(_place(client, parsed, name), as_of)
        return partitions
    raise NotNativeError("compaction is faster than planning")


def _time_of_query(
    client: ShardClient,
    parsed: SourceOptions,
    states: Sequence[ShardState],
    times: Mapping[str, int],
) -> int | None:
    """The time at which the query shows these shards; None if none suits all of them."""
    known = {times.get(_place(client, parsed, state.name)) for state in states} - {None}
    if len(known) != 1:
        return None
    [time] = known
    assert time is not None
    # A time of one of several shards need not be settled in the others.
    suits = all(Frontier(time) < state.upper and state.since <= Frontier(time) for state in states)
    return int(time) if suits or len(states) == 1 else None


def _latest(parsed: SourceOptions, states: Sequence[ShardState]) -> int | None:
    """The latest time to read now; None for the changes of shards that are finished."""
    if not parsed.read_change_feed:
        return common_time(states)
    upper = meet(state.upper for state in states).time
    return None if upper is None else upper - 1


def _pinned(parsed: SourceOptions, as_of: int | None) -> SourceOptions:
    if as_of is None:
        return parsed
    if parsed.read_change_feed:
        return replace(parsed, ending_timestamp=as_of + 1)
    return replace(parsed, timestamp_as_of=as_of)


def _planned(parsed: SourceOptions, shape: RowShape) -> Sequence[ShardPartition]:
    planned = ShardBatchReader(parsed, shape).partitions()
    return [one for one in planned if isinstance(one, ShardPartition)]


def _place(client: ShardClient, parsed: ShardOptions, shard: str) -> str:
    return f"{store_name(client.location.url, parsed.storage)}\n{shard}"


# --- parts that are there ----------------------------------------------------------------------


def _check_parts(spark: SparkSession, root: str, partitions: Sequence[ShardPartition]) -> None:
    """Leave a read to the Python workers if a part is gone: they say what has happened to it.

    On local disk all parts are looked at, which costs less than naming them to the JVM. On an
    object store a look is a request, so only one is looked at: whether Spark has the credentials.
    """
    stored = [p.part for one in partitions for p in one.parts if p.part.inline is None]
    if is_local(root):
        if not all(is_intact(root, part) for part in stored):
            raise NotNativeError("a part is gone or damaged")
    elif stored:
        storage, part = partitions[0].options.storage, stored[0]
        if not was_reached(root, storage) and not reaches_object(
            spark, root, storage, part.key, part.size_bytes
        ):
            raise NotNativeError("Spark's file system does not read the location")
