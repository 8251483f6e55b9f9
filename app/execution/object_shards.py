"""Creates object shards as soon as their objects are, before anything reads or writes them.

A source or view has its contents in the shard of its name. Because the shard is there at once,
objects that read it can be created in any order. A shard that is there already stays as it is: its
writer decides at its start what a changed definition means for it.

The shard of a source that was dropped and is made again begins where the dropped one had ended. A
subscriber that goes on behind what it has of that one would get the rows of the new one in addition
to those of the old one, which nobody retracts; so it is refused, and takes a snapshot.

A shard is dropped only in the state in which it was before a look at the fence. A runtime may rest
for minutes behind that look, and another one take over and acknowledge rows in that very shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql.types import StructType

from shardline.app.protocol.objects import SourceDescription, ViewDescription
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate
from shardline.datasource.schema import ShardSchema
from shardline.datasource.state import ShardState

__all__ = ["create_object_shard", "drop_object_shard", "parse_ddl_schema"]

_LOOKS_MAX: Final = 10
"""Most looks at a shard that is to be dropped: each heartbeat of a reader changes its state."""


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


def drop_object_shard(
    client: ShardClient,
    name: str,
    check_fence: Callable[[], None],
    *,
    shard: str | None = None,
    before: Callable[[ShardState], None] = lambda _: None,
) -> bool:
    """Drop a shard for good, and cut off who reads it; False if it is not there.

    Args:
        client: Client of the location.
        name: Its name.
        check_fence: Raises if another runtime may have taken over.
        shard: Its id, where the drop was decided on an earlier state: another one that has the name
            by now stays. None for the one that has the name at this call.
        before: Called with the state in which the shard is dropped, before it is; again for another
            one, if the shard changes in between.

    Raises:
        Fenced: Another runtime has taken over; the shard stays.
        Determinate: `SHARD_CHANGED`: it changes all the time; it stays.
        Indeterminate: It may have been dropped.
    """
    changed = None
    for _ in range(_LOOKS_MAX):
        if not client.exists(name):
            return False
        seen = client.state(name)
        shard = shard or seen.shard
        if seen.shard != shard:
            return False
        before(seen)
        # After the read, and again for each: what another runtime does from here on changes it.
        check_fence()
        try:
            client.drop(name, seen=seen, despite_holders=[*seen.critical, *seen.leased])
        except Determinate as error:
            if error.code != "SHARD_CHANGED":
                raise
            changed = error
        else:
            return True
    assert changed is not None, name
    raise changed
