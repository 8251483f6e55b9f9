"""Converts rows of a frame to rows that are staged, batch by batch, by the write's envelope.

    append, diff    the rows, with `_diff` and `_ts` if they have them
    upsert          carriers (see `upsert`) of the rows
    debezium        without a key, `before` with diff -1 and `after` with diff +1;
                    with one, carriers: one that lives for `after`, and one that deletes for a
                    `before` whose key is gone

A task sees its own rows only, so it cannot retract the rows that an upsert replaces: it stages
carriers, and the commit turns them into a difference. Columns are matched by name in any case,
missing ones are null, narrower types are widened. Runs in the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard_sink.frame_columns import AFTER, BEFORE, NEED_AFTER, OP, FrameRoles
from shardline.datasource.types.cast_to_schema import check_data, migrate_rows
from shardline.datasource.types.row_keys import surrogate
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.types.spark_types import Field, Record
from shardline.datasource.upsert import AT, LIVE, ORDER, PARTITION, TIE, carrier_schema

__all__ = ["EnvelopeConverter", "with_shard_spelling"]

_DIFF_FIELD = pa.field(DIFF, pa.int64(), nullable=False)


def with_shard_spelling(frame: ShardSchema, schema: ShardSchema) -> ShardSchema:
    """`frame` with the shard's spelling of each column; to Spark other cases are the same name."""
    folded = {name.lower(): name for name in schema.names}
    fields = (
        Field(folded.get(f.name.lower(), f.name), f.type, f.nullable, f.metadata)
        for f in frame.record.fields
    )
    return ShardSchema(Record(tuple(fields)))


@dataclass(frozen=True)
class EnvelopeConverter:
    """Converts record batches of a frame to record batches to stage.

    Attributes:
        frame: The roles of the frame's columns.
        schema: The shard's schema.
        key: The shard's key.
    """

    frame: FrameRoles
    schema: ShardSchema
    key: tuple[str, ...]

    @property
    def stages_carriers(self) -> bool:
        """True if carriers are staged instead of rows."""
        return self.frame.envelope == "upsert" or (
            self.frame.envelope == "debezium" and bool(self.key)
        )

    @cached_property
    def staged_schema(self) -> ShardSchema:
        """The schema of the staged batches."""
        if not self.stages_carriers:
            return self.schema
        return carrier_schema(
            self.schema,
            self.key,
            self.frame.order_type,
            tie=bool(self.frame.tie),
            partitioned=bool(self.frame.partition),
        )

    @cached_property
    def unwrap(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """The function that converts one record batch."""
        match self.frame.envelope:
            case "append" | "diff":
                return self._changes
            case "upsert":
                return self._upserts
            case "debezium":
                return self._replacements if self.key else self._differences

    # -- append, diff --------------------------------------------------------------------------

    def _changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = migrate_rows(self._named(batch, self.frame.row_schema), self._rows, self.schema)
        for name in (TS, DIFF):
            if name in batch.schema.names:
                kept = kept.append_column(name, pc.cast(batch.column(name), pa.int64()))
        return kept

    # -- upsert --------------------------------------------------------------------------------

    def _upserts(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = migrate_rows(
            self._named(batch, self.frame.row_schema), self._rows, self._nullable_schema
        )
        return self._carriers(rows, self._ranks(batch), self._live_mask(batch, rows))

    def _live_mask(self, batch: pa.RecordBatch, rows: pa.RecordBatch) -> pa.Array:
        """False for rows that delete."""
        if self.frame.delete:
            return pc.invert(pc.fill_null(batch.column(self.frame.delete), False))
        order = {name.lower() for name in self.frame.order}
        telling = [n for n in rows.schema.names if n not in self.key and n.lower() not in order]
        if not telling:
            return _constant(True, rows.num_rows)
        lives = pc.is_valid(rows.column(telling[0]))
        for name in telling[1:]:
            lives = pc.or_(lives, pc.is_valid(rows.column(name)))
        return lives

    def _ranks(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns of carriers by which the winner among the rows of a key is chosen."""
        columns: dict[str, pa.Array] = {}
        if self.frame.order:
            column, *fields = self.frame.order
            values = batch.column(column)
            columns[ORDER] = pc.struct_field(values, fields) if fields else values
        if self.frame.tie:
            columns[TIE] = batch.column(self.frame.tie)
        if self.frame.partition:
            partition, at = self.frame.partition
            columns |= {PARTITION: batch.column(partition), AT: batch.column(at)}
        return columns

    def _carriers(
        self, rows: pa.RecordBatch, ranks: Mapping[str, pa.Array], lives: pa.Array
    ) -> pa.RecordBatch:
        """Carriers of `rows`, which have the schema `_nullable_schema`, with their `ranks`."""
        # Deletes may leave columns null that the shard needs; only rows that live must fit it.
        if pc.all(lives, min_count=0).as_py():
            check_data(rows, self.schema)
        else:
            check_data(rows.filter(lives), self.schema)
            rows = self._without_deleted_values(rows, lives)
        columns: dict[str, pa.Array] = {n: rows.column(n) for n in rows.schema.names}
        columns[LIVE] = lives
        columns |= ranks
        names = self.staged_schema.names
        return pa.RecordBatch.from_arrays([columns[name] for name in names], list(names))

    def _without_deleted_values(self, rows: pa.RecordBatch, lives: pa.Array) -> pa.RecordBatch:
        """`rows` with nulls outside of the key in rows that delete."""
        places = pa.array(np.arange(rows.num_rows))
        kept = pc.if_else(lives, places, pa.scalar(None, pa.int64()))
        columns = [
            rows.column(n) if n in self.key else rows.column(n).take(kept)
            for n in rows.schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    # -- debezium ------------------------------------------------------------------------------

    def _differences(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert events of a shard without key: `before` is retracted, `after` added."""
        self._check_events(batch)
        images = [
            _with_diff(migrate_rows(rows, shape, self.schema), diff)
            for (rows, shape), diff in (
                (self._image(batch, BEFORE, self._before), -1),
                (self._image(batch, AFTER, self._rows), 1),
            )
            if rows is not None
        ]
        return pa.concat_batches(images)

    def _replacements(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert events of a shard with a key: `after` replaces the rows of its key."""
        self._check_events(batch)
        rows, shape = self._image(batch, AFTER, self._rows)
        assert rows is not None, "after is never void"
        lives = migrate_rows(rows, shape, self._nullable_schema)
        ranks = self._ranks(batch)
        here = _filtered(ranks, pc.is_valid(batch.column(AFTER)))
        images = [self._carriers(lives, here, _constant(True, lives.num_rows))]
        if self._before is not None:
            left = self._key_gone_mask(batch)
            gone, shape = self._image(batch.filter(left), BEFORE, self._before)
            assert gone is not None
            keys = migrate_rows(gone, shape, self._nullable_schema)
            deletes = _constant(False, keys.num_rows)
            images.append(self._carriers(keys, _filtered(ranks, left), deletes))
        return pa.concat_batches(images)

    def _key_gone_mask(self, batch: pa.RecordBatch) -> pa.Array:
        """True for events after which the key of `before` is gone: deletes, and changes of key."""
        before, after = batch.column(BEFORE), batch.column(AFTER)
        assert self._before is not None
        moved = pc.invert(pc.is_valid(after))
        for name in self.key:
            one = _child(before, self._before, name, self.schema)
            other = _child(after, self._rows, name, self.schema)
            moved = pc.or_(moved, _differs(one, other))
        return pc.and_(pc.is_valid(before), moved)

    def _check_events(self, batch: pa.RecordBatch) -> None:
        """Refuse truncations, and events without an image that they need; needs column `op`."""
        if not self.frame.has_op:
            return
        op = batch.column(OP)
        if pc.any(pc.equal(op, "t")).as_py():
            raise InvalidUsage(
                "an event truncates the table (op 't'), which says nothing of its rows",
                code="TRUNCATE_EVENT",
                hint="leave such events out (the connector's skipped.operations), or overwrite "
                "the shard",
            )
        if _lack(batch, AFTER, NEED_AFTER):
            raise InvalidUsage(
                f"an event with op {_any_of(NEED_AFTER)} has no '{AFTER}': what it puts there is "
                "unknown",
                code="NO_AFTER",
                hint=f"give the events as the connector writes them, each with its whole '{AFTER}'",
            )
        needy = ("d",) if self.key else ("d", "u")
        if _lack(batch, BEFORE, needy):
            raise InvalidUsage(
                f"an event with op {_any_of(needy)} has no '{BEFORE}': what it takes away is "
                "unknown",
                code="NO_BEFORE",
                hint="let the database log whole rows (REPLICA IDENTITY FULL)"
                + ("" if self.key else ", or give the shard a key"),
            )

    def _image(
        self, batch: pa.RecordBatch, name: str, shape: ShardSchema | None
    ) -> tuple[pa.RecordBatch | None, ShardSchema]:
        """The rows of a struct column that are not null, and their schema as the shard has it."""
        if shape is None:
            return None, self.schema
        values = batch.column(name).drop_null()
        return pa.RecordBatch.from_arrays(values.flatten(), list(shape.names)), shape

    # -- schemas -------------------------------------------------------------------------------

    @cached_property
    def _rows(self) -> ShardSchema:
        return self._kept(self.frame.row_schema)

    @cached_property
    def _before(self) -> ShardSchema | None:
        if not self.frame.before:
            return None
        return self._kept(ShardSchema.parse(self.frame.before))

    def _kept(self, frame: ShardSchema) -> ShardSchema:
        return with_shard_spelling(frame, self.schema)

    @cached_property
    def _nullable_schema(self) -> ShardSchema:
        """The shard's schema with every column outside of the key nullable."""
        names = self.schema.names
        return carrier_schema(self.schema, self.key).select(names)

    def _named(self, batch: pa.RecordBatch, frame: ShardSchema) -> pa.RecordBatch:
        """The columns of the row in the shard's spelling."""
        return batch.select(list(frame.names)).rename_columns(list(self._rows.names))


def _child(image: pa.Array, shape: ShardSchema, name: str, schema: ShardSchema) -> pa.Array:
    """A column of a struct column as the shard has it; null where the struct is."""
    position = shape.names.index(name)
    column = pa.RecordBatch.from_arrays([image.flatten()[position]], [name])
    return migrate_rows(column, shape.select([name]), _nullable(schema.select([name]))).column(0)


def _nullable(schema: ShardSchema) -> ShardSchema:
    fields = (
        Field(f.name, f.type, nullable=True, metadata=f.metadata) for f in schema.record.fields
    )
    return ShardSchema(Record(tuple(fields)))


def _differs(one: pa.Array, other: pa.Array) -> pa.Array:
    """True where two columns differ; null equals null, and NaN equals NaN."""
    unequal = pc.fill_null(pc.not_equal(surrogate(one), surrogate(other)), False)
    return pc.or_(unequal, pc.xor(pc.is_null(one), pc.is_null(other)))


def _lack(batch: pa.RecordBatch, image: str, operations: Sequence[str]) -> bool:
    """True if an event of one of the operations has no such image."""
    needs = pc.fill_null(pc.is_in(batch.column(OP), value_set=pa.array(operations)), False)
    return bool(pc.any(pc.and_(needs, pc.is_null(batch.column(image)))).as_py())


def _any_of(operations: Sequence[str]) -> str:
    return " or ".join(map(repr, operations))


def _filtered(columns: Mapping[str, pa.Array], mask: pa.Array) -> dict[str, pa.Array]:
    return {name: column.filter(mask) for name, column in columns.items()}


def _constant(value: bool, count: int) -> pa.Array:  # noqa: FBT001
    return pa.repeat(pa.scalar(value), count)


def _with_diff(rows: pa.RecordBatch, diff: int) -> pa.RecordBatch:
    return rows.append_column(_DIFF_FIELD, pa.repeat(pa.scalar(diff, pa.int64()), rows.num_rows))
