"""Defines a shard's schema: Spark's own, kept without loss, and the Arrow schema derived from it.

An Arrow schema alone would lose collations, interval ranges and time precisions. So
`ShardSchema.json`, the canonical text of Spark's `StructType`, is the durable form. `.arrow` is the
schema of the data in Python, exactly as PySpark's `to_arrow_schema` gives it with time zone UTC.
Writers without Spark start from `ShardSchema.from_arrow`.

    ShardSchema.parse(json_text)       from Spark's StructType.json()
    ShardSchema.from_arrow(schema)     from any Arrow schema whose types mean a Spark type
    .json .arrow .names .record        canonical text, pa.Schema, column names, the type as a value
    .field(name)                       one column, or an error with the nearest name
    .select(names)                     the schema of a projection
    .check_key(names)                  refuses columns that cannot order a shard

Invariants:
    - Two schemas are equal exactly when their canonical texts are.
    - Column names differ by more than case, at every level; `_ts` and `_diff` are never among them.
    - A schema has at least one column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import pyarrow as pa

from shardline.datasource.errors import InvalidUsage, unknown_name
from shardline.datasource.types.arrow_to_spark import spark_record
from shardline.datasource.types.spark_types import (
    Atomic,
    Field,
    Record,
    SparkType,
    arrow_field,
    parse_record,
    record_json,
    type_text,
)

__all__ = ["DIFF", "RESERVED", "TS", "ShardSchema"]

TS: Final = "_ts"
"""Column of an update that holds its time (int64)."""

DIFF: Final = "_diff"
"""Column of an update that holds its diff (int64)."""

RESERVED: Final = frozenset({TS, DIFF})


@dataclass(frozen=True)
class ShardSchema:
    """The columns of a shard. Build one with `parse` or `from_arrow`; `record` is validated."""

    record: Record

    def __post_init__(self) -> None:
        if not self.record.fields:
            raise InvalidUsage(
                "a shard needs at least one column", code="NO_COLUMNS", hint="select some column"
            )
        for field in self.record.fields:
            if field.name.lower() in RESERVED:
                raise InvalidUsage(
                    f"column '{field.name}' has a name that a shard keeps for itself",
                    code="RESERVED_COLUMN",
                    hint="rename the column; _ts and _diff hold the time and diff of an update",
                )

    @classmethod
    def parse(cls, text: str) -> ShardSchema:
        """Parse the JSON text of a Spark `StructType`.

        Raises:
            InvalidUsage: `SCHEMA_UNREADABLE`, `UNSUPPORTED_TYPE`, `DUPLICATE_COLUMN`,
                `RESERVED_COLUMN` or `NO_COLUMNS`, with the column's path where there is one.
        """
        return _parsed(text)

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> ShardSchema:
        """Make the schema of Arrow data that a writer without Spark has.

        Types of the same values become one (large and view strings, dictionaries, coarser
        timestamps); types that would lose values are refused, such as unsigned integers and
        nanosecond timestamps. Nested types and Spark's metadata (variant, collations) are kept.

        Raises:
            InvalidUsage: As `parse`.
        """
        return cls(parse_record(record_json(spark_record(schema))))

    @cached_property
    def json(self) -> str:
        """Canonical JSON text of the StructType: the durable form."""
        return record_json(self.record)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of PySpark for this one, time zone UTC; without `_ts` and `_diff`."""
        return pa.schema([arrow_field(f) for f in self.record.fields])

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(f.name for f in self.record.fields)

    @cached_property
    def _by_name(self) -> Mapping[str, Field]:
        return {f.name: f for f in self.record.fields}

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def field(self, name: str) -> Field:
        """The column called exactly `name`.

        Raises:
            InvalidUsage: `UNKNOWN_COLUMN`, with the nearest known name.
        """
        found = self._by_name.get(name)
        if found is None:
            raise unknown_name("column", name, self.names)
        return found

    def select(self, names: Sequence[str]) -> ShardSchema:
        """The schema of the columns `names`, in that order."""
        return ShardSchema(Record(tuple(self.field(name) for name in names)))

    def check_key(self, names: Sequence[str]) -> None:
        """Refuse key columns that do not exist, repeat, or have no order that tells rows apart.

        Raises:
            InvalidUsage: `UNKNOWN_COLUMN` or `BAD_KEY`.
        """
        for position, name in enumerate(names):
            field = self.field(name)
            if name in names[:position]:
                raise InvalidUsage(
                    f"key column '{name}' is named twice", code="BAD_KEY", hint="name it once"
                )
            if not self.has_order(name):
                raise InvalidUsage(
                    f"key column '{name}' has the type {type_text(field.type)}, which has no order",
                    code="BAD_KEY",
                    hint="choose columns of plain types",
                )
            if field.collations != "null":
                # A shard tells keys apart by their bytes, and a query would find one key twice.
                raise InvalidUsage(
                    f"key column '{name}' has a collation ({_collation_names(field)}), to which "
                    "different texts are one key; to a shard they are several",
                    code="BAD_KEY",
                    hint="choose a column without a collation, such as one of lower(…)",
                )

    def has_order(self, name: str) -> bool:
        """True if the values of a column have an order."""
        return _is_orderable(self.field(name).type)


@lru_cache(maxsize=1 << 8)
def _parsed(text: str) -> ShardSchema:
    """The schema of a text. A plan parses the few of its shard again and again."""
    return ShardSchema(parse_record(text))


def _collation_names(field: Field) -> str:
    found = json.loads(field.collations)
    return ", ".join(sorted(str(one).rpartition(".")[2] for one in found.values()))


def _is_orderable(kind: SparkType) -> bool:
    unordered = ("variant", "void", "geometry", "geography")
    return isinstance(kind, Atomic) and not kind.name.startswith(unordered)
