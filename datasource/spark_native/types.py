"""Maps the types that parts were written with to those that Spark reads them as, and widens them.

A part is read under the types it was written with, and the fields of the wanted schema: Spark's
reader gives null for fields that the part lacks, at any depth. Plain values are then widened by
Spark's `cast`, which keeps every value for all widenings that `schema_evolution` allows.

Spark's readers act on some metadata of a field: they fill a missing column with its DEFAULT, look
columns up by a number, pad text. A part has its columns by name, nulls where it lacks one, and text
as it was written, so such metadata is no part of the schema to read under; `conform` restores it.
A user's frame is padded above all that (`pad_chars`), as Spark pads that of a plain read.

Invariants:
    `can_spark_read` is False for every type that tests do not show Spark to read as Arrow fetch
    does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructField, StructType

from shardline.datasource.spark_native.jvm import known_nullability, select_text
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import (
    Array,
    Atomic,
    Field,
    Map,
    Record,
    SparkType,
    record_json,
)

__all__ = [
    "ROW_INDEX",
    "can_cast_in_place",
    "can_spark_read",
    "conform",
    "project",
    "quoted",
    "read_record",
    "sql_name",
    "struct_of",
]


_OBEYED: Final = frozenset(
    {"CURRENT_DEFAULT", "EXISTS_DEFAULT", "__CHAR_VARCHAR_TYPE_STRING", "parquet.field.id"}
)
"""Keys of the metadata that Spark's readers act on. All other metadata is kept: more projections
would be needed to restore it."""


def struct_of(record: Record) -> StructType:
    """The record as Spark's type."""
    return StructType.fromJson(json.loads(record_json(record)))


def sql_name(name: str) -> str:
    """SQL text of the column called exactly `name`, whichever characters it has."""
    return f"`{name.replace('`', '``')}`"


def quoted(name: str) -> Column:
    """The column called exactly `name`, whichever characters it has."""
    return F.col(sql_name(name))


def project(frame: DataFrame, items: Sequence[str | Column]) -> DataFrame:
    """`frame` with these columns.

    Each call on a `Column` is several calls to the JVM, and SQL text is one call for all: where all
    items are text, making a frame takes a fifth of the time.
    """
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) == len(items):
        return select_text(frame, texts)
    return frame.select([F.expr(item) if isinstance(item, str) else item for item in items])


ROW_INDEX: Final = "_tmp_metadata_row_index"
"""A column that Spark's Parquet reader makes: positions of rows in their file, from 0."""


def can_spark_read(written: ShardSchema, target: ShardSchema) -> bool:
    """True if Spark can read parts of schema `written` as rows of `target`."""
    return all(
        _is_readable(field.type)
        and field.name.lower() != ROW_INDEX
        and (field.name not in written or _is_widened(written.field(field.name), field))
        for field in target.record.fields
    )


def _is_readable(kind: SparkType) -> bool:
    match kind:
        case Atomic(name):
            # Spark stores them as structs of well-known binary that its own reader does not mark.
            return not name.startswith(("geometry", "geography"))
        case Array(element, _):
            return _is_readable(element)
        case Map(key, value, _):
            return _is_readable(key) and _is_readable(value)
        case Record(fields):
            return all(_is_readable(field.type) for field in fields)


def _is_widened(old: Field, new: Field) -> bool:
    """True if casting the old type to the new one keeps what is never null inside of it."""
    return old.type == new.type or _casts(old.type, new.type)


def _casts(old: SparkType, new: SparkType) -> bool:
    match old, new:
        case Atomic(), Atomic():
            return True
        case Array(one, _), Array(other, nullable):
            return (nullable or one == other) and _casts(one, other)
        case Map(key, value, _), Map(to_key, to_value, nullable):
            return key == to_key and (nullable or value == to_value) and _casts(value, to_value)
        case Record(), Record(fields):
            before = {field.name: field for field in old.fields}
            return all(
                field.name not in before
                or (
                    (field.nullable or before[field.name].type == field.type)
                    and _casts(before[field.name].type, field.type)
                )
                for field in fields
            )
    return False


def can_cast_in_place(old: SparkType, new: SparkType) -> bool:
    """True if Spark's `cast` turns `old` into `new`, given that `old` can be evolved to `new`.

    A cast adds no fields to structs, and does not check nulls inside of a value that the new type
    does not allow.
    """
    match old, new:
        case Atomic(), Atomic():
            return True
        case Array(one, before), Array(other, after):
            return (after or not before) and can_cast_in_place(one, other)
        case Map(key, value, before), Map(to_key, to_value, after):
            return (
                (after or not before)
                and can_cast_in_place(key, to_key)
                and can_cast_in_place(value, to_value)
            )
        case Record(before_fields), Record(after_fields):
            return [f.name for f in before_fields] == [f.name for f in after_fields] and all(
                (b.nullable or not a.nullable) and can_cast_in_place(a.type, b.type)
                for a, b in zip(before_fields, after_fields, strict=True)
            )
    return False


def read_record(written: Record, target: Record) -> Record:
    """The record to read parts under: `target` with the plain types that `written` has.

    Without the metadata that would make Spark read something else than the parts hold.
    """
    known = {field.name: field for field in written.fields}
    return Record(
        tuple(
            Field(
                field.name,
                _read_type(known[field.name].type, field.type),
                known[field.name].nullable,
                _without_obeyed(field.metadata),
            )
            if field.name in known
            else Field(
                field.name,
                _read_type(field.type, field.type),
                nullable=True,
                metadata=_without_obeyed(field.metadata),
            )
            for field in target.fields
        )
    )


def _without_obeyed(metadata: str) -> str:
    if not any(key in metadata for key in _OBEYED):
        return metadata
    kept = {key: value for key, value in json.loads(metadata).items() if key not in _OBEYED}
    return json.dumps(kept, separators=(",", ":"), sort_keys=True)


def _read_type(written: SparkType, target: SparkType) -> SparkType:
    match written, target:
        case Record(), Record():
            return read_record(written, target)
        case Array(element, nullable), Array(wanted, _):
            return Array(_read_type(element, wanted), nullable)
        case Map(key, value, nullable), Map(to_key, to_value, _):
            return Map(_read_type(key, to_key), _read_type(value, to_value), nullable)
    return written


def conform(spark: SparkSession, frame: DataFrame, target: StructType) -> DataFrame:
    """`frame` with exactly the columns of `target`, by name: types, nullability, metadata."""
    if frame.schema == target:
        return frame
    found = {field.name: field for field in frame.schema.fields}
    frame = project(frame, [_cast(found[field.name], field) for field in target.fields])
    pairs = zip(frame.schema.fields, target.fields, strict=True)
    return project(frame, [_with_nullability(spark, field, wanted) for field, wanted in pairs])


def _cast(found: StructField, wanted: StructField) -> Column | str:
    if found.dataType == wanted.dataType:
        return sql_name(found.name)
    return quoted(found.name).cast(wanted.dataType).alias(wanted.name)


def _with_nullability(spark: SparkSession, found: StructField, wanted: StructField) -> Column | str:
    if found == wanted:
        return sql_name(found.name)
    column = quoted(found.name)
    if found.nullable != wanted.nullable:
        column = known_nullability(column, spark, nullable=wanted.nullable)
    return column.alias(wanted.name, metadata=wanted.metadata)
