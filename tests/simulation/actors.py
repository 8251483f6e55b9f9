"""Actors of a run: each is a program that does one thing to a shard, again and again.

An actor's fields are what it keeps on a durable medium of its own: they survive the crash of its
process. What lives in a process (handles, a query's run) is kept in `memory`, which does not.

An actor compares every answer that it gets with the model, and knows which refusals are legitimate.
Everything else that comes out of the code under test ends the run.

    writers        appends of all kinds
    readers        snapshots, listeners, since holds
    streams        streaming queries
    maintenance    compaction, collection, sweeps, evolution, drops, lost parts
    transactions   two shards at once
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    Fenced,
    Indeterminate,
    InvalidUsage,
    LeaseExpired,
    MissingBlob,
    ShardError,
)
from shardline.datasource.shard.state import ShardState, is_tombstone
from simulation.model import Model, Row
from simulation.scheduler import Violation

if TYPE_CHECKING:
    from shardline.datasource.read import ReadHandle
    from simulation.invariants import Observed
    from simulation.world import Process, World

__all__ = ["Actor"]


class Actor:
    """A program that acts `left` more times."""

    kind: ClassVar[str] = "actor"
    actions: ClassVar[tuple[int, int]] = (2, 7)

    def __init__(self, world: World, name: str, shard: str) -> None:
        self.world = world
        self.name = name
        self.shard = shard
        self.chance = random.Random(f"{world.plan.seed}/{name}")
        self.left = self.chance.randint(*self.actions)
        self.memory: dict[str, Any] = {}
        self.acted = 0
        self.damages = 0
        self.met_damage = False

    def run(self, process: Process) -> None:
        """The main program of the process; begins anew after a crash."""
        self.memory = {}
        while self.left > 0:
            process.think(self._thinking_ms())
            self.left -= 1
            self.attempt(process)
        self.close(process)

    def attempt(self, process: Process) -> bool:
        """Act once; whether it came to an end as it should."""
        self.damages = process.damages
        try:
            self.act(process)
        except (
            Corrupt,
            Determinate,
            Indeterminate,
            Fenced,
            LeaseExpired,
            InvalidUsage,
            MissingBlob,
        ) as e:
            self.world.note(f"{type(e).__name__} {e.code}: {e.detail}")
            self.met_damage = process.damages > self.damages
            self.refused(e)
            return False
        self.acted += 1
        return True

    def act(self, process: Process) -> None:
        """Do it once."""
        raise NotImplementedError

    def finish(self, process: Process) -> None:
        """At the end of the run, when nothing fails any more: do what must be possible now."""

    def close(self, process: Process) -> None:
        """Let go of what the process holds."""

    def refused(self, error: ShardError) -> None:
        """Decide whether the error is one that may be; others end the run."""
        if isinstance(error, Determinate | Indeterminate):
            return
        if isinstance(error, Corrupt) and self.met_damage:
            return  # this read has failed; what is stored is whole
        gone = isinstance(error, InvalidUsage) and error.code.startswith("SHARD_")
        if gone and self.was_dropped:
            return
        raise Violation("refused", f"{self.name} was told {error}")

    def _thinking_ms(self) -> float:
        u, v = self.chance.random(), self.chance.random()
        if u < 0.7:
            return 60 * v
        return 2000 * v if u < 0.93 else 20_000 * v

    # -- what is true ----------------------------------------------------------------------------

    @property
    def seen(self) -> Observed:
        """What the observer saw of the shard."""
        assert self.world.observer is not None
        return self.world.observer.shards[self.shard]

    @property
    def truth(self) -> ShardState:
        """The shard's newest state."""
        assert self.seen.state is not None
        return self.seen.state

    @property
    def may_lose_leases(self) -> bool:
        """Whether processes may stand still, or differ in time, for longer than a lease."""
        knobs = self.world.knobs
        return bool({"slow", "pause", "outage"} & knobs.faults) or knobs.skew > 0

    @property
    def was_dropped(self) -> bool:
        """Whether the shard was dropped at some time."""
        return len(self.seen.models) > 1 or is_tombstone(self.truth)

    def fresh(self, process: Process) -> ShardState:
        """The shard's state as the process sees it, which must not be an old one."""
        before = self.truth.seqno
        state = process.client.state(self.shard)
        if state.seqno < before:
            raise Violation("stale", f"{self.name} sees state {state.seqno} after {before}")
        return state

    def model_of(self, reader: ReadHandle) -> Model | None:
        """Of the shard that this reader reads now; None if its lease is over or it was dropped."""
        return self.seen.model if reader.lease.reader in self.truth.leased else None

    def check_rows(self, found: Counter[Row], wanted: Counter[Row], what: str) -> None:
        if found != wanted:
            more, less = found - wanted, wanted - found
            raise Violation("contents", f"{self.name}: {what}: too many {more}, missing {less}")
