"""Builds scans of Spark's Parquet reader: one for all parts that can be read in the same way.

    rows       the wanted columns under the wanted types
    `_ts`      read; for parts that a commit stamped, a constant of the file
    `_diff`    read only where a part has other diffs than 1
    numbers    of rows, if wanted: Spark counts them in each file, from a constant of the file

The plan grows with the number of schemas that parts were written with, and with parts whose rows
must be filtered by time one by one, never with the number of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import LongType, StructField, StructType

from shardline.datasource.parts.nan_bounds import float_paths, trusts_bounds
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart, TimeFilter
from shardline.datasource.spark_native.consolidate import fresh_name
from shardline.datasource.spark_native.jvm import FileFormat, known_nullability
from shardline.datasource.spark_native.local_parts import is_intact, is_local, seen_file
from shardline.datasource.spark_native.relations import File, relation
from shardline.datasource.spark_native.skipped_files import ScannedParts
from shardline.datasource.spark_native.types import (
    ROW_INDEX,
    can_spark_read,
    project,
    quoted,
    read_record,
    sql_name,
    struct_of,
)
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.types.spark_types import Record

__all__ = [
    "FLOAT_OPTIONS",
    "READ_OPTIONS",
    "RowNumbers",
    "ScanKind",
    "Scanner",
    "adding_parts",
    "chosen_parts",
    "is_counted",
    "scan_added",
    "with_numbers",
]

READ_OPTIONS: Mapping[str, str] = {
    # If the session sets one of them, rows of a missing or damaged part vanish without an error.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # Our files never use the Julian calendar, whatever the session assumes of unmarked files.
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    # A flipped bit is an error and not another value.
    "parquet.page.verify-checksum.enabled": "true",
    # Bloom filters and record filters compare single values, and to Parquet -0.0 and 0.0 are two;
    # to SQL they are one, and `f = 0.0` would lose rows.
    "parquet.filter.bloom.enabled": "false",
    "parquet.filter.record-level.enabled": "false",
}

FLOAT_OPTIONS: Mapping[str, str] = {
    # The same for dictionaries: `f = 0.0` would skip row groups that have only -0.0. Bounds are
    # compared with both, so they may stay.
    "parquet.filter.dictionary.enabled": "false",
}
"""Options beside `READ_OPTIONS` for frames with columns of floating-point numbers."""

_FILTERED_SCANS = 32
"""Scans of one plan with a time filter, at most; further parts are fetched by Arrow."""


_LITTLE_ROWS = 200_000
"""Rows at which a filter on decimals costs as much more as compiling saves, about 50 ms."""


def is_counted(part: Part) -> bool:
    """True if some row of the part has another diff than 1."""
    return part.diff_min != 1 or part.diff_max != 1


@dataclass(frozen=True, slots=True)
class ScanKind:
    """The properties that all parts of one scan share.

    Attributes:
        schema: Id of the schema that they were written with.
        counted: True if some row has another diff than 1.
        stamped: True if their time is taken from metadata.
        trusted: True if the files' bounds of floating-point numbers include NaN values.
        times: Filter of their rows by time; None if all rows count.
    """

    schema: int
    counted: bool
    stamped: bool
    trusted: bool
    times: TimeFilter | None


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """Numbers of the rows of parts: the sum of two columns, the other one being `ROW_INDEX`.

    Attributes:
        name: Name of the column with the number of the first row of a row's part.
        first: That number by the key of the part.
        rows: How many rows there are.
    """

    name: str
    first: Mapping[str, int]
    rows: int

    @classmethod
    def of(cls, alike: Mapping[ScanKind, Sequence[Part]], schema: ShardSchema) -> RowNumbers:
        """Number the rows of the parts of a shard with this schema, in their order."""
        first: dict[str, int] = {}
        rows = 0
        for part in chain.from_iterable(alike.values()):
            first[part.key] = rows
            rows += part.rows
        return cls(fresh_name("_shardline_first", (*schema.names, TS, DIFF)), first, rows)


@dataclass(frozen=True)
class Scanner:
    """Scans parts of one shard.

    Attributes:
        spark: The session that reads.
        root: The location's URL for Hadoop; None if Spark cannot read there.
        schemas: The shard's schemas by id.
        target: The schema of the rows that come out.
        file_format: The format of all scans of the frame.
        looked_at: True if all local parts are known to be intact.
    """

    spark: SparkSession
    root: str | None
    schemas: Mapping[int, ShardSchema]
    target: ShardSchema
    file_format: FileFormat
    looked_at: bool

    def can_scan(self, planned: PlannedPart) -> bool:
        """True if Spark can read this part, and would find out if it was damaged."""
        part = planned.part
        return (
            self.root is not None
            and part.inline is None
            and not planned.audit
            and planned.share == (0, 1)
            and can_spark_read(self.schemas[part.schema], self.target)
            and (self.looked_at or not is_local(self.root) or is_intact(self.root, part))
        )

    def split(
        self, planned: Sequence[PlannedPart], *, with_ts: bool
    ) -> tuple[dict[ScanKind, list[Part]], list[PlannedPart]]:
        """Group the parts that Spark can read by scan; returns the others as well."""
        alike: dict[ScanKind, list[Part]] = {}
        others: list[PlannedPart] = []
        filtered = 0
        for item in planned:
            kind = ScanKind(
                item.part.schema,
                is_counted(item.part),
                with_ts and item.part.ts is not None,
                self._trusts(item.part),
                item.times if item.needs_time else None,
            )
            filtered += kind.times is not None and kind not in alike
            if self.can_scan(item) and (kind.times is None or filtered <= _FILTERED_SCANS):
                alike.setdefault(kind, []).append(item.part)
            else:
                others.append(item)
        return alike, others

    def _trusts(self, part: Part) -> bool:
        if part.nan_safe or part.inline is not None:
            return True
        written = self.schemas[part.schema]
        read = [written.field(name) for name in self.target.names if name in written]
        return trusts_bounds(part, float_paths(read))

    def scan(
        self,
        alike: Mapping[ScanKind, Sequence[Part]],
        *,
        with_ts: bool,
        with_ones: bool = True,
        numbers: RowNumbers | None = None,
    ) -> list[DataFrame]:
        """The updates of the parts: target columns, `_ts` if wanted, `_diff`; a frame per scan.

        Args:
            alike: The first result of `split`.
            with_ts: True adds `_ts`.
            with_ones: True adds `_diff` also where it is 1 in every row.
            numbers: Adds the two columns of the rows' numbers.
        """
        found = []
        for kind, parts in alike.items():
            with_diff = with_ones or kind.counted
            found.append(self._scan(kind, parts, numbers, with_ts=with_ts, with_diff=with_diff))
        return found

    def _scan(
        self,
        kind: ScanKind,
        parts: Sequence[Part],
        numbers: RowNumbers | None,
        *,
        with_ts: bool,
        with_diff: bool,
    ) -> DataFrame:
        record = read_record(self.schemas[kind.schema].record, self.target.record)
        fields = list(struct_of(record).fields)
        if kind.counted:
            fields.append(StructField(DIFF, LongType(), nullable=False))
        needs_ts = with_ts or kind.times is not None
        if needs_ts and not kind.stamped:
            fields.append(StructField(TS, LongType(), nullable=False))
        if numbers:
            fields.append(StructField(ROW_INDEX, LongType()))
        # Spark puts a constant of a file into batches once, and leaves out files by it.
        constants: dict[str, list[int]] = {}
        if needs_ts and kind.stamped:
            constants[TS] = [part.ts or 0 for part in parts]
        if numbers:
            constants[numbers.name] = [numbers.first[part.key] for part in parts]
        assert self.root is not None, "Spark scans parts where it can read"
        local = is_local(self.root)
        files = [
            File(
                f"{self.root}/{part.key}",
                part.size_bytes,
                tuple(values[place] for values in constants.values()),
                seen_file(self.root, part) if local else "",
            )
            for place, part in enumerate(parts)
        ]
        scanned = ScannedParts(parts, self.schemas[kind.schema], record)
        frame = relation(
            self.spark,
            files,
            StructType(fields),
            self.file_format,
            constants=[*constants],
            scanned=scanned,
        )
        if not kind.trusted:
            frame = self._without_pushdown(frame, record)
        if kind.times is not None:
            frame = frame.where(_passes(kind.times, sum(part.rows for part in parts)))
        own = [_as(field.name, field.dataType, wanted) for field, wanted in self._pairs(fields)]
        times = [sql_name(TS)] if with_ts else []
        diffs = [sql_name(DIFF) if kind.counted else f"1L AS {DIFF}"] if with_diff else []
        number = [sql_name(ROW_INDEX), sql_name(numbers.name)] if numbers else []
        items = [*own, *times, *diffs, *number]
        taken = [*(field.name for field in fields), *constants]
        names = list(map(sql_name, taken))
        # Not `items == names`: comparing a column makes a column.
        if all(isinstance(item, str) for item in items) and items == names:
            return frame  # each projection is one more pass of Spark's analyzer and optimizer
        return project(frame, items)

    def _without_pushdown(self, frame: DataFrame, record: Record) -> DataFrame:
        """`frame` with its floating-point columns hidden from filter pushdown.

        Their files' bounds may leave out NaN, so a pushed filter could lose rows. Wrapping a column
        in a tag of its known nullability suffices: Spark pushes filters on plain columns only, and
        not on expressions.
        """
        floats = {field.name for field in record.fields if any(float_paths([field]))}
        return project(
            frame,
            [
                known_nullability(quoted(field.name), self.spark, nullable=field.nullable).alias(
                    field.name, metadata=field.metadata
                )
                if field.name in floats
                else sql_name(field.name)
                for field in frame.schema.fields
            ],
        )

    def _pairs(self, fields: Sequence[StructField]) -> list[tuple[StructField, StructField]]:
        wanted = struct_of(self.target.record).fields
        return list(zip(fields[: len(wanted)], wanted, strict=True))


def _as(name: str, found: object, wanted: StructField) -> Column | str:
    if found == wanted.dataType:
        return sql_name(name)
    return quoted(name).cast(wanted.dataType).alias(name)


def _passes(times: TimeFilter, rows: int) -> str:
    """The SQL condition of a time filter, for about `rows` rows.

    A long is a literal in the code that Spark generates for a scan, so each time would be compiled
    anew, which takes longer than little data takes to read. Decimals are passed to the code as
    references, so it is compiled once; the subtraction stops Spark from simplifying the cast. For
    many rows the plain bound is better: Spark can skip row groups by it.
    """
    form = f"CAST({TS} AS DECIMAL(20, 0)) - {{}}BD {{}} 0BD" if rows <= _LITTLE_ROWS else ""
    bounds = [(">=", times.lower), ("<", times.upper)]
    return " AND ".join(
        form.format(bound, sign) if form else f"{TS} {sign} {bound}L"
        for sign, bound in bounds
        if bound is not None
    )


def chosen_parts(
    scans: Mapping[ScanKind, Sequence[Part]], passes: Callable[[Part], bool]
) -> dict[ScanKind, list[Part]]:
    """The scans of those parts that pass; none without any."""
    found = {kind: list(filter(passes, parts)) for kind, parts in scans.items()}
    return {kind: parts for kind, parts in found.items() if parts}


def with_numbers(frames: Iterable[DataFrame], numbers: RowNumbers) -> list[DataFrame]:
    """Scans with the number of each row as one column, called as the first of the two."""
    number = F.col(numbers.name) + F.col(ROW_INDEX)
    return [frame.withColumn(numbers.name, number).drop(ROW_INDEX) for frame in frames]


def adding_parts(scans: Mapping[ScanKind, Sequence[Part]]) -> dict[ScanKind, list[Part]]:
    """The scans of parts without retractions."""
    return chosen_parts(scans, lambda part: not part.retracts)


def scan_added(
    scanner: Scanner,
    chosen: Mapping[ScanKind, Sequence[Part]],
    *,
    with_ts: bool = False,
    numbers: RowNumbers | None = None,
) -> list[DataFrame]:
    """What parts add, without their retractions: a frame for each scan, `_diff` if not always 1."""
    found = scanner.scan(chosen, with_ts=with_ts, with_ones=False, numbers=numbers)
    return [
        frame.where(f"{DIFF} > 0") if kind.counted else frame
        for kind, frame in zip(chosen, found, strict=True)
    ]
