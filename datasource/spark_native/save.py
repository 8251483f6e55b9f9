"""Writes a frame into a shard by Spark's own Parquet writer: `shardline.save`.

    Spark's job      files under `<shard>/part/<attempt>/`, through Spark's own commit protocol:
                     retried and speculative tasks leave exactly one file each
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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import LongType, StructField

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.ids import check_owner_name, new_id
from shardline.datasource.parts.stage import Staged, delete_blobs
from shardline.datasource.shard.batch import Part, Run
from shardline.datasource.shard.covered_range import of_text
from shardline.datasource.shard_sink.append import append_staged
from shardline.datasource.shard_sink.envelope import with_shard_spelling
from shardline.datasource.shard_sink.frame_columns import assign_roles
from shardline.datasource.shard_sink.target import WriteTarget, find_shard, resolve_target
from shardline.datasource.shard_source.options import SinkOptions, parse_sink
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.spark_native.blob_paths import hadoop_url
from shardline.datasource.spark_native.footers import PartDescriber
from shardline.datasource.spark_native.jvm import (
    clone_session,
    delete_directory,
    rebind_session,
    save_parquet,
)
from shardline.datasource.spark_native.local_sync import sync_path
from shardline.datasource.spark_native.micro_batch import covers_of
from shardline.datasource.spark_native.types import (
    can_cast_in_place,
    can_spark_read,
    project,
    quoted,
    sql_name,
    struct_of,
)
from shardline.datasource.stores.location import BlobEntry
from shardline.datasource.stores.shard_names import shard_directory
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.write import WriteHandle

__all__ = ["Mode", "NativeWrite", "plan_native_write", "save"]

_log = logging.getLogger(__name__)

Mode = Literal["append", "overwrite"]

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
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
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


def save(
    frame: DataFrame,
    path: str | None = None,
    *,
    location: str | None = None,
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

    If Spark cannot write the location or a type by itself, and to overwrite, this makes that call.

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
    given = {name: _option(value) for name, value in (options or {}).items()}
    given |= dict(storage or {})
    named = {"path": path, "location": location, "shard": shard}
    given |= {name: value for name, value in named.items() if value is not None}
    given |= {"key": ",".join(key)} if key is not None else {}
    given |= {"mergeSchema": "true"} if merge_schema else {}
    given |= {"txnAppId": txn[0], "txnVersion": str(txn[1])} if txn is not None else {}
    parsed = parse_sink(given)
    if txn is not None and parsed.txn_range is None and not parsed.txn_covers:
        # Here, in the driver: tasks and helper processes know no more of the query's checkpoint
        # than the name of a folder, if that.
        covers = covers_of(frame.sparkSession)
        given |= {"txnCovers": covers} if covers else {}
        parsed = parse_sink(given)
    if mode == "append" and parsed.save_mode in (None, "append"):
        saving = plan_native_write(frame, parsed)
        if saving is not None:
            saving.run()
            return
        _log.info("rows are written by the Arrow sink: Spark cannot write their location or types")
    frame.write.format("shard").options(**given).mode(mode).save()


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    if root is None or options.envelope not in ("append", "diff"):
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
    return NativeWrite(frame, options, client, target, schema, root)


@dataclass(frozen=True)
class NativeWrite:
    """One write of one frame."""

    frame: DataFrame
    options: SinkOptions
    client: ShardClient
    target: WriteTarget
    schema: ShardSchema
    root: str

    def run(self) -> None:
        """Write the files, then append them; nothing if the number was committed before."""
        attempt = new_id("t", self.client.ids)
        handle = self._handle(attempt)
        sequence = self.options.txn_version or 0
        # Only saves the job: the append itself refuses a number that was committed meanwhile.
        if handle.durable and handle.committed(sequence) is not None:
            return
        staged = self.stage(attempt)
        timed = self.target.frame.timed
        append_staged(handle, staged, timed=timed, sequence=sequence, attempt=attempt)

    def stage(self, attempt: str) -> Staged:
        """Write the files of `attempt`; no record refers to them yet."""
        directory = f"{shard_directory(self.options.shard)}/part/{attempt}"
        begun_ms = self.client.clock.now_ms()
        try:
            written = self._write(f"{self.root}/{directory}")
            return self._staged(directory, begun_ms, written)
        except BaseException:
            # Safe for any error: nothing was appended yet, so no record can name the files.
            delete_directory(self.frame.sparkSession, f"{self.root}/{directory}")
            raise

    def _handle(self, attempt: str) -> WriteHandle:
        name = self.options.txn_app_id
        durable = name is not None
        return WriteHandle(
            machine=self.client.machine(self.options.shard),
            shard=self.target.shard,
            schema=self.schema,
            schema_id=self.target.schema_id,
            key=self.target.key,
            writer=check_owner_name("writer", f"app:{name}") if durable else f"job:{attempt}",
            durable=durable,
            redirect=self.client.redirect(self.options.shard),
            covers=self.options.txn_covers or of_text(self.options.txn_range or ""),
        )

    def _write(self, url: str) -> int:
        """Run Spark's job, whose commit protocol keeps the files of each task exactly once.

        Returns the number of rows that the job wrote.
        """
        rows = self.rows
        if DIFF in map(str.lower, self.frame.columns):
            # They change nothing, and would look like rows of a part, as in `Stager`.
            rows = rows.where(f"{DIFF} <> 0L")
        if self.target.key:
            rows = rows.sortWithinPartitions(*map(quoted, self.target.key))
        settings = self.options.settings
        width = rows._jdf.schema().defaultSize()  # noqa: SLF001 - Spark's own guess at a row
        per_file = max(settings.row_group_rows, settings.part_buffer_bytes // width)
        given = {
            **_WRITER_OPTIONS,
            "maxRecordsPerFile": str(per_file),
            "parquet.block.row.count.limit": str(settings.row_group_rows * _ROW_GROUPS),
        }
        bound = rebind_session(rows, clone_session(rows, _SESSION_SETTINGS))
        return save_parquet(rows.sparkSession, bound, given, url)

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

    def _staged(self, directory: str, begun_ms: int, written: int) -> Staged:
        """Describe the files and make them durable; files without rows are deleted.

        Raises:
            InvalidUsage: `ROWS_ELSEWHERE`: they are not the `written` rows of Spark's job.
        """
        blob = self.client.location.blob
        settings = self.options.settings
        first = self.target.key[:1] or self.schema.names[:1]
        describer = PartDescriber(
            blob, self.schema, self.target.schema_id, first, settings.stats_bytes
        )
        # Not those further down: a task that was given up, as a twin that lost or one of a lost
        # executor, may still write below `_temporary`, and delete what it wrote.
        entries = [
            entry
            for entry in blob.list(f"{directory}/")
            if entry.key.endswith(".parquet") and "/" not in entry.key.removeprefix(f"{directory}/")
        ]
        local = self.root.removeprefix("file:") if self.root.startswith("file:") else None

        def describe(entry: BlobEntry) -> Part | None:
            # Spark does not sync what it writes. A record that survives a power cut must not refer
            # to a file that did not; object stores have no such gap.
            if local is not None:
                sync_path(f"{local}/{entry.key}")
            return describer.describe(entry)

        with ThreadPoolExecutor(_THREADS, "footers") as pool:
            found = list(pool.map(describe, entries))
        rows = sum(part.rows for part in found if part is not None)
        # Spark went to the files through Hadoop, on whichever machines ran its tasks, and these are
        # listed by the shard's own client. An append of what only one of both sees loses the rest.
        # Spark makes at least one file, for no rows as well: no file at all proves another place.
        if not entries or rows != written:
            raise InvalidUsage(
                f"Spark wrote {written} rows to '{self.root}/{directory}', and the shard's store "
                f"has {len(entries)} files with {rows} rows there; nothing was appended",
                code="ROWS_ELSEWHERE",
                hint="let executors share the disk of a file:// location, and let Spark's "
                "fs.s3a.endpoint name the store of s3.endpoint; or write by "
                'frame.write.format("shard"), whose tasks use the options of the store',
            )
        if local is not None:
            # With the folder of the shard itself: Spark may have made `part` in it.
            for place in (directory, *map(str, list(Path(directory).parents)[:2])):
                sync_path(f"{local}/{place}")
        empty = [e.key for e, part in zip(entries, found, strict=True) if part is None]
        delete_blobs(blob, empty)
        parts = [part for part in found if part is not None]
        return Staged(
            tuple(Run((part,), "none") for part in parts),
            begun_ms,
            rows,
            sum(part.size_bytes for part in parts),
        )


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
