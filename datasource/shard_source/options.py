"""Defines the options of `format("shard")`: their meanings, defaults, and which exclude each other.

An option's meaning is documented here and nowhere else. Text is parsed, and unknown options are
refused, by `option_parser.py`.

Invariants:
    Options are parsed in one place and passed on as these values: nothing else reads their text.
    Options that contradict each other are refused before any I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from functools import partial
from typing import Final, Literal, get_args

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.filters.parser import Condition
from shardline.datasource.option_parser import (
    OptionReader,
    parse_count,
    parse_duration,
    parse_flag,
    parse_names,
    parse_number,
    parse_retention,
    parse_size,
    parse_time,
    parse_zone,
)
from shardline.datasource.settings import ShardSettings

__all__ = [
    "Envelope",
    "Feed",
    "SaveMode",
    "ShardOptions",
    "SinkOptions",
    "SourceOptions",
    "check_batch",
    "parse_sink",
    "parse_source",
]

SaveMode = Literal["append", "overwrite", "errorifexists", "ignore"]
Envelope = Literal["append", "diff", "upsert", "debezium"]

ChangeFormat = Literal["diff", "cdf"]
Feed = Literal["rows", "diff", "cdf"]
"""The form of a read: rows; updates with `_ts` and `_diff`; or changes as Delta has them."""


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """Options of every use of the format.

    Attributes:
        location: URL of the persist location. Option `location`, or all but the last segment of
            the path given to `load`/`save`/`start`.
        shard: Name of the shard. Option `shard`, or the last segment of the path. Empty where a
            read names several (`shards`).
        storage: Options of the store, such as `s3.endpoint`.
        settings: Any setting of `ShardSettings`, in camel case, such as `partBufferBytes`.
    """

    location: str
    shard: str
    storage: Mapping[str, str]
    settings: ShardSettings


@dataclass(frozen=True, slots=True)
class SourceOptions(ShardOptions):
    """Options of a read.

    Attributes:
        shards: `shards`: names, separated by commas: all of them are read up to one common
            frontier. A row is `_input` (the shard's name) and one struct per shard, all null but
            its own. The path is then the location.
        timestamp_as_of: `timestampAsOf`: contents at this time; for a stream, the snapshot that it
            starts from. Default: the latest that can be read. A number may be any time; a batch
            read at a date-time before the shard began is refused.
        as_of_date: True if `timestampAsOf` is a date-time, and no number.
        read_change_feed: `readChangeFeed`: rows carry `_ts` and `_diff`. A batch read then gives
            changes instead of contents. A stream without it gives added rows only, and fails at
            the first retraction.
        change_format: `changeFormat`: the columns that describe a change; setting it asks for a
            feed. "diff" (default): `_ts` and `_diff`. "cdf", as Delta and Iceberg have it:
            `_change_type` (insert or delete; one row for each copy), `_commit_timestamp` (null past
            what Spark's timestamps hold) and `_commit_version` (the update's time).
        append_only: `appendOnly`: states explicitly what a stream without `readChangeFeed` is: rows
            that are added, and a failure at the first retraction.
        starting_timestamp: `startingTimestamp`: changes at this time and later. Default: all that
            compaction has not merged into the shard's since.
        ending_timestamp: `endingTimestamp`: changes before this time only; a stream ends there.
        snapshot: `snapshot`: "include" (default): a stream starts with the contents; "exclude": it
            starts with the first change after them.
        columns: `columns`: names, separated by commas; only these are read. Default: all. Of
            several shards: `shard.column`; a shard that is not named is read whole.
        where: `where`: a boolean SQL expression over the shard's columns; only rows for which it is
            true come out, of contents, changes and streams alike, and parts and row groups without
            such a row are not read. Columns are compared with literals: = <> < <= > >= <=> in,
            between, like 'prefix%', is null, joined by and, or, not. Columns that only it names
            need not be among `columns`. Of several shards each must have them. Timestamps without a
            zone are in `timeZone`.
        max_bytes: `maxBytesPerTrigger`: encoded bytes of parts per micro-batch.
        max_rows: `maxRowsPerTrigger`: updates per micro-batch.
        max_files: `maxFilesPerTrigger`: parts per micro-batch. Of all three limits the first one
            reached counts; one step is always admitted.
        progress_interval_ms: `progressInterval`: how often a stream without news moves its offset
            (and with it its holds) when the shard's upper has moved.
        hold: `hold`: name of the stream's since hold; make it unique per query. Default: a name
            made up when the query first runs, kept in its checkpoint.
        hold_interval_ms: `holdInterval`: the stream moves its holds at most this often.
        hold_behind_ms: `holdBehind`: the since hold stays this far behind what has been read, so
            that a checkpoint rolled back by hand can be read on from. Default: 0, which allows for
            the micro-batches that Spark itself repeats.
        on_missing_part: `onMissingPart`: reaction of a stream to a part that is missing or damaged.
            "fail" (default): the micro-batch fails, and a restart tries again. "freeze": every
            part is read and checked before its range is published; the frontier stays at the
            first one that is unreadable, the query stays alive, and goes on when it is back.
        freeze_timeout_ms: `freezeTimeout`: a stream frozen for longer fails. Default: never.
        wait_timeout_ms: `waitTimeout`: how long a batch read waits until its time is settled.
            Default: `WAIT_MS`, and no wait for a time that the clock does not reach by then.
        partition_bytes: `partitionBytes`: encoded bytes of parts per partition, about. Larger parts
            are read by several tasks, row group by row group, and small ones go together. Never
            more than 10,000 partitions.
        native_reads: `nativeReads`: false leaves this read to the Python workers in a session that
            plans plain reads by Spark's own reader; for a stream whose frames are not executed.
    """

    shards: tuple[str, ...] = ()
    timestamp_as_of: int | None = None
    as_of_date: bool = False
    read_change_feed: bool = False
    change_format: ChangeFormat = "diff"
    append_only: bool = False
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    snapshot: Literal["include", "exclude"] = "include"
    columns: tuple[str, ...] | None = None
    where: Condition | None = None
    max_bytes: int | None = None
    max_rows: int | None = None
    max_files: int | None = None
    progress_interval_ms: int = 10_000
    hold: str | None = None
    hold_interval_ms: int = 1_000
    hold_behind_ms: int = 0
    on_missing_part: Literal["fail", "freeze"] = "fail"
    freeze_timeout_ms: int | None = None
    wait_timeout_ms: int | None = None
    partition_bytes: int = 32 << 20
    native_reads: bool = True

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all shards that are read."""
        return self.shards or (self.shard,)

    @property
    def feed(self) -> Feed:
        """The form of the rows that come out."""
        return self.change_format if self.read_change_feed else "rows"

    @property
    def reads_snapshot(self) -> bool:
        """True if a stream starts with the shards' contents, and not only with changes."""
        return self.starting_timestamp is None and self.snapshot == "include"

    def of(self, shard: str) -> SourceOptions:
        """These options for one of the inputs alone."""
        return replace(self, shard=shard, shards=())


@dataclass(frozen=True, slots=True)
class SinkOptions(ShardOptions):
    """Options of a write.

    Attributes:
        key: `key`: columns, separated by commas; used when the write creates the shard.
        comment: `comment`: text kept with a shard that the write creates.
        merge_schema: `mergeSchema`: evolve the shard's schema to take the frame's new columns and
            wider types.
        retain_ms: `retainHistory`: an interval such as '7 days': the shard stays readable so far
            back, with or without readers, and maintenance forgets what is older. It becomes the
            retention of the shard, also of one that exists. Default: no change; a new shard has
            none, and its since moves with its readers.
        envelope: `envelope`: the meaning of a row of the frame. "append": it is added; columns
            `_diff` and `_ts`, if there are any, give its diff and time. "diff": the same, and
            `_diff` must be there. "upsert": it replaces all rows of its key; see `delete_column`
            for deletes; a null in the key is a value like any other. "debezium": it is a change
            event with `before` and `after`; the shard has the columns of `after`. Without a key
            `before` is retracted and `after` added; with one, `after` replaces the rows of its key.
        ordering_column: `orderingColumn`: of several rows with one key in one micro-batch the one
            with the greatest value here wins (null is least, NaN greatest); of equal ones the one
            whose other columns sort last, and any of them over a delete. Without the option such
            rows are an error, unless they are identical. With "upsert" a column of the frame that
            the shard need not have: a shard that the write creates gets it, one that exists does
            not. With "debezium" a column of the event or a field in it, `source.lsn`.
        delete_column: `deleteColumn`: boolean column of an upserted frame, never kept: true
            deletes the key's rows. Without the option a row deletes whose columns outside of the
            key are all null.
        tie_column: Text column of the frame, never kept: of several rows with one key and one value
            in `ordering_column` the one with the greatest text wins. Set by what takes in a source,
            which has an order of its own, and no option for users.
        partition_columns: Two columns of the frame, never kept, of a source whose `ordering_column`
            says nothing between its partitions: the name of the partition, a text, and a whole
            number: of the last rows of several partitions the one with the greatest wins. Set as
            `tie_column` is.
        save_mode: `saveMode`: reaction of a batch write to a shard that exists. Spark shows a
            Python source only its modes `append` and `overwrite`, so the other two are an option:
            `df.write.format("shard").mode("append").option("saveMode", "ignore")`.
        txn_app_id: `txnAppId`: name of a durable writer; a write with a `txnVersion` that this
            writer has committed before does nothing.
        txn_version: `txnVersion`: number of the write, at least 0; greater than all before.
        txn_range: `txnRange`: the range of its source that the write covers, as any text: the same
            number with another text is an error. Empty: the number alone identifies the write.
            Default: in a streaming query the range of the micro-batch, if it can be found out.
        txn_covers: `txnCovers`: that range as a shard's state stores it
            (`shardline.datasource.shard.covered_range`); passed from the driver to the tasks, and
            no option for users.
        checkpoint: `checkpointLocation`: folder of the checkpoint of the streaming query that
            writes, from which the range of a micro-batch is read.
        query_name: `queryName`: name of that query, and of its folder where only the session has
            a checkpoint location.
        native_writes: `nativeWrites`: false leaves this append to the Python workers in a session
            that writes natively (`shardline.datasource.spark_native.write_rule`).
    """

    key: tuple[str, ...] | None = None
    comment: str = ""
    merge_schema: bool = False
    retain_ms: int | None = None
    envelope: Envelope = "append"
    ordering_column: str | None = None
    delete_column: str | None = None
    tie_column: str | None = None
    partition_columns: tuple[str, str] | None = None
    save_mode: SaveMode | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    txn_range: str | None = None
    txn_covers: str = ""
    checkpoint: str | None = None
    query_name: str | None = None
    native_writes: bool = True


_SOURCE: Final = (
    "shards",
    "timestampAsOf",
    "readChangeFeed",
    "changeFormat",
    "appendOnly",
    "startingTimestamp",
    "endingTimestamp",
    "snapshot",
    "columns",
    "where",
    "maxBytesPerTrigger",
    "maxRowsPerTrigger",
    "maxFilesPerTrigger",
    "progressInterval",
    "hold",
    "holdInterval",
    "holdBehind",
    "onMissingPart",
    "freezeTimeout",
    "waitTimeout",
    "partitionBytes",
    "nativeReads",
)
_SINK: Final = (
    "key",
    "comment",
    "mergeSchema",
    "retainHistory",
    "envelope",
    "orderingColumn",
    "deleteColumn",
    "saveMode",
    "txnAppId",
    "txnVersion",
    "txnRange",
    "txnCovers",
    "nativeWrites",
)


def parse_source(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a read.

    Raises:
        InvalidUsage: An option is unknown or missing, has a value that cannot be parsed, or
            excludes another one.
    """
    given = OptionReader(options, _SOURCE)
    # Spark tells a Python source nothing of its session; who reads by this package's functions
    # hands its zone on. Nothing may need it: Spark knows names that Python does not.
    zone = given.value("timeZone", str, default="UTC")
    utc: tzinfo = UTC
    time = partial(parse_time, zone=lambda: given.value("timeZone", parse_zone, default=utc))
    shards = given.value("shards", parse_names) or ()
    formats: tuple[ChangeFormat, ...] = get_args(ChangeFormat)
    change_format = given.choice("changeFormat", formats)
    parsed = SourceOptions(
        *given.place(several=bool(shards)),
        shards=shards,
        timestamp_as_of=given.value("timestampAsOf", time),
        as_of_date=not (given.text("timestampAsOf") or "0").strip().isdecimal(),
        read_change_feed=given.value(
            "readChangeFeed", parse_flag, default=change_format is not None
        ),
        change_format=change_format or "diff",
        append_only=given.value("appendOnly", parse_flag, default=False),
        starting_timestamp=given.value("startingTimestamp", time),
        ending_timestamp=given.value("endingTimestamp", time),
        snapshot=given.choice("snapshot", ("include", "exclude")) or "include",
        columns=given.value("columns", parse_names),
        where=given.value("where", lambda text: Condition(text, zone)),
        max_bytes=given.value("maxBytesPerTrigger", parse_size),
        max_rows=given.value("maxRowsPerTrigger", parse_count),
        max_files=given.value("maxFilesPerTrigger", parse_count),
        progress_interval_ms=given.value("progressInterval", parse_duration, default=10_000),
        hold=given.text("hold"),
        hold_interval_ms=given.value("holdInterval", parse_duration, default=1_000),
        hold_behind_ms=given.value("holdBehind", parse_duration, default=0),
        on_missing_part=given.choice("onMissingPart", ("fail", "freeze")) or "fail",
        freeze_timeout_ms=given.value("freezeTimeout", parse_duration),
        wait_timeout_ms=given.value("waitTimeout", parse_duration),
        partition_bytes=given.value("partitionBytes", parse_size, default=32 << 20),
        native_reads=given.value("nativeReads", parse_flag, default=True),
    )
    _check_times(parsed)
    if change_format is not None and not parsed.read_change_feed:
        raise _exclude_error(
            "changeFormat", "readChangeFeed=false", "the first is about a change feed"
        )
    if parsed.append_only and parsed.read_change_feed:
        raise _exclude_error(
            "appendOnly", "readChangeFeed", "without either, a stream gives the rows that are added"
        )
    if len(set(shards)) < len(shards):
        raise InvalidUsage(
            f"option 'shards' names a shard twice: {', '.join(shards)}",
            code="INVALID_OPTION",
            hint="name each once; join the frame with itself if that is what is wanted",
        )
    return parsed


def _exclude_error(one: str, other: str, hint: str) -> InvalidUsage:
    return InvalidUsage(
        f"options '{one}' and '{other}' exclude each other", code="INVALID_OPTION", hint=hint
    )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write; errors as `parse_source`."""
    given = OptionReader(options, _SINK)
    parsed = SinkOptions(
        *given.place(),
        key=given.value("key", parse_names),
        comment=given.text("comment") or "",
        merge_schema=given.value("mergeSchema", parse_flag) or False,
        retain_ms=given.value("retainHistory", parse_retention),
        envelope=given.choice("envelope", get_args(Envelope)) or "append",
        ordering_column=given.text("orderingColumn"),
        delete_column=given.text("deleteColumn"),
        save_mode=given.choice("saveMode", get_args(SaveMode)),
        txn_app_id=given.text("txnAppId"),
        txn_version=given.value("txnVersion", parse_number),
        txn_range=given.text("txnRange"),
        txn_covers=given.text("txnCovers") or "",
        checkpoint=given.text("checkpointLocation"),
        query_name=given.text("queryName"),
        native_writes=given.value("nativeWrites", parse_flag, default=True),
    )
    if parsed.txn_range is not None and parsed.txn_app_id is None:
        raise InvalidUsage(
            "option 'txnRange' means nothing without a 'txnVersion'",
            code="INVALID_OPTION",
            hint="it says what that number stands for: set 'txnAppId' and 'txnVersion', too",
        )
    if (parsed.txn_app_id is None) != (parsed.txn_version is None):
        raise InvalidUsage(
            "options 'txnAppId' and 'txnVersion' go together, and only one is set",
            code="INVALID_OPTION",
            hint="set both: the writer's name, and a number that grows with each write",
        )
    _check_envelope(parsed)
    return parsed


def _check_envelope(parsed: SinkOptions) -> None:
    given: tuple[tuple[str, str | None, tuple[Envelope, ...]], ...] = (
        ("orderingColumn", parsed.ordering_column, ("upsert", "debezium")),
        ("deleteColumn", parsed.delete_column, ("upsert",)),
    )
    for name, column, envelopes in given:
        if column is not None and parsed.envelope not in envelopes:
            raise InvalidUsage(
                f"option '{name}' means nothing with envelope '{parsed.envelope}'",
                code="INVALID_OPTION",
                hint=f"set envelope to {' or '.join(envelopes)}, or leave '{name}' out",
            )


def check_batch(parsed: SourceOptions) -> None:
    """Refuse options of streams and change feeds for a batch read of contents.

    Raises:
        InvalidUsage: One is set; contents have one time, and it would be passed over.
    """
    times = {
        "startingTimestamp": parsed.starting_timestamp,
        "endingTimestamp": parsed.ending_timestamp,
    }
    for name, time in times.items():
        if time is not None and not parsed.read_change_feed:
            raise InvalidUsage(
                f"option '{name}' means nothing to a batch read of contents",
                code="INVALID_OPTION",
                hint="set readChangeFeed to true for the changes from one time to another, or "
                "timestampAsOf for the contents at a time",
            )


def _check_times(parsed: SourceOptions) -> None:
    start, end = parsed.starting_timestamp, parsed.ending_timestamp
    if start is not None and end is not None and end <= start:
        raise InvalidUsage(
            f"option 'endingTimestamp' ({end}) is not after 'startingTimestamp' ({start})",
            code="INVALID_OPTION",
            hint="the end is exclusive",
        )
    as_of = parsed.timestamp_as_of
    if as_of is not None and end is not None and end <= as_of:
        raise InvalidUsage(
            f"option 'endingTimestamp' ({end}) is not after 'timestampAsOf' ({as_of})",
            code="INVALID_OPTION",
            hint="a stream starts with the contents at the first and ends before the second",
        )
    if start is not None and as_of is not None:
        raise _exclude_error(
            "timestampAsOf",
            "startingTimestamp",
            "the first starts with a snapshot at that time, the second with changes from then",
        )
