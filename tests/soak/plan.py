"""Plans a soak, and holds its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from soak.measured import Sample
from soak.victims import Kind

__all__ = ["MASTERS", "FailedError", "Plan", "Result"]

MASTERS: Final = ("local[2,8]", "local-cluster[1,2,1024]")
"""Sessions in turn: with the executor in the driver's JVM, and with a process of its own."""


class FailedError(Exception):
    """The soak found something wrong; the message says what, with the round and the seed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    Attributes:
        url: An empty place for a location.
        storage: Options of its store.
        folder: An empty folder of this machine.
        rounds: How many.
        minutes: Stop after so long even before that; None for no limit.
        seed: Of all chance.
        writers: How many writer processes.
        pause_ms: Of a writer between two appends.
        masters: Of sessions, taken in turn by each new one. None starts no session at all.
        compare_every: Rounds between two comparisons.
        odds: Of a kill of each kind in a round, beside the writer's; those of a kind that is not
            there count for nothing.
        lease_ms: How long readers are believed to live.
        rollup_every: Records between rollups.
        patience_ms: Longest wait for progress: a JVM and its Python processes start within a
            minute on a busy machine, and come back from a kill or two meanwhile.
        faults: The part of the requests of writers and the keeper that goes wrong, in [0, 1].
    """

    url: str
    storage: dict[str, str]
    folder: Path
    rounds: int = 200
    minutes: float | None = None
    seed: int = 0
    writers: int = 3
    pause_ms: int = 100
    masters: Sequence[str] = MASTERS
    compare_every: int = 5
    odds: tuple[tuple[Kind, float], ...] = (
        ("keeper", 0.25),
        ("planner", 0.25),
        ("worker", 0.20),
        ("jvm", 0.12),
        ("session", 0.06),
        ("executor", 0.12),
    )
    lease_ms: int = 10_000
    rollup_every: int = 64
    patience_ms: float = 240_000.0
    faults: float = 0.0


@dataclass(slots=True)
class Result:
    """What came out.

    Attributes:
        rounds: That were finished.
        kills: Of each kind.
        appended: Appends of all writers.
        restarts: How often a query was started again by its session.
        orphans: Processes that outlived a session they belonged to.
        troubles: Errors that a repetition cured, by code.
        samples: What was measured.
        broken: Bounds that did not hold.
        swept: Blobs that only the sweep at the end could delete.
        left: Bytes of parts stored after it, and of those that the states refer to.
    """

    rounds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    appended: int = 0
    restarts: int = 0
    orphans: int = 0
    troubles: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    swept: int = 0
    left: tuple[int, int] = (0, 0)
