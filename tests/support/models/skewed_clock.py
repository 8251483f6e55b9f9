"""A skewed clock is that of one process in a world whose other processes have the world's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardline.datasource.client import ShardClient
from shardline.datasource.stores.objects import Objects
from support.models.shards import SETTINGS, World

__all__ = ["Skewed", "client_of"]

_PATIENT = replace(SETTINGS, inline_part_bytes=0, commit_timeout_ms=1000 * 3_600_000)


@dataclass
class Skewed:
    """The clock of one process, ahead of the world's by `ahead_ms`."""

    world: World
    ahead_ms: int = 0

    def now_ms(self) -> int:
        return self.world.clock.now_ms() + self.ahead_ms

    def elapsed_ms(self) -> float:
        return self.world.clock.elapsed_ms() + self.ahead_ms

    def wait(self, signal: object, timeout_ms: float) -> bool:
        del signal
        self.world.clock.advance(timeout_ms)
        return False


def client_of(world: World, clock: Skewed, objects: Objects) -> ShardClient:
    """A client of a process with this clock, which tries for weeks and makes every part a blob."""
    plain = world.client(_PATIENT, objects)
    return ShardClient(plain.location, plain.settings, clock, world.ids)
