"""The shards of objects: made before anything reads them, brought up to a changed definition.

A source or view has its contents in the shard of its name. It is there from the moment that the
object is wanted, so that what reads it can be created at once and in any order.
"""

from __future__ import annotations

from pyspark.sql.types import StructType

from app.protocol.objects import SourceDescription, ViewDescription
from datasource.client import ShardClient
from datasource.errors import InvalidUsage
from datasource.read import current_schema
from datasource.schema import ShardSchema

__all__ = ["make_shard", "schema_of"]


def schema_of(ddl: str) -> ShardSchema:
    """The schema that columns in Spark's DDL describe; needs a session."""
    return ShardSchema.parse(StructType.fromDDL(ddl).json())


def make_shard(
    client: ShardClient, description: SourceDescription | ViewDescription, retain_ms: int
) -> None:
    """Let the shard of an object be there with its columns.

    A shard whose columns the definition only widens or adds to is evolved. One with other columns
    cannot hold the new contents beside the old ones: it is dropped and made again, if nobody but
    dataflows of this runtime reads it.

    Args:
        client: Of the location.
        description: The object; its columns are known.
        retain_ms: How far back it stays readable if it does not say so itself.

    Raises:
        InvalidUsage: There is another shard of this name that cannot be changed: another key, or
            other columns and somebody who reads it.
    """
    schema = schema_of(description.schema)
    key = description.key if isinstance(description, SourceDescription) else ()
    retain = retain_ms if description.retain_ms is None else description.retain_ms
    name = description.name
    if client.exists(name):
        state = client.state(name)
        if state.key == key and _fits(client, name, current_schema(state), schema):
            client.set_retention(name, retain)
            return
        client.drop(name)
    client.create(name, schema, key=key, retain_ms=retain)


def _fits(client: ShardClient, name: str, current: ShardSchema, wanted: ShardSchema) -> bool:
    """Whether the shard has the wanted columns, or has them now."""
    if current == wanted:
        return True
    try:
        client.evolve(name, wanted)
    except InvalidUsage:
        return False
    return True
