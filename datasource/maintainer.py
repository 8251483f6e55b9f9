"""Maintenance: what keeps a shard small and fast, as one round and as a background thread.

    maintain(machine)                 one round on one shard
    with Maintainer(client): …        rounds on all shards of a location, from a thread

A round does, in this order, because each makes work for the next:

    1. retention    the since moves along with the upper
    2. compaction   what is due; updates are summed up to that since
    3. collection   of what the merges, and everybody else, dropped
    4. sweep        of what crashes left

A step that fails is logged, and the others are done all the same: none relies on another. What a
round did not do the next one will; nothing is lost by killing it, anywhere, and nothing gained by
waiting for it. (Rollups are not among the steps: whoever commits writes them.)

Any number of processes may maintain one location. Merges that are worth it are claimed, so that two
do not make the same one; the other steps cost little when somebody else has just done them.

*When a collection is worth it.* It reads the records since the last one, lists rollups, and writes
two records: about ten requests and some. So it waits for 32 records that nobody holds back, which
adds a third of a request to each of them at most; or, on a shard that has come to rest, for ten
minutes without any. What it has looked at without finding anything is not looked at again by the
same maintainer. (persist collects each time that the least held seqno has moved by log2 of it; its
collections write no records.)

Invariants:
    Everything here may be killed, repeated, or never be called: shards stay right.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.maintenance.compact import compact
from shardline.datasource.maintenance.garbage_collection import collect_garbage
from shardline.datasource.maintenance.orphan_sweep import Swept, nothing, sweep, sweep_due
from shardline.datasource.maintenance.retention import retain
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState, expire, is_tombstone, seqno_since

__all__ = ["Maintained", "Maintainer", "Memory", "collection_due", "maintain"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

MERGE_BYTES: Final = 1 << 30
"""How much one round merges on one shard, and so the largest merge that it makes: a minute or two
of one core. What is larger is for the Spark job."""

_COLLECT_RECORDS: Final = 32
_REST_MS: Final = 10 * 60 * 1000

_OWN_RECORDS: Final = 2
"""What a collection writes itself: nothing to be collected."""


@dataclass(slots=True)
class Memory:
    """What whoever maintains a shard again and again remembers of it.

    Attributes:
        collected: The last collection went up to this seqno, and maybe found nothing.
    """

    collected: int = 0


@dataclass(frozen=True, slots=True)
class Maintained:
    """What one round on one shard has done.

    Attributes:
        retained: Whether the since moved.
        merges: Merges applied.
        collected: Blobs deleted by a collection; None if none was worth it.
        swept: What a sweep found; None if none was due.
        failed: The steps that failed.
    """

    retained: bool = False
    merges: int = 0
    collected: int | None = None
    swept: Swept | None = None
    failed: tuple[str, ...] = ()


def maintain(
    machine: Machine,
    memory: Memory | None = None,
    *,
    needed: Callable[[], Collection[str]] | None = None,
    merge_bytes: int = MERGE_BYTES,
) -> Maintained:
    """One round of maintenance on a shard.

    Args:
        machine: The shard's; it may have been dropped.
        memory: Of the rounds before.
        needed: What transactions still need of the shard's parts, as of `sweep`. None if nobody
            can tell: then a registered shard is not swept.
        merge_bytes: How much is merged in this round, in encoded bytes read.

    Raises:
        InvalidUsage: There is no such shard.
    """
    memory = memory or Memory()
    failed: list[str] = []

    def step(name: str, act: Callable[[], T], otherwise: T) -> T:
        try:
            return act()
        except Exception:  # noqa: BLE001 - also a bug in one step is no reason to leave the others
            failed.append(name)
            context = {"shard": machine.name, "step": name}
            _log.warning("maintenance step failed", exc_info=True, extra={"context": context})
            return otherwise

    dropped = is_tombstone(machine.state())
    retained = not dropped and step("retention", lambda: retain(machine), otherwise=False)
    merges = 0
    if not dropped:
        merges = step("compaction", lambda: compact(machine, most_bytes=merge_bytes), 0)
    collected = step("collection", lambda: _collect(machine, memory), None)
    swept = step("sweep", lambda: _sweep(machine, needed), None)
    return Maintained(retained, merges, collected, swept, tuple(failed))


def _collect(machine: Machine, memory: Memory) -> int | None:
    state, now_ms = machine.state(), machine.clock.now_ms()
    if not collection_due(state, now_ms, memory):
        return None
    reached = seqno_since(expire(state, now_ms))
    deleted = collect_garbage(machine)
    memory.collected = reached
    return deleted


def collection_due(state: ShardState, now_ms: int, memory: Memory) -> bool:
    """Whether garbage collection on the shard is worth its requests; costs nothing.

    Args:
        memory: What was collected before, in vain or not.
    """
    last = max(state.cleaned_seqno, memory.collected)
    news = seqno_since(expire(state, now_ms)) - last
    if news >= _COLLECT_RECORDS:
        return True
    return news > _OWN_RECORDS and now_ms - state.walltime_ms >= _REST_MS


def _sweep(machine: Machine, needed: Callable[[], Collection[str]] | None) -> Swept | None:
    state = machine.state()
    if not sweep_due(state, machine.clock.now_ms(), machine.settings.sweep_every_ms):
        return None
    if needed is None and state.registered is not None:
        return None
    return sweep(machine, needed=needed or nothing)


@dataclass(slots=True)
class Maintainer:
    """Maintains shards from a thread of its own.

    The first round begins half a period after the start, more or less: processes that start
    together spread out. Rounds begin at a shard of their own choice, for the same reason.

    Attributes:
        client: Of the location.
        shards: Their names; None for all there are, looked up at each round.
        period_ms: From the end of one round to the begin of the next, on average: each pause is
            between half of it and one and a half.
        merge_bytes: As of `maintain`.
        observer: Is told of each round on a shard: its name, what was done, and the milliseconds
            that it took. Returns at once and never raises.
    """

    client: ShardClient
    shards: Sequence[str] | None = None
    period_ms: int = 60_000
    merge_bytes: int = MERGE_BYTES
    observer: Callable[[str, Maintained, float], None] | None = None
    _memories: dict[str, Memory] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread.

        Raises:
            InvalidUsage: It runs already.
        """
        if self._thread is not None:
            raise InvalidUsage(
                f"maintenance of {self.client.location.url} was started twice",
                code="ALREADY_STARTED",
                hint="stop it first, or make another one",
            )
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end and wait for it: it finishes the shard that it is at."""
        self.cancel()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def cancel(self) -> None:
        """Ask a round that is under way to end after the shard that it is at; does not wait."""
        self._stop.set()

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def round(self) -> Mapping[str, Maintained]:
        """One round on every shard, in the calling thread; what was done, by shard.

        A shard that cannot be maintained, because it is not there or its store does not answer, is
        logged and left out.
        """
        done: dict[str, Maintained] = {}
        try:
            names = list(self.client.shards() if self.shards is None else self.shards)
        except ShardError:
            _log.warning("shards not listed for maintenance", exc_info=True)
            return done
        first = int(self.client.ids.jitter() * len(names))
        for name in (*names[first:], *names[:first]):
            if self._stop.is_set():
                break
            try:
                done[name] = self._one(name)
            except ShardError:
                context = {"shard": name}
                _log.warning("shard not maintained", exc_info=True, extra={"context": context})
        return done

    def _one(self, name: str) -> Maintained:
        began_ms = self.client.clock.elapsed_ms()
        machine = self.client.machine(name)
        state = machine.state()
        if state.registered is not None and state.registered.shard == state.shard:
            # Commits take back what is applied; nobody else would after the last one.
            self.client.transactions(name).tidy()
        done = maintain(
            machine,
            self._memories.setdefault(name, Memory()),
            needed=partial(self.client.door.pending_parts, name),
            merge_bytes=self.merge_bytes,
        )
        if self.observer is not None:
            self.observer(name, done, self.client.clock.elapsed_ms() - began_ms)
        return done

    def _run(self) -> None:
        pause_ms = self.period_ms * self.client.ids.jitter()
        while not self.client.clock.wait(self._stop, pause_ms):
            self.round()
            pause_ms = self.pause_ms()

    def pause_ms(self) -> float:
        """How long to wait before the next round: drawn anew each time."""
        return self.period_ms * (0.5 + self.client.ids.jitter())
