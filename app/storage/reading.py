"""A reading opens a source as a stream of Spark, and decodes its micro-batches.

    reading = Reading.open(host, description, origin)
    reading.stream.writeStream.foreachBatch(…)
    with reading.decoded(frame, number) as decoded:       in `foreachBatch`

By itself Spark makes nulls of a row that it cannot decode, drops it or fails, and its rows have no
order. A source needs both: bad rows as data, and an order in which one row replaces another.

Rows that may be bad are counted before they are staged. A few of them are collected by one task,
and are counted here; more are cached by Spark, which counts them as it fills its cache.

Each row has its position in the source where rows replace one another: for files the file's time of
change, its path and the place in it, for Kafka the offset, which means something within a partition
(`kafka`), else the order in which Spark's partitions have the rows.

Rows of text formats that cannot be decoded, or lack what the source needs (`unfit_rows`), are
marked, unless the source sets the option `mode` itself: then Spark drops the former or fails, as
the option says. What becomes of marked rows is the option `onBadRow` (`bad_rows`).

Invariants:
    The same micro-batch gives the same rows at the same positions whenever it is run.
    Rows that are needed twice are read once.
    Columns that are added here (`_shardline_…`) never reach the source's shard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.storagelevel import StorageLevel

from shardline import datasource
from shardline.app.execution.host import Host
from shardline.app.protocol.objects import SourceDescription, reads_shards
from shardline.app.storage.bad_rows import (
    DECODED_FORMATS,
    ON_BAD_ROW,
    OnBadRow,
    on_bad_row,
    plain_path,
)
from shardline.app.storage.formats import ADDED, READ_FILES
from shardline.app.storage.generators import register, spark_format, with_start
from shardline.app.storage.kafka import is_kafka, with_defaults, with_marks
from shardline.app.storage.reclock import Origin
from shardline.app.storage.source_holds import with_hold
from shardline.app.storage.unfit_rows import with_unfit_marked, with_unfit_refused
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frames import (
    MicroBatchFiles,
    collect_few,
    empty_frame,
    has_same_arrow_types,
    local_relation,
    micro_batch_files,
    struct_of,
)
from shardline.datasource.java_names import java_class
from shardline.datasource.schema import DIFF, TS, ShardSchema
from shardline.datasource.sink import (
    FrameRoles,
    SinkOptions,
    assign_roles,
    find_shard,
    parse_sink,
    resolve_target,
)

__all__ = [
    "CORRUPT",
    "FILE",
    "POSITION",
    "Counts",
    "Decoded",
    "Reading",
    "UnusablePlan",
    "check_roles",
    "infer_columns",
    "write_options",
]

_TEXT: Final = DECODED_FORMATS

_INFERRED: Final = _TEXT | {"avro", "orc", "parquet"}
"""Formats whose columns Spark infers from the files if the source does not name them."""

_BINARY: Final = frozenset({"avro", "orc", "parquet"})
"""Formats whose files begin with some bytes, also where they have no rows."""

_ANY_AGE: Final = "36500d"

_OURS: Final = {"orderingcolumn": "orderingColumn", "deletecolumn": "deleteColumn"}
"""Options of a source that are about its envelope, and not for Spark's format."""

CORRUPT: Final = f"{ADDED}corrupt"
"""Column of a decoded micro-batch: the row as it came, if it cannot be decoded; else null."""

POSITION: Final = f"{ADDED}position"
"""Column of a decoded micro-batch: where in the source the row is, as text that sorts like it."""

_CHANGED, _PATH, _BLOCK, _SIZE = (f"{ADDED}{n}" for n in ("changed", "path", "block", "size"))
_DIGITS: Final = 20

_FEW_BYTES: Final = 1 << 20
"""Files of a micro-batch up to which it is expected to have no more than `_FEW_ROWS`."""

_FEW_FILES: Final = 16
"""Files that one task opens; of more of them all cores are to wait."""

_FEW_ROWS: Final = 65_536
"""Rows that are collected by this process; as Arrow they may have `BYTES_MAX`."""

FILE: Final = _PATH
"""Column of a decoded micro-batch whose errors are marked: the file that has the row."""

_TOMBSTONE: Final = "null"
"""An event without contents: Debezium sends one after each delete, for Kafka's log compaction."""

_NEVER_NULL: Final = re.compile(r'"(nullable|containsNull|valueContainsNull)":false')
"""In a schema as JSON: a column, or a value within one, that Spark takes for never NULL."""

_GLOB: Final = frozenset("{}[]*?\\")


def infer_columns(spark: SparkSession, description: SourceDescription) -> str:
    """Infer the columns of a source of files, as JSON text; "" if they are named, or no files.

    Raises:
        AnalysisException: There are no files to infer them from.
    """
    name = description.format.lower()
    if description.schema or name not in _INFERRED:
        return ""
    given, _ = _split(description.options)
    found = spark.read.format(name).options(**given).load().schema
    return found.json()


class UnusablePlan(Determinate):
    """A micro-batch cannot be read as it was planned; unless it is bound it is planned again."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The size of a micro-batch as it was read.

    Attributes:
        messages: Number of rows, good and bad; None where they are counted while they are staged.
        errors: How many of them cannot be decoded.
        size_bytes: Size of their files; None where it is not known.
    """

    messages: int | None = None
    errors: int = 0
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded micro-batch.

    Attributes:
        rows: All rows, with the columns of the source, and `POSITION`, `CORRUPT` and `FILE` where
            they are needed.
        counts: How many there are.
        bytes_max: What its files may have in them, before they are read; 0 if it has none.
    """

    rows: DataFrame
    counts: Counts
    bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """A source as a stream.

    Attributes:
        stream: The frame that Spark reads, with the columns that are added here.
        options: Of the write to the source's shard.
        description: Of the source.
        bad_rows: What becomes of rows that cannot be decoded.
    """

    stream: DataFrame
    options: SinkOptions
    description: SourceDescription
    bad_rows: OnBadRow = "keep"

    @classmethod
    def open(cls, host: Host, description: SourceDescription, origin: Origin) -> Reading:
        """Open the stream of a source; makes or evolves its shard for the stream's columns.

        Raises:
            InvalidUsage: An option, a column or the envelope does not fit; names it.
        """
        bad_rows = on_bad_row(description)
        held = with_hold(description, host.client.location.id)
        stream = _stream(host.spark, held, origin)
        reading = cls(stream, write_options(host, description), description, bad_rows)
        reading._make_shard(host)
        return reading

    @property
    def columns(self) -> list[StructField]:
        """Columns of the source itself."""
        return [field for field in self.stream.schema if not field.name.startswith(ADDED)]

    @property
    def marks_errors(self) -> bool:
        """True if rows that cannot be decoded are marked."""
        return CORRUPT in self.stream.columns

    @property
    def replaces_by_key(self) -> bool:
        """True if a row replaces the one of its key."""
        return self.description.envelope in ("upsert", "debezium")

    @contextmanager
    def decoded(
        self, frame: DataFrame, number: int, planned: Sequence[str] = ()
    ) -> Iterator[Decoded]:
        """Decode a micro-batch; its rows may be used until the context ends.

        Rows that are needed twice, to be counted and to be staged, are kept until then: a source
        that is read a second time may have other rows.

        Args:
            frame: As `foreachBatch` was given it.
            number: Spark's number of the micro-batch.
            planned: URLs of its files, as the source's log has them.

        Raises:
            UnusablePlan: A file is not there any more, or would be read several times.
            Determinate: `FAILED_READ_FILE`: a file has no byte, and its format is one of which no
                file has none.
        """
        reads_files = self.description.format.lower() in READ_FILES
        files = micro_batch_files(frame, number) if reads_files else None
        if files is not None:
            self._refuse_missing_files(frame, files, planned)
            self._refuse_repeated_files(files, planned)
            self._refuse_empty_files(frame, files)
        rows = frame.withColumn(POSITION, _position(frame)) if self.replaces_by_key else frame
        if self.replaces_by_key and is_kafka(self.description.format):
            rows = with_marks(rows, ordered=self.options.ordering_column is not None)
        bytes_max = 0 if files is None else files.size_bytes()
        if not self.marks_errors:
            yield Decoded(rows.drop(_CHANGED, _PATH, _BLOCK, _SIZE), Counts(), bytes_max)
            return
        few = self._few(rows, len(planned), bytes_max)
        if few is not None:
            yield few
            return
        kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            found = _counted(kept)
            yield Decoded(kept.drop(_CHANGED, _BLOCK, _SIZE), found, bytes_max)
        finally:
            kept.unpersist()

    def _few(self, rows: DataFrame, files: int, bytes_max: int) -> Decoded | None:
        """A micro-batch of files, read into this process; None if it is not small."""
        # Rows that replace others are staged by tasks, whatever is known of them here.
        if self.replaces_by_key or files > _FEW_FILES:
            return None
        # Where there are more rows than it says, files are read once more. And it bounds the
        # memory: all rows up to the limit are there before their bytes are counted.
        if bytes_max > _FEW_BYTES:
            return None
        columns = StructType([one for one in self.columns if one.name not in {TS, DIFF}])
        described = columns.json()
        # A session may have Spark trust columns NOT NULL: rows that lack one are found here first.
        if _NEVER_NULL.search(described):
            return None
        if not has_same_arrow_types(columns, ShardSchema.parse(described)):
            return None
        # Nobody reads the other side's clock (`good`), and Arrow need not have its type.
        rows = rows.drop(TS)
        # One task reads them all: a limit over several would have an exchange.
        table = collect_few(rows.coalesce(1), _FEW_ROWS)
        if table is None:
            return None
        spark, batches = rows.sparkSession, table.to_batches()
        local = local_relation(spark, batches, rows.schema) if batches else None
        found = empty_frame(spark, rows.schema) if local is None else local
        return Decoded(found.drop(_CHANGED, _BLOCK, _SIZE), _count(table), bytes_max)

    def _refuse_missing_files(
        self, frame: DataFrame, files: MicroBatchFiles, planned: Sequence[str]
    ) -> None:
        """Stop before a file that was there when the micro-batch was planned.

        Spark leaves it out, whatever its options say, and takes it for read: one that was moved
        away, or whose disk was not there for a while, would never come.
        """
        ignored = self._ignores(frame, "ignoreMissingFiles")
        missing = [] if ignored else files.missing(planned)
        if missing:
            raise UnusablePlan(
                f"{plain_path(missing[0])} is not there any more, and belongs to the micro-batch"
                f"{_and_others(missing, 'do')}",
                code="FAILED_READ_FILE",
                hint="put it back where it was, and the source goes on by itself; or set the "
                "option ignoreMissingFiles to 'true', and it goes on without the file",
            )

    @staticmethod
    def _refuse_repeated_files(files: MicroBatchFiles, planned: Sequence[str]) -> None:
        """Stop before a file beside which Spark reads others again: their rows would come twice."""
        repeated = files.repeated()
        if repeated:
            named = [url for url in planned if not _GLOB.isdisjoint(unquote(url))]
            raise UnusablePlan(
                f"{plain_path([*named, *repeated][0])} has one of the characters "
                f"{''.join(sorted(_GLOB))} in its path{_and_others(named, 'have')}: Spark would "
                "read other files of the micro-batch again for it",
                code="FAILED_READ_FILE",
                hint="rename it without these characters, and the source goes on by itself",
            )

    def _refuse_empty_files(self, frame: DataFrame, files: MicroBatchFiles) -> None:
        """Stop before a file that somebody has opened and not written yet.

        Spark leaves it out and takes it for read, so that its rows would never come.
        """
        kind = self.description.format
        ignored = kind.lower() not in _BINARY or self._ignores(frame, "ignoreCorruptFiles")
        empty = [] if ignored else files.empty()
        if empty:
            raise Determinate(
                f"{plain_path(empty[0])} has 0 bytes, which is no file of format {kind}"
                f"{_and_others(empty, 'have')}",
                code="FAILED_READ_FILE",
                hint="write the whole file, and the source goes on by itself; to write files "
                "elsewhere and move them here keeps it from being seen half-written",
            )

    def _ignores(self, frame: DataFrame, option: str) -> bool:
        """True if an option of files is set, by the source or by the session."""
        given = {name.lower(): text for name, text in self.description.options.items()}
        default = frame.sparkSession.conf.get(f"spark.sql.files.{option}")
        return given.get(option.lower(), str(default)).strip().lower() == "true"

    @staticmethod
    def first_bad_row(decoded: Decoded) -> tuple[str, str | None]:
        """The text and the file of a row that cannot be decoded, of a micro-batch that has some.

        Of the first file that has any, the first row.
        """
        place = f"{ADDED}place"
        bad = decoded.rows.where(F.col(CORRUPT).isNotNull())
        bad = bad.select(CORRUPT, FILE, F.monotonically_increasing_id().alias(place))
        # The place as well: among equals a sort for its first row has any of them.
        row = bad.orderBy(FILE, place).first()
        assert row is not None, "it was counted"
        return row[CORRUPT], row[FILE]

    def good(self, decoded: Decoded) -> DataFrame:
        """The rows of a micro-batch for the source's shard: those that could be decoded."""
        rows = decoded.rows
        if self.marks_errors:
            rows = rows.where(F.col(CORRUPT).isNull()).drop(CORRUPT, FILE)
        return rows.drop(TS) if self.description.envelope == "diff" else rows

    def _make_shard(self, host: Host) -> None:
        """Make or evolve the shard from the source's own columns."""
        frame = _roles(self.description, self.columns, self.options)
        options = replace(self.options, merge_schema=True)
        resolve_target(host.client, options, frame, find_shard(host.client, self.description.name))
        host.client.set_retention(self.description.name, self.description.retain_ms)


def check_roles(description: SourceDescription, columns: StructType) -> None:
    """Refuse columns in which what the source's envelope and its options name is not, or not so.

    Raises:
        InvalidUsage: Names the column or the option.
    """
    _, ours = _split(description.options)
    # The place says nothing of columns, and is known only where the source runs.
    place = {"location": ".", "shard": description.name}
    options = parse_sink({**ours, **place, **_envelope_options(description)})
    _roles(description, columns.fields, options)


def _roles(
    description: SourceDescription, own: Sequence[StructField], options: SinkOptions
) -> FrameRoles:
    """The roles of a source's own columns."""
    if description.envelope == "diff":
        own = [field for field in own if field.name != TS]
    elif description.envelope == "none":
        _refuse_reserved(description, own)
    return assign_roles(options, StructType([*own]))


def _refuse_reserved(description: SourceDescription, own: Sequence[StructField]) -> None:
    names = {field.name for field in own} & {TS, DIFF}
    if names:
        raise InvalidUsage(
            f"source '{description.name}' has the column '{min(names)}', and its envelope 'none' "
            "takes no changes",
            code="ENVELOPE_MISMATCH",
            hint="use ENVELOPE DIFF if the rows say what they change, or rename the column",
        )


def write_options(host: Host, description: SourceDescription) -> SinkOptions:
    """The options of the write to a source's shard, with those of its envelope.

    Raises:
        InvalidUsage: An option does not fit the envelope; names it.
    """
    _, ours = _split(description.options)
    place = {"location": host.client.location.url, "shard": description.name}
    return parse_sink({**host.storage, **ours, **place, **_envelope_options(description)})


def _envelope_options(description: SourceDescription) -> dict[str, str]:
    envelope = "append" if description.envelope == "none" else description.envelope
    key = {"key": ",".join(description.key)} if description.key else {}
    return {"envelope": envelope, **key}


def _split(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split options into those of the format and those of the envelope; `onBadRow` is neither."""
    ours = {_OURS[n.lower()]: text for n, text in options.items() if n.lower() in _OURS}
    others = {*_OURS, ON_BAD_ROW}
    return {n: text for n, text in options.items() if n.lower() not in others}, ours


# --- reading -----------------------------------------------------------------------------------


def _stream(spark: SparkSession, description: SourceDescription, origin: Origin) -> DataFrame:
    name = description.format
    register(spark)
    if reads_shards(description):
        datasource.register(spark)
    given, _ = _split(description.options)
    given = with_start(name, given, origin.start_ms)
    if is_kafka(name):
        given = with_defaults(given)
    if name.lower() in READ_FILES:
        given = _of_any_age(_streamable(spark, given))
    reader = spark.readStream.format(spark_format(name))
    columns = _columns(description, origin)
    decodes = name.lower() in _TEXT and "mode" not in {option.lower() for option in given}
    if columns is not None:
        reader = reader.schema(columns.add(CORRUPT, StringType()) if decodes else columns)
    if decodes:
        given |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    stream = reader.options(**given).load()
    if name.lower() not in READ_FILES:
        return stream
    if decodes:
        if description.envelope == "debezium":
            stream = stream.where(~F.col(CORRUPT).eqNullSafe(_TOMBSTONE))
        stream = with_unfit_marked(stream, description, CORRUPT)
    stream = stream.select(
        "*",
        F.col("_metadata.file_modification_time").alias(_CHANGED),
        F.col("_metadata.file_path").alias(_PATH),
        F.col("_metadata.file_block_start").alias(_BLOCK),
        F.col("_metadata.file_size").alias(_SIZE),
    )
    return stream if decodes else with_unfit_refused(stream, description, _PATH)


def _streamable(spark: SparkSession, given: Mapping[str, str]) -> dict[str, str]:
    """`given`, with the path of a single file as a glob: Spark streams folders and globs only."""
    name = next((name for name in given if name.lower() == "path"), None)
    path = "" if name is None else given[name]
    ends = list(re.finditer(r"[^\W_](?=[\W_]*$)", path))
    if name is None or not ends or set(path) & _GLOB or not _is_file(spark, path):
        return dict(given)
    (last,) = ends
    return {**given, name: f"{path[: last.start()]}[{last[0]}]{path[last.end() :]}"}


def _and_others(found: Sequence[str], verb: str) -> str:
    """Of files the first of which was named: how many others there are."""
    return f", and so {verb} {len(found) - 1} others" if len(found) > 1 else ""


def _of_any_age(given: Mapping[str, str]) -> dict[str, str]:
    """`given`, with a `maxFileAge` that no file reaches, unless it has one.

    Spark's own is a week before the newest file: it passes over one that was moved here and has
    kept its old time, and over all later ones once a clock was ahead, and says nothing of it.
    """
    if any(name.lower() == "maxfileage" for name in given):
        return dict(given)
    return {**given, "maxFileAge": _ANY_AGE}


def _is_file(spark: SparkSession, path: str) -> bool:
    session: Any = spark._jsparkSession  # noqa: SLF001 - PySpark has no other door to file systems
    try:
        place = java_class(spark, "org.apache.hadoop.fs.Path")(path)
        system = place.getFileSystem(session.sessionState().newHadoopConf())
        return bool(system.getFileStatus(place).isFile())
    except Py4JJavaError:
        # It does not exist or cannot be reached: Spark's own error, when it reads, is better.
        return False


def _columns(description: SourceDescription, origin: Origin) -> StructType | None:
    """The columns to set on the stream; None if the format has its own."""
    if description.schema:
        return StructType.fromJson(json.loads(StructType.fromDDL(description.schema).json()))
    return struct_of(ShardSchema.parse(origin.schema).record) if origin.schema else None


def _position(frame: DataFrame) -> Column:
    """The position of a row in its source, as text that sorts like the position."""
    row = _padded(F.monotonically_increasing_id())
    names = set(frame.columns)
    if _PATH in names:
        changed = _padded(F.unix_micros(F.col(_CHANGED)))
        return F.concat_ws("|", changed, F.col(_PATH), _padded(F.col(_BLOCK)), row)
    if {"topic", "partition", "offset"} <= names:
        return F.concat_ws("|", _padded(F.col("offset")), _padded(F.col("partition")), "topic")
    return row


def _padded(number: Column) -> Column:
    return F.lpad(number.cast("string"), _DIGITS, "0")


def _count(rows: pa.Table) -> Counts:
    """Count a micro-batch of files that is in this process."""
    sizes = rows.group_by(_PATH).aggregate([(_SIZE, "max")])[f"{_SIZE}_max"]
    bad = rows.num_rows - rows[CORRUPT].null_count
    return Counts(rows.num_rows, bad, pc.sum(sizes).as_py() or 0)


def _counted(kept: DataFrame) -> Counts:
    """Count a micro-batch of files; this is the job that fills its cache."""
    by_file = kept.groupBy(_PATH).agg(
        F.count(F.lit(1)).alias("messages"),
        F.count(CORRUPT).alias("errors"),
        F.max(_SIZE).alias("size"),
    )
    total: Row | None = by_file.agg(
        *(F.coalesce(F.sum(n), F.lit(0)).alias(n) for n in ("messages", "errors", "size"))
    ).first()
    assert total is not None, "an aggregation without keys has one row"
    return Counts(total["messages"], total["errors"], total["size"])
