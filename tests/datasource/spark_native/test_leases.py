"""Leases of native reads: renewed while somebody may read, however busy the driver is."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from shardline.datasource.spark_native.leases import LeaseKeeper

LEASE_MS = 800
BUSY_MS = 100


@dataclass
class BusyClock:
    """A clock on which every wait is ended early by one more read, until the reads are over."""

    rounds: int
    elapsed: float = 0.0
    goes: threading.Event = field(default_factory=threading.Event)
    """No time passes before it is set."""

    def now_ms(self) -> int:
        return int(self.elapsed)

    def elapsed_ms(self) -> float:
        return self.elapsed

    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        del signal
        assert self.goes.wait(60)
        self.rounds -= 1
        assert self.rounds > -1000, "it never ends"
        busy = self.rounds > 0
        self.elapsed += min(BUSY_MS, timeout_ms) if busy else timeout_ms
        return busy


@dataclass
class CountedLease:
    clock: BusyClock
    reader: str = "r1"
    lease_ms: int = LEASE_MS
    renewed: list[float] = field(default_factory=list)
    released: bool = False

    def renew(self) -> None:
        self.renewed.append(self.clock.elapsed)

    def release(self) -> None:
        self.released = True


@dataclass
class Frame:
    clock: BusyClock

    def alive(self) -> bool:
        return self.clock.rounds > 0


def test_reads_that_are_planned_all_the_time_keep_no_lease_from_being_renewed() -> None:
    """No two renewals are further apart than half a lease, and the end releases it."""
    clock = BusyClock(rounds=50)
    keeper = LeaseKeeper(clock)
    lease: Any = CountedLease(clock)
    keeper.keep(lease, Frame(clock))
    thread = keeper._thread
    assert thread is not None
    clock.goes.set()
    assert thread.join(60_000)
    times = [0.0, *lease.renewed]
    gaps = [after - before for before, after in pairwise(times)]
    assert len(gaps) > 15
    assert max(gaps) <= LEASE_MS / 2
    assert lease.released


def test_a_renewal_that_fails_keeps_no_other_lease_from_being_renewed() -> None:
    """Whatever the error is, and it is tried again with the next ones."""
    clock = BusyClock(rounds=20)
    keeper = LeaseKeeper(clock)
    broken: Any = Broken(clock)
    lease: Any = CountedLease(clock, "r2")
    with keeper.planning():
        keeper.keep(broken, Frame(clock))
        keeper.keep(lease, Frame(clock))
        thread = keeper._thread
    assert thread is not None
    # Not before both are kept: the thread has begun with the first one.
    clock.goes.set()
    assert thread.join(60_000)
    assert thread.error is None
    assert len(lease.renewed) > 3
    assert lease.renewed == broken.renewed
    assert lease.released
    assert broken.released


@dataclass
class Broken(CountedLease):
    """A lease that no renewal reaches."""

    machine: Any = field(default_factory=lambda: SimpleNamespace(name="orders"))

    @override
    def renew(self) -> None:
        super().renew()
        raise RuntimeError("a bug, or no more memory")
