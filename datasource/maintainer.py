"""A maintainer keeps shards small and fast, in rounds, from a background thread or on demand.

    maintain(machine)                 one round on one shard
    with Maintainer(client): …        rounds on all shards of a location, from a thread

Without maintenance a shard stays right, but every append leaves a batch to open, every merge leaves
the parts that it replaced, and history is kept for ever. A round takes these steps, in this order
because each makes work for the next:

    1. retention    the since moves along with the upper
    2. compaction   merges that are due; updates are summed up to that since
    3. collection   deletes parts that merges and other transitions dropped
    4. sweep        deletes blobs that crashes left

Of the transactions shard rows that are applied are retracted first (`transactions`). A step that
fails is logged, and the others are done all the same: none relies on another. Work that one round
leaves is done by a later one, so a round may be killed anywhere. (Rollups are not among the steps:
committing processes write them.)

Any number of processes may maintain one location. Large merges are claimed, so that two processes
do not make the same one; the other steps cost little if another process has just done them.

*When a collection is worth it.* It reads the records since the last one, lists rollups, and writes
two records: about ten requests and some. So it waits for 32 records that no seqno hold keeps, which
adds a third of a request to each of them at most; or, on a shard that has come to rest, for ten
minutes without any. Records in which it found nothing are not read again by the same maintainer.
(persist collects each time that the least held seqno has moved by log2 of it; its collections write
no records.)

Invariants:
    Everything here may be killed, repeated, or never be called: shards stay right.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from shardline.datasource.background import PeriodicThread
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, InvalidUsage, ShardError
from shardline.datasource.maintenance.compact import MERGED_ELSEWHERE, compact
from shardline.datasource.maintenance.garbage_collection import collect_garbage
from shardline.datasource.maintenance.orphan_sweep import (
    NeededKeys,
    SweepResult,
    is_sweep_due,
    no_keys_needed,
    sweep,
)
from shardline.datasource.maintenance.retention import apply_retention
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState, expire_leases, is_tombstone, seqno_since

__all__ = [
    "WHOLE_LOCATION",
    "CollectionMemory",
    "Maintainer",
    "RoundResult",
    "is_collection_due",
    "maintain",
]

_log = logging.getLogger(__name__)

T = TypeVar("T")

MERGE_BYTES: Final = 1 << 30
"""Bytes that one round merges on one shard, and so the largest merge that it makes: a minute or two
of one core. Larger merges are left to the Spark job (`spark_compaction`)."""

WHOLE_LOCATION: Final = "/"
"""Stands for a shard's name in the result of listing the shards; none can be called so."""

_COLLECT_RECORDS: Final = 32
_REST_MS: Final = 10 * 60 * 1000

_OWN_RECORDS: Final = 2
"""Records that a collection writes itself. They drop nothing, and are no reason for another one."""


@dataclass(slots=True)
class CollectionMemory:
    """The state that is kept about one shard from round to round.

    Losing it costs at most one collection that finds nothing.

    Attributes:
        collected: The last collection went up to this seqno, and maybe found nothing.
    """

    collected: int = 0


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The result of one round on one shard.

    Attributes:
        retained: True if the since moved.
        merges: Number of merges applied.
        collected: Blobs deleted by garbage collection; None if it was not worth it, or failed.
        swept: Blobs deleted by an orphan sweep; None if none was due, or it failed.
        failed: Names of the steps that failed; `state` if there was none because the shard could
            not be read, and `listing` if the location's shards could not be listed.
    """

    retained: bool = False
    merges: int = 0
    collected: int | None = None
    swept: SweepResult | None = None
    failed: tuple[str, ...] = ()


def maintain(
    machine: Machine,
    memory: CollectionMemory | None = None,
    *,
    needed: NeededKeys | None = None,
    merge_bytes: int = MERGE_BYTES,
    tidy: Callable[[], object] = lambda: None,
    stopping: Callable[[], bool] = lambda: False,
) -> RoundResult:
    """Run one round of maintenance on a shard.

    Args:
        machine: The shard's machine; the shard may have been dropped.
        memory: Kept from the rounds before; None for none.
        needed: Gives the keys of parts that transactions still need, as for `sweep`. None if that
            is not known: then a registered shard is not swept.
        merge_bytes: The most that is merged in this round, in encoded bytes read, with 16 for each
            row at least (`parts.merge_parts.merge_work_bytes`).
        tidy: Of the transactions shard, the step before all others.
        stopping: True once the round is to end: a merge under way is given up, another step is
            finished, and those after it are left out.

    Raises:
        InvalidUsage: There is no such shard.
    """
    memory = memory or CollectionMemory()
    failed: list[str] = []

    def step(name: str, act: Callable[[], T], otherwise: T) -> T:
        if stopping():
            return otherwise
        try:
            return act()
        except Exception:  # noqa: BLE001 - also a bug in one step is no reason to leave the others
            failed.append(name)
            context = {"shard": machine.name, "step": name}
            _log.warning("maintenance step failed", exc_info=True, extra={"context": context})
            return otherwise

    dropped = is_tombstone(machine.state())
    step("transactions", tidy, None)
    retained = not dropped and step("retention", lambda: apply_retention(machine), otherwise=False)
    merges = 0

    def count() -> None:
        # Not the result of the step: it may make some merges and fail at another.
        nonlocal merges
        merges += 1

    if not dropped:
        step("compaction", lambda: _compact(machine, merge_bytes, count, stopping), None)
    collected = step("collection", lambda: _collect(machine, memory), None)
    swept = step("sweep", lambda: _sweep(machine, needed), None)
    return RoundResult(retained, merges, collected, swept, tuple(failed))


def _compact(
    machine: Machine, merge_bytes: int, made: Callable[[], None], stopping: Callable[[], bool]
) -> None:
    try:
        compact(machine, most_bytes=merge_bytes, made=made, stopping=stopping)
    except Determinate as error:
        # No failure of maintenance: what it would have merged is being merged.
        if error.code != MERGED_ELSEWHERE:
            raise
        _log.info("merges left to others", extra={"context": {"shard": machine.name}})


def _collect(machine: Machine, memory: CollectionMemory) -> int | None:
    state, now_ms = machine.state(), machine.clock.now_ms()
    if not is_collection_due(state, now_ms, memory):
        return None
    # Before the collection: records that come while it runs are counted for the next one.
    reached = seqno_since(expire_leases(state, now_ms))
    deleted = collect_garbage(machine)
    memory.collected = reached
    return deleted


def is_collection_due(state: ShardState, now_ms: int, memory: CollectionMemory) -> bool:
    """True if garbage collection on the shard is worth its requests; does no I/O.

    Args:
        state: The newest state of the shard.
        now_ms: The time.
        memory: Kept from the rounds before; `collected` counts also if it deleted nothing.
    """
    last = max(state.cleaned_seqno, memory.collected)
    news = seqno_since(expire_leases(state, now_ms)) - last
    if news >= _COLLECT_RECORDS:
        return True
    return news > _OWN_RECORDS and now_ms - state.walltime_ms >= _REST_MS


def _sweep(machine: Machine, needed: NeededKeys | None) -> SweepResult | None:
    state = machine.state()
    if not is_sweep_due(state, machine.clock.now_ms(), machine.settings.sweep_every_ms):
        return None
    if needed is None and state.registered is not None:
        return None
    return sweep(machine, needed=needed or no_keys_needed)


@dataclass(slots=True)
class Maintainer:
    """Maintains shards from a thread of its own.

    The first round begins after a random part of a period, so that processes which start together
    spread out. Each round begins at a random shard, for the same reason.

    Attributes:
        client: A client of the location.
        shards: Names of the shards; None for all of the location, listed at each round.
        period_ms: From the end of one round to the begin of the next, on average: each pause is
            between half of it and one and a half.
        merge_bytes: As for `maintain`.
        allowed: Returns False while this process is not to maintain anything: a round ends before
            its next shard.
        observer: Called after each round on a shard, also one that has failed but not one that was
            cancelled, with its name, the result, and the milliseconds that the round took; and
            after each listing of the shards, with `WHOLE_LOCATION`. Must return at once and never
            raise.
    """

    client: ShardClient
    shards: Sequence[str] | None = None
    period_ms: int = 60_000
    merge_bytes: int = MERGE_BYTES
    allowed: Callable[[], bool] = lambda: True
    observer: Callable[[str, RoundResult, float], None] | None = None
    _memories: dict[str, CollectionMemory] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: PeriodicThread | None = None

    def start(self) -> None:
        """Start the thread.

        Raises:
            InvalidUsage: It was started already, and not stopped.
            RuntimeError: No thread can be started. It may be tried again.
        """
        if self._thread is not None:
            raise InvalidUsage(
                f"maintenance of {self.client.location.url} was started twice",
                code="ALREADY_STARTED",
                hint="stop it first, or make another one",
            )
        self._stop.clear()
        self._thread = PeriodicThread(
            "maintenance",
            self._run_round,
            self.client.clock,
            first_ms=self.period_ms * self.client.ids.jitter(),
            retry_ms=self.period_ms,
        )
        try:
            self._thread.start()
        except Exception:
            self._thread = None  # it was not started: the next try would be told that it was
            raise

    def stop(self) -> None:
        """End the thread as `cancel` does, and wait for it."""
        self.cancel()
        if self._thread is not None:
            self._thread.stop()
        self._thread = None

    def cancel(self) -> None:
        """End a running round after the step that it is at, or within a merge; does not wait."""
        self._stop.set()
        if self._thread is not None:
            self._thread.cancel()

    def __enter__(self) -> Self:
        """Start the thread."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the thread."""
        self.stop()

    def round(self) -> Mapping[str, RoundResult]:
        """Run one round on every shard, in the calling thread; return the results by shard.

        A shard that cannot be maintained, because its store does not answer, or whatever else it
        meets, is logged and has `state` among its failed steps; one that does not exist is logged
        and left out. If the shards cannot be listed, that is the result of `WHOLE_LOCATION`.
        """
        if not self.allowed():
            return {}
        done: dict[str, RoundResult] = {}
        names = self._names(done)
        first = int(self.client.ids.jitter() * len(names))
        for name in (*names[first:], *names[:first]):
            if self._stop.is_set() or not self.allowed():
                break
            began_ms = self.client.clock.elapsed_ms()
            try:
                done[name] = self._one(name)
            except Exception as error:  # noqa: BLE001 - also a bug is no reason to leave others
                context = {"shard": name}
                _log.warning("shard not maintained", exc_info=True, extra={"context": context})
                # Proof that it is gone, and no failure: nobody would ever hear that it is over.
                if isinstance(error, InvalidUsage) and error.code == "SHARD_NOT_FOUND":
                    continue
                done[name] = RoundResult(failed=("state",))
            # One that was cut short does not say that the steps which it left out do not fail.
            if not self._stop.is_set():
                self._observe(name, done[name], began_ms)
        return done

    def _names(self, done: dict[str, RoundResult]) -> Sequence[str]:
        """The names of the shards to maintain; a listing that fails goes into `done`."""
        if self.shards is not None:
            return self.shards
        began_ms, listed = self.client.clock.elapsed_ms(), RoundResult()
        names: Sequence[str] = ()
        try:
            names = self.client.shards()
        except ShardError:
            _log.warning("shards not listed for maintenance", exc_info=True)
            done[WHOLE_LOCATION] = listed = RoundResult(failed=("listing",))
        self._observe(WHOLE_LOCATION, listed, began_ms)
        return names

    def _observe(self, name: str, done: RoundResult, began_ms: float) -> None:
        if self.observer is not None:
            self.observer(name, done, self.client.clock.elapsed_ms() - began_ms)

    def _one(self, name: str) -> RoundResult:
        machine = self.client.machine(name)
        state = machine.state()
        # A commit to the transactions shard retracts the rows that are applied. After the last
        # commit only maintenance does it.
        tidied = state.registered is not None and state.registered.shard == state.shard
        return maintain(
            machine,
            self._memories.setdefault(name, CollectionMemory()),
            needed=partial(self.client.shard_views.pending_parts, name),
            merge_bytes=self.merge_bytes,
            tidy=lambda: self.client.transactions(name).tidy() if tidied else None,
            stopping=self._stop.is_set,
        )

    def _run_round(self) -> float:
        self.round()
        return self.pause_ms()

    def pause_ms(self) -> float:
        """Milliseconds to wait before the next round; random, drawn anew at each call."""
        return self.period_ms * (0.5 + self.client.ids.jitter())
