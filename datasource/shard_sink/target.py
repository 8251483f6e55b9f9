"""What a write goes to: the shard, made or evolved if need be, and how the frame's columns fit it.

Runs in a helper process of the driver before the job starts, so that what cannot work fails before
any row is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import LongType, StructType

from datasource.client import ShardClient
from datasource.convert import migrate
from datasource.errors import InvalidUsage, nearest
from datasource.evolution import Incompatible, evolve
from datasource.read import current_schema
from datasource.schema import RESERVED, ShardSchema
from datasource.shard_source.options import SinkOptions
from datasource.sparktype import Field, Record, type_text

__all__ = ["Target", "frame_schema", "resolve"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where tasks stage to. Plain data.

    Attributes:
        shard: Id of the shard.
        schema_id: The schema that the parts are written with.
        schema: Its JSON text.
        frame: The frame's own columns as a schema, JSON text; without `_ts` and `_diff`.
        key: The shard's key.
    """

    shard: str
    schema_id: int
    schema: str
    frame: str
    key: tuple[str, ...]

    def fit(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The frame's rows as rows of the shard: missing columns null, narrower types widened."""
        frame, schema = ShardSchema.parse(self.frame), ShardSchema.parse(self.schema)
        # Names may differ in case only; Spark treats them as the same.
        renamed = _renamed(frame, schema)
        for batch in batches:
            names = [renamed.get(name, name) for name in batch.schema.names]
            yield migrate(batch.rename_columns(names), _as(frame, renamed), schema)


def frame_schema(struct: StructType) -> ShardSchema:
    """The schema of a frame's rows, leaving out the columns that make them updates.

    Raises:
        InvalidUsage: A column's type cannot be kept in a shard, or `_ts`/`_diff` are no longs.
    """
    for field in struct.fields:
        if field.name in RESERVED and not isinstance(field.dataType, LongType):
            raise InvalidUsage(
                f"column '{field.name}' is {field.dataType.simpleString()}, not bigint",
                code="WRONG_TYPE",
                hint="_ts is a time (int64) and _diff a number of copies added or removed",
            )
    own = StructType([field for field in struct.fields if field.name not in RESERVED])
    return ShardSchema.parse(own.json())


def resolve(client: ShardClient, options: SinkOptions, struct: StructType) -> Target:
    """The target of a write of frames with schema `struct`; makes the shard if it is not there.

    Raises:
        InvalidUsage: The frame does not fit the shard; names the column.
    """
    frame = frame_schema(struct)
    name = options.shard
    if not client.exists(name):
        client.create(name, frame, key=options.key or (), comment=options.comment)
    state = client.state(name)
    if options.key is not None and options.key != state.key:
        raise InvalidUsage(
            f"shard '{name}' has the key ({', '.join(state.key)}), not ({', '.join(options.key)})",
            code="KEY_MISMATCH",
            hint="leave option 'key' out: it only counts when the write makes the shard",
        )
    schema = current_schema(state)
    if options.merge_schema:
        merged = _merged(schema, frame)
        if merged != schema:
            client.evolve(name, merged)
            state = client.state(name)
            schema = current_schema(state)
    _check_fits(name, frame, schema)
    return Target(state.shard, state.schema_id, schema.json, frame.json, state.key)


def _renamed(frame: ShardSchema, schema: ShardSchema) -> dict[str, str]:
    """The shard's spelling of each of the frame's columns that is spelled otherwise."""
    folded = {name.lower(): name for name in schema.names}
    return {
        name: folded[name.lower()]
        for name in frame.names
        if name not in schema and name.lower() in folded
    }


def _as(frame: ShardSchema, renamed: dict[str, str]) -> ShardSchema:
    fields = (
        Field(renamed.get(f.name, f.name), f.type, f.nullable, f.metadata)
        for f in frame.record.fields
    )
    return ShardSchema(Record(tuple(fields)))


def _merged(schema: ShardSchema, frame: ShardSchema) -> ShardSchema:
    """`schema` with the frame's new columns at its end, and its wider types."""
    spelled = _as(frame, _renamed(frame, schema))
    fields = []
    for old in schema.record.fields:
        fields.append(old)
        if old.name in spelled:
            wanted = spelled.field(old.name)
            wider = Field(old.name, wanted.type, old.nullable, old.metadata)
            one, other = (ShardSchema(Record((field,))) for field in (old, wider))
            if isinstance(evolve(one, other), ShardSchema):
                fields[-1] = wider
    added = [
        Field(f.name, f.type, nullable=True, metadata=f.metadata)
        for f in spelled.record.fields
        if f.name not in schema
    ]
    return ShardSchema(Record((*fields, *added)))


def _check_fits(name: str, frame: ShardSchema, schema: ShardSchema) -> None:
    """Refuse a frame whose rows cannot be rows of the shard."""
    spelled = _as(frame, _renamed(frame, schema))
    for column in spelled.names:
        if column not in schema:
            near = nearest(column, schema.names)
            raise InvalidUsage(
                f"column '{column}' of the frame is not in shard '{name}'",
                code="EXTRA_COLUMN",
                hint=f"did you mean '{near}'?" if near else "drop it, or set mergeSchema to true",
            )
    for field in schema.record.fields:
        if field.name not in spelled:
            if not field.nullable:
                raise InvalidUsage(
                    f"the frame lacks column '{field.name}', which shard '{name}' needs",
                    code="MISSING_COLUMN",
                    hint=f"add it: it is {type_text(field.type)} and never null",
                )
            continue
        mine = spelled.field(field.name)
        # Whether nulls are in the data is checked row by row; a frame's schema seldom knows.
        given = Field(field.name, mine.type, field.nullable, field.metadata)
        one, other = (ShardSchema(Record((f,))) for f in (given, field))
        if isinstance(evolve(one, other), Incompatible):
            raise InvalidUsage(
                f"column '{field.name}' is {type_text(mine.type)} in the frame and "
                f"{type_text(field.type)} in shard '{name}'",
                code="WRONG_TYPE",
                hint="cast it, or set mergeSchema to true if the shard's type can be widened",
            )
