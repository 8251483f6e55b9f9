"""Assigns roles to the columns of a written frame: row, times, diffs, deletes and order.

The envelope decides what a column means, and a frame that does not fit it would otherwise fail in
its tasks, after minutes, or write something else. `assign_roles` needs the frame's schema and the
options only, so errors are found before the shard is read. A `FrameRoles` is plain data that is
sent to the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from shardline.datasource.errors import InvalidUsage, nearest_name, unknown_name
from shardline.datasource.shard_source.options import Envelope, SinkOptions
from shardline.datasource.types.schema import DIFF, RESERVED, TS, ShardSchema
from shardline.datasource.types.spark_types import SparkType
from shardline.datasource.upsert import ORDER

__all__ = ["AFTER", "BEFORE", "NEED_AFTER", "OP", "FrameRoles", "assign_roles"]

BEFORE: Final = "before"
AFTER: Final = "after"
OP: Final = "op"

NEED_AFTER: Final = ("c", "r", "u")
"""Operations of change events after which there is a row: Debezium's create, read and update."""

_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)


@dataclass(frozen=True, slots=True)
class FrameRoles:
    """The roles of a frame's columns.

    Attributes:
        envelope: The meaning of a row of the frame.
        rows: Schema of its rows as JSON text: the frame's own columns, or those of `after`.
        before: Schema of `before` as JSON text; empty if it is always null.
        has_op: True if change events name their operation, in column `op`.
        order: Path of the ordering value: a column, then fields in it; empty if none.
        order_schema: Type of that value: JSON text of a schema with the one column `ORDER`; empty
            if none.
        tie: Name of the text column that decides between equal ordering values; empty if none.
        partition: Names of the column with a row's partition, and of that which orders the last
            rows of several ones; empty if rows have no partitions.
        delete: Name of the boolean column that marks deletes; empty if none.
        timed: True if rows carry their times.
    """

    envelope: Envelope
    rows: str
    before: str = ""
    has_op: bool = False
    order: tuple[str, ...] = ()
    order_schema: str = ""
    tie: str = ""
    partition: tuple[str, ...] = ()
    delete: str = ""
    timed: bool = False

    @property
    def row_schema(self) -> ShardSchema:
        """`rows`, parsed."""
        return ShardSchema.parse(self.rows)

    @property
    def order_type(self) -> SparkType | None:
        """The type of the ordering value; None if there is none."""
        if not self.order_schema:
            return None
        return ShardSchema.parse(self.order_schema).field(ORDER).type


def assign_roles(options: SinkOptions, struct: StructType) -> FrameRoles:
    """Assign roles to the columns of a frame with schema `struct`.

    Raises:
        InvalidUsage: A column is missing or of the wrong type for the envelope, has a type that
            shards do not store, or an option names a column that does not exist.
    """
    match options.envelope:
        case "append" | "diff":
            return _changes(options, struct)
        case "upsert":
            return _upserts(options, struct)
        case "debezium":
            return _events(options, struct)


def _changes(options: SinkOptions, struct: StructType) -> FrameRoles:
    """A frame of rows that are added, or of updates."""
    if options.envelope == "diff":
        _column(struct, DIFF, "diff")
    for field in struct.fields:
        accepted = {DIFF: _WHOLE, TS: (LongType,)}.get(field.name)
        if accepted is not None and not isinstance(field.dataType, accepted):
            raise InvalidUsage(
                f"column '{field.name}' is {field.dataType.simpleString()}, not bigint",
                code="WRONG_TYPE",
                hint="_ts is a time (int64) and _diff a number of copies added or removed",
            )
    own = [field for field in struct.fields if field.name not in RESERVED]
    return FrameRoles(options.envelope, _schema(own), timed=TS in struct.names)


def _upserts(options: SinkOptions, struct: StructType) -> FrameRoles:
    """A frame of rows that replace the rows of their keys."""
    _refuse_changes(struct, "upsert")
    delete = _named(struct, options.delete_column, "deleteColumn")
    if delete is not None and not isinstance(delete.dataType, BooleanType):
        raise InvalidUsage(
            f"column '{delete.name}' is {delete.dataType.simpleString()}, not boolean",
            code="WRONG_TYPE",
            hint="the column of option 'deleteColumn' is true for rows to delete",
        )
    tie, partition = options.tie_column or "", options.partition_columns or ()
    left_out = {tie, *partition, "" if delete is None else delete.name}
    path, kind = _order(struct, options.ordering_column, nested=False)
    return FrameRoles(
        "upsert",
        _schema([field for field in struct.fields if field.name not in left_out]),
        order=path,
        order_schema=kind,
        tie=tie,
        partition=partition,
        delete="" if delete is None else delete.name,
    )


def _events(options: SinkOptions, struct: StructType) -> FrameRoles:
    """A frame of change events in Debezium's form."""
    _refuse_changes(struct, "debezium")
    before, after = _image(struct, BEFORE), _image(struct, AFTER)
    if after is None:
        raise InvalidUsage(
            f"column '{AFTER}' is void, not a struct",
            code="WRONG_TYPE",
            hint="give it the type of the rows: it decides the shard's columns",
        )
    has_op = OP in struct.names and isinstance(struct[OP].dataType, StringType)
    path, kind = _order(struct, options.ordering_column, nested=True)
    return FrameRoles(
        "debezium",
        _schema(after.fields),
        before="" if before is None else _schema(before.fields),
        has_op=has_op,
        order=path,
        order_schema=kind,
        tie=options.tie_column or "",
    )


def _schema(fields: list[StructField]) -> str:
    return ShardSchema.parse(StructType(fields).json()).json


def _image(struct: StructType, name: str) -> StructType | None:
    """The columns of a row before or after a change; None if the column is always null."""
    kind = _column(struct, name, "debezium").dataType
    if isinstance(kind, NullType):
        return None
    if not isinstance(kind, StructType):
        raise InvalidUsage(
            f"column '{name}' is {kind.simpleString()}, not a struct",
            code="WRONG_TYPE",
            hint="parse the events first, with from_json for example",
        )
    return kind


def _column(struct: StructType, name: str, envelope: Envelope) -> StructField:
    if name in struct.names:
        return struct[name]
    near = nearest_name(name, struct.names)
    raise InvalidUsage(
        f"the frame lacks column '{name}', which envelope '{envelope}' needs",
        code="MISSING_COLUMN",
        hint=f"did you mean '{near}'?" if near else "add it, or choose another envelope",
    )


def _refuse_changes(struct: StructType, envelope: Envelope) -> None:
    for name in struct.names:
        if name.lower() in RESERVED:
            raise InvalidUsage(
                f"the frame has column '{name}', and envelope '{envelope}' takes no changes",
                code="ENVELOPE_MISMATCH",
                hint="drop it, or use envelope diff for a frame that says itself what it changes",
            )


def _named(struct: StructType, name: str | None, option: str) -> StructField | None:
    """The column that an option names, in any case."""
    if name is None:
        return None
    for field in struct.fields:
        if field.name.lower() == name.lower():
            return field
    error = unknown_name("column", name, struct.names)
    raise InvalidUsage(
        f"option '{option}' names column '{name}', which the frame does not have",
        code=error.code,
        hint=error.hint,
    )


def _order(struct: StructType, name: str | None, *, nested: bool) -> tuple[tuple[str, ...], str]:
    """Path and type of the ordering column."""
    if name is None:
        return (), ""
    path, kind = _resolve_path(struct, name, nested=nested)
    schema = ShardSchema.parse(StructType([StructField(ORDER, kind)]).json())
    if not schema.has_order(ORDER):
        raise InvalidUsage(
            f"ordering column '{name}' has the type {kind.simpleString()}, which has no order",
            code="WRONG_TYPE",
            hint="choose a column of a plain type",
        )
    return path, schema.json


def _resolve_path(
    struct: StructType, name: str, *, nested: bool
) -> tuple[tuple[str, ...], DataType]:
    """The column `name`, or the field in one that a path with dots leads to."""
    whole = name.lower() in {known.lower() for known in struct.names}
    steps = [name] if whole or not nested else name.split(".")
    path: list[str] = []
    kind: DataType = struct
    for step in steps:
        found = _named(kind, step, "orderingColumn") if isinstance(kind, StructType) else None
        if found is None:
            raise InvalidUsage(
                f"option 'orderingColumn' is '{name}', and '{'.'.join(path)}' has no fields",
                code="UNKNOWN_COLUMN",
                hint="name a column, or a field in a struct",
            )
        path.append(found.name)
        kind = found.dataType
    return tuple(path), kind
