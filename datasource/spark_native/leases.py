"""Leases of native reads: each lives for as long as some DataFrame made of it can still read.

Whoever holds a DataFrame may run it at any time, and the driver is where it lives. So one thread of
the driver renews the leases of all frames, and gives one up when the JVM has collected what every
plan made of its frames refers to. A driver that dies renews nothing, and its leases expire.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from shardline.datasource.clock import Clock, SystemClock
from shardline.datasource.errors import LeaseExpired, ShardError
from shardline.datasource.lease import Lease

__all__ = ["KEEPER", "Keeper", "Life"]


class Life(Protocol):
    """Something that ends."""

    def alive(self) -> bool:
        """Whether it has not ended yet."""
        ...


@dataclass(slots=True)
class _Kept:
    lease: Lease
    lives: list[Life] = field(default_factory=list)


class Keeper:
    """Renews leases until the last of their lives has ended, then releases them."""

    def __init__(self, clock: Clock) -> None:
        """A keeper without leases; its thread starts with the first one."""
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._planning = 0
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def planning(self) -> Iterator[None]:
        """No lease is given up meanwhile: a plan may be made that shares one."""
        with self._lock:
            self._planning += 1
        try:
            yield
        finally:
            with self._lock:
                self._planning -= 1

    def keep(self, lease: Lease, *lives: Life) -> None:
        """Keep `lease` until these and all other lives of this lease have ended."""
        with self._lock:
            self._kept.setdefault(lease.reader, _Kept(lease)).lives.extend(lives)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="native-leases", daemon=True)
                self._thread.start()
        self._wake.set()

    def beat(self) -> None:
        """Renew what is alive, release what is not."""
        for kept in self._ended():
            kept.lease.release()
        with self._lock:
            alive = list(self._kept.values())
        for kept in alive:
            try:
                kept.lease.renew()
            except LeaseExpired:
                # Reads will say so when they miss a part; until then nothing is lost.
                with self._lock:
                    self._kept.pop(kept.lease.reader, None)
            except ShardError:
                continue  # The store did not answer. Several beats fit into one lease.

    def _ended(self) -> list[_Kept]:
        with self._lock:
            for kept in self._kept.values():
                kept.lives = [life for life in kept.lives if life.alive()]
            if self._planning:
                return []
            ended = [kept for kept in self._kept.values() if not kept.lives]
            for kept in ended:
                del self._kept[kept.lease.reader]
        return ended

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._kept:
                    self._thread = None
                    return
                pause_ms = min(kept.lease.lease_ms for kept in self._kept.values()) / 4
            # Woken by every new lease, which may be a shorter one.
            self._wake.clear()
            if not self._clock.wait(self._wake, pause_ms):
                self.beat()


KEEPER: Final = Keeper(SystemClock())
"""This process's."""
