"""The idle advancer keeps views fresh while nothing changes: one thread for all of a runtime.

A source that has nothing new moves its upper all the same, and so must every view of it: else a
query that reads both would wait for the view. A micro-batch for that would cost each idle view a
Spark job a second. Here the inputs' states show whether anything has changed, and an append without
rows follows them: one look at each input, one or two records for each view, no Spark.

In a round views come after the views that they read, which were looked at after these had moved. In
any other order time would pass one layer of views in each round: the third would be three rounds
behind, and a round of hundreds of views takes longer than an interval.

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
from typing import Protocol
from weakref import WeakKeyDictionary, ref

from shardline.app.protocol.graph import Graph
from shardline.datasource.background import PeriodicThread
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.errors import ShardError
from shardline.datasource.shared_threads import THREADS, in_few_threads
from shardline.datasource.state import ShardState

__all__ = ["IdleAdvancer", "IdleFollower", "get_advancer"]

_log = logging.getLogger(__name__)

_advancers: WeakKeyDictionary[ShardClient, ref[IdleAdvancer]] = WeakKeyDictionary()
"""The advancer of each client. Both are held weakly: an advancer refers to its client, so that one
that were held here would keep its own key, and both for ever. The views of a runtime hold it."""

_registry = threading.Lock()


class IdleFollower(Protocol):
    """An object whose output follows its inputs."""

    @property
    def name(self) -> str:
        """Name of its output's shard."""
        ...

    @property
    def inputs(self) -> Sequence[str]:
        """Names of its input shards."""
        ...

    def tick(self, states: Sequence[ShardState]) -> None:
        """Follow the inputs; called in a thread of the advancer, once per round.

        Args:
            states: Of all inputs, in their order; empty if one of them could not be read.
        """
        ...


def get_advancer(client: ShardClient, clock: Clock, interval_ms: int) -> IdleAdvancer:
    """The advancer of a runtime, which is identified by its client; the caller keeps it alive."""
    with _registry:
        known = _advancers.get(client)
        found = None if known is None else known()
        if found is None:
            found = IdleAdvancer(client, clock, interval_ms)
            _advancers[client] = ref(found)
        return found


class IdleAdvancer:
    """Looks at inputs for all followers at once. May be shared between threads."""

    def __init__(self, client: ShardClient, clock: Clock, interval_ms: int) -> None:
        """An advancer that runs a round every `interval_ms`; without followers it has no thread."""
        self._client = client
        self._clock = clock
        self._interval_ms = interval_ms
        self._lock = threading.Lock()
        self._followers: list[IdleFollower] = []
        self._thread: PeriodicThread | None = None

    def add(self, follower: IdleFollower) -> None:
        """Follow the inputs of `follower` from now on.

        Raises:
            RuntimeError: No thread can be started; it is not followed.
        """
        with self._lock:
            if self._thread is None or self._thread.stopping.is_set():
                # A new one each time: the one before may still be at its last round.
                thread = self._made_thread()
                thread.start()
                # Not before: who comes later would rely on a thread that never runs.
                self._thread = thread
            self._followers.append(follower)

    def remove(self, follower: IdleFollower) -> None:
        """Follow its inputs no more; does nothing if it was not added. A tick may still go on."""
        with self._lock:
            if follower in self._followers:
                self._followers.remove(follower)
            if not self._followers and self._thread is not None:
                self._thread.cancel()

    def join(self) -> None:
        """Wait until the thread of the last follower has ended."""
        if self._thread is not None:
            self._thread.join()

    def _made_thread(self) -> PeriodicThread:
        pool = ThreadPoolExecutor(THREADS, "advancer")
        interval_ms = self._interval_ms

        def step() -> float:
            self.round(pool)
            return interval_ms

        # All views stand on this thread: a round that fails is logged, and the next one is taken.
        return PeriodicThread(
            "advancer",
            step,
            self._clock,
            first_ms=interval_ms,
            retry_ms=interval_ms,
            last=pool.shutdown,
        )

    def round(self, pool: ThreadPoolExecutor) -> None:
        """Look at each input once, and call every follower, those that others read before these."""
        with self._lock:
            followers = list(self._followers)
        states: dict[str, ShardState | None] = {}
        for layer in _layers(followers):
            # Each input once, although many views share it: looks are what a round costs.
            names = sorted({name for one in layer for name in one.inputs} - states.keys())
            in_few_threads(pool, lambda name: states.update({name: self._state(name)}), names)
            in_few_threads(pool, lambda follower: self._tick(follower, states), layer)

    def _state(self, name: str) -> ShardState | None:
        try:
            return self._client.readable(name)[0]
        except ShardError as error:
            _log.info(
                "an input could not be looked at",
                extra={"context": {"shard": name, "error": str(error)}},
            )
            return None

    def _tick(self, follower: IdleFollower, states: Mapping[str, ShardState | None]) -> None:
        found = [state for name in follower.inputs if (state := states[name]) is not None]
        if len(found) < len(follower.inputs):
            # Not skipped: a tick also notices that the query has died.
            found = []
        try:
            follower.tick(found)
        except Exception:  # noqa: BLE001 - of a view, and it has to stay one view's
            # One that fails must not keep those of the next layers from their turn.
            _log.exception("a view could not follow its inputs while they rest")


def _layers(followers: Sequence[IdleFollower]) -> list[list[IdleFollower]]:
    """Put followers into layers, each after those that it reads."""
    inputs = {follower.name: follower.inputs for follower in followers}
    depths: dict[str, int] = {}
    for name in Graph(inputs).order():
        above = [depths[other] for other in inputs[name] if other in depths]
        depths[name] = max(above, default=-1) + 1
    layers: list[list[IdleFollower]] = [[] for _ in range(max(depths.values(), default=0) + 1)]
    for follower in followers:
        # While definitions change, old views beside new ones may read each other in a circle.
        layers[depths.get(follower.name, 0)].append(follower)
    return layers
