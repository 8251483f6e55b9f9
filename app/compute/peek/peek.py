"""The server of peeks runs queries, each once over all of its objects at one time.

Queries share the session, its cores and its memory with everything that runs, so only a few run at
once, more wait, and the rest is refused; each can be cancelled while it runs.

    peeks = PeekServer(host, catalog, relations, bind)
    peeks.start(peek)          returns at once; one `PeekResponse` comes through `host.report`
    peeks.cancel(uuid)
    peeks.forget(uuid)         its connection is gone: it is not answered
    peeks.active(), peeks.durations()

The phases of a peek, in one of a few threads:

    hold        a lease on every object, at `as_of`: a time before a since is refused here
    settle      wait until all of them, and their errors, are settled at `as_of`; an object that
                does not move until somebody acts is the answer at once
    errors      of the objects and of all their inputs: a live one is the answer
    read        by the cheapest strategy that certainly gives Spark's rows

The strategies, named in the log and in `durations`:

    constant    no object at all
    index       simple columns and conditions of one object that has an index: no Spark job
    shard       the same without an index, if little must be read: by plain Python, pruned
    standard    Spark, over native snapshots of the objects, or an index's cached frame

Invariants:
    Each peek has exactly one response, whether it is answered, refused, cancelled, failed or
    stopped; one that is forgotten has none. A peek of the same id that comes later is another one.
    All objects are read at the same time, and nothing that is read is deleted meanwhile.
    Temporary views of a peek are gone when it ends.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Final, Literal

from shardline.app.compute.index.index import INDEXES, IndexRegistry
from shardline.app.compute.peek.answer import (
    DEFAULTS,
    BindQuery,
    FindBlockage,
    OnStrategy,
    PeekCancelled,
    PeekRun,
    PeekServices,
    PeekSettings,
    PeekTask,
    Relations,
)
from shardline.app.compute.results import to_ipc
from shardline.app.execution.causes import find_cause
from shardline.app.execution.host import Host
from shardline.app.execution.live_errors import Catalog
from shardline.app.execution.refusals import STOPPING, no_thread
from shardline.app.execution.spark_errors import error_sentence
from shardline.app.protocol.compute import Peek, PeekResponse, PeekStrategy
from shardline.datasource.background import DaemonPool

__all__ = ["ActivePeek", "PeekDuration", "PeekServer", "PeekSettings"]

_log = logging.getLogger(__name__)

_STOP_S: Final = 30.0
"""How long `stop` waits for peeks to end: the lane, which is stopped behind them, must be."""


@dataclass(frozen=True, slots=True)
class ActivePeek:
    """A row of `active_peeks`.

    Attributes:
        uuid: Id of the peek.
        objects: Names of the objects that it reads.
        strategy: Its strategy; "" while that is not decided.
        as_of: The time at which it reads.
        since_ms: Its arrival, ms since the epoch.
    """

    uuid: str
    objects: tuple[str, ...]
    strategy: PeekStrategy | Literal[""]
    as_of: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class PeekDuration:
    """A row of `peek_durations_histogram`.

    Attributes:
        strategy: Strategy of the peeks.
        duration_ns: Upper bound of the bucket, inclusive: a power of two.
        count: Number of peeks that took at most so long, and longer than the bucket before.
    """

    strategy: PeekStrategy
    duration_ns: int
    count: int


class PeekServer:
    """The server of peeks of one runtime; safe to use from any thread."""

    def __init__(
        self,
        host: Host,
        catalog: Catalog,
        relations: Relations,
        bind: BindQuery,
        *,
        indexes: IndexRegistry = INDEXES,
        settings: PeekSettings = DEFAULTS,
        decided: OnStrategy = lambda *_: None,
        find_blockage: FindBlockage = lambda _: None,
    ) -> None:
        """A server without threads; they are started when there is a peek to run.

        Args:
            host: Gives the session, the location and the way of responses.
            catalog: The inputs of objects, whose errors forbid a read.
            relations: Returns the rows of `introspection.<name>`.
            bind: Replaces objects by views in a query.
            indexes: Indexes that may answer.
            settings: Limits of numbers, times and bytes.
            decided: Called with the strategy of each peek.
            find_blockage: Says which object a peek need not wait for.
        """
        self._host = host
        self._services = PeekServices(
            host, catalog, relations, bind, indexes, settings, decided, find_blockage
        )
        self._settings = settings
        self._lock = threading.Lock()
        self._tasks: dict[str, PeekTask] = {}
        self._numbers = itertools.count()
        self._queue: deque[PeekTask] = deque()
        self._pool = DaemonPool("peek", settings.threads)
        self._busy_slots: set[int] = set()
        self._stopped = False
        self._durations: Counter[tuple[PeekStrategy, int]] = Counter()

    def start(self, peek: Peek) -> None:
        """Run `peek`; returns at once. One that waits or runs already is not run again."""
        refused = ""
        with self._lock:
            if peek.uuid in self._tasks:
                return
            clock = self._host.clock
            task = PeekTask(peek, clock.now_ms(), clock.elapsed_ms(), next(self._numbers))
            if self._stopped:
                refused = STOPPING
            elif len(self._queue) >= self._settings.waiting:
                refused = (
                    f"[TOO_MANY_PEEKS] {len(self._queue)} queries are waiting already — hint: "
                    "ask again later"
                )
            else:
                refused = self._enqueue(task)
        # Outside of the lock, as all reports: the receiver may call back.
        if refused:
            self._host.report(PeekResponse(uuid=peek.uuid, error=refused))

    def _enqueue(self, task: PeekTask) -> str:
        """Let a thread answer a peek, or say why none can. Under the lock."""
        try:
            self._pool.run(self._answer_next)
        except RuntimeError as error:
            return no_thread(error)
        # Behind it, under the lock that the thread takes first: what is in the queue has a thread.
        self._tasks[task.peek.uuid] = task
        self._queue.append(task)
        return ""

    def cancel(self, uuid: str) -> None:
        """Cancel a peek; its answer may come all the same. Does nothing for an unknown id."""
        with self._lock:
            task = self._tasks.get(uuid)
            waiting = task is not None and self._unqueue(task)
            if waiting:
                del self._tasks[uuid]
        if waiting:
            self._host.report(PeekResponse(uuid=uuid, cancelled=True))
        elif task is not None:
            self._cancel_running(task)

    def forget(self, uuid: str) -> None:
        """End a peek without an answer: its connection is gone. Does nothing for an unknown id."""
        with self._lock:
            task = self._tasks.pop(uuid, None)
            waiting = task is not None and self._unqueue(task)
        if task is not None and not waiting:
            self._cancel_running(task)

    def _unqueue(self, task: PeekTask) -> bool:
        """Take a peek out of the queue; True if it was there. Under the lock."""
        waiting = task in self._queue
        if waiting:
            self._queue.remove(task)
            task.cancelled.set()
        return waiting

    def _cancel_running(self, task: PeekTask) -> None:
        # The flag before the strategy is read; `Answer._decide` writes the strategy before it reads
        # the flag. So either the jobs are cancelled here, or the peek ends before it starts any.
        task.cancelled.set()
        if task.strategy in ("standard", "constant"):
            from shardline.app.compute.peek.collect import cancel_group  # noqa: PLC0415 - loads pyspark

            cancel_group(self._host.spark, task.group)

    def tune(self, settings: PeekSettings) -> None:
        """Apply changed settings to later peeks; the number of threads stays."""
        with self._lock:
            self._settings = settings
            self._services = replace(self._services, settings=settings)

    def stop(self) -> None:
        """Cancel all peeks and wait until they have ended; later ones are refused.

        One that does not end within 30 s is left to its thread, which ends with the process.
        """
        with self._lock:
            # Under the lock that `start` takes: no peek comes in after the list is made.
            self._stopped = True
            uuids = list(self._tasks)
        for uuid in uuids:
            self.cancel(uuid)
        if not self._pool.wait_until_done(_STOP_S):
            _log.warning("queries have not ended", extra={"context": {"seconds": _STOP_S}})
        self._pool.close()

    def active(self) -> list[ActivePeek]:
        """Peeks that have no response yet, in order of arrival."""
        with self._lock:
            return [
                ActivePeek(
                    uuid=task.peek.uuid,
                    objects=task.peek.inputs,
                    strategy=task.strategy,
                    as_of=task.peek.as_of,
                    since_ms=task.came_ms,
                )
                for task in self._tasks.values()
            ]

    def durations(self) -> list[PeekDuration]:
        """A histogram of the durations of all peeks that were answered with rows."""
        with self._lock:
            found = sorted(self._durations.items())
        return [PeekDuration(strategy, bound, count) for (strategy, bound), count in found]

    # --- threads ---------------------------------------------------------------------------------

    def _answer_next(self) -> None:
        """Answer the peek that has waited longest, if it was not cancelled meanwhile."""
        with self._lock:
            if not self._queue:
                return
            task = self._queue.popleft()
            slot = next(free for free in itertools.count() if free not in self._busy_slots)
            self._busy_slots.add(slot)
        try:
            began = self._host.clock.elapsed_ms()
            response = self._answer(task, slot)
            self._report(task, response, self._host.clock.elapsed_ms() - began)
        finally:
            with self._lock:
                self._busy_slots.remove(slot)

    def _report(self, task: PeekTask, response: PeekResponse, took_ms: float) -> None:
        """Report a peek's answer, unless it was forgotten meanwhile."""
        with self._lock:
            # By identity, not by id: after `forget` the same peek may have come again, and the
            # answer of the old run must not be taken for its own.
            wanted = self._tasks.get(task.peek.uuid) is task
            if wanted:
                del self._tasks[task.peek.uuid]
            if response.rows is not None and task.strategy:
                self._durations[task.strategy, _bucket(took_ms)] += 1
        _log_outcome(task, response, took_ms)
        if wanted:
            self._host.report(response)

    def _answer(self, task: PeekTask, slot: int) -> PeekResponse:
        """The one response to a peek."""
        uuid = task.peek.uuid
        try:
            table = PeekRun(self._services, task, pool=f"peek-{slot}").table()
            return PeekResponse(uuid=uuid, rows=to_ipc(table))
        except PeekCancelled:
            return PeekResponse(uuid=uuid, cancelled=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            if task.cancelled.is_set():
                # Jobs that were cancelled end as errors of Spark, which nobody has asked about.
                return PeekResponse(uuid=uuid, cancelled=True)
            task.error = error
            return PeekResponse(
                uuid=uuid, error=error_sentence(error, "QUERY_FAILED"), kind=find_cause(error).kind
            )


def _bucket(took_ms: float) -> int:
    """The least power of two that is at least so many nanoseconds."""
    nanoseconds = max(int(took_ms * 1_000_000), 1)
    return 1 << (nanoseconds - 1).bit_length()


def _log_outcome(task: PeekTask, response: PeekResponse, took_ms: float) -> None:
    """Log the outcome of a peek; one that failed as a failure, with all of its error."""
    context = {
        "peek": task.peek.uuid,
        "objects": list(task.peek.inputs),
        "as_of": task.peek.as_of,
        "strategy": task.strategy,
        "took_ms": round(took_ms, 3),
        "bytes": len(response.rows or b""),
        "error": response.error,
    }
    if response.cancelled:
        _log.info("a query was cancelled", extra={"context": context})
    elif response.error:
        _log.warning("a query failed", exc_info=task.error, extra={"context": context})
    else:
        _log.info("a query was answered", extra={"context": context})
