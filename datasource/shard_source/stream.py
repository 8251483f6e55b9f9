"""Implements streaming reads: Spark's offset protocol for the planner of one query.

Spark runs all hooks but `read` in one process per query run, one call at a time:

    latestOffset(start)  ->  [offset log]  ->  commit(previous end)  ->  partitions(start, end)

Spark promises less than the protocol suggests, and each gap has its answer here:
    `initialOffset` is called twice, again after a restart, and its result is never recorded: it is
    a constant, and the end of the first micro-batch fixes `as_of`.
    After a restart, `partitions(start, end)` of the last planned range may be the very first call.
    `commit(end)` comes while the *next* micro-batch is made, and never for the last one, for which
    the next run makes up: moving holds late is harmless, moving them early is not.
    `stop` may never be called: leases expire by time.
    An idle query calls `latestOffset` up to 100 times a second: without news the result is its
    argument, to the letter, since Spark compares offsets as text.

What is decided in each call is in `run.py`; this module translates between it and Spark.
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

from shardline.datasource.errors import ShardError
from shardline.datasource.offsets import START, parse_offset
from shardline.datasource.shard_source.descs import Limits
from shardline.datasource.shard_source.fetch_task import read_partition
from shardline.datasource.shard_source.options import SourceOptions
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.shard_source.run import StreamRun
from shardline.datasource.shard_source.worker_errors import as_one_sentence

__all__ = ["RefusedStreamReader", "ShardStreamReader"]


class ShardStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of one query; its pickled twin reads partitions in executors."""

    def __init__(self, options: SourceOptions, shape: RowShape) -> None:
        """Store options and row shape; no I/O, since Spark makes a second one only to pickle it."""
        self._options = options
        self._row_shape = shape
        self._run: StreamRun | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:
        """The constant start; called several times per query, also after restarts."""
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
    @as_one_sentence
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch, or `start` itself when there is no news."""
        return self._running().latest(parse_offset(start), self._limits(limit)).json()

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The status for Spark's progress events; None before the first look at the shards."""
        return self._run.report() if self._run else None

    @override
    @as_one_sentence
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run: the shards' upper at this moment."""
        self._running().fix_target()

    @override
    @as_one_sentence
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of `[start, end)`, planned anew from the newest state at each call."""
        return self._running().plan(parse_offset(start), parse_offset(end))

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The updates of one partition; runs in executors, once per task attempt."""
        return read_partition(partition)

    @override
    @as_one_sentence
    def commit(self, end: dict[str, Any]) -> None:
        """Move the holds up to `end`, which is done; called late, repeatedly, or never."""
        self._running().commit(parse_offset(end))

    @override
    def stop(self) -> None:
        """Give the leases up early; correctness does not need it, and Spark seldom calls it."""
        if self._run is not None:
            self._run.release()

    def _running(self) -> StreamRun:
        if self._run is None:
            self._run = StreamRun(self._options, open_client(self._options), self._row_shape)
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


class RefusedStreamReader(DataSourceStreamReader):
    """Stands for a reader that cannot be made, and says why when it is asked for anything.

    An error that is raised while the reader is made is lost: PySpark 4.3 stops the reader that it
    does not have then, and reports that there is no variable of this name.
    """

    def __init__(self, error: ShardError) -> None:
        """Store the error."""
        self._error = error

    @override
    @as_one_sentence
    def initialOffset(self) -> dict[str, Any]:
        """Raise the error: the first that Spark asks for, but for what the reader can do."""
        raise self._error

    @override
    @as_one_sentence
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raise the error."""
        raise self._error

    @override
    @as_one_sentence
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._error

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error
