"""Streaming reads: the planner of one query, behind Spark's offset protocol.

Spark runs all hooks but `read` in one process per query run, one call at a time:

    latestOffset(start)  ->  [offset log]  ->  commit(previous end)  ->  partitions(start, end)

What Spark does not promise, and what follows from it:
    `initialOffset` is asked for twice, again after a restart, and never recorded: it is a constant,
    and the end of the first micro-batch fixes `as_of`.
    After a restart, `partitions(start, end)` of the last planned range may be the very first call.
    `commit(end)` comes while the *next* micro-batch is made, the last one never: moving holds late
    is harmless, moving them early is not.
    `stop` may never be called: leases expire by time.
    An idle query asks for the latest offset up to 100 times a second: without news the answer is
    its argument, to the letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from typing_extensions import override

from shardline.datasource.shard_source.descs import Limits
from shardline.datasource.shard_source.fetch_task import read_partition
from shardline.datasource.shard_source.offsets import START, parse_offset
from shardline.datasource.shard_source.options import SourceOptions
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.shard_source.row_shape import Shape
from shardline.datasource.shard_source.run import StreamRun

__all__ = ["ShardStreamReader"]


class ShardStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of one query; its pickled twin reads partitions in executors."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        """Remember what to read; no I/O, since Spark makes a second one only to pickle it."""
        self._options = options
        self._shape = shape
        self._run: StreamRun | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:
        """The constant start. Called several times per query, also after restarts."""
        return START.json()

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        """The first of the limits that are set; `latestOffset` respects all of them."""
        options = self._options
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_files is not None:
            return ReadMaxFiles(options.max_files)
        return ReadAllAvailable()

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch, or `start` itself when there is no news."""
        return self._running().latest(parse_offset(start), self._limits(limit)).json()

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress events; None before anything was looked at."""
        return self._run.report() if self._run else None

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what "now" is: the upper at this moment."""
        self._running().fix_target()

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of `[start, end)`, planned anew from the newest state at each call."""
        return self._running().plan(parse_offset(start), parse_offset(end))

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The updates of one partition; runs in executors, once per task attempt."""
        return read_partition(partition)

    @override
    def commit(self, end: dict[str, Any]) -> None:
        """Everything before `end` is done: move the holds. Late, idempotent, may be skipped."""
        self._running().commit(parse_offset(end))

    @override
    def stop(self) -> None:
        """Nothing that correctness needs; Spark seldom calls it."""
        if self._run is not None:
            self._run.release()

    def _running(self) -> StreamRun:
        if self._run is None:
            self._run = StreamRun(self._options, open_client(self._options), self._shape)
        return self._run

    def _limits(self, limit: ReadLimit) -> Limits:
        if isinstance(limit, ReadAllAvailable):
            return Limits()
        options = self._options
        return Limits(
            limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes,
            limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_rows,
            limit.max_files if isinstance(limit, ReadMaxFiles) else options.max_files,
        )
