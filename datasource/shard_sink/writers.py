"""Implements the writers behind `df.write` and `df.writeStream`, each commit exactly once.

Spark makes a writer in a helper process for every micro-batch, ships a pickled copy to the tasks,
and makes yet another one to commit: they share nothing but the messages. So an attempt's id travels
in the writer that the tasks get, and comes back in their messages, together with the shard and the
schema that the tasks staged for, and the query that they ran in.

Numbers alone do not identify a write: they start again when a checkpoint is rolled back or made
anew. A numbered commit therefore carries the range of its source that it covers, where that can be
known:

    a stream's sink                 the range of the micro-batch, from the query's checkpoint
    a batch write, txnRange         the text that the user set
    a batch write in foreachBatch   the range, if the driver has found it (`txnCovers`), or if
                                    `checkpointLocation` is an option of the write or of the
                                    session; otherwise the query's id only
    any other batch write           nothing: the number alone

The checkpoint is read when the micro-batch commits, on the driver: Spark has written the offsets
before the micro-batch ran.

Invariants:
    A commit has the messages of all tasks, of one attempt.
    Staged parts are deleted only after the shard has recorded that their attempt is given up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemIds
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.ids import check_owner_name, new_id
from shardline.datasource.overwrite import overwrite
from shardline.datasource.parts.stage import Staged, Stager
from shardline.datasource.shard.covered_range import of_query, of_text
from shardline.datasource.shard_sink.append import append_staged, give_attempt_up
from shardline.datasource.shard_sink.envelope import EnvelopeConverter
from shardline.datasource.shard_sink.frame_columns import assign_roles
from shardline.datasource.shard_sink.micro_batch_range import (
    BATCH_PROPERTY,
    QUERY_PROPERTY,
    checkpoint_files,
    covered_by_micro_batch,
    covered_by_running_batch,
)
from shardline.datasource.shard_sink.target import (
    WriteTarget,
    find_shard,
    is_unused,
    resolve_target,
)
from shardline.datasource.shard_source.options import SinkOptions, parse_sink
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.shard_source.worker_errors import as_one_sentence
from shardline.datasource.stores.shard_names import shard_directory
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.upsert import CARRIER_ID, upsert
from shardline.datasource.write import WriteHandle, shard_exists

__all__ = ["ShardBatchWriter", "ShardStreamWriter", "batch_writer", "check_stream", "stream_writer"]


@dataclass(frozen=True, slots=True)
class StagedMessage(WriterCommitMessage):
    """The parts that one task staged, and what its commit must know of the task.

    Attributes:
        staged: The task's parts.
        attempt: Id of the attempt that it belongs to.
        shard: Id of the shard that they are for.
        schema_id: Id of the shard's schema that the rows were fitted to.
        query: Id of the streaming query; empty outside of one.
        batch: Number of the query's micro-batch.
        checkpoint: Folder of the query's checkpoint by the session's settings; empty if they have
            none.
    """

    staged: Staged
    attempt: str
    shard: str
    schema_id: int
    query: str
    batch: int = 0
    checkpoint: str = ""


_log = logging.getLogger(__name__)

_FIRST_ONLY: Final = ("errorifexists", "ignore")
"""The save modes of a write that happens only if the shard was never written."""

Messages = list[WriterCommitMessage | None]


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of one `df.write…save()`.

    Raises:
        InvalidUsage: An option or the frame's schema is wrong, or `saveMode=errorifexists` and the
            shard was written before.
    """
    parsed = parse_sink(options)
    frame = assign_roles(parsed, schema)
    mode = parsed.save_mode or ("overwrite" if overwrite else "append")
    client = open_client(parsed, create=True)
    found = find_shard(client, parsed.shard)
    # An unused shard is what a failed write has left, and its repetition has to write. Of several
    # that find it unused at a time, the commit lets one be the first.
    if found is not None and not is_unused(found):
        if mode == "errorifexists":
            raise shard_exists(parsed.shard)
        if mode == "ignore":
            return IgnoringWriter()
    # Before `resolve_target`, which may create the shard: a write that is refused creates nothing.
    _check_mode(parsed, replace=mode == "overwrite")
    target = resolve_target(client, parsed, frame, found)
    return ShardBatchWriter(parsed, target, replace=mode == "overwrite")


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of one micro-batch; `overwrite` (output mode complete) replaces the contents.

    Raises:
        InvalidUsage: An option or the frame's schema is wrong, or an option is for batch writes.
    """
    parsed = parse_sink(options)
    check_stream(parsed, replace=overwrite)
    _check_mode(parsed, replace=overwrite)
    frame = assign_roles(parsed, schema)
    client = open_client(parsed, create=True)
    target = resolve_target(client, parsed, frame, find_shard(client, parsed.shard))
    return ShardStreamWriter(parsed, target, replace=overwrite)


def check_stream(options: SinkOptions, *, replace: bool) -> None:
    """Refuse options that a stream cannot keep: they are the same for all of its micro-batches."""
    if options.txn_app_id is not None:
        raise InvalidUsage(
            "options 'txnAppId', 'txnVersion' and 'txnRange' identify one write, and a stream is "
            "many",
            code="INVALID_OPTION",
            hint="leave them out: a stream numbers its micro-batches under the query's id; or set "
            "them for each write in foreachBatch",
        )
    if options.save_mode not in (None, "overwrite" if replace else "append"):
        raise InvalidUsage(
            f"option 'saveMode' is '{options.save_mode}', and a stream writes by its output mode",
            code="INVALID_OPTION",
            hint="leave it out; outputMode complete replaces what is there, others add to it",
        )


def _check_mode(options: SinkOptions, *, replace: bool) -> None:
    if replace and options.envelope != "append":
        raise InvalidUsage(
            f"envelope '{options.envelope}' changes what is in shard '{options.shard}', and mode "
            "overwrite or complete replaces all of it",
            code="INVALID_OPTION",
            hint="use mode append, or leave the envelope out",
        )


class _Writer:
    """The base of both writers: stages in tasks, commits, and gives an attempt up."""

    def __init__(self, options: SinkOptions, target: WriteTarget, *, replace: bool) -> None:
        self._options = options
        self._target = target
        self._replace = replace
        self._attempt = new_id("t", SystemIds())

    def _stage(self, rows: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage a task's rows. Runs in an executor, once per task attempt."""
        client = open_client(self._options)
        target, unwrapper = self._target, self._target.unwrapper
        stager = Stager(
            blob=client.location.blob,
            directory=shard_directory(self._options.shard),
            schema=unwrapper.staged_schema,
            schema_id=CARRIER_ID if unwrapper.stages_carriers else target.schema_id,
            key=target.key,
            settings=self._options.settings,
            clock=client.clock,
            ids=client.ids,
        )
        staged = stager.stage(map(unwrapper.unwrap, rows))
        query, batch, checkpoint = _running_query(self._options)
        return StagedMessage(
            staged, self._attempt, target.shard, target.schema_id, query, batch, checkpoint
        )

    def _append(self, messages: Messages, writer: str | None, sequence: int) -> None:
        """Commit the parts that all tasks of one attempt staged."""
        known = _staged_messages(messages)
        # A task without a message would be a part of the frame that is lost without an error.
        assert len(known) == len(messages), "a commit needs the message of every task"
        # Of one attempt: `abort` gives up and deletes by attempt, and must hit all or nothing.
        attempts = {message.attempt for message in known}
        assert len(attempts) == 1, attempts
        (attempt,) = attempts
        staged = _combine_staged([message.staged for message in known])
        # The schema of the tasks, not the one that this process found: another writer may have
        # evolved the shard between the two, and the staged parts have the older columns.
        handle = self._handle(writer, known[0])
        handle.covers = self._covers(known[0], sequence)
        handle.is_first = self._options.save_mode in _FIRST_ONLY
        frame = self._target.frame
        unwrapper = EnvelopeConverter(frame, handle.schema, handle.key)
        if self._replace:
            overwrite(handle, staged, sequence=sequence, attempt=attempt)
        elif unwrapper.stages_carriers:
            carriers = unwrapper.staged_schema
            upsert(handle, staged, carriers, sequence=sequence, attempt=attempt)
        else:
            append_staged(handle, staged, timed=frame.timed, sequence=sequence, attempt=attempt)

    def _abandon_attempt(self, messages: Messages, writer: str | None, sequence: int) -> None:
        """Delete the parts of an attempt, once no commit of it can land any more."""
        known = _staged_messages(messages)
        if not known:
            return
        handle = self._handle(writer, known[0])
        staged = _combine_staged([message.staged for message in known])
        # Spark aborts also after a commit that took effect and then failed, in another process that
        # does not know its outcome. Deleting the parts at once would lose committed rows.
        give_attempt_up(
            handle,
            staged,
            sequence=sequence,
            attempt=known[0].attempt,
            # Spark asks for a commit when it has the message of every task, not before.
            was_asked=len(known) == len(messages),
        )

    def _handle(self, writer: str | None, message: StagedMessage) -> WriteHandle:
        """A handle of the writer `writer`; None makes up a name that lasts for one attempt.

        Does no I/O: if the shard is another one by now, the append itself is refused.
        """
        client = open_client(self._options)
        return WriteHandle(
            machine=client.machine(self._options.shard),
            shard=message.shard,
            schema=self._schema(client, message.schema_id),
            schema_id=message.schema_id,
            key=self._target.key,
            # Commit and abort run in different processes and must mean the same writer. It is
            # anonymous: a shard must not remember every batch write for ever.
            writer=f"job:{message.attempt}" if writer is None else writer,
            durable=writer is not None,
            redirect=client.redirect(self._options.shard),
        )

    def _covers(self, message: StagedMessage, sequence: int) -> str:
        """The range of its source that the commit `sequence` covers."""
        raise NotImplementedError

    def _micro_batch_covers(self, message: StagedMessage, number: int) -> str:
        folder = self._options.checkpoint or message.checkpoint
        files = checkpoint_files(folder, self._options) if folder else None
        if not message.query and files is not None:
            return covered_by_running_batch(number, files)
        return covered_by_micro_batch(message.query, number, files)

    def _schema(self, client: ShardClient, schema_id: int) -> ShardSchema:
        """The schema that the tasks fitted rows to; this writer may have found a newer one."""
        if schema_id == self._target.schema_id:
            return ShardSchema.parse(self._target.schema)
        return ShardSchema.parse(client.state(self._options.shard).schemas[schema_id])


class ShardStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of one query, each exactly once."""

    @override
    @as_one_sentence
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows; the query's id comes from Spark's local properties."""
        if not _running_query(self._options)[0]:
            raise InvalidUsage(
                "a streaming write outside of a streaming query",
                code="NO_QUERY",
                hint="from foreachBatch use df.write with txnAppId and txnVersion",
            )
        return self._stage(iterator)

    @override
    @as_one_sentence
    def commit(self, messages: Messages, batchId: int) -> None:
        """Append the micro-batch. Called again with the same `batchId` after any crash."""
        self._append(messages, _query_writer(messages), batchId)

    @override
    def abort(self, messages: Messages, batchId: int) -> None:
        """Give the attempt up. Spark also calls this when `commit` raised after it took effect."""
        if _staged_messages(messages):
            self._abandon_attempt(messages, _query_writer(messages), batchId)

    @override
    def _covers(self, message: StagedMessage, sequence: int) -> str:
        covers = self._micro_batch_covers(message, sequence)
        folder = self._options.checkpoint or message.checkpoint
        if folder and covers == of_query(message.query, None):
            _warn_unreadable(folder)
        return covers


class ShardBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes one frame: as one append, or as one difference to what is there."""

    @override
    @as_one_sentence
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return self._stage(iterator)

    def stage(self, rows: Iterator[pa.RecordBatch]) -> Staged:
        """As `write`, for a caller that commits by other means."""
        return self._stage(rows).staged

    @override
    @as_one_sentence
    def commit(self, messages: Messages) -> None:
        """Append everything at once."""
        try:
            self._append(messages, *self._identity())
        except InvalidUsage as error:
            # Another write was the first. What was staged for this one is deleted by now.
            if self._options.save_mode != "ignore" or error.code != "SHARD_EXISTS":
                raise

    @override
    def abort(self, messages: Messages) -> None:
        """Give the attempt up."""
        self._abandon_attempt(messages, *self._identity())

    def _identity(self) -> tuple[str | None, int]:
        options = self._options
        if options.txn_app_id is None or options.txn_version is None:
            return None, 0
        return check_owner_name("writer", f"app:{options.txn_app_id}"), options.txn_version

    @override
    def _covers(self, message: StagedMessage, sequence: int) -> str:
        options = self._options
        if options.txn_app_id is None:
            return ""
        if options.txn_covers:
            return options.txn_covers
        if options.txn_range is not None:
            return of_text(options.txn_range)
        number = message.batch if message.query else options.txn_version
        return self._micro_batch_covers(message, number or 0)


class IgnoringWriter(DataSourceArrowWriter):
    """Writes nothing: the writer of `saveMode=ignore` for a shard that was written before."""

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Leave the rows unread."""
        return WriterCommitMessage()


def _running_query(options: SinkOptions) -> tuple[str, int, str]:
    """The query that a task runs for: its id, number of micro-batch, and folder of its checkpoint.

    The folder is known only where the session sets one: Spark sends the session's settings with
    each task, as it does its local properties.
    """
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_PROPERTY) if context else None
    if context is None or not query:
        return "", 0, ""
    batch = context.getLocalProperty(BATCH_PROPERTY) or ""
    parent = context.getLocalProperty("spark.sql.streaming.checkpointLocation")
    # Spark begins the description of such a job with the query's name.
    described = context.getLocalProperty("spark.job.description") or ""
    name = options.query_name or described.partition("\n")[0]
    checkpoint = f"{parent}/{name}" if parent and name else ""
    return query, int(batch) if batch.isdigit() else 0, checkpoint


@cache
def _warn_unreadable(folder: str) -> None:
    _log.warning(
        "the checkpoint of a query cannot be read here: if it is rolled back, rows may be lost",
        extra={"context": {"checkpoint": folder}},
    )


def _staged_messages(messages: Messages) -> list[StagedMessage]:
    return [message for message in messages if isinstance(message, StagedMessage)]


def _query_writer(messages: Messages) -> str:
    queries = {message.query for message in _staged_messages(messages)}
    assert len(queries) == 1, queries
    return f"query:{queries.pop()}"


def _combine_staged(staged: Sequence[Staged]) -> Staged:
    """The parts of several tasks as one."""
    begun = [s.staged_ms for s in staged if s.runs]
    return Staged(
        tuple(run for s in staged for run in s.runs),
        min(begun, default=0),
        sum(s.rows for s in staged),
        sum(s.size_bytes for s in staged),
    )
