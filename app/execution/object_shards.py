"""The shards of objects: there before anything reads them.

A source or view has its contents in the shard of its name. It is made as soon as the object is
wanted, so that what reads it can be created at once, in any order. What becomes of a shard that is
there already is decided by whoever writes it, when it starts: the definition may have changed.
"""

from __future__ import annotations

from pyspark.sql.types import StructType

from shardline.app.protocol.objects import SourceDescription, ViewDescription
from shardline.datasource.client import ShardClient
from shardline.datasource.types.schema import ShardSchema

__all__ = ["make_shard", "schema_of"]


def schema_of(ddl: str) -> ShardSchema:
    """The schema that columns in Spark's DDL describe; needs a session."""
    return ShardSchema.parse(StructType.fromDDL(ddl).json())


def make_shard(
    client: ShardClient, description: SourceDescription | ViewDescription, columns: str
) -> None:
    """Make the shard of an object, unless there is one; set how far back it stays readable.

    Args:
        client: Of the location.
        description: The object.
        columns: Of its contents, in Spark's DDL.

    Raises:
        InvalidUsage: The columns, or the key, cannot be those of a shard.
    """
    name, retain_ms = description.name, description.retain_ms
    if client.exists(name):
        client.set_retention(name, retain_ms)
        return
    key = description.key if isinstance(description, SourceDescription) else ()
    client.create(name, schema_of(columns), key=key, retain_ms=retain_ms)
