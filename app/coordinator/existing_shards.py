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
from shardline.app.storage.reclock import origin_in
from shardline.app.storage.sinks.progress import is_progress, read_progress
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.read import current_schema, first_time
from shardline.datasource.state import ShardState, is_tombstone, last_update

__all__ = ["list_shards", "read_drop_plan", "read_existing_shards"]


def list_shards(client: ShardClient) -> list[str]:
    """The shards of the location that were not dropped, and those of which that is not known."""

    def is_there(shard: str) -> bool:
        try:
            return client.exists(shard)
        except Corrupt:
            # A damaged shard, or a copy of one, is no reason to keep the others. To drop that very
            # one is refused with this error, when it is its turn.
            return True

    return [shard for shard in client.shards() if is_there(shard)]


def read_existing_shards(
    client: ShardClient,
    wanted: Mapping[str, ObjectDescription],
    running: Mapping[str, ObjectDescription],
) -> dict[str, ExistingShard]:
    """The shards that are there of all sources, and of views that differ from what runs, by name.

    And, once there is one of them, the shards of the sinks.

    Raises:
        InvalidUsage: `NAME_TAKEN`: a new sink has the name of a source that was there before.
    """
    states = _States(client)
    _refuse_taken_names(states, wanted, running)
    contents = [
        one
        for one in wanted.values()
        # Of a source that stays, too: it may be stalled by a shard of an earlier definition.
        if isinstance(one, SourceDescription)
        or (isinstance(one, ViewDescription) and running.get(one.name) != one)
    ]
    found = {one.name: shard for one in contents if (shard := _existing(states, one.name))}
    # Only if something can be replaced at all: a store is asked once for each sink.
    for sink in wanted.values() if found else ():
        name = progress_shard(sink.name)
        if not isinstance(sink, SinkDescription) or sink.on not in found:
            continue
        row = read_progress(client, sink.name)
        state = states.of(name)
        if state is not None and row is not None and row.definition:  # else nothing was written
            found[name] = _shard(state)
    return found


class _States:
    """States of shards, each read once, so that all that is said of a shard is of one moment.

    A read is a request to the store, and there are hundreds of shards.
    """

    def __init__(self, client: ShardClient) -> None:
        self._client = client
        self._known: dict[str, ShardState | None] = {}

    def of(self, name: str) -> ShardState | None:
        """The state of a shard; None if there is none, or it was dropped."""
        if name not in self._known:
            state = self._client.machine(name).refresh()
            self._known[name] = None if state is None or is_tombstone(state) else state
        return self._known[name]


def _existing(states: _States, name: str) -> ExistingShard | None:
    state = states.of(name)
    if state is None:
        return None
    # Of whatever has filled it: a view may have taken the name of a source, or a source a view's.
    return _shard(state, _source_format(name, state, states.of(progress_shard(name))))


def _source_format(name: str, contents: ShardState, progress: ShardState | None) -> str:
    """Format of the source that has filled a shard; "" if no source has."""
    origin = None if progress is None else origin_in(progress)
    if progress is None or origin is None:
        return ""
    # Bindings that outlived their shard say nothing of a later one that a view has made. A source
    # makes its own shard before its bindings, also where a view had made that shard for itself.
    is_view_s = contents.times_by == f"view {name}"
    return "" if is_view_s and contents.created_ms > progress.created_ms else origin.format


def _refuse_taken_names(
    states: _States,
    wanted: Mapping[str, ObjectDescription],
    running: Mapping[str, ObjectDescription],
) -> None:
    """Refuse new sinks whose progress would go to a shard that no sink has made.

    A sink has no contents whose loss could be agreed to: what is there is a source's memory of how
    far it has read, and goes with that source only.
    """
    for sink in wanted.values():
        before = running.get(sink.name)
        if not isinstance(sink, SinkDescription) or isinstance(before, SinkDescription):
            continue
        shard = progress_shard(sink.name)
        state = states.of(shard)
        if state is not None and not is_progress(state):
            raise InvalidUsage(
                f"sink '{sink.name}' cannot have this name: the shard '{shard}' is there, and is "
                "no sink's",
                code="NAME_TAKEN",
                hint=f"give the sink another name; or, if '{sink.name}' was a source that is not "
                f"needed any more, drop it with its shards first: `drop {sink.name}`",
            )


def _shard(state: ShardState, source_format: str = "") -> ExistingShard:
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
