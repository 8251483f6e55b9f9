"""Renews the leases of native reads for as long as some DataFrame made of them can be run.

A DataFrame may be run at any time, or never, and nothing tells when it is given up. So a thread of
the driver for each location renews the leases of all its frames, and gives one up when the JVM has
collected the object that every plan and RDD made of its frames refers to (`jvm.FileFormat`). A
driver that dies renews nothing, and its leases expire.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from shardline.datasource.background import PeriodicThread
from shardline.datasource.clock import Clock, SystemClock
from shardline.datasource.errors import LeaseExpired
from shardline.datasource.lease import Lease
from shardline.datasource.shard_source.partition_planner import forget_batch_leases

__all__ = ["LEASE_KEEPER", "LeaseKeeper", "LeaseUser"]

_log = logging.getLogger(__name__)


class LeaseUser(Protocol):
    """A reader of a lease's parts, which ends by itself."""

    def is_alive(self) -> bool:
        """True until it has ended."""
        ...


@dataclass(slots=True)
class _KeptLease:
    """A lease, its readers, and the last plan that may have shared it.

    Losing the lease is no error until one of the readers misses a part (`LEASE_LOST`). Losing this
    entry ends its renewals: the lease expires, with the same effect.

    Attributes:
        last_plan: Number of the last plan that had begun when the lease had no readers any more
            and was shared with no further plan; None before that.
    """

    lease: Lease
    users: list[LeaseUser] = field(default_factory=list)
    last_plan: int | None = None


@dataclass(slots=True)
class _Location:
    """The leases of one location, and the thread that renews them."""

    kept: dict[str, _KeptLease] = field(default_factory=dict)
    beaten_ms: float = 0.0
    thread: PeriodicThread | None = None


class LeaseKeeper:
    """Renews leases until the last of their readers has ended, then releases them.

    Each location has a thread of its own: one whose store hangs delays the renewals of no other.

    Losing a lease here is no error yet: a read that misses a part later fails with `LEASE_LOST`.
    Losing the keeper, with its process, lets all of its leases expire; a process that ends in order
    gives them up.
    """

    def __init__(self, clock: Clock) -> None:
        """Make a keeper without leases; a location's thread starts with its first one."""
        self._clock = clock
        self._lock = threading.Lock()
        self._locations: dict[str, _Location] = {}
        self._plans_begun = 0
        self._under_way: set[int] = set()
        self._pid = 0

    @contextlib.contextmanager
    def planning(self) -> Iterator[None]:
        """Give no lease up that this block's plan may share, for as long as the block runs."""
        with self._lock:
            self._plans_begun += 1
            number = self._plans_begun
            self._under_way.add(number)
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(number)

    def renew_while_read(self, lease: Lease, *users: LeaseUser) -> None:
        """Renew `lease` until these and all other readers of it have ended.

        Without any, it is given up soon.
        """
        url = lease.machine.location.url
        with self._lock:
            if self._pid != os.getpid():
                # What a process has that this one was forked from is that one's to renew.
                self._locations.clear()
                # At the end of this process, and not of another one that was forked from it.
                self._pid = os.getpid()
                atexit.register(self._release_at_end, self._pid)
            found = self._locations.setdefault(url, _Location())
            found.kept.setdefault(lease.reader, _KeptLease(lease)).users.extend(users)
            if found.thread is None or not found.thread.is_running:
                found.beaten_ms = self._clock.elapsed_ms()
                step = partial(self._step, url, found)
                found.thread = PeriodicThread("native-leases", step, self._clock)
                found.thread.start()
            thread = found.thread
        thread.wake.set()

    def release(self, location: str) -> None:
        """Give the leases of all shards at a location's URL up: it is about to be deleted."""
        with self._lock:
            found = self._locations.get(location, _Location())
            ended = list(found.kept.values())
            # First of all: a read that is planned before they are released would find them in the
            # state still, and share them.
            forget_batch_leases({kept.lease.reader for kept in ended})
            found.kept.clear()
        for one in ended:
            one.lease.release()

    def release_all(self) -> None:
        """Give all leases up: this process ends, and nothing of it reads any more.

        What the store refuses, or does not answer in time, expires by itself.
        """
        with self._lock:
            locations = list(self._locations)
        for location in locations:
            self.release(location)

    def beat(self) -> None:
        """Renew the leases that have readers, release the others."""
        with self._lock:
            locations = list(self._locations.values())
        for found in locations:
            self._beat(found)

    def _beat(self, found: _Location) -> None:
        # Requests to the store are made without the lock: `keep` would wait for them, and with it
        # every read that is being planned.
        ended = self._ended(found)
        with self._lock:
            alive = list(found.kept.values())
        # Renewals before releases: a lease that is released late does no harm.
        for kept in alive:
            try:
                kept.lease.renew()
            except LeaseExpired:
                # A read that misses a part will report it; until then nothing is lost.
                with self._lock:
                    found.kept.pop(kept.lease.reader, None)
            except Exception:  # noqa: BLE001 - the others are renewed, and this one is again
                # The store did not answer, mostly. Several beats fit into one lease.
                context = {"shard": kept.lease.machine.name, "lease": kept.lease.reader}
                _log.warning("lease not renewed", exc_info=True, extra={"context": context})
        for kept in ended:
            kept.lease.release()

    def _release_at_end(self, pid: int) -> None:
        if os.getpid() == pid:
            self.release_all()

    def _ended(self, found: _Location) -> list[_KeptLease]:
        """Stop keeping the leases that nothing reads, and that no plan under way can share."""
        with self._lock:
            unused = []
            for kept in found.kept.values():
                kept.users = [life for life in kept.users if life.is_alive()]
                if kept.users:
                    kept.last_plan = None
                elif kept.last_plan is None:
                    unused.append(kept)
            # A plan under way may share a lease (`take_batch_lease`) for which it has not called
            # `keep` yet. Released in between, its frame would have no protection. No plan that
            # begins from here on can share it, so there is an end even where one is always under
            # way: the order of these two matters.
            forget_batch_leases({kept.lease.reader for kept in unused})
            for kept in unused:
                kept.last_plan = self._plans_begun
            oldest = min(self._under_way, default=self._plans_begun + 1)
            ended = [
                kept
                for kept in found.kept.values()
                if kept.last_plan is not None and kept.last_plan < oldest
            ]
            for kept in ended:
                del found.kept[kept.lease.reader]
        return ended

    def _step(self, url: str, found: _Location) -> float | None:
        with self._lock:
            if not found.kept:
                # Under the lock: a lease that comes after this gets a thread of its own.
                if self._locations.get(url) is found:
                    del self._locations[url]
                return None
            pause_ms = min(kept.lease.lease_ms for kept in found.kept.values()) / 4
        left_ms = found.beaten_ms + pause_ms - self._clock.elapsed_ms()
        if left_ms > 0:
            # Woken by every new lease, which may be a shorter one. By the clock, and not by this
            # pause having lasted to its end: a driver that plans reads all the time would end it
            # each time before that, and no lease would ever be renewed.
            return left_ms
        self._beat(found)
        found.beaten_ms = self._clock.elapsed_ms()
        return 0.0


LEASE_KEEPER: Final = LeaseKeeper(SystemClock())
"""The keeper of this process."""
