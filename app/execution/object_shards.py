"""Object shards are created as soon as their objects are, before anything reads or writes them.

A source or view has its contents in the shard of its name. Because the shard is there at once,
objects that read it can be created in any order. A shard that is there already stays as it is: its
writer decides at its start what a changed definition means for it.

The shard of a source that was dropped and is made again begins where the dropped one had ended. A
subscriber that goes on behind what it has of that one would get the rows of the new one in addition
to those of the old one, which nobody retracts; so it is refused, and takes a snapshot.
"""

from __future__ import annotations

from pyspark.sql.types import StructType

from shardline.app.protocol.objects import SourceDescription, ViewDescription
from shardline.datasource.client import ShardClient
from shardline.datasource.types.schema import ShardSchema

__all__ = ["create_object_shard", "parse_ddl_schema"]


def parse_ddl_schema(ddl: str) -> ShardSchema:
    """Parse columns in Spark's DDL; needs a session."""
    return ShardSchema.parse(StructType.fromDDL(ddl).json())


def create_object_shard(
    client: ShardClient, description: SourceDescription | ViewDescription, columns: str
) -> None:
    """Create the shard of an object, unless there is one, and set its retention.

    Args:
        client: Client of the location.
        description: The object.
        columns: Columns of its contents, in Spark's DDL.

    Raises:
        InvalidUsage: The columns, or the key, cannot be those of a shard.
    """
    name, retain_ms = description.name, description.retain_ms
    kind = "source" if isinstance(description, SourceDescription) else "view"
    times_by = f"{kind} {name}"
    if client.exists(name):
        client.set_retention(name, retain_ms)
        # Made by code that did not note it yet.
        client.note_times_by(name, times_by)
        return
    schema = parse_ddl_schema(columns)
    if isinstance(description, SourceDescription):
        client.create(
            name,
            schema,
            key=description.key,
            retain_ms=retain_ms,
            first_time="former-upper",
            times_by=times_by,
        )
    else:
        # A view chooses its first time itself (`ViewSink.begin`), and that may be the last time
        # of the dropped one: of inputs that do not move there is no later one.
        client.create(name, schema, retain_ms=retain_ms, times_by=times_by)
