"""Writes a frame into a shard by Spark's own Parquet writer: `shardline.save`.

    Spark's job      files under `<shard>/part/<attempt>/`, and the list of those whose tasks count:
                     each task's exactly once, however often it was retried (`task_files`)
    the driver       describes them by their footers, and makes the files durable
    the driver       one append under (`app:<name>`, version), as every other writer's

A crash anywhere before the append leaves files that nothing refers to; the orphan sweep deletes
them. The parts are recorded as unsorted, because Spark's order differs from that of `row_keys` in
some details: a merge sorts them first.

Invariants:
    Files are durable before a record refers to them.
    An append has exactly the rows that Spark's job wrote.
    Settings of the user's session change neither the format nor the values of parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import LongType, StructField

from shardline.datasource.arguments import (
    Pathname,
    names_of,
    option_text,
    place_options,
    store_options,
    writer_number,
)
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Indeterminate, InvalidUsage, MissingBlob, ShardError
from shardline.datasource.ids import check_owner_name, new_id
from shardline.datasource.parts.fetch import Fetcher
from shardline.datasource.parts.stage import Staged, Stager, delete_blobs
from shardline.datasource.shard.batch import Part, Run
from shardline.datasource.shard.covered_range import of_text
from shardline.datasource.shard.plan import PlannedPart, TimeFilter
from shardline.datasource.shard_sink.append import append_staged, give_attempt_up
from shardline.datasource.shard_sink.envelope import with_shard_spelling
from shardline.datasource.shard_sink.frame_columns import assign_roles
from shardline.datasource.shard_sink.target import WriteTarget, find_shard, resolve_target
from shardline.datasource.shard_source.options import SinkOptions, parse_sink
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.spark_native.blob_paths import hadoop_url, reaches_object, was_reached
from shardline.datasource.spark_native.classic_session import check_classic
from shardline.datasource.spark_native.footers import DescribedPart, PartDescriber
from shardline.datasource.spark_native.jvm import (
    as_active,
    clone_session,
    delete_directory,
    is_observed,
)
from shardline.datasource.spark_native.local_sync import sync_path
from shardline.datasource.spark_native.micro_batch import covers_of
from shardline.datasource.spark_native.running_batch import current_micro_batch
from shardline.datasource.spark_native.task_files import TaskFiles, WrittenFile, WrittenFiles
from shardline.datasource.spark_native.types import (
    can_cast_in_place,
    can_spark_read,
    project,
    quoted,
    sql_name,
    struct_of,
)
from shardline.datasource.stores.shard_names import shard_directory
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.write import WriteHandle

__all__ = [
    "Mode",
    "NativeWrite",
    "plan_native_write",
    "save",
    "stage_in_driver",
    "with_range_of_micro_batch",
]

_log = logging.getLogger(__name__)

T = TypeVar("T")

Mode = Literal["append", "overwrite"]

_NOT_WRITABLE: Final = (
    "Mkdirs failed",
    "Parent path is not a directory",
    "Permission denied",
    "Read-only file system",
)
"""Words of Hadoop and the system where a file cannot be made."""

_SESSION_SETTINGS: Mapping[str, str] = {
    # The format of parts is fixed, whatever the session writes elsewhere.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    "spark.sql.variant.writeShredding.enabled": "false",
    "spark.sql.variant.inferShreddingSchema": "false",
}

_WRITER_OPTIONS: Mapping[str, str] = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    # A dictionary of what hardly repeats makes a file greater and its reads slower, and this writer
    # does not look ahead: it gives one up when it is full, by default with 1 MB. A small one stays
    # in a processor's cache, too. TPC-H lineitem: 4 % fewer bytes, read in 0.95 of the time.
    "parquet.dictionary.page.size": str(256 << 10),
    # By default 20,000, which are small pages of numbers, and each is decompressed by a call of its
    # own. Filters skip whole pages, so there is a limit.
    "parquet.page.row.count.limit": str(1 << 16),
    # A bloom filter takes -0.0 and 0.0 for two values, and SQL for one.
    "parquet.bloom.filter.enabled": "false",
    # Nothing else would tell of a damaged value: these parts have no checksum of the whole file.
    "parquet.page.write-checksum.enabled": "true",
    # On a local disk: no checksum file beside each file.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}

_ROW_GROUPS = 8
"""Size of a row group of Spark's writer, in row groups of ours. It begins its dictionaries anew in
each, which takes a tenth of its time at our size; and Spark skips pages inside of a row group."""

_LONGS = {name: StructField(name, LongType(), nullable=False) for name in (TS, DIFF)}

_THREADS = 8
"""Footers read at once by the driver."""

_FEW_ROWS = 512
"""Rows that the driver stages once more, so that no reader has to open a file for them."""

_FEW_BYTES = 64 << 10
"""Their size as Parquet that is not compressed. It has a value once for all rows that have it, so
they may be `_FEW_ROWS` times as large in memory."""

_FEW_FILES = 16
"""Files that it reads for that: each is a request."""


def save(
    frame: DataFrame,
    path: Pathname | None = None,
    *,
    location: Pathname | None = None,
    shard: str | None = None,
    mode: Mode = "append",
    txn: tuple[str, int] | None = None,
    key: Sequence[str] | None = None,
    merge_schema: bool = False,
    storage: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
) -> None:
    """Append a frame to a shard, encoded by Spark's own Parquet writer; creates a missing shard.

    The same rows, checks and guarantees as `frame.write.format("shard")`: all of them or none, at
    one time, and with `txn` exactly once, which `foreachBatch` needs:

        shardline.save(frame, path, txn=("orders-in", batch_id))

    If Spark cannot write the location or a type by itself, if the frame is observed, and to
    overwrite, this makes that call by Python workers.

    Args:
        frame: Columns by name; `_diff` and `_ts` make its rows updates.
        path: Location and shard in one; or give the next two.
        location: URL of the persist location.
        shard: Name of the shard.
        mode: "append"; or "overwrite": replace the contents by one atomic difference.
        txn: Name of a durable writer, and a number greater than all it used before. A number that
            was committed is not written again. In `foreachBatch` it stands for the micro-batch's
            range of the query: with another range it is an error (`OTHER_RANGE`). Elsewhere option
            `txnRange` sets the range.
        key: The shard's key, if this write creates it.
        merge_schema: Evolve the shard's schema to take new columns and wider types.
        storage: Options of the store, such as `s3.endpoint`.
        options: Any other option of the format for a batch write.

    Raises:
        InvalidUsage: The frame does not fit the shard; names the column. Nothing was written.
        Determinate: It certainly did not happen.
        Indeterminate: It may have happened: with `txn`, call again with the same.
    """
    check_classic(frame, "save", "frame.write.format('shard')")
    given = {name: option_text(value) for name, value in (options or {}).items()}
    given |= store_options("storage", storage)
    given |= place_options(path, location, shard)
    given |= {"key": ",".join(names_of("key", key))} if key is not None else {}
    given |= {"mergeSchema": "true"} if merge_schema else {}
    if txn is not None:
        writer, number = writer_number("txn", txn)
        given |= {"txnAppId": writer, "txnVersion": str(number)}
    given = with_range_of_micro_batch(given, frame.sparkSession)
    parsed = parse_sink(given)
    if mode == "append" and parsed.save_mode in (None, "append"):
        saving = plan_native_write(frame, parsed)
        if saving is not None:
            saving.run()
            return
        _log.info("rows are written by Python workers: Spark cannot write them by itself")
        given["nativeWrites"] = "false"  # the rule of appends would only find the same
    # A thread that somebody has started has none, and Spark would not find the format.
    with as_active(frame.sparkSession):
        frame.write.format("shard").options(**given).mode(mode).save()


def with_range_of_micro_batch(options: Mapping[str, str], spark: SparkSession) -> dict[str, str]:
    """Options of a numbered write, with the range that its number stands for where none is said.

    Called in the driver: tasks and helper processes know no more of a query's checkpoint than the
    name of a folder, if that.

    Args:
        options: Options of the write.
        spark: The session of the frame; in `foreachBatch` in the thread of that call.
    """
    parsed = parse_sink(options)
    if parsed.txn_app_id is None or parsed.txn_range is not None or parsed.txn_covers:
        return dict(options)
    covers = covers_of(spark)
    return {**options, "txnCovers": covers} if covers else dict(options)


def plan_native_write(
    frame: DataFrame, options: SinkOptions, target: WriteTarget | None = None
) -> NativeWrite | None:
    """Prepare the native write of `frame`; None if only Arrow tasks can write it.

    Args:
        frame: The rows to write.
        options: Options of the write.
        target: The result of `resolve_target` for this frame; None calls it.
    """
    client = open_client(options, create=True)
    root = hadoop_url(frame.sparkSession, client.location.url)
    if root is None or options.envelope not in ("append", "diff") or not options.native_writes:
        return None
    if is_observed(frame):
        return None
    described = assign_roles(options, frame.schema) if target is None else target.frame
    target = target or resolve_target(client, options, described, find_shard(client, options.shard))
    schema = ShardSchema.parse(target.schema)
    rows = with_shard_spelling(ShardSchema.parse(described.rows), schema)
    fits = all(
        can_cast_in_place(field.type, schema.field(field.name).type) for field in rows.record.fields
    )
    if not fits or not can_spark_read(schema, schema):
        return None
    if not was_reached(root, options.storage) and not _reaches(frame, client, options, root):
        _log.warning("Spark's file system does not reach '%s': Python workers write", root)
        return None
    return NativeWrite(frame, options, client, target, schema, root)


def _reaches(frame: DataFrame, client: ShardClient, options: SinkOptions, root: str) -> bool:
    """True if Spark's file system finds a blob that the shard's own client has just written.

    Its credentials and its endpoint are others, and a bucket of the same name may be elsewhere.
    """
    key = _probe_key(client, options)
    content = b"Is this store the one that Spark writes to?"
    client.location.blob.set(key, content)
    try:
        return reaches_object(frame.sparkSession, root, options.storage, key, len(content))
    finally:
        delete_blobs(client.location.blob, [key])


def _probe_key(client: ShardClient, options: SinkOptions) -> str:
    """The key of an object that shows if one can be written."""
    # Where parts are, so that the sweep deletes it if this process is killed meanwhile.
    return f"{shard_directory(options.shard)}/part/{new_id('p', client.ids)}.parquet"


def _call(function: Callable[[], T]) -> T:
    return function()


@dataclass(frozen=True)
class NativeWrite:
    """One write of one frame."""

    frame: DataFrame
    options: SinkOptions
    client: ShardClient
    target: WriteTarget
    schema: ShardSchema
    root: str

    def run(self, call: Callable[[Callable[[], Staged]], Staged] = _call) -> None:
        """Write the files, then append them; nothing if the number was committed before.

        Args:
            call: Calls the function that runs Spark's job. What it raises comes before the append.
        """
        attempt = new_id("t", self.client.ids)
        handle = self._handle(attempt)
        sequence = self.options.txn_version or 0
        # Only saves the job: the append itself refuses a number that was committed meanwhile. In
        # `foreachBatch` the job has to run: a query that keeps state counts on its tasks to commit
        # that, and would fail where a micro-batch is repeated after a crash.
        committed = handle.durable and handle.committed(sequence) is not None
        if committed and current_micro_batch(self.frame.sparkSession) is None:
            return
        staged = call(partial(self.stage, attempt))
        self._append(handle, staged, sequence, attempt)

    def _append(self, handle: WriteHandle, staged: Staged, sequence: int, attempt: str) -> None:
        timed = self.target.frame.timed
        try:
            append_staged(handle, staged, timed=timed, sequence=sequence, attempt=attempt)
        except Indeterminate:
            # As Spark asks of a writer whose commit has failed: afterwards it was committed, or it
            # never will be. A request that is still under way must not land after the caller has
            # looked, and written the rows again.
            with suppress(ShardError):
                give_attempt_up(handle, staged, sequence=sequence, attempt=attempt)
            raise

    def stage(self, attempt: str) -> Staged:
        """Write the files of `attempt`; no record refers to them yet."""
        begun_ms = self.client.clock.now_ms()
        try:
            written = self._write(self.url_of(attempt))
            return self._staged(self._directory(attempt), begun_ms, written)
        except BaseException as error:
            # Safe for any error: nothing was appended yet, so no record can name the files.
            self.delete_files(attempt)
            self._check_writable(error)
            raise

    def _check_writable(self, error: BaseException) -> None:
        """Raise the store's own error if `error` is that of a place where nothing can be written.

        Spark's names a folder of an attempt, in a trace of the JVM.
        """
        if not any(words in str(error) for words in _NOT_WRITABLE):
            return
        key = _probe_key(self.client, self.options)
        try:
            self.client.location.blob.set(key, b"")
        except ShardError as refusal:
            raise refusal from error
        delete_blobs(self.client.location.blob, [key])

    def append_written(
        self,
        attempt: str,
        begun_ms: int,
        written: WrittenFiles,
        *,
        writer: str,
        sequence: int,
        covers: str,
    ) -> None:
        """Append the files of an attempt that a query of Spark has written by itself.

        Args:
            attempt: Its id; the files are at `url_of` it.
            begun_ms: A time before the first of them was.
            written: What Spark has written there.
            writer: The writer, whose number it is.
            sequence: The writer's number of this append.
            covers: The range that the number stands for.
        """
        try:
            staged = self._staged(self._directory(attempt), begun_ms, written)
        except BaseException:
            self.delete_files(attempt)  # as above
            raise
        handle = self._handle_of(writer, durable=True, covers=covers)
        self._append(handle, staged, sequence, attempt)

    def url_of(self, attempt: str) -> str:
        """The directory of an attempt's files, for Spark."""
        return f"{self.root}/{self._directory(attempt)}"

    def delete_files(self, attempt: str) -> None:
        """Delete the files of an attempt that no record can name."""
        delete_directory(self.frame.sparkSession, self.url_of(attempt))

    def _directory(self, attempt: str) -> str:
        return f"{shard_directory(self.options.shard)}/part/{attempt}"

    def _handle(self, attempt: str) -> WriteHandle:
        name = self.options.txn_app_id
        return self._handle_of(
            f"job:{attempt}" if name is None else check_owner_name("writer", f"app:{name}"),
            durable=name is not None,
            covers=self.options.txn_covers or of_text(self.options.txn_range or ""),
        )

    def _handle_of(self, writer: str, *, durable: bool, covers: str) -> WriteHandle:
        return WriteHandle(
            machine=self.client.machine(self.options.shard),
            shard=self.target.shard,
            schema=self.schema,
            schema_id=self.target.schema_id,
            key=self.target.key,
            writer=writer,
            durable=durable,
            redirect=self.client.redirect(self.options.shard),
            covers=covers,
        )

    def _write(self, url: str) -> WrittenFiles:
        """Run Spark's job."""
        return self.files_at(url, self.rows_in_order).write()

    def files_at(self, url: str, rows: DataFrame) -> TaskFiles:
        """A write of `rows`, which are `rows_in_order`, to the folder `url`."""
        settings = clone_session(self.frame, _SESSION_SETTINGS)
        return TaskFiles(rows, settings, self._writer_options(rows), url)

    def _writer_options(self, rows: DataFrame) -> Mapping[str, str]:
        """The options of Spark's writer for `rows_in_order`."""
        settings = self.options.settings
        width = rows._jdf.schema().defaultSize()  # noqa: SLF001 - Spark's own guess at a row
        per_file = max(settings.row_group_rows, settings.part_buffer_bytes // width)
        return {
            **_WRITER_OPTIONS,
            "maxRecordsPerFile": str(per_file),
            "parquet.block.row.count.limit": str(settings.row_group_rows * _ROW_GROUPS),
        }

    @property
    def rows_in_order(self) -> DataFrame:
        """The rows as they are to be in files: without those of diff 0, each task's by the key."""
        rows = self.rows
        if DIFF in map(str.lower, self.frame.columns):
            # They change nothing, and would look like rows of a part, as in `Stager`.
            rows = rows.where(f"{DIFF} <> 0L")
        if self.target.key:
            rows = rows.sortWithinPartitions(*map(quoted, self.target.key))
        return rows

    @property
    def rows(self) -> DataFrame:
        """The rows to write: the shard's columns, `_ts` if the frame has it, and `_diff`."""
        return project(self.frame, self._columns())

    def _columns(self) -> list[Column | str]:
        """Expressions of the shard's columns, of `_ts` if the frame has it, and of `_diff`."""
        found = {field.name.lower(): field for field in self.frame.schema.fields}
        columns = [
            _shard_column(found.get(field.name.lower()), field)
            for field in struct_of(self.schema.record).fields
        ]
        times = [_shard_column(found[TS], _LONGS[TS])] if self.target.frame.timed else []
        diffs = _shard_column(found[DIFF], _LONGS[DIFF]) if DIFF in found else f"1L AS {DIFF}"
        return [*columns, *times, diffs]

    def _staged(self, directory: str, begun_ms: int, written: WrittenFiles) -> Staged:
        """Describe the files and make them durable; files without rows are deleted.

        Raises:
            InvalidUsage: `ROWS_ELSEWHERE`: they are not there, or have not the rows of Spark's job.
        """
        blob = self.client.location.blob
        settings = self.options.settings
        first = self.target.key[:1] or self.schema.names[:1]
        describer = PartDescriber(
            blob, self.schema, self.target.schema_id, first, settings.stats_bytes
        )
        local = self.root.removeprefix("file:") if self.root.startswith("file:") else None

        def describe(file: WrittenFile) -> DescribedPart | None:
            key = f"{directory}/{file.name}"
            # Spark does not sync what it writes. A record that survives a power cut must not refer
            # to a file that did not; object stores have no such gap.
            if local is not None:
                sync_path(f"{local}/{key}")
            return describer.describe(key, file.size_bytes)

        try:
            with ThreadPoolExecutor(_THREADS, "footers") as pool:
                found = list(pool.map(describe, written.files))
        except (FileNotFoundError, MissingBlob) as error:
            raise self._elsewhere(directory, written, str(error)) from error
        described = [one for one in found if one is not None]
        parts = [one.part for one in described]
        rows = sum(part.rows for part in parts)
        # Spark went to the files through Hadoop, on whichever machines ran its tasks, and these are
        # read by the shard's own client. An append of what only one of both sees loses the rest.
        if rows != written.rows:
            raise self._elsewhere(directory, written, f"the files there have {rows} rows")
        if local is not None:
            # With the folder of the shard itself: Spark may have made `part` in it.
            for place in (directory, *map(str, list(Path(directory).parents)[:2])):
                sync_path(f"{local}/{place}")
        empty = [file for file, one in zip(written.files, found, strict=True) if one is None]
        delete_blobs(blob, [f"{directory}/{file.name}" for file in empty])
        plain_bytes = sum(one.plain_bytes for one in described)
        if parts and rows <= _FEW_ROWS and len(parts) <= _FEW_FILES and plain_bytes <= _FEW_BYTES:
            return self._staged_again(parts)
        return Staged(
            tuple(Run((part,), "none") for part in parts),
            begun_ms,
            rows,
            sum(part.size_bytes for part in parts),
        )

    def _elsewhere(self, directory: str, written: WrittenFiles, found: str) -> InvalidUsage:
        return InvalidUsage(
            f"Spark wrote {written.rows} rows to '{self.root}/{directory}', and the shard's store "
            f"does not have them: {found}; nothing was appended",
            code="ROWS_ELSEWHERE",
            hint="let executors share the disk of a file:// location, and let Spark's "
            "fs.s3a.endpoint name the store of s3.endpoint; or write by frame.write with "
            "nativeWrites=false, whose tasks use the options of the store",
        )

    def _staged_again(self, parts: Sequence[Part]) -> Staged:
        """Few rows as one part in order, in the state if they are tiny; Spark's files are deleted.

        As the tasks of the Python workers leave them: each reader would have to open each file.
        """
        blob, timed = self.client.location.blob, self.target.frame.timed
        fetcher = Fetcher(blob, {self.target.schema_id: self.schema}, self.schema)
        batches = [
            batch
            for part in parts
            # Without times in the rows any time will do: none is asked for, and all pass.
            for batch in fetcher.fetch(
                PlannedPart(
                    part if timed else msgspec.structs.replace(part, ts=0),
                    TimeFilter(None, None),
                    ordered=False,
                ),
                with_ts=timed,
                with_diff=True,
            )
        ]
        staged = stage_in_driver(
            self.client, self.options, self.target, pa.Table.from_batches(batches)
        )
        delete_blobs(blob, [part.key for part in parts])
        return staged


def _shard_column(found: StructField | None, wanted: StructField) -> Column | str:
    """A column of the frame under the shard's name and type; SQL text where possible."""
    if found is None:
        return F.lit(None).cast(wanted.dataType).alias(wanted.name)
    if found.dataType == wanted.dataType and (wanted.nullable or not found.nullable):
        return f"{sql_name(found.name)} AS {sql_name(wanted.name)}"
    column = quoted(found.name)
    if found.dataType != wanted.dataType:
        column = column.cast(wanted.dataType)
    if found.nullable and not wanted.nullable:
        refusal = InvalidUsage(
            f"column '{wanted.name}' has nulls but is not nullable",
            code="NULL_VALUE",
            hint="filter or fill them, or evolve the column to nullable",
        )
        column = F.coalesce(column, F.raise_error(F.lit(str(refusal))).cast(wanted.dataType))
    return column.alias(wanted.name)


def stage_in_driver(
    client: ShardClient, options: SinkOptions, target: WriteTarget, updates: pa.Table
) -> Staged:
    """Stage rows of a shard by this process, as one part: in the state if they are tiny.

    Args:
        client: A client of the shard's location.
        options: Options of the write.
        target: The shard.
        updates: The shard's columns, `_diff`, and `_ts` if the rows carry their times.
    """
    stager = Stager(
        blob=client.location.blob,
        directory=shard_directory(options.shard),
        schema=ShardSchema.parse(target.schema),
        schema_id=target.schema_id,
        key=target.key,
        settings=options.settings,
        clock=client.clock,
        ids=client.ids,
    )
    return stager.stage([updates] if updates.num_rows else [])
