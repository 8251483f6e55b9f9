"""The writers behind `df.write` and `df.writeStream`.

Spark makes a writer in a helper process for every micro-batch, ships a pickled copy to the tasks,
and makes yet another one to commit: they share nothing but the messages. An attempt's id therefore
travels in the writer that the tasks get, and comes back in their messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from datasource.client import ShardClient
from datasource.clock import SystemIds
from datasource.errors import Determinate, InvalidUsage
from datasource.ids import new_id
from datasource.names import shard_directory
from datasource.overwrite import overwrite as overwrite_contents
from datasource.schema import ShardSchema
from datasource.settings import ShardSettings
from datasource.shard_sink.target import Target, resolve
from datasource.shard_source.options import SinkOptions, parse_sink
from datasource.shard_source.planner import open_client
from datasource.stage import Staged, Stager, discard
from datasource.write import WriteHandle

__all__ = ["ShardBatchWriter", "ShardStreamWriter", "batch_writer", "stream_writer"]


@dataclass(frozen=True, slots=True)
class StagedMessage(WriterCommitMessage):
    """What one task staged.

    Attributes:
        staged: Its parts.
        attempt: The attempt that it belongs to.
        query: Id of the streaming query; empty in a batch write.
    """

    staged: Staged
    attempt: str
    query: str


Messages = list[WriterCommitMessage | None]


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of one `df.write…save()`.

    Raises:
        InvalidUsage: An option or the frame's schema is wrong, or `saveMode=errorifexists` and the
            shard is there.
    """
    parsed = parse_sink(options)
    mode = parsed.save_mode or ("overwrite" if overwrite else "append")
    client = open_client(parsed, create=True)
    there = client.exists(parsed.shard)
    if there and mode == "errorifexists":
        raise InvalidUsage(
            f"shard '{parsed.shard}' is already there",
            code="SHARD_EXISTS",
            hint="use mode append or overwrite, or saveMode ignore",
        )
    skip = there and mode == "ignore"
    target = resolve(client, parsed, schema)
    return ShardBatchWriter(parsed, target, replace=mode == "overwrite", skip=skip)


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of one micro-batch; with `overwrite` (output mode complete) of its contents."""
    parsed = parse_sink(options)
    target = resolve(open_client(parsed, create=True), parsed, schema)
    return ShardStreamWriter(parsed, target, replace=overwrite)


class _Writer:
    """What both writers share: staging in tasks, and giving up an attempt."""

    def __init__(self, options: SinkOptions, target: Target, *, replace: bool) -> None:
        self._options = options
        self._target = target
        self._replace = replace
        self._attempt = new_id("t", SystemIds())

    def _stage(self, rows: Iterator[pa.RecordBatch], query: str) -> StagedMessage:
        """Stage a task's rows. Runs in an executor, once per task attempt."""
        client = open_client(self._options)
        settings: ShardSettings = self._options.settings
        stager = Stager(
            blob=client.location.blob,
            directory=shard_directory(self._options.shard),
            schema=ShardSchema.parse(self._target.schema),
            schema_id=self._target.schema_id,
            key=self._target.key,
            settings=settings,
            clock=client.clock,
            ids=client.ids,
        )
        return StagedMessage(stager.stage(self._target.fit(rows)), self._attempt, query)

    def _append(self, messages: Messages, writer: str | None, sequence: int) -> None:
        staged, attempt = _gathered(messages)
        client = open_client(self._options)
        state = client.state(self._options.shard)
        if state.shard != self._target.shard:
            raise Determinate(
                f"shard '{self._options.shard}' was dropped and made again during the write",
                code="SHARD_CHANGED",
                hint="write again",
            )
        handle = self._handle(client, writer, attempt)
        if self._replace:
            overwrite_contents(handle, staged, sequence=sequence, attempt=attempt)
        else:
            handle.commit(staged, sequence=sequence, attempt=attempt)

    def _give_up(self, messages: Messages, writer: str | None, sequence: int) -> None:
        """Delete what the attempt staged, once no commit of it can land any more."""
        known = [message for message in messages if isinstance(message, StagedMessage)]
        if not known:
            return
        client = open_client(self._options)
        handle = self._handle(client, writer, known[0].attempt)
        if handle.abandon(known[0].attempt, sequence):
            for message in known:
                discard(client.location.blob, message.staged.runs)

    def _handle(self, client: ShardClient, writer: str | None, attempt: str) -> WriteHandle:
        """A handle of the writer with this name; None makes one up that lasts for one attempt."""
        handle = client.writer(self._options.shard, writer)
        if writer is None:
            # Commit and abort run in different processes and must mean the same writer. It is
            # anonymous: a shard must not remember every batch write for ever.
            handle.writer = f"job:{attempt}"
        handle.shard = self._target.shard
        handle.schema = ShardSchema.parse(self._target.schema)
        handle.schema_id = self._target.schema_id
        return handle


class ShardStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of one query, each exactly once."""

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows; the query's id comes from Spark's local properties."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        if not query:
            raise InvalidUsage(
                "a streaming write outside of a streaming query",
                code="NO_QUERY",
                hint="from foreachBatch use df.write with txnAppId and txnVersion",
            )
        return self._stage(iterator, query)

    @override
    def commit(self, messages: Messages, batchId: int) -> None:
        """Append the micro-batch. Called again with the same `batchId` after any crash."""
        self._append(messages, _query_writer(messages), batchId)

    @override
    def abort(self, messages: Messages, batchId: int) -> None:
        """Give the attempt up. Spark also calls this when `commit` raised after it took effect."""
        if any(isinstance(message, StagedMessage) for message in messages):
            self._give_up(messages, _query_writer(messages), batchId)


class ShardBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes one frame as one append, or as one difference to what is there."""

    def __init__(self, options: SinkOptions, target: Target, *, replace: bool, skip: bool) -> None:
        """Remember what to do; `skip` writes nothing, the shard being there already."""
        super().__init__(options, target, replace=replace)
        self._skip = skip

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        if self._skip:
            return StagedMessage(Staged((), 0, 0, 0), self._attempt, "")
        return self._stage(iterator, "")

    @override
    def commit(self, messages: Messages) -> None:
        """Append everything at once."""
        if not self._skip:
            self._append(messages, *self._identity())

    @override
    def abort(self, messages: Messages) -> None:
        """Give the attempt up."""
        if not self._skip:
            self._give_up(messages, *self._identity())

    def _identity(self) -> tuple[str | None, int]:
        options = self._options
        if options.txn_app_id is None or options.txn_version is None:
            return None, 0
        return f"app:{options.txn_app_id}", options.txn_version


def _query_writer(messages: Messages) -> str:
    queries = {m.query for m in messages if isinstance(m, StagedMessage)}
    assert len(queries) == 1, queries
    return f"query:{queries.pop()}"


def _gathered(messages: Messages) -> tuple[Staged, str]:
    """All parts of one attempt, and its id."""
    known = [message for message in messages if isinstance(message, StagedMessage)]
    assert len(known) == len(messages), "a commit needs the message of every task"
    attempts = {message.attempt for message in known}
    assert len(attempts) == 1, attempts
    staged = [message.staged for message in known]
    begun = [s.staged_ms for s in staged if s.runs]
    return (
        Staged(
            tuple(run for s in staged for run in s.runs),
            min(begun, default=0),
            sum(s.rows for s in staged),
            sum(s.size_bytes for s in staged),
        ),
        attempts.pop(),
    )
