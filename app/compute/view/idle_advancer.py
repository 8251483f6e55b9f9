"""What keeps views fresh while nothing happens: one thread for all of a runtime.

A source that has nothing new moves its upper all the same, and so must every view of it: else a
query that reads both would wait. A micro-batch for that would cost each idle view a Spark job a
second. Here the inputs' states say whether anything has changed, and an append without rows follows
them: a look at each input and a record or two for each view, and nothing of Spark.

The same thread notices streaming queries that have died.

Invariants:
    There is a thread exactly while there is something to follow.
    A view is left alone while a micro-batch of it is under way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.errors import ShardError
from shardline.datasource.shard.state import ShardState

__all__ = ["Advancer", "Follower", "advancer_of"]

_log = logging.getLogger(__name__)

_THREADS: Final = 8
"""Looks and appends under way at once: an object store takes 50 ms for each."""

_advancers: WeakKeyDictionary[ShardClient, Advancer] = WeakKeyDictionary()
_registry = threading.Lock()


class Follower(Protocol):
    """Something that follows its inputs."""

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the shards that it follows."""
        ...

    def tick(self, states: Sequence[ShardState]) -> None:
        """Follow the inputs, whose states these are; called in a thread of the advancer's."""
        ...


def advancer_of(client: ShardClient, clock: Clock, interval_ms: int) -> Advancer:
    """The one advancer of a runtime, which is known by its client."""
    with _registry:
        found = _advancers.get(client)
        if found is None:
            found = _advancers[client] = Advancer(client, clock, interval_ms)
        return found


class Advancer:
    """Follows inputs for everything that is added to it. May be shared between threads."""

    def __init__(self, client: ShardClient, clock: Clock, interval_ms: int) -> None:
        """An advancer that looks every `interval_ms`."""
        self._client = client
        self._clock = clock
        self._interval_ms = interval_ms
        self._lock = threading.Lock()
        self._followers: list[Follower] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, follower: Follower) -> None:
        """Follow the inputs of `follower` from now on."""
        with self._lock:
            self._followers.append(follower)
            if len(self._followers) == 1:
                self._ended = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._ended,), name="advancer", daemon=True
                )
                self._thread.start()

    def remove(self, follower: Follower) -> None:
        """Leave `follower` alone; harmless if it was not there."""
        with self._lock:
            if follower in self._followers:
                self._followers.remove(follower)
            if not self._followers:
                self._ended.set()

    def join(self) -> None:
        """Wait until the thread of the last follower has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, ended: threading.Event) -> None:
        with ThreadPoolExecutor(_THREADS, "advancer") as pool:
            while not self._clock.wait(ended, self._interval_ms):
                try:
                    self.round(pool)
                except Exception:  # noqa: BLE001 - all views stand on this thread
                    _log.exception("a round of the advancer failed")

    def round(self, pool: ThreadPoolExecutor) -> None:
        """Look at all inputs once, and let everybody follow them."""
        with self._lock:
            followers = list(self._followers)
        names = sorted({name for follower in followers for name in follower.inputs})
        states = dict(zip(names, pool.map(self._state, names), strict=True))
        list(pool.map(lambda follower: self._tick(follower, states), followers))

    def _state(self, name: str) -> ShardState | None:
        try:
            return self._client.readable(name)[0]
        except ShardError as error:
            _log.info(
                "an input could not be looked at",
                extra={"context": {"shard": name, "error": str(error)}},
            )
            return None

    def _tick(self, follower: Follower, states: Mapping[str, ShardState | None]) -> None:
        found = [state for name in follower.inputs if (state := states[name]) is not None]
        if len(found) < len(follower.inputs):
            found = []
        follower.tick(found)
