"""Assembles one DataFrame from the partitions of a plan: scans, consolidation, and Arrow fetch.

    plain     a scan; rows repeated where their diff is above 1
    group     scans of all columns, consolidated by one aggregation for all groups of an input; in
              large groups only of the rows that a retraction may concern (`touched_rows`), and not
              at all where it is known which rows were taken back (`closed_keys`, `closed_rows`)
    changes   a scan with times and diffs
    inserts   a scan; a retraction is an error

All parts of one kind are read together, whichever partition they were packed into: Spark splits
and packs files itself, and pushes its own filters and projections down to the scans.

Invariants:
    Every part of the plan is read once, by Spark or by Arrow fetch, and the rows are the same.
    The schema is exactly the requested one, nullability and metadata included.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.filters.parser import Condition
from shardline.datasource.parts.nan_bounds import float_paths
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart, volume_of
from shardline.datasource.shard_source.fetch_task import PartitionKind, ShardPartition
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.spark_native.arrow_fallback import fetch_by_tasks, fetch_in_driver
from shardline.datasource.spark_native.blob_paths import hadoop_url
from shardline.datasource.spark_native.closed_keys import ClosedKeys, can_close
from shardline.datasource.spark_native.closed_rows import CLOSED_ROWS
from shardline.datasource.spark_native.consolidate import (
    can_consolidate,
    consolidate,
    repeat_rows,
    retracted_rows,
)
from shardline.datasource.spark_native.jvm import FileFormat, LivenessToken, empty_frame
from shardline.datasource.spark_native.kept_broadcast import BROADCASTS
from shardline.datasource.spark_native.part_errors import remember_plan
from shardline.datasource.spark_native.row_shape import apply_row_shape
from shardline.datasource.spark_native.scan import (
    FLOAT_OPTIONS,
    READ_OPTIONS,
    RowNumbers,
    ScanKind,
    Scanner,
    adding_parts,
    chosen_parts,
    scan_added,
    with_numbers,
)
from shardline.datasource.spark_native.touched_rows import (
    TouchedRows,
    hashed_columns,
    hashes_of,
    is_worth_splitting,
    most_retractions,
)
from shardline.datasource.spark_native.types import conform, project, sql_name, struct_of
from shardline.datasource.types.schema import DIFF, TS, ShardSchema

__all__ = ["NativeFrame", "make_native_frame"]

_log = logging.getLogger(__name__)

_DIFF_FIELD = StructField(DIFF, LongType(), nullable=False)
_TS_FIELD = StructField(TS, LongType(), nullable=False)


_PARTS_HERE = 8
"""Parts that the driver reads itself, at most: it reads one after the other."""

_BYTES_HERE = 8 << 20
"""Bytes of these parts: rows that the driver reads are in memory several times, and a few may be
large."""


@dataclass(frozen=True, slots=True)
class NativeFrame:
    """A DataFrame of a plan.

    Attributes:
        frame: The rows.
        tokens: Alive while anything can still read the plan's parts; empty if all rows are in the
            driver already, so that no lease is needed.
        by_tasks: True if Python workers fetch some of the parts.
    """

    frame: DataFrame
    tokens: tuple[LivenessToken, ...]
    by_tasks: bool = False


def make_native_frame(
    spark: SparkSession,
    partitions: Sequence[InputPartition],
    schema: StructType,
    condition: Condition | None,
    by_driver: int = 0,
    *,
    looked_at: bool = False,
) -> NativeFrame:
    """Make a frame of the rows of `partitions`.

    Args:
        spark: The session that reads.
        partitions: The plan of a batch reader or a stream.
        schema: Schema of the rows, as `RowShape.struct` returns it.
        condition: The read's filter, which the partitions have too.
        by_driver: A plan of at most this many updates is read now, by this process, if they are
            not large; 0 is never.
        looked_at: True if the caller has found its local parts intact.
    """
    ours = [one for one in partitions if isinstance(one, ShardPartition)]
    if by_driver and len(ours) == len(partitions):
        planned = [planned for one in ours for planned in one.parts]
        little = volume_of(planned).is_at_most(by_driver, _BYTES_HERE)
        if little and len(planned) <= _PARTS_HERE:
            return NativeFrame(fetch_in_driver(spark, ours, schema), ())
    schemas = {one.schemas[one.schema_id] for one in ours}
    floats = any(any(float_paths(ShardSchema.parse(text).record.fields)) for text in schemas)
    file_format = FileFormat(spark, {**READ_OPTIONS, **(FLOAT_OPTIONS if floats else {})})
    filters = condition is None or _filters_alike(spark, condition, ours)
    build = _FrameBuilder(spark, schema, file_format, filters, looked_at)
    inputs: dict[int, list[ShardPartition]] = {}
    for partition in partitions:
        if isinstance(partition, ShardPartition):
            inputs.setdefault(partition.index, []).append(partition)
        else:
            build.others.append(partition)
    for own in inputs.values():
        build.input(own)
    frame = build.result()
    tokens = [file_format.token()] if file_format.used else []
    remember_plan(ours, tokens)
    return NativeFrame(frame, (*build.tokens, *tokens), bool(build.others))


def _filters_alike(
    spark: SparkSession, condition: Condition, partitions: Sequence[ShardPartition]
) -> bool:
    """True if Spark, in this session, gives a filter the meaning that it has in the plan."""
    # Timestamps without a zone were bound in the option's time zone, and Spark would read them in
    # the session's: other rows.
    if condition.zone != spark.conf.get("spark.sql.session.timeZone"):
        return False
    # It may also be told that a column in another case is another column.
    in_case = all(one.where is None or one.where.in_case for one in partitions)
    return in_case or spark.conf.get("spark.sql.caseSensitive") != "true"


@dataclass(slots=True)
class _FrameBuilder:
    """Collects the pieces of a frame.

    Attributes:
        filters: True if Spark, in this session, gives a filter the plan's meaning.
        looked_at: True if all local parts are known to be intact.
        frames: Pieces that are done.
        here: Partitions that this process reads itself: inline parts.
        others: Partitions left to Arrow fetch.
        tokens: Alive while tasks can still fetch the partitions in `others`.
    """

    spark: SparkSession
    schema: StructType
    file_format: FileFormat
    filters: bool
    looked_at: bool
    frames: list[DataFrame] = field(default_factory=list)
    here: list[ShardPartition] = field(default_factory=list)
    others: list[InputPartition] = field(default_factory=list)
    tokens: list[LivenessToken] = field(default_factory=list)

    def input(self, partitions: Sequence[ShardPartition]) -> None:
        """Add the partitions of one of the read's inputs."""
        sample = partitions[0]
        if sample.where is not None and not self.filters:
            self.others += partitions  # the tasks filter them
            return
        location = open_client(sample.options).location.url
        schemas = {n: ShardSchema.parse(t) for p in partitions for n, t in p.schemas.items()}
        root = hadoop_url(self.spark, location)
        target = schemas[sample.schema_id]
        scanner = Scanner(self.spark, root, schemas, target, self.file_format, self.looked_at)
        columns = sample.row_shape.columns(sample.index)
        looked_at = frozenset() if sample.where is None else sample.where.columns
        more = sorted(looked_at - set(columns))
        narrow = replace(scanner, target=scanner.target.select([*columns, *more]))
        self._groups([p for p in partitions if p.kind == "group"], scanner)
        kinds: dict[tuple[PartitionKind, int | None], list[ShardPartition]] = {}
        for partition in partitions:
            if partition.kind != "group":
                kinds.setdefault((partition.kind, partition.as_of), []).append(partition)
        for alike in kinds.values():
            self._parts(alike, narrow)

    def result(self) -> DataFrame:
        """All pieces as one frame."""
        if self.here:
            self.frames.append(fetch_in_driver(self.spark, self.here, self.schema))
        if self.others:
            _log.info(
                "parts are fetched by Arrow: Spark does not read their location or types",
                extra={"context": {"partitions": len(self.others)}},
            )
            fetched, token = fetch_by_tasks(self.spark, self.others, self.schema)
            self.frames.append(fetched)
            self.tokens.append(token)
        if not self.frames:
            return empty_frame(self.spark, self.schema)
        if len(self.frames) == 1:
            return self.frames[0]
        return conform(self.spark, reduce(DataFrame.unionAll, self.frames), self.schema)

    def _parts(self, alike: Sequence[ShardPartition], scanner: Scanner) -> None:
        """Add partitions of one kind other than group."""
        sample = _sample_of(alike)
        as_updates = sample.kind == "changes" or sample.as_of is not None
        with_ts = sample.kind == "changes"
        parts = _reunite_shares(alike)
        if sample.kind == "inserts":
            if sample.where is None:
                # With a filter only rows that pass it count, and only reading all of them tells.
                _refuse_retractions(parts)
            # A retraction at one of the read's times is an error, and only reading all rows of the
            # part finds it. Checked in a Spark scan, it would be missed: the optimizer pushes the
            # user's filters below the check. They are applied after an Arrow fetch.
            self._leave_to_arrow(sample, [p for p in parts if p.part.retracts])
            parts = [p for p in parts if not p.part.retracts]
        scans, others = scanner.split(parts, with_ts=with_ts)
        self._leave_to_arrow(sample, others)
        frames = scanner.scan(scans, with_ts=with_ts, with_ones=as_updates)
        for kind, frame in zip(scans, frames, strict=True):
            rows = self._rows(sample, frame, repeats=kind.counted, as_updates=as_updates)
            self._add(sample, rows)

    def _rows(
        self, sample: ShardPartition, frame: DataFrame, *, repeats: bool, as_updates: bool
    ) -> DataFrame:
        if sample.where is None and sample.as_of is None and (as_updates or not repeats):
            return frame  # has exactly the wanted columns
        own = [sql_name(name) for name in sample.row_shape.columns(sample.index)]
        frame = _filtered(sample, frame)
        if as_updates:
            time = TS if sample.as_of is None else f"{sample.as_of}L AS {TS}"
            return project(frame, [*own, time, DIFF])
        if not repeats:
            return project(frame, own)
        return repeat_rows(project(frame, [*own, DIFF]))

    def _groups(self, groups: Sequence[ShardPartition], scanner: Scanner) -> None:
        """Add groups of parts that must be consolidated, in one aggregation where Spark can.

        Equal rows are always in the same group, so one aggregation over all groups gives the same
        result as one for each.
        """
        taken = []
        for group in groups:
            if all(planned.part.inline is not None for planned in group.parts):
                self.here.append(group)
            elif can_consolidate(scanner.target) and all(
                planned.part.inline is not None or scanner.can_scan(planned)
                for planned in group.parts
            ):
                taken.append(group)
            else:
                self.others.append(group)
        if not taken:
            return
        scans, rest = scanner.split([p for group in taken for p in group.parts], with_ts=False)
        inline = [planned for planned in rest if planned.part.inline is not None]
        # All groups or none: a part of a group that is fetched elsewhere is not consolidated with
        # the rest of it.
        if len(inline) < len(rest):
            self.others += taken
            return
        sample = _sample_of(taken)
        parts = [*chain.from_iterable(scans.values()), *(planned.part for planned in inline)]
        if can_close(parts, scanner.target, sample.key):
            self._close_group(taken, scanner)
        else:
            kept = [self._inline_updates(sample, inline, scanner)] if inline else []
            self._merge_group(sample, scans, kept, scanner, parts)

    def _merge_group(
        self,
        sample: ShardPartition,
        scans: Mapping[ScanKind, Sequence[Part]],
        kept: Sequence[DataFrame],
        scanner: Scanner,
        parts: Sequence[Part],
    ) -> None:
        """Add a group whose retractions take back single rows.

        Args:
            sample: One of the group's partitions.
            scans: The parts that Spark reads.
            kept: Updates that this process holds.
            scanner: Scans all columns of the shard.
            parts: All parts of the group.
        """
        columns = hashed_columns(scanner.target, sample.key)
        if not is_worth_splitting(parts):
            columns = []

        def retracted(numbers: RowNumbers) -> DataFrame:
            if columns:
                numbered, touched = self._split(scans, (), scanner, columns, numbers)
                return numbered.retracted(touched, numbers.name)
            updates = with_numbers(scanner.scan(scans, with_ts=False, numbers=numbers), numbers)
            together = reduce(DataFrame.unionByName, updates)
            return retracted_rows(together, scanner.target, numbers.name)

        if not kept and self._open_rows(sample, scans, scanner, ("rows",), retracted):
            return
        if columns:
            split, rows = self._split(scans, kept, scanner, columns)
            for kind, frame in zip(adding_parts(scans), split.untouched(), strict=True):
                self._add(sample, self._untouched(sample, frame, counted=kind.counted))
            self._add(sample, self._of_group(sample, split.consolidated(rows)))
            return
        updates = [*scanner.scan(scans, with_ts=False), *kept]
        consolidated = consolidate(reduce(DataFrame.unionByName, updates), scanner.target)
        self._add(sample, self._of_group(sample, consolidated))

    def _add_each(
        self,
        sample: ShardPartition,
        frames: Iterable[DataFrame],
        chosen: Mapping[ScanKind, Sequence[Part]],
    ) -> None:
        """Add what scans of parts have, without retractions: they need no consolidation."""
        for frame, parts in zip(frames, chosen.values(), strict=True):
            counted = any(part.diff_max > 1 for part in parts)
            self._add(sample, self._untouched(sample, frame, counted=counted))

    def _split(
        self,
        scans: Mapping[ScanKind, Sequence[Part]],
        kept: Sequence[DataFrame],
        scanner: Scanner,
        columns: Sequence[str],
        numbers: RowNumbers | None = None,
    ) -> tuple[TouchedRows, int]:
        """A group of which only the rows that a retraction may concern are consolidated.

        Args:
            scans: The parts that Spark reads.
            kept: Updates that this process holds.
            scanner: Scans all columns of the shard.
            columns: The columns to hash.
            numbers: If all updates are to have their numbers.

        Returns:
            The updates, and about how many are touched.
        """
        adding, retracting = adding_parts(scans), chosen_parts(scans, lambda part: part.retracts)
        rows = sum(part.rows for part in chain.from_iterable(retracting.values()))

        def hashes(frames: Sequence[DataFrame]) -> DataFrame:
            return hashes_of(reduce(DataFrame.unionByName, frames), scanner.target, columns)

        plain = scanner.scan(adding, with_ts=False, with_ones=False, numbers=numbers)
        updates = [*scanner.scan(retracting, with_ts=False, numbers=numbers), *kept]
        table = self._lookup_table(("hashes", *columns), scanner, retracting, kept, hashes)
        if numbers is not None:
            plain, updates = with_numbers(plain, numbers), with_numbers(updates, numbers)
        together = reduce(DataFrame.unionByName, updates)
        return TouchedRows(plain, together, table, scanner.target, columns), 2 * rows

    def _close_group(self, groups: Sequence[ShardPartition], scanner: Scanner) -> None:
        """Add groups whose retractions all take back whole keys: they need no consolidation."""
        sample = _sample_of(groups)
        scans, inline = scanner.split([p for group in groups for p in group.parts], with_ts=True)
        times = [
            at
            for one in (*chain.from_iterable(scans.values()), *(p.part for p in inline))
            if one.retracts and (at := one.time_bounds)
        ]
        first, last = min(map(min, times)), max(map(max, times))
        retracting = chosen_parts(scans, lambda part: part.retracts)
        kept = [self._inline_updates(sample, inline, scanner, with_ts=True)] if inline else []
        keys = ClosedKeys(sample.key, (*scanner.target.names, TS, DIFF))
        what = ("closed keys", *sample.key)

        def collect_keys() -> DataFrame:
            return self._lookup_table(what, scanner, retracting, kept, keys.of, with_ts=True)

        def times_of(part: Part) -> tuple[int, int]:
            return part.time_bounds or (first, last)

        # Most rows are from before the first retraction, and those that the last one brings have
        # none after it: neither need a time, and the latter no look at the keys.
        closable = chosen_parts(scans, lambda part: times_of(part)[0] < last)
        newest = chosen_parts(scans, lambda part: times_of(part)[0] >= last)
        self._add_each(sample, scan_added(scanner, newest), newest)

        def closed_numbers(numbers: RowNumbers) -> DataFrame:
            closed = collect_keys()
            added = scan_added(scanner, closable, with_ts=True, numbers=numbers)
            taken = [
                keys.taken_back(one, closed).select(numbers.name)
                for one in with_numbers(added, numbers)
            ]
            return reduce(DataFrame.unionAll, taken)

        read = (*what, *_keys_of(retracting))
        if not kept and self._open_rows(sample, closable, scanner, read, closed_numbers):
            return
        closed = collect_keys()
        older = chosen_parts(closable, lambda part: times_of(part)[1] < first)
        between = chosen_parts(closable, lambda part: times_of(part)[1] >= first)
        for chosen, timed in ((older, False), (between, True)):
            added = scan_added(scanner, chosen, with_ts=timed)
            left = (keys.left(one, closed, older=not timed) for one in added)
            self._add_each(sample, left, chosen)
        for frame in kept:
            open_rows = keys.left(frame.where(f"{DIFF} > 0"), closed, older=False)
            self._add(sample, self._untouched(sample, open_rows, counted=True))

    def _open_rows(
        self,
        sample: ShardPartition,
        scans: Mapping[ScanKind, Sequence[Part]],
        scanner: Scanner,
        what: tuple[object, ...],
        closed_numbers: Callable[[RowNumbers], DataFrame],
    ) -> bool:
        """Add what is left of the rows that parts add, by their numbers.

        Args:
            sample: One of the group's partitions.
            scans: The parts.
            scanner: Scans all columns of the shard.
            what: Tells which other parts take rows back, and how that is found.
            closed_numbers: Makes a frame of the numbers of the rows that are taken back.

        Returns:
            False, and nothing is added, if the rows are not known by number.
        """
        numbers = RowNumbers.of(scans, scanner.target)
        identity = (scanner.root, *what, scanner.target.json, *_keys_of(scans))
        bits = CLOSED_ROWS.find(self.spark, identity, numbers.rows, lambda: closed_numbers(numbers))
        if bits is None:
            return False
        added = scan_added(scanner, scans, numbers=numbers)
        self._add_each(sample, (bits.open_rows(one, numbers) for one in added), scans)
        return True

    def _lookup_table(
        self,
        what: tuple[str, ...],
        scanner: Scanner,
        retracting: Mapping[ScanKind, Sequence[Part]],
        held: Sequence[DataFrame],
        make: Callable[[Sequence[DataFrame]], DataFrame],
        *,
        with_ts: bool = False,
    ) -> DataFrame:
        """The table that rows are looked up in: broadcast before, or to be broadcast by the query.

        Where it can be kept and is not there yet, a job makes it now.

        Args:
            what: Tells it from anything else that is made of the same parts.
            scanner: As in `_split`.
            retracting: The parts to make it of.
            held: Further updates to make it of, which this process holds.
            make: Makes it of the updates of the parts.
            with_ts: True if `make` needs `_ts`.
        """

        def table() -> DataFrame:
            return make([*scanner.scan(retracting, with_ts=with_ts), *held])

        if not held:
            identity = (scanner.root, *what, scanner.target.json, *_keys_of(retracting))
            rows = sum(map(most_retractions, chain.from_iterable(retracting.values())))
            found = BROADCASTS.broadcast_once(self.spark, identity, rows, table)
            if found is not None:
                return found
        return F.broadcast(table())

    def _untouched(self, sample: ShardPartition, rows: DataFrame, *, counted: bool) -> DataFrame:
        if counted:
            return self._of_group(sample, rows)
        own = [sql_name(name) for name in sample.row_shape.columns(sample.index)]
        if sample.as_of is not None:
            own += [f"{sample.as_of}L AS {TS}", f"1L AS {DIFF}"]
        return project(_filtered(sample, rows), own)

    def _of_group(self, sample: ShardPartition, rows: DataFrame) -> DataFrame:
        own = [sql_name(name) for name in sample.row_shape.columns(sample.index)]
        rows = _filtered(sample, rows)
        if sample.as_of is None:
            return repeat_rows(project(rows, [*own, DIFF]))
        return project(rows, [*own, f"{sample.as_of}L AS {TS}", DIFF])

    def _inline_updates(
        self,
        sample: ShardPartition,
        inline: Sequence[PlannedPart],
        scanner: Scanner,
        *,
        with_ts: bool = False,
    ) -> DataFrame:
        """The updates of inline parts under the shard's whole schema."""
        schema = struct_of(scanner.target.record)
        shape = replace(sample.row_shape, feed="diff", names=(), schemas=(scanner.target.json,))
        raw = replace(
            _share_of(sample, inline),
            kind="changes",
            as_of=None,
            row_shape=shape,
            index=0,
            where=None,
        )
        fields = [*schema.fields, _TS_FIELD, _DIFF_FIELD]
        updates = fetch_in_driver(self.spark, [raw], StructType(fields))
        return updates if with_ts else updates.drop(TS)

    def _leave_to_arrow(self, sample: ShardPartition, parts: Sequence[PlannedPart]) -> None:
        """Leave parts that Spark cannot read to Arrow fetch, inline ones to this process."""
        inline = [p for p in parts if p.part.inline is not None]
        if inline:
            self.here.append(_share_of(sample, inline))
        self.others += [_share_of(sample, [p]) for p in parts if p.part.inline is None]

    def _add(self, sample: ShardPartition, frame: DataFrame) -> None:
        made = apply_row_shape(frame, sample.row_shape, sample.index)
        self.frames.append(conform(self.spark, made, self.schema))


def _sample_of(partitions: Sequence[ShardPartition]) -> ShardPartition:
    """The first of partitions that are read together, with the schemas of all their parts."""
    schemas = {number: text for one in partitions for number, text in one.schemas.items()}
    return replace(partitions[0], schemas=schemas)


def _share_of(sample: ShardPartition, parts: Sequence[PlannedPart]) -> ShardPartition:
    """A partition of `parts`, with the schemas that they need: tasks are sent no others."""
    wanted = {sample.schema_id, *(planned.part.schema for planned in parts)}
    schemas = {number: sample.schemas[number] for number in wanted}
    return replace(sample, schemas=schemas, parts=tuple(parts))


def _keys_of(scans: Mapping[ScanKind, Sequence[Part]]) -> list[tuple[object, ...]]:
    """The keys of parts, in their order, and how they are scanned."""
    return [(kind, *(part.key for part in parts)) for kind, parts in scans.items()]


def _filtered(sample: ShardPartition, rows: DataFrame) -> DataFrame:
    return rows if sample.where is None else rows.where(sample.where.text)


def _reunite_shares(partitions: Iterable[ShardPartition]) -> list[PlannedPart]:
    """The parts of partitions, with shares of one part reunited: Spark splits files itself."""
    found: dict[tuple[object, ...], list[PlannedPart]] = {}
    for partition in partitions:
        for planned in partition.parts:
            found.setdefault((planned.part.key, planned.times), []).append(planned)
    whole = []
    for shares in found.values():
        complete = len(shares) == shares[0].share[1]
        whole += [msgspec.structs.replace(shares[0], share=(0, 1))] if complete else shares
    return whole


def _refuse_retractions(parts: Iterable[PlannedPart]) -> None:
    for planned in parts:
        if planned.part.retracts and not planned.needs_time:
            raise InvalidUsage(
                f"part '{planned.part.key}' retracts rows, and this stream takes added rows only",
                code="RETRACTION_IN_APPEND_ONLY_STREAM",
                hint="set option readChangeFeed to true: rows then carry _ts and _diff",
            )
