"""Actors that keep a shard small, or change it under everybody's hands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from typing_extensions import override

from shardline.datasource.errors import Fenced, InvalidUsage, MissingBlob, ShardError
from shardline.datasource.shard.state import is_tombstone
from shardline.datasource.types.schema import ShardSchema
from simulation.actors import Actor
from support.models.shards import schema_of

if TYPE_CHECKING:
    from simulation.world import Process

__all__ = ["Collector", "Compactor", "Dropper", "Evolver", "Sweeper", "Vandal"]

_WIDTH_MAX: Final = 4


class Compactor(Actor):
    """Merges batches."""

    kind = "compact"
    actions = (2, 8)

    @override
    def act(self, process: Process) -> None:
        try:
            process.client.compact(self.shard, force=self.chance.random() < 0.4)
        except MissingBlob:
            if not self.world.damaged:
                raise


class Collector(Actor):
    """Collects garbage."""

    kind = "gc"
    actions = (2, 8)

    @override
    def act(self, process: Process) -> None:
        process.client.collect_garbage(self.shard)


class Sweeper(Actor):
    """Sweeps what nothing refers to."""

    kind = "sweep"
    actions = (1, 4)

    @override
    def act(self, process: Process) -> None:
        process.client.sweep(self.shard)


class Vandal(Actor):
    """Takes a part away, and puts it back after a while."""

    kind = "vandal"
    actions = (4, 10)

    @override
    def act(self, process: Process) -> None:
        objects = self.world.objects
        newest = [part.key for batch in self.truth.trace.batches[-2:] for part in batch.parts]
        parts = [key for key in newest if key in objects]
        if not parts:
            self.left += self.chance.random() < 0.9
            return
        key = self.chance.choice(parts)
        kept = objects.pop(key)
        self.world.damaged = True
        self.world.note(f"took {key} away")
        process.think(4000 * self.chance.random())
        objects[key] = kept
        self.world.note(f"put {key} back")
        self.world.damaged = False


class Evolver(Actor):
    """Adds a column."""

    kind = "evolve"
    actions = (1, 2)

    @override
    def act(self, process: Process) -> None:
        state = self.fresh(process)
        now = ShardSchema.parse(state.schemas[state.schema_id]).arrow
        if len(now) < _WIDTH_MAX:
            wider = now.append(pa.field(f"c{len(now)}", pa.int32()))
            process.client.evolve(self.shard, schema_of(wider))

    @override
    def refused(self, error: ShardError) -> None:
        if not (isinstance(error, Fenced) and error.code == "SCHEMA_CHANGED"):
            super().refused(error)


class Dropper(Actor):
    """Drops the shard under everybody's hands, and makes it again."""

    kind = "drop"
    actions = (1, 2)

    @override
    def act(self, process: Process) -> None:
        process.think(5000 * self.chance.random())
        state = process.client.machine(self.shard).state()
        if not is_tombstone(state):
            process.client.drop(self.shard, despite_holders=[*state.leased, *state.critical])
            process.think(1000 * self.chance.random())
        process.client.create(self.shard, schema_of(), key=["id"])

    @override
    def refused(self, error: ShardError) -> None:
        if not isinstance(error, InvalidUsage) or error.code not in {
            "SHARD_IN_USE",
            "SCHEMA_MISMATCH",
        }:
            super().refused(error)
