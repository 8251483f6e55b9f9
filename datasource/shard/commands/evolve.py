"""The schema command makes a new schema of a shard current, if old parts still fit it.

A shard keeps every schema it ever had, as a part is decoded by the one that it was written with.
Only changes after which old parts still mean what they meant are accepted (Delta, Iceberg: schema
evolution); others would make stored rows unreadable, or silently different.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import ShardState
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.schema_evolution import Incompatible, evolve

__all__ = ["Evolved", "SchemaMismatch", "SchemaRefused", "evolve_schema"]


@dataclass(frozen=True, slots=True)
class Evolved:
    """The schema with this id is current."""

    schema_id: int


@dataclass(frozen=True, slots=True)
class SchemaMismatch:
    """The schema was changed meanwhile; `current` is the id of the current one."""

    current: int


@dataclass(frozen=True, slots=True)
class SchemaRefused:
    """The new schema cannot read the rows that are stored; `obstacle` names the column."""

    obstacle: Incompatible


def evolve_schema(
    state: ShardState, now_ms: int, *, expected: int, schema: ShardSchema
) -> Transition[Evolved | SchemaMismatch | SchemaRefused]:
    """Make `schema` current, if schema `expected` still is and stored rows can be read with it."""
    del now_ms
    current = state.schema_id
    # Before `expected` is compared: a request that is repeated after an unknown outcome finds the
    # schema changed by itself, and must succeed (materialize #38460).
    if state.schemas[current] == schema.json:
        return Transition(None, Evolved(current))
    if current != expected:
        return Transition(None, SchemaMismatch(current))
    evolved = evolve(ShardSchema.parse(state.schemas[current]), schema)
    if isinstance(evolved, Incompatible):
        return Transition(None, SchemaRefused(evolved))
    schemas = {**state.schemas, current + 1: evolved.json}
    return Transition(msgspec.structs.replace(state, schemas=schemas), Evolved(current + 1))
