"""Derives a run from its seed: the kind of world, and every roll of the dice in it.

What can happen to a request, drawn for each one of each process by itself:

    slow         it takes long, before or after its effect; at times longer than leases and graces
    pause        the whole process stands still, its timers included, and goes on
    before       an error, and nothing happened
    after        it happened, and the answer is an error
    late         an error, and it happens later
    self-retry   it happened, and the answer to its own repetition is "exists"
    phantom      "exists", though nothing is there
    cut          a listing breaks off
    crash        the process dies, before or after the effect, or with the request on its way
    jump         the wall clock of the process is corrected
    outage       for a while, nothing that the process asks for is answered
    refused      a create happened, and the answer is a refusal that has nothing to do with the key
    damaged      other bytes arrive than are stored, once; of a create: it happened, its answer is
                 lost, and the process reads damaged bytes back
    unreadable   the same, and the store itself says that it cannot read

The last three are drawn by themselves, so that a world without them is as it was before there were
any.
"""

from __future__ import annotations

import dataclasses
import random
import zlib
from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "BASE_MS",
    "DAMAGE",
    "DAMAGE_ODDS",
    "DAMAGE_OF",
    "FAULTS",
    "FAULTS_OF",
    "GRACE_MS",
    "LEASE_MS",
    "STAGE_LIFE_MS",
    "STALLS_MS",
    "THEMES",
    "WRITES",
    "Dice",
    "Knobs",
    "Plan",
]

BASE_MS: Final = 1_000_000
"""Wall-clock time at which runs begin."""

LEASE_MS: Final = 10_000
GRACE_MS: Final = 30_000
"""Requests take about 10 ms, and a run takes minutes: leases and graces pass in it."""

STAGE_LIFE_MS: Final = 120_000
"""Scaled as the rest is: a day would never pass."""

FAULTS: Final = (
    "slow",
    "pause",
    "before",
    "after",
    "late",
    "self-retry",
    "phantom",
    "cut",
    "crash",
    "jump",
    "outage",
    "refused",
    "damaged",
    "unreadable",
)

DAMAGE: Final = frozenset({"damaged", "unreadable"})

DAMAGE_OF: Final[dict[str, tuple[str, ...]]] = {
    "create": ("refused", "damaged", "unreadable"),
    "get": ("damaged", "unreadable"),
}

DAMAGE_ODDS: Final = {"create": 3.0, "get": 0.3}
"""Of damage, by operation: whoever reads stops at it, so little of it goes a long way."""

FAULTS_OF: Final = {
    "create": (
        "slow",
        "slow",
        "slow",
        "pause",
        "before",
        "after",
        "late",
        "self-retry",
        "phantom",
        "crash",
        "outage",
    ),
    "put": ("slow", "pause", "before", "after", "late", "crash", "jump"),
    "delete": ("slow", "pause", "before", "after", "late", "crash", "jump"),
    "get": ("slow", "pause", "before", "crash", "jump", "outage"),
    "list": ("slow", "pause", "before", "cut", "crash"),
}

WRITES: Final = frozenset({"create", "put", "delete"})

STALLS_MS: Final = (
    LEASE_MS * 0.6,
    LEASE_MS * 1.2,
    LEASE_MS * 2.5,
    GRACE_MS * 0.45,
    GRACE_MS * 0.6,
    GRACE_MS * 1.1,
    GRACE_MS * 2.5,
)


@dataclass(frozen=True)
class Plan:
    """Which run: a seed, and what of it is left out.

    Attributes:
        seed: Makes the run.
        without: Actors by name, faults by the id that a trace shows (`reader#17:late`), and kinds
            of faults (`late`), that do not happen.
        actions: How many of their actions actors do at most, by name.
        theme: What kind of world; empty for the seed to choose.
    """

    seed: int
    without: frozenset[str] = frozenset()
    actions: tuple[tuple[str, int], ...] = ()
    theme: str = ""

    def limit(self, actor: str, wanted: int) -> int:
        return min(wanted, dict(self.actions).get(actor, wanted))


class Dice:
    """Numbers in [0, 1) that depend on who rolls and on the number of the roll, nothing else."""

    def __init__(self, seed: int, name: str) -> None:
        self._base = (seed * 0x9E3779B97F4A7C15) ^ (zlib.crc32(name.encode()) << 17)

    def roll(self, number: int, what: int = 0) -> float:
        """The `what`-th number of roll `number` (splitmix64, Steele et al. 2014)."""
        z = (self._base + (number * 16 + what + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return float((z ^ (z >> 31)) >> 11) / (1 << 53)


@dataclass(frozen=True)
class Knobs:
    """What kind of world a seed makes: no run has everything (swarm testing, Groce et al. 2012)."""

    faults: frozenset[str]
    fault_rate: float
    damage_rate: float
    stall_rate: float
    skew: float
    drift: float
    inline_bytes: int
    compact_factor: int
    rollup_every: int
    pace: float

    @classmethod
    def draw(cls, chance: random.Random, theme: str) -> Knobs:
        last = FAULTS.index("refused")
        faults = frozenset(f for f in FAULTS[:last] if chance.random() < 0.6)
        knobs = cls(
            faults=faults if chance.random() < 0.9 else frozenset(),
            fault_rate=chance.choice([0.005, 0.02, 0.05]),
            damage_rate=0.0,
            stall_rate=chance.choice([0.0, 0.1, 0.6]),
            skew=chance.choice([0, 0, LEASE_MS / 4, LEASE_MS * 3]),
            drift=chance.choice([0.0, 0.0, 0.1]),
            inline_bytes=chance.choice([0, 0, 400]),
            compact_factor=chance.choice([2, 4, 4]),
            rollup_every=chance.choice([3, 5, 20]),
            pace=chance.choice([1.0, 1.0, 10.0]),
        )
        knobs = dataclasses.replace(knobs, **THEMES[theme])
        rate = chance.choice([0.0, 0.0, 0.005, 0.02])
        damage = frozenset(f for f in FAULTS[last:] if chance.random() < 0.6)
        return dataclasses.replace(knobs, faults=knobs.faults | damage, damage_rate=rate)


THEMES: Final[dict[str, dict[str, Any]]] = {
    "any": {},
    # Writers stand still in the middle of requests while the log is cut off behind them.
    "stalls": {
        "faults": frozenset({"slow", "pause"}),
        "fault_rate": 0.03,
        "stall_rate": 0.8,
        "rollup_every": 3,
        "pace": 10.0,
    },
    # Answers get lost, and so do the questions about them.
    "outages": {
        "faults": frozenset({"outage", "after", "late"}),
        "fault_rate": 0.04,
        "inline_bytes": 0,
        "pace": 1.0,
    },
    # Snapshots are read in pieces while everything is rewritten.
    "pieces": {"inline_bytes": 0, "rollup_every": 3, "pace": 1.0},
    # Several writers of the same data.
    "identical": {"pace": 1.0},
    # Two shards of their own, written by transactions.
    "transactions": {"pace": 1.0},
    # Parts get lost, and are put back.
    "losses": {"inline_bytes": 0, "fault_rate": 0.002, "compact_factor": 4, "pace": 1.0},
}
