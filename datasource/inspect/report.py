"""Describes a shard for people and programs: a plain value, made from its state.

    report_shard(state, now_ms)     one shard
    dropped_parts(states)           parts that only older states still need
    schema_text(json)               a schema as SQL

States change with the code; a report is the stable form that commands, the main job and the
monitoring page show. It does no I/O, so any holder of a state can make one. It is encodable as
JSON; its field names are stable, new ones may be added.

Reading the numbers: times (`since`, `upper`, …) are on the shard's own clock, milliseconds since
the epoch unless its writers chose otherwise. Null is the empty frontier: for an upper "no more
updates can come", for a since "holds nothing". Ages compare the clock of the process that makes the
report with that of the process that wrote, so they may be off by the difference of the two; they
are never below 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.shard.batch import Batch, Part, add_up_diffs
from shardline.datasource.shard.references import dropped as gone
from shardline.datasource.shard.references import part_blobs
from shardline.datasource.shard.state import (
    CriticalReader,
    LeasedReader,
    ShardState,
    is_tombstone,
    last_update,
    retained_since,
)
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import Array, Atomic, Field, Map, Record, SparkType

__all__ = [
    "BatchReport",
    "DroppedPart",
    "HolderReport",
    "LevelReport",
    "LocationReport",
    "PartReport",
    "ProblemReport",
    "RollupReport",
    "ShardReport",
    "WriterReport",
    "dropped_parts",
    "report_shard",
    "schema_columns",
    "schema_text",
]

Reader = LeasedReader | CriticalReader


class DroppedPart(msgspec.Struct, frozen=True):
    """A part that the newest state does not name any more.

    Attributes:
        key: Its blob.
        size_bytes: Its encoded size.
        last_seqno: The last state that names it; a hold at this seqno or an earlier one keeps it.
    """

    key: str
    size_bytes: int
    last_seqno: int


class LevelReport(msgspec.Struct, frozen=True):
    """All batches of one size class; `rows` are updates before consolidation."""

    level: int
    batches: int
    parts: int
    rows: int
    size_bytes: int


class BatchReport(msgspec.Struct, frozen=True):
    """One batch: the updates of `[lower, upper)`, with times before `since` brought up to it.

    Attributes:
        lower: First time of the interval.
        upper: First time after it; null for the end.
        since: How far its history is compacted; null for all of it.
        level: Its size class; null for one without updates, which is in none.
        parts: Number of its parts.
        rows: Updates in them, before consolidation.
        diff_sum: Sum of their diffs: rows that it adds to the contents, below 0 if it takes more.
        size_bytes: Encoded size of its parts.
    """

    lower: int
    upper: int | None
    since: int | None
    level: int | None
    parts: int
    rows: int
    diff_sum: int
    size_bytes: int


class PartReport(msgspec.Struct, frozen=True):
    """One part, with the interval `[lower, upper)` of the batch that it belongs to."""

    key: str
    lower: int
    upper: int | None
    level: int
    rows: int
    size_bytes: int
    inline: bool
    schema_id: int
    sorted: bool
    ts_min: int | None
    ts_max: int | None
    diff_sum: int
    diff_min: int
    diff_max: int


class RollupReport(msgspec.Struct, frozen=True):
    """A whole state in the blob store."""

    seqno: int
    key: str
    size_bytes: int


class HolderReport(msgspec.Struct, frozen=True):
    """A reader of the shard, and the history and parts that it keeps.

    Attributes:
        name: Id of a lease, or the name that its user gave a hold.
        kind: "lease" expires by itself without heartbeats, "hold" never does.
        owner: The owner and its purpose, as the owner described them.
        since: It may read at this time and later; null holds nothing.
        seqno: Blobs of this state and later ones are kept; null if it holds no blobs.
        heard_ms: Time of a lease's last heartbeat, or of a hold's last move.
        silent_ms: Time since `heard_ms`.
        made_ms: When a hold was made; null for a lease, which does not record it.
        lease_ms: It expires after this time without a heartbeat; null never.
        overdue: True for a lease that the next command on the shard will expire.
        behind_ms: How far its since is behind the upper: history that cannot be compacted.
        behind_seqnos: How far its seqno is behind the shard's.
        gain_ms: How far the shard's since could go beyond where it may with this reader, if it
            alone were gone: other readers and the retention policy hold it, too.
        only_bytes: Size of the parts that are kept for this reader alone: states from its seqno on
            name them, but not the newest, and no other reader holds one of these states; null if
            the log was too long to find out.
        kept_bytes: Size of the parts that it keeps, alone or with other readers; null as above.
        confirmed: False for the hold of a stream that has not run a micro-batch: of one that was
            killed before its first offset nobody but the shard knows the name.
    """

    name: str
    kind: Literal["lease", "hold"]
    owner: str
    since: int | None
    seqno: int | None
    heard_ms: int
    silent_ms: int
    made_ms: int | None
    lease_ms: int | None
    overdue: bool
    behind_ms: int
    behind_seqnos: int
    gain_ms: int
    only_bytes: int | None
    kept_bytes: int | None
    confirmed: bool = True


class WriterReport(msgspec.Struct, frozen=True):
    """The shard's entry of a writer, by which its repeated appends are recognised.

    Attributes:
        name: Name of a durable writer, or id of an anonymous one.
        last: Number of its last append.
        upper: The shard's upper right after that append.
        heard_ms: When it last appended or gave up an attempt.
        silent_ms: Time since `heard_ms`.
        lease_ms: The entry is removed after this time without an append; null never.
        abandoned: Number of given-up attempts at its next append.
    """

    name: str
    last: int
    upper: int | None
    heard_ms: int
    silent_ms: int
    lease_ms: int | None
    abandoned: int


class ShardReport(msgspec.Struct, frozen=True):
    """One shard.

    Attributes:
        id: Identity; a shard that was dropped and made again has another one.
        name: Name as the user wrote it.
        dropped: True if only its tombstone is left.
        schema: The current schema, as SQL.
        schema_id: Its id; also the number of times that the schema was evolved.
        key: Columns that order its parts and identify rows.
        since: Reads at this time and later are exact.
        upper: The contents at all times before it are final, as the shard itself says.
        seqno: Number of its newest log record.
        walltime_ms: When that record was written.
        created_ms: When the shard was made.
        version: Newest code version that contributed to its state.
        rows: Updates in all parts, before consolidation.
        size_bytes: Encoded size of all parts, inline ones included.
        diff_sum: Sum of all diffs: the number of rows in the newest contents.
        levels: Batches by size class; the `empty_batches` without rows are in none.
        inline_parts: Parts that live inside the state, with `inline_bytes` in total.
        retracting_parts: Parts with retractions: reading has to consolidate them.
        dropped_bytes: Size of the parts that only older states need; null if the log was too long
            to find out.
        retain_ms: How long before its newest readable time the shard stays readable, with or
            without readers; null leaves it to readers.
        swept_ms: Time of the last orphan sweep; 0 never.
        holders: Leased readers and holds, the one that is furthest behind first.
        writers: Writers that have appended, the latest first.
        parts: Every part in order of time; null unless requested.
        newest_batches: The last batches in order of time; null unless requested.
        follows: Name of the shard whose upper counts for this one as well; empty for none.
    """

    id: str
    name: str
    dropped: bool
    schema: str
    schema_id: int
    key: tuple[str, ...]
    comment: str
    since: int | None
    upper: int | None
    seqno: int
    walltime_ms: int
    created_ms: int
    version: str
    rows: int
    size_bytes: int
    diff_sum: int
    batches: int
    empty_batches: int
    levels: tuple[LevelReport, ...]
    part_count: int
    inline_parts: int
    inline_bytes: int
    retracting_parts: int
    dropped_bytes: int | None
    retain_ms: int | None
    swept_ms: int
    rollups: tuple[RollupReport, ...]
    holders: tuple[HolderReport, ...]
    writers: tuple[WriterReport, ...]
    parts: tuple[PartReport, ...] | None = None
    newest_batches: tuple[BatchReport, ...] | None = None
    follows: str = ""


class ProblemReport(msgspec.Struct, frozen=True):
    """A shard whose state cannot be read, and the error."""

    shard: str
    code: str
    message: str


class LocationReport(msgspec.Struct, frozen=True):
    """All shards of a location, or the one that was requested.

    Attributes:
        location: Canonical URL.
        location_id: Made with the location; empty where nothing is stored.
        at_ms: Time of the report, by the clock of the process that made it.
        shards: In order of their names.
        problems: Shards that could not be read.
    """

    location: str
    location_id: str
    at_ms: int
    shards: tuple[ShardReport, ...]
    problems: tuple[ProblemReport, ...] = ()


def report_shard(
    state: ShardState,
    now_ms: int,
    *,
    dropped: Sequence[DroppedPart] | None = (),
    with_parts: bool = False,
    batches_max: int | None = None,
) -> ShardReport:
    """Describe `state`.

    Args:
        state: The newest state.
        now_ms: The time of now, for ages.
        dropped: Parts that only older states need (`dropped_parts`); None if that is not known.
        with_parts: True to list every part.
        batches_max: How many of the newest batches to list; None for no list.
    """
    batches = state.trace.batches
    parts = [part for batch in batches for part in batch.parts]
    return ShardReport(
        id=state.shard,
        name=state.name,
        dropped=is_tombstone(state),
        schema=schema_text(state.schemas[state.schema_id]),
        schema_id=state.schema_id,
        key=state.key,
        comment=state.comment,
        since=state.since.time,
        upper=state.upper.time,
        seqno=state.seqno,
        walltime_ms=state.walltime_ms,
        created_ms=state.created_ms,
        version=".".join(map(str, state.version)),
        rows=sum(part.rows for part in parts),
        size_bytes=sum(part.size_bytes for part in parts),
        diff_sum=add_up_diffs(parts),
        batches=len(batches),
        empty_batches=sum(batch.is_empty for batch in batches),
        levels=_levels(batches),
        part_count=len(parts),
        inline_parts=sum(part.inline is not None for part in parts),
        inline_bytes=state.trace.inline_bytes,
        retracting_parts=sum(part.retracts for part in parts),
        dropped_bytes=None if dropped is None else sum(part.size_bytes for part in dropped),
        retain_ms=state.retain_ms,
        swept_ms=state.swept_ms,
        rollups=tuple(
            RollupReport(seqno, ref.key, ref.size_bytes)
            for seqno, ref in sorted(state.rollups.items())
        ),
        holders=_holders(state, now_ms, dropped),
        writers=_writers(state, now_ms),
        parts=_part_reports(batches) if with_parts else None,
        newest_batches=None if batches_max is None else _batch_reports(batches, batches_max),
        follows="" if state.leader is None else state.leader.name,
    )


def dropped_parts(states: Iterable[ShardState]) -> tuple[DroppedPart, ...]:
    """Blobs that some of `states` name and the last one does not.

    Args:
        states: Consecutive states of one shard, ascending, up to the newest.
    """
    dropped: dict[str, DroppedPart] = {}
    before: ShardState | None = None
    for state in states:
        if before is not None:
            for key, part in gone(before, state).items():
                dropped[key] = DroppedPart(key, part.size_bytes, before.seqno)
        before = state
    if before is not None:
        for key in part_blobs(before):
            dropped.pop(key, None)
    return tuple(dropped.values())


# --- what holds back ------------------------------------------------------------------------------


def _holders(
    state: ShardState, now_ms: int, dropped: Sequence[DroppedPart] | None
) -> tuple[HolderReport, ...]:
    readers: dict[str, Reader] = {**state.leased, **state.critical}
    reports = (_holder(name, readers, state, now_ms, dropped) for name in readers)
    return tuple(sorted(reports, key=lambda r: (-r.behind_ms, -r.behind_seqnos, r.name)))


def _holder(
    name: str,
    readers: Mapping[str, Reader],
    state: ShardState,
    now_ms: int,
    dropped: Sequence[DroppedPart] | None,
) -> HolderReport:
    reader = readers[name]
    others = [other for other_name, other in readers.items() if other_name != name]
    heard_ms = reader.heartbeat_ms if isinstance(reader, LeasedReader) else reader.moved_ms
    silent_ms = max(now_ms - heard_ms, 0)
    lease_ms = reader.lease_ms if isinstance(reader, LeasedReader) else None
    return HolderReport(
        name=name,
        kind="hold" if lease_ms is None else "lease",
        owner=reader.purpose,
        since=reader.since,
        seqno=reader.seqno,
        heard_ms=heard_ms,
        silent_ms=silent_ms,
        made_ms=reader.registered_ms if isinstance(reader, CriticalReader) else None,
        lease_ms=lease_ms,
        overdue=lease_ms is not None and silent_ms > lease_ms,
        behind_ms=_distance(Frontier(reader.since), _end(state)),
        behind_seqnos=0 if reader.seqno is None else state.seqno - reader.seqno,
        gain_ms=_gain(state, Frontier(reader.since), [Frontier(other.since) for other in others]),
        only_bytes=_only_bytes(reader.seqno, [other.seqno for other in others], dropped),
        kept_bytes=_only_bytes(reader.seqno, (), dropped),
        confirmed=not isinstance(reader, CriticalReader) or reader.confirmed,
    )


def _end(state: ShardState) -> Frontier:
    """The upper; for a finished shard, whose upper is empty, the time after its last update."""
    if not state.upper.is_empty:
        return state.upper
    last = last_update(state)
    return Frontier(0 if last is None else last + 1)


def _gain(state: ShardState, own: Frontier, others: Sequence[Frontier]) -> int:
    """How far the since could go beyond `own`, held by `others` and the shard's policy alone.

    What lies before `own` is not kept for this reader: the next round may free it with him there.
    """
    retained = retained_since(state)
    last = Frontier(max((_end(state).time or 0) - 1, 0))
    bound = min(meet(others), last if retained is None else min(retained, last))
    return _distance(max(state.since, own), bound)


def _distance(start: Frontier, end: Frontier) -> int:
    if start.time is None or end.time is None:
        return 0
    return max(end.time - start.time, 0)


def _only_bytes(
    seqno: int | None, others: Sequence[int | None], dropped: Sequence[DroppedPart] | None
) -> int | None:
    if dropped is None:
        return None
    if seqno is None:
        return 0
    first = min((other for other in others if other is not None), default=None)
    return sum(
        part.size_bytes
        for part in dropped
        if seqno <= part.last_seqno and (first is None or first > part.last_seqno)
    )


def _writers(state: ShardState, now_ms: int) -> tuple[WriterReport, ...]:
    reports = (
        WriterReport(
            name=name,
            last=writer.last,
            upper=writer.upper,
            heard_ms=writer.heartbeat_ms,
            silent_ms=max(now_ms - writer.heartbeat_ms, 0),
            lease_ms=writer.lease_ms,
            abandoned=len(writer.abandoned),
        )
        for name, writer in state.writers.items()
    )
    return tuple(sorted(reports, key=lambda report: (-report.heard_ms, report.name)))


# --- batches and parts ----------------------------------------------------------------------------


def _levels(batches: Sequence[Batch]) -> tuple[LevelReport, ...]:
    by_level: dict[int, list[Batch]] = {}
    for batch in batches:
        if not batch.is_empty:
            by_level.setdefault(batch.level, []).append(batch)
    return tuple(
        LevelReport(
            level,
            len(of_level),
            sum(1 for batch in of_level for _ in batch.parts),
            sum(batch.rows for batch in of_level),
            sum(batch.size_bytes for batch in of_level),
        )
        for level, of_level in sorted(by_level.items())
    )


def _batch_reports(batches: Sequence[Batch], most: int) -> tuple[BatchReport, ...]:
    return tuple(
        BatchReport(
            lower=batch.desc.lower,
            upper=batch.desc.upper,
            since=batch.desc.since,
            level=None if batch.is_empty else batch.level,
            parts=sum(1 for _ in batch.parts),
            rows=batch.rows,
            diff_sum=add_up_diffs(batch.parts),
            size_bytes=batch.size_bytes,
        )
        for batch in batches[max(len(batches) - most, 0) :]
    )


def _part_reports(batches: Sequence[Batch]) -> tuple[PartReport, ...]:
    return tuple(
        _part_report(batch, part, is_sorted=run.order == "sorted")
        for batch in batches
        for run in batch.runs
        for part in run.parts
    )


def _part_report(batch: Batch, part: Part, *, is_sorted: bool) -> PartReport:
    earliest, latest = part.time_bounds or (None, None)
    return PartReport(
        key=part.key,
        lower=batch.desc.lower,
        upper=batch.desc.upper,
        level=batch.level,
        rows=part.rows,
        size_bytes=part.size_bytes,
        inline=part.inline is not None,
        schema_id=part.schema,
        sorted=is_sorted,
        ts_min=earliest,
        ts_max=latest,
        diff_sum=part.diff_sum,
        diff_min=part.diff_min,
        diff_max=part.diff_max,
    )


# --- schemas --------------------------------------------------------------------------------------

_SQL_NAMES = {
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INT",
    "long": "BIGINT",
}


# Asked of each shard again and again, and a schema hardly ever changes.
@lru_cache(maxsize=1024)
def schema_text(json_text: str) -> str:
    """Columns as in a `CREATE TABLE`: `carrier STRING NOT NULL, flight INT`."""
    return ", ".join(_column(field) for field in ShardSchema.parse(json_text).record.fields)


@lru_cache(maxsize=1024)
def schema_columns(json_text: str) -> tuple[tuple[str, str], ...]:
    """Name and SQL type of each column: `(("carrier", "STRING"), ("flight", "INT"))`."""
    fields = ShardSchema.parse(json_text).record.fields
    return tuple((field.name, _type_name(field.type)) for field in fields)


def _column(field: Field, separator: str = " ") -> str:
    nullability = "" if field.nullable else " NOT NULL"
    return f"{_quoted(field.name)}{separator}{_type_name(field.type)}{nullability}"


def _type_name(kind: SparkType) -> str:
    match kind:
        case Atomic(name):
            return _SQL_NAMES.get(name, name.upper())
        case Array(element, _):
            return f"ARRAY<{_type_name(element)}>"
        case Map(key, value, _):
            return f"MAP<{_type_name(key)}, {_type_name(value)}>"
        case Record(fields):
            return f"STRUCT<{', '.join(_column(field, ': ') for field in fields)}>"


def _quoted(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else "`" + name.replace("`", "``") + "`"
