"""The schema registry: every schema the shard ever had, the newest one current."""

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
    """Somebody evolved the schema meanwhile; `current` is its id now."""

    current: int


@dataclass(frozen=True, slots=True)
class SchemaRefused:
    """The new schema cannot read what is there; `obstacle` names the column."""

    obstacle: Incompatible


def evolve_schema(
    state: ShardState, now_ms: int, *, expected: int, schema: ShardSchema
) -> Transition[Evolved | SchemaMismatch | SchemaRefused]:
    """Make `schema` current, if `expected` still is and what is there can be read with it.

    Whether the requested schema already is current is asked first: only so is a repeated request,
    after an unknown outcome, idempotent (materialize #38460).
    """
    del now_ms
    current = state.schema_id
    if state.schemas[current] == schema.json:
        return Transition(None, Evolved(current))
    if current != expected:
        return Transition(None, SchemaMismatch(current))
    evolved = evolve(ShardSchema.parse(state.schemas[current]), schema)
    if isinstance(evolved, Incompatible):
        return Transition(None, SchemaRefused(evolved))
    schemas = {**state.schemas, current + 1: evolved.json}
    return Transition(msgspec.structs.replace(state, schemas=schemas), Evolved(current + 1))
