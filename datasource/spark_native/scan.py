"""Parts as a DataFrame of Spark's Parquet reader: one scan for all parts that are read alike.

    rows       the wanted columns under the wanted types
    `_ts`      read, or, for parts that a commit stamped, a constant that only metadata knows
    `_diff`    read only where a part has other diffs than 1

The plan grows with the number of schemas that parts were written with, and with parts whose rows
must be filtered by time one by one, never with the number of parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from shardline.datasource.parts.nan_bounds import float_paths, trusts_bounds
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart, TimeFilter
from shardline.datasource.spark_native.jvm import (
    WRITTEN_TIME,
    File,
    Options,
    known_nullability,
    relation,
)
from shardline.datasource.spark_native.types import (
    project,
    quoted,
    read_record,
    readable,
    sql_name,
    struct_of,
)
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.types.spark_types import Record

__all__ = ["FLOAT_OPTIONS", "READ_OPTIONS", "Scanner", "counted"]

READ_OPTIONS: Mapping[str, str] = {
    # Of the session, they would make rows of a missing or damaged part vanish.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # Our files have no old calendar, whatever the session says of files that do not tell.
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    # A flipped bit is an error and not another value.
    "parquet.page.verify-checksum.enabled": "true",
    # To Parquet -0.0 and 0.0 are two values wherever it looks at single ones; to SQL they are one.
    "parquet.filter.bloom.enabled": "false",
    "parquet.filter.record-level.enabled": "false",
}

FLOAT_OPTIONS: Mapping[str, str] = {
    # The same: `f = 0.0` would pass over what has only -0.0 in its dictionary. Bounds know better.
    "parquet.filter.dictionary.enabled": "false",
}
"""Beside the others, of frames that have columns of floating-point numbers."""

_LAST_STAMP = 2**53
"""Greatest time that travels with a file: Spark keeps it in microseconds."""

_FILTERED_SCANS = 32
"""How many different time filters a plan has scans for; the rest are fetched by Arrow."""


_LITTLE_ROWS = 200_000
"""A filter on decimals is slower by what compiling takes, about 50 ms, at so many rows."""


def counted(part: Part) -> bool:
    """Whether some row of the part is there more or less often than once."""
    return part.diff_min != 1 or part.diff_max != 1


@dataclass(frozen=True, slots=True)
class _Likeness:
    """What parts of one scan have in common.

    Attributes:
        trusted: Whether the files' own bounds of floating-point numbers leave out no NaN.
    """

    schema: int
    counted: bool
    stamped: bool
    trusted: bool
    times: TimeFilter | None


@dataclass(frozen=True)
class Scanner:
    """Scans parts of one shard.

    Attributes:
        spark: The session that reads.
        root: The location as Hadoop names it; None if Spark cannot read there.
        schemas: The shard's schemas by id.
        target: The schema of the rows that come out.
        options: Of all scans of the frame.
    """

    spark: SparkSession
    root: str | None
    schemas: Mapping[int, ShardSchema]
    target: ShardSchema
    options: Options

    def takes(self, planned: PlannedPart) -> bool:
        """Whether Spark can read this part."""
        part = planned.part
        return (
            self.root is not None
            and part.inline is None
            and not planned.audit
            and planned.share == (0, 1)
            and (part.ts is None or 0 <= part.ts < _LAST_STAMP)
            and readable(self.schemas[part.schema], self.target)
        )

    def split(
        self, planned: Sequence[PlannedPart], *, with_ts: bool
    ) -> tuple[dict[_Likeness, list[Part]], list[PlannedPart]]:
        """Parts by what they have in common, and those that Spark does not read."""
        alike: dict[_Likeness, list[Part]] = {}
        others: list[PlannedPart] = []
        filtered = 0
        for item in planned:
            kind = _Likeness(
                item.part.schema,
                counted(item.part),
                with_ts and item.part.ts is not None,
                self._trusts(item.part),
                item.times if item.needs_time else None,
            )
            filtered += kind.times is not None and kind not in alike
            if self.takes(item) and (kind.times is None or filtered <= _FILTERED_SCANS):
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
        alike: Mapping[_Likeness, Sequence[Part]],
        *,
        with_ts: bool,
        with_ones: bool = True,
    ) -> list[DataFrame]:
        """The updates of the parts: target columns, `_ts` if wanted, `_diff`; a frame per kind.

        Args:
            alike: As of `split`.
            with_ts: Whether `_ts` is wanted.
            with_ones: Whether `_diff` is also wanted where it is 1 in every row.
        """
        return [
            self._scan(kind, parts, with_ts=with_ts, with_diff=with_ones or kind.counted)
            for kind, parts in alike.items()
        ]

    def _scan(
        self, kind: _Likeness, parts: Sequence[Part], *, with_ts: bool, with_diff: bool
    ) -> DataFrame:
        record = read_record(self.schemas[kind.schema].record, self.target.record)
        fields = list(struct_of(record).fields)
        if kind.counted:
            fields.append(StructField(DIFF, LongType(), nullable=False))
        if kind.times is not None or (with_ts and not kind.stamped):
            fields.append(StructField(TS, LongType(), nullable=False))
        files = [
            File(f"{self.root}/{part.key}", part.size_bytes, part.ts if kind.stamped else None)
            for part in parts
        ]
        frame = relation(self.spark, files, StructType(fields), self.options)
        if not kind.trusted:
            frame = self._veiled(frame, record)
        if kind.times is not None:
            frame = frame.where(_passes(kind.times, sum(part.rows for part in parts)))
        own = [_as(field.name, field.dataType, wanted) for field, wanted in self._pairs(fields)]
        times = [f"{WRITTEN_TIME} AS {TS}" if kind.stamped else TS] if with_ts else []
        diffs = [DIFF if kind.counted else f"1L AS {DIFF}"] if with_diff else []
        return project(frame, [*own, *times, *diffs])

    def _veiled(self, frame: DataFrame, record: Record) -> DataFrame:
        """`frame`, of whose floating-point columns no filter reaches the files.

        A tag that says what is known anyway is all it takes: Spark hands a file filters on columns
        only, and not on what is made of them.
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
    """The condition in SQL, for about `rows` rows.

    A bound that is a long is a number in the code that Spark compiles for a scan: each time would
    be code of its own, compiled anew, which takes longer than little data takes to read. Decimals
    are handed to the code instead, which stays the same; the difference is written out because
    Spark would see through a mere cast. What is much is compiled, and its row groups are skipped.
    """
    form = f"CAST({TS} AS DECIMAL(20, 0)) - {{}}BD {{}} 0BD" if rows <= _LITTLE_ROWS else ""
    bounds = [(">=", times.lower), ("<", times.upper)]
    return " AND ".join(
        form.format(bound, sign) if form else f"{TS} {sign} {bound}L"
        for sign, bound in bounds
        if bound is not None
    )
