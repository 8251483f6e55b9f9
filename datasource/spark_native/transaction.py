"""Writes frames into several shards at one time, all of them or none: `shardline.transaction`.

    with shardline.transaction(spark, "s3://lake/shards") as t:
        t.append("orders", orders)
        t.overwrite("customers", customers)

Each call runs a Spark job that stages its frame's rows; the end of the block makes one commit for
all of them (`shardline.datasource.transactions`). A crash before that leaves files that nothing
refers to.

Inside of `foreachBatch`, `txn` makes it happen exactly once:

    def each(frame, batch_id):
        with shardline.transaction(spark, location, txn=("orders-in", batch_id)) as t:
            t.append("orders", frame.select(…))
            t.append("lines", frame.select(…))

Rows are staged by Spark's own Parquet writer where it can, and by Arrow tasks otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession

from shardline.datasource.arguments import Pathname, names_of, store_options, text_of, writer_number
from shardline.datasource.ids import new_id
from shardline.datasource.parts.stage import Staged, UncommittedParts
from shardline.datasource.shard.commands.append import shard_changed_error
from shardline.datasource.shard_sink.frame_columns import assign_roles
from shardline.datasource.shard_sink.target import WriteTarget, find_shard, resolve_target
from shardline.datasource.shard_sink.writers import ShardBatchWriter
from shardline.datasource.shard_source.options import SinkOptions, parse_sink
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.spark_native.classic_session import check_classic, check_frame
from shardline.datasource.spark_native.micro_batch import covers_of
from shardline.datasource.spark_native.read import snapshot
from shardline.datasource.spark_native.save import plan_native_write
from shardline.datasource.transactions.transaction import Isolation, Transaction

__all__ = ["FrameTransaction", "stage_by_tasks", "transaction"]

_ANY: str = "any"
"""Stands for a shard's name where only the location's options are needed."""


def transaction(
    spark: SparkSession,
    location: Pathname,
    *,
    txn: tuple[str, int] | None = None,
    isolation: Isolation = "snapshot",
    storage: Mapping[str, str] | None = None,
) -> FrameTransaction:
    """Begin a transaction over any shards of a location; to be used in a `with` statement.

    Args:
        spark: The session to read and write with.
        location: URL of the persist location; created if it does not exist.
        txn: Name of a writer, and a number greater than all it used before: a transaction that was
            committed with them is not run again. In `foreachBatch` the number stands for the
            micro-batch's range of the query: with another range it is an error (`OTHER_RANGE`).
        isolation: "snapshot" refuses to commit if others have changed a shard that is overwritten;
            "serializable" also one that was read.
        storage: Options of the store, such as `s3.endpoint`.

    Raises:
        InvalidUsage: An argument is wrong.
    """
    instead = "shardline.client (it needs no session)"
    check_classic(spark, "transaction", instead, SparkSession)
    given = {"location": text_of("location", location), **store_options("storage", storage)}
    client = open_client(parse_sink({**given, "shard": _ANY}), create=True)
    writer, sequence = (None, None) if txn is None else writer_number("txn", txn)
    begun = client.transaction(
        isolation=isolation,
        writer=writer,
        sequence=sequence,
        covers="" if txn is None else covers_of(spark),
    )
    return FrameTransaction(spark, given, begun)


class FrameTransaction:
    """One transaction of frames: commits when its block ends, and rolls back after an error.

    Losing it, with its process, before the commit changes no shard; the staged files are deleted by
    the orphan sweep.
    """

    def __init__(self, spark: SparkSession, given: Mapping[str, str], begun: Transaction) -> None:
        """Wrap a transaction that has begun; use `transaction` to begin one."""
        self._spark = spark
        self._options = given
        self._transaction = begun

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or after an error roll back."""
        self._transaction.__exit__(kind, error, trace)

    @property
    def committed_at(self) -> int | None:
        """The time at which it took effect; None before, and if there was nothing to commit."""
        return self._transaction.committed_at

    @property
    def done_before(self) -> bool:
        """True if one with this `txn` was committed before: then this one does nothing."""
        return self._transaction.done_before()

    def read(
        self,
        shard: str,
        *,
        columns: Sequence[str] | None = None,
        where: str | Column | None = None,
    ) -> DataFrame:
        """The contents of a shard at the transaction's read time, the same for all shards.

        They do not include rows that this transaction writes. Errors as `shardline.snapshot`.
        """
        as_of = self._transaction.reads(shard)
        location = self._options["location"]
        storage = {name: value for name, value in self._options.items() if name != "location"}
        return snapshot(
            self._spark,
            location=location,
            shard=shard,
            as_of=as_of,
            columns=columns,
            where=where,
            storage=storage,
        )

    def append(
        self,
        shard: str,
        frame: DataFrame,
        *,
        key: Sequence[str] | None = None,
        merge_schema: bool = False,
    ) -> None:
        """Add a frame's rows, or with a column `_diff` its updates; creates a missing shard.

        Args:
            shard: Name of the shard.
            frame: Columns by name.
            key: The shard's key, if this creates it.
            merge_schema: Evolve the shard's schema to take new columns and wider types.

        Raises:
            InvalidUsage: The frame does not fit the shard, or its rows carry times. The shard was
                dropped and made again while its rows were written: `SHARD_CHANGED`.
        """
        if not self.done_before:
            self._transaction.add(shard, self._staged(shard, frame, key, merge=merge_schema))

    def overwrite(
        self,
        shard: str,
        frame: DataFrame,
        *,
        key: Sequence[str] | None = None,
        merge_schema: bool = False,
    ) -> None:
        """Make a frame's rows the contents of the shard; rows that stay the same cost nothing.

        They replace the contents at the read time. Arguments and errors as `append`.

        Raises:
            Determinate: `TRANSACTION_CONFLICT`: history at the read time is gone already.
        """
        if not self.done_before:
            self._transaction.replace(shard, self._staged(shard, frame, key, merge=merge_schema))

    def _staged(
        self, shard: str, frame: DataFrame, key: Sequence[str] | None, *, merge: bool
    ) -> Staged:
        check_frame(frame, "append and overwrite of a transaction")
        given = {**self._options, "shard": shard}
        given |= {"key": ",".join(names_of("key", key))} if key is not None else {}
        given |= {"mergeSchema": "true"} if merge else {}
        options = parse_sink(given)
        client = open_client(options, create=True)
        described = assign_roles(options, frame.schema)
        target = resolve_target(client, options, described, find_shard(client, options.shard))
        saving = plan_native_write(frame, options, target)
        if saving is None:
            staged = stage_by_tasks(frame, options, target)
        else:
            staged = saving.stage(new_id("t", client.ids))
        with UncommittedParts(client.location.blob, staged.runs) as parts:
            # The rows carry schema ids of the shard that they were made for: in one that was made
            # meanwhile nobody could read them, or they would be other rows.
            if self._transaction.shard_id(shard) != target.shard:
                raise shard_changed_error(client.machine(shard).state())
            parts.hand_over(staged.runs)
        return staged


def stage_by_tasks(frame: DataFrame, options: SinkOptions, target: WriteTarget) -> Staged:
    """Stage rows as the Arrow sink's tasks do, without its commit.

    Args:
        frame: The rows.
        options: Options of the write.
        target: The result of `resolve_target` for this frame.
    """
    client = open_client(options)
    writer = ShardBatchWriter(options, target, replace=False)
    names = frame.columns

    def task(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        staged = writer.stage(batch.rename_columns(names) for batch in rows)
        yield pa.RecordBatch.from_pydict({"staged": [msgspec.json.encode(staged)]})

    # PySpark looks the columns up by their names, in which a dot would lead into a struct.
    placed = frame.toDF(*(f"c{place}" for place, _ in enumerate(names)))
    # Of several attempts at a task, one is collected; the orphan sweep deletes the others' files.
    messages = placed.mapInArrow(task, "staged binary").collect()
    found = [msgspec.json.decode(bytes(row.staged), type=Staged) for row in messages]
    begun = [staged.staged_ms for staged in found if staged.runs]
    return replace(
        Staged((), 0, 0, 0),
        runs=tuple(run for staged in found for run in staged.runs),
        staged_ms=min(begun, default=client.clock.now_ms()),
        rows=sum(staged.rows for staged in found),
        size_bytes=sum(staged.size_bytes for staged in found),
    )
