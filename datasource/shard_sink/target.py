"""Finds the shard of a write, creates or evolves it if needed, and checks that the frame fits it.

Runs in a helper process of the driver before the job starts, so that a frame that does not fit
fails before any row is read.

Invariants:
    A write whose frame does not fit makes no shard, and changes none.
    A shard's key is set when it is created, and never changed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, nearest_name
from shardline.datasource.frontier import MINIMUM
from shardline.datasource.read import current_schema
from shardline.datasource.shard.state import ShardState, is_tombstone
from shardline.datasource.shard_sink.envelope import EnvelopeConverter, with_shard_spelling
from shardline.datasource.shard_sink.frame_columns import AFTER, BEFORE, FrameRoles
from shardline.datasource.shard_source.options import SinkOptions
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.schema_evolution import Incompatible, evolve
from shardline.datasource.types.spark_types import (
    Array,
    Field,
    Map,
    Record,
    SparkType,
    type_text,
)

__all__ = ["WriteTarget", "find_shard", "is_unused", "resolve_target"]


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The shard that tasks stage for, and the roles of the frame's columns: plain data.

    Attributes:
        shard: Id of the shard.
        schema_id: Id of the schema that rows are fitted to.
        schema: That schema, as JSON text.
        key: The shard's key.
        frame: The roles of the frame's columns.
    """

    shard: str
    schema_id: int
    schema: str
    key: tuple[str, ...]
    frame: FrameRoles

    @property
    def unwrapper(self) -> EnvelopeConverter:
        """The converter from the frame's rows to staged rows."""
        return EnvelopeConverter(self.frame, ShardSchema.parse(self.schema), self.key)

    def fit(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert batches of the frame to batches to stage."""
        return map(self.unwrapper.unwrap, batches)


def find_shard(client: ShardClient, name: str) -> ShardState | None:
    """The state of shard `name`; None if it does not exist or was dropped."""
    state = client.machine(name).refresh()
    return None if state is None or is_tombstone(state) else state


def is_unused(state: ShardState) -> bool:
    """True if nothing was ever written to the shard, and nobody else has it for their writes.

    A write makes its shard before its rows are read. One that fails then leaves such a shard, and
    to its repetition there must be none.
    """
    return state.upper == MINIMUM and state.registered is None and not state.times_by


def resolve_target(
    client: ShardClient, options: SinkOptions, frame: FrameRoles, found: ShardState | None
) -> WriteTarget:
    """Make the target of a write of `frame`; creates the shard if it was not found.

    Args:
        client: A client of the shard's location.
        options: Options of the write.
        frame: The roles of the frame's columns.
        found: The result of `find_shard`.

    Raises:
        InvalidUsage: The frame does not fit the shard; names the column.
    """
    name = options.shard
    _check_key(options, found)
    schema = frame.row_schema if found is None else current_schema(found)
    key = (options.key or ()) if found is None else found.key
    # A frame whose key is not among its columns is refused before anything asks for their types.
    schema.check_key(key)
    wanted = schema
    if options.merge_schema:
        wanted = _merged(schema, _shard_columns(frame, schema))
    _check_frame(WriteTarget("", 0, wanted.json, key, frame), name)
    state = found or client.create(
        name, schema, key=key, comment=options.comment, retain_ms=options.retain_ms
    )
    if wanted != schema:
        client.evolve(name, wanted)
        state = client.state(name)
    target = WriteTarget(state.shard, state.schema_id, current_schema(state).json, state.key, frame)
    if state is not found:
        # Another process may have changed it since, or made it at the same time.
        _check_frame(target, name)
    if options.retain_ms is not None and options.retain_ms != state.retain_ms:
        client.set_retention(name, options.retain_ms)
    return target


def _check_frame(target: WriteTarget, name: str) -> None:
    """Refuse a frame whose rows cannot be rows of shard `name`, as `target` describes it."""
    frame = target.frame
    schema = ShardSchema.parse(target.schema)
    prefix = f"{AFTER}." if frame.envelope == "debezium" else ""
    _check_fits(name, _shard_columns(frame, schema), schema, prefix)
    if frame.before:
        _check_fits(name, ShardSchema.parse(frame.before), schema, f"{BEFORE}.")
    if target.unwrapper.stages_carriers:
        _check_carries(target, name)


def _check_key(options: SinkOptions, found: ShardState | None) -> None:
    name, wanted = options.shard, options.key
    if found is not None and wanted is not None and wanted != found.key:
        raise InvalidUsage(
            f"shard '{name}' has the key ({', '.join(found.key)}), not ({', '.join(wanted)})",
            code="KEY_MISMATCH",
            hint="leave option 'key' out: it only counts when the write makes the shard",
        )
    if options.envelope == "upsert" and not (wanted if found is None else found.key):
        raise InvalidUsage(
            f"shard '{name}' has no key, and envelope 'upsert' replaces rows by their key",
            code="KEY_NEEDED",
            hint="set option 'key' when the write makes the shard; a shard's key never changes",
        )


def _check_carries(target: WriteTarget, name: str) -> None:
    """Refuse frames whose rows lack a key column, or have columns that carriers reserve."""
    schema = target.unwrapper.staged_schema
    frame = target.frame
    images = [("", frame.rows), (f"{BEFORE}.", frame.before)]
    for prefix, text in images:
        known = {n.lower() for n in ShardSchema.parse(text).names} if text else None
        for column in target.key:
            if known is not None and column.lower() not in known:
                raise InvalidUsage(
                    f"the frame lacks column '{prefix}{column}', which is in the key of shard "
                    f"'{name}'",
                    code="MISSING_COLUMN",
                    hint=f"add it: it is {type_text(schema.field(column).type)}",
                )


def _shard_columns(frame: FrameRoles, schema: ShardSchema) -> ShardSchema:
    """The columns of the frame's rows that the shard gets.

    All of them, but an ordering column only if the shard has it.
    """
    rows = with_shard_spelling(frame.row_schema, schema)
    if frame.envelope != "upsert" or not frame.order:
        return rows
    order = frame.order[0].lower()
    names = [name for name in rows.names if name.lower() != order or name in schema]
    return rows.select(names) if len(names) < len(rows.names) else rows


def _merged(schema: ShardSchema, rows: ShardSchema) -> ShardSchema:
    """`schema` with the frame's new columns at its end, and its wider types."""
    fields = []
    for old in schema.record.fields:
        fields.append(old)
        if old.name in rows:
            wanted = rows.field(old.name)
            kind = _with_nulls_of(old.type, wanted.type)
            wider = Field(old.name, kind, old.nullable, old.metadata)
            one, other = (ShardSchema(Record((field,))) for field in (old, wider))
            if isinstance(evolve(one, other), ShardSchema):
                fields[-1] = wider
    added = [
        Field(f.name, f.type, nullable=True, metadata=f.metadata)
        for f in rows.record.fields
        if f.name not in schema
    ]
    return ShardSchema(Record((*fields, *added)))


def _with_nulls_of(old: SparkType, wanted: SparkType) -> SparkType:
    """The frame's type, with nulls wherever rows of the shard have them, and in its new fields."""
    match old, wanted:
        case Record(), Record():
            known = {field.name: field for field in old.fields}
            fields = []
            for field in wanted.fields:
                before = known.get(field.name)
                kind = _with_nulls_of(before.type, field.type) if before else field.type
                nullable = field.nullable or before is None or before.nullable
                fields.append(replace(field, type=kind, nullable=nullable))
            return Record(tuple(fields))
        case Array(), Array():
            element = _with_nulls_of(old.element, wanted.element)
            return Array(element, old.nullable or wanted.nullable)
        case Map(), Map():
            key = _with_nulls_of(old.key, wanted.key)
            value = _with_nulls_of(old.value, wanted.value)
            return Map(key, value, old.nullable or wanted.nullable)
        case _:
            return wanted


def _check_fits(name: str, rows: ShardSchema, schema: ShardSchema, prefix: str) -> None:
    """Refuse rows that cannot be rows of the shard; `prefix` is their path in the frame."""
    spelt = with_shard_spelling(rows, schema)
    for column in spelt.names:
        if column not in schema:
            near = nearest_name(column, schema.names)
            raise InvalidUsage(
                f"column '{prefix}{column}' of the frame is not in shard '{name}'",
                code="EXTRA_COLUMN",
                hint=f"did you mean '{near}'?" if near else "drop it, or set mergeSchema to true",
            )
    for field in schema.record.fields:
        if field.name not in spelt:
            if not field.nullable:
                raise InvalidUsage(
                    f"the frame lacks column '{prefix}{field.name}', which shard '{name}' needs",
                    code="MISSING_COLUMN",
                    hint=f"add it: it is {type_text(field.type)} and never null",
                )
            continue
        mine = spelt.field(field.name)
        # Nulls are looked for row by row in the tasks: a frame's schema often says nullable where
        # the data has none.
        given = Field(field.name, mine.type, field.nullable, field.metadata)
        one, other = (ShardSchema(Record((f,))) for f in (given, field))
        if isinstance(evolve(one, other), Incompatible):
            widens = not isinstance(evolve(other, one), Incompatible)
            raise InvalidUsage(
                f"column '{prefix}{field.name}' is {type_text(mine.type)} in the frame and "
                f"{type_text(field.type)} in shard '{name}'",
                code="WRONG_TYPE",
                hint="cast it, or set mergeSchema to true: the shard's type can be widened"
                if widens
                else f"cast it to {type_text(field.type)}: the shard's type cannot become the "
                "frame's",
            )
