"""Defines columns and types of a read's rows, for Spark's plan and for the tasks alike.

    rows    the shard's columns
    diff    the shard's columns, `_ts`, `_diff`
    cdf     the shard's columns, `_change_type`, `_commit_timestamp`, `_commit_version`

Several shards: `_input` (a shard's name), what the feed adds, and one struct per shard with its
columns, null in rows of the others.

Spark asks for the schema once, when the frame is loaded, and checks each task's rows against it; a
query goes on with that schema while the shard's evolves. So the shape holds types, not only names,
and a shard whose schema no longer fits is refused before any task runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shardline.datasource.errors import InvalidUsage, unknown_name
from shardline.datasource.rows.updates import expand_copies
from shardline.datasource.shard_source.options import Feed, SourceOptions
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.types.spark_types import type_text

__all__ = ["INPUT", "RowShape"]

INPUT = "_input"
"""Column with the name of the shard that a row belongs to."""

_CHANGE_TYPE, _COMMIT_TIMESTAMP, _COMMIT_VERSION = (
    "_change_type",
    "_commit_timestamp",
    "_commit_version",
)

_LAST_TIMESTAMP_MS = 253_402_300_799_999
"""The end of the year 9999, up to which Spark's timestamps and Python's agree."""

_FEEDS: dict[Feed, tuple[StructField, ...]] = {
    "rows": (),
    "diff": (
        StructField(TS, LongType(), nullable=False),
        StructField(DIFF, LongType(), nullable=False),
    ),
    "cdf": (
        StructField(_CHANGE_TYPE, StringType(), nullable=False),
        StructField(_COMMIT_TIMESTAMP, TimestampType(), nullable=True),
        StructField(_COMMIT_VERSION, LongType(), nullable=False),
    ),
}


@dataclass(frozen=True, slots=True)
class RowShape:
    """Columns and types of a read's rows: plain data, sent with every partition.

    Attributes:
        feed: The columns that describe a change.
        names: Names of the shards, if there are several; else empty.
        schemas: The columns read of each shard, as JSON text.
        nullable: True if Spark planned with nullable columns of the feed, as those of a table are;
            they are never null.
    """

    feed: Feed
    names: tuple[str, ...]
    schemas: tuple[str, ...]
    nullable: bool = False

    @classmethod
    def now(cls, options: SourceOptions, current: Sequence[ShardSchema]) -> RowShape:
        """The shape of a read that begins now.

        Args:
            options: The options of the read.
            current: The current schema of each input.

        Raises:
            InvalidUsage: Option `columns` names a column that does not exist; or two columns of
                the rows would have one name.
        """
        chosen = _selected_schemas(options, current)
        shape = cls(options.feed, options.shards, tuple(schema.json for schema in chosen))
        taken = Counter(shape.struct.names)
        for column in shape.added:
            if taken[column.name] > 1:
                raise _name_is_taken(column.name, of_shard=bool(options.shards))
        return shape

    @classmethod
    def of(cls, options: SourceOptions, struct: StructType) -> RowShape:
        """The shape of a schema that Spark passes to a reader: ours, or one that the user set.

        Raises:
            InvalidUsage: It leaves out columns that the feed or the inputs need.
        """
        feed = _FEEDS[options.feed]
        fields = list(struct.fields)
        if not options.shards:
            count = len(fields) - len(feed)
            nullable = _all_nullable(fields[count:], feed)
            return cls(options.feed, (), (StructType(fields[:count]).json(),), nullable)
        head = (StructField(INPUT, StringType(), nullable=False), *feed)
        own = fields[len(head) :]
        nullable = _all_nullable(fields[: len(head)], head)
        if [field.name for field in own] != list(options.shards) or not all(
            isinstance(field.dataType, StructType) for field in own
        ):
            raise _other_schema([field.name for field in own], list(options.shards))
        schemas = tuple(field.dataType.json() for field in own)
        return cls(options.feed, options.shards, schemas, nullable)

    @property
    def struct(self) -> StructType:
        """The rows as Spark's type."""
        structs = [StructType.fromJson(json.loads(text)) for text in self.schemas]
        if not self.names:
            return StructType([*structs[0].fields, *self.added])
        named = zip(self.names, structs, strict=True)
        inputs = [StructField(name, struct, nullable=True) for name, struct in named]
        return StructType([*self.added, *inputs])

    @property
    def added(self) -> list[StructField]:
        """The columns that no shard has: `_input`, and those of the feed."""
        head = [StructField(INPUT, StringType(), nullable=False)] if self.names else []
        return [
            StructField(field.name, field.dataType, field.nullable or self.nullable)
            for field in (*head, *_FEEDS[self.feed])
        ]

    def columns(self, index: int) -> tuple[str, ...]:
        """Names of the columns read of an input."""
        return ShardSchema.parse(self.schemas[index]).names

    def check(self, index: int, name: str, current: ShardSchema) -> None:
        """Refuse an input whose current schema can no longer be read under this shape.

        Raises:
            InvalidUsage: A column is gone, or has another type than when the frame was loaded.
        """
        for field in ShardSchema.parse(self.schemas[index]).record.fields:
            if field.name not in current:
                raise unknown_name("column", field.name, current.names)
            now = current.field(field.name)
            if now.type != field.type or (now.nullable and not field.nullable):
                present = _type_and_nullability(now.type, now.nullable)
                former = _type_and_nullability(field.type, field.nullable)
                raise InvalidUsage(
                    f"column '{field.name}' of shard '{name}' is {present}, and was {former} when "
                    "the frame was loaded",
                    code="SCHEMA_CHANGED",
                    hint="load it again (restart the query), without a schema of your own: a shard "
                    "says what it has; nothing was read",
                )

    def rows(self, index: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches of an input as rows of this shape.

        Args:
            index: Index of the input.
            batches: Its columns; and `_ts`, `_diff` unless the feed is "rows".
        """
        target = _target(self)
        for batch in batches:
            for changed in _as_cdf(batch) if self.feed == "cdf" else (batch,):
                columns = self._inputs(index, changed) if self.names else changed.columns
                yield pa.RecordBatch.from_arrays(columns, schema=target)

    def _inputs(self, index: int, batch: pa.RecordBatch) -> list[pa.Array]:
        target, rows = _target(self), batch.num_rows
        added = len(_FEEDS[self.feed])
        own = batch.columns[: batch.num_columns - added]
        inputs = [pa.nulls(rows, field.type) for field in list(target)[1 + added :]]
        fields = list(target.field(1 + added + index).type)
        inputs[index] = pa.StructArray.from_arrays(own, fields=fields)
        names = pa.repeat(pa.scalar(self.names[index]), rows)
        return [names, *batch.columns[batch.num_columns - added :], *inputs]


def _as_cdf(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Updates as changes: one row per copy, added or removed."""
    if batch.num_rows == 0:
        return
    diffs, times = batch.column(DIFF), batch.column(TS)
    kinds = pc.if_else(pc.greater(diffs, 0), "insert", "delete")
    known = pc.if_else(pc.less_equal(times, _LAST_TIMESTAMP_MS), times, pa.scalar(None, pa.int64()))
    stamps = pc.multiply(known, 1000).cast(pa.timestamp("us", tz="UTC"))
    own = batch.columns[: batch.num_columns - 2]
    names = [*batch.schema.names[:-2], _CHANGE_TYPE, _COMMIT_TIMESTAMP, _COMMIT_VERSION, DIFF]
    table = pa.Table.from_arrays([*own, kinds, stamps, times, pc.abs(diffs)], names=names)
    for copies in expand_copies(table):
        yield from copies.combine_chunks().to_batches()


@lru_cache(maxsize=64)
def _target(shape: RowShape) -> pa.Schema:
    """The Arrow schema that Spark checks the first batch of each task against."""
    own = [ShardSchema.parse(text).arrow for text in shape.schemas]
    added = [
        pa.field(field.name, _ARROW[type(field.dataType)], nullable=field.nullable)
        for field in shape.added
    ]
    if not shape.names:
        return pa.schema([*own[0], *added])
    structs = [
        pa.field(name, pa.struct(list(schema)), nullable=True)
        for name, schema in zip(shape.names, own, strict=True)
    ]
    return pa.schema([*added, *structs])


_ARROW = {
    LongType: pa.int64(),
    StringType: pa.string(),
    TimestampType: pa.timestamp("us", tz="UTC"),
}


def _name_is_taken(name: str, *, of_shard: bool) -> InvalidUsage:
    whose = f"a shard '{name}'" if of_shard else f"a column '{name}' of the shard"
    others = [] if of_shard else ["leave the column out by option `columns`"]
    others += ["take another feed"] if name != INPUT else []
    others += ["read that shard by itself, or make it under another name"] if of_shard else []
    return InvalidUsage(
        f"the read adds a column '{name}', and {whose} has the same name",
        code="RESERVED_COLUMN",
        hint="; or ".join(others),
    )


def _selected_schemas(options: SourceOptions, current: Sequence[ShardSchema]) -> list[ShardSchema]:
    wanted = options.columns
    if wanted is None:
        return list(current)
    if not options.shards:
        return [current[0].select(wanted)]
    own: dict[str, list[str]] = {name: [] for name in options.shards}
    for text in wanted:
        name, dot, column = text.partition(".")
        if not dot or name not in own:
            raise InvalidUsage(
                f"option 'columns' names '{text}', which is not a column of a shard that is read",
                code="INVALID_OPTION",
                hint=f"of several shards write shard.column; they are {', '.join(options.shards)}",
            )
        own[name].append(column)
    return [
        schema.select(own[name]) if own[name] else schema
        for name, schema in zip(options.shards, current, strict=True)
    ]


def _all_nullable(found: Sequence[StructField], wanted: Sequence[StructField]) -> bool:
    """True if `found` are the columns `wanted`, but all nullable.

    Raises:
        InvalidUsage: They are others, or only some of them are nullable.
    """
    for nullable in (False, True):
        if [(f.name, f.dataType, f.nullable) for f in found] == [
            (f.name, f.dataType, f.nullable or nullable) for f in wanted
        ]:
            return nullable
    raise _other_schema(list(map(_column, found)), list(map(_column, wanted)))


def _column(field: StructField) -> str:
    null = "" if field.nullable else " not null"
    return f"{field.name} {field.dataType.simpleString()}{null}"


def _other_schema(found: list[str], wanted: list[str]) -> InvalidUsage:
    return InvalidUsage(
        f"the schema given has {', '.join(found) or 'nothing'} where this read has "
        f"{', '.join(wanted)}",
        code="SCHEMA_MISMATCH",
        hint="leave schema() out and choose columns with the option 'columns'",
    )


def _type_and_nullability(kind: object, nullable: bool) -> str:  # noqa: FBT001
    return type_text(kind) + ("" if nullable else " not null")  # type: ignore[arg-type]
