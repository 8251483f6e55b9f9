"""Reads what a plan needs to know of the shards that the objects of a project would have.

A plan is pure; this is the I/O before it: a state of each shard that a step is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardline.app.project.dropping import DroppedObject, DroppedShard, DropPlan, owned_shards
from shardline.app.project.replacement import ExistingShard
from shardline.app.project.statements import ObjectDescription, kind_of
from shardline.app.protocol.objects import (
    SinkDescription,
    SourceDescription,
    ViewDescription,
    progress_shard,
)
from shardline.app.storage.reclock import read_origin
from shardline.app.storage.sinks.progress import read_progress
from shardline.datasource.client import ShardClient
from shardline.datasource.read import current_schema, first_time
from shardline.datasource.shard.state import ShardState, last_update

__all__ = ["read_drop_plan", "read_existing_shards"]


def read_existing_shards(
    client: ShardClient,
    wanted: Mapping[str, ObjectDescription],
    running: Mapping[str, ObjectDescription],
) -> dict[str, ExistingShard]:
    """The shards that are there of all sources, and of views that differ from what runs, by name.

    And, once there is one of them, the shards of the sinks.
    """
    contents = [
        one
        for one in wanted.values()
        # Of a source that stays, too: it may be stalled by a shard of an earlier definition.
        if isinstance(one, SourceDescription)
        or (isinstance(one, ViewDescription) and running.get(one.name) != one)
    ]
    found = {one.name: shard for one in contents if (shard := _existing(client, one))}
    # Only if something can be replaced at all: a store is asked once for each sink.
    for sink in wanted.values() if found else ():
        name = progress_shard(sink.name)
        if not isinstance(sink, SinkDescription) or sink.on not in found:
            continue
        row = read_progress(client, sink.name)
        if row is not None and row.definition:  # else nothing was ever written
            found[name] = _shard(client, name)
    return found


def _existing(
    client: ShardClient, one: SourceDescription | ViewDescription
) -> ExistingShard | None:
    if not client.exists(one.name):
        return None
    # Of whatever has filled it: a view may have taken the name of a source.
    origin = read_origin(client, one.name) if isinstance(one, SourceDescription) else None
    return _shard(client, one.name, "" if origin is None else origin.format)


def _shard(client: ShardClient, name: str, source_format: str = "") -> ExistingShard:
    state = client.state(name)
    upper = state.upper.time
    return ExistingShard(
        schema=current_schema(state),
        key=state.key,
        since=state.since.time,
        upper=upper,
        rows=_rows(state),
        source_format=source_format,
        retain_ms=state.retain_ms,
        first=max(first_time(state), state.since.time or 0),
        newest=(last_update(state) or 0) if upper is None else upper - 1,
    )


def read_drop_plan(
    client: ShardClient, names: Sequence[str], known: Mapping[str, ObjectDescription]
) -> DropPlan:
    """Plan the drop of these objects: the shards of theirs that are there.

    Args:
        client: Of the location.
        names: Names of the objects; one that is named twice goes once.
        known: The objects that run, or wait, by name.
    """
    return DropPlan(
        tuple(
            DroppedObject(
                name=name,
                kind=kind_of(known[name]) if name in known else "",
                shards=tuple(
                    _dropped_shard(client, shard)
                    for shard in owned_shards(name, known)
                    if client.exists(shard)
                ),
            )
            for name in dict.fromkeys(names)
        )
    )


def _dropped_shard(client: ShardClient, name: str) -> DroppedShard:
    state = client.state(name)
    return DroppedShard(
        name=name,
        rows=_rows(state),
        size_bytes=sum(batch.size_bytes for batch in state.trace.batches),
        since=state.since.time,
        upper=state.upper.time,
    )


def _rows(state: ShardState) -> int:
    return sum(part.diff_sum for batch in state.trace.batches for part in batch.parts)
