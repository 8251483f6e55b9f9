"""Peeks: a query run once, over all of its objects at one time.

    peeks = Peeks(host, catalog, relations, bind)
    peeks.start(peek)          returns at once; one `PeekResponse` comes through `host.report`
    peeks.cancel(uuid)
    peeks.forget(uuid)         of a connection that is gone: it is not answered
    peeks.active(), peeks.durations()

What happens, in one of a few threads:

    hold        a lease on every object, at `as_of`: one before its since is refused here
    settle      wait until all of them, and their errors, are settled at `as_of`
    errors      of the objects and of all that they are made of: a live one is the answer
    read        in the cheapest way that certainly gives what Spark would give

and the ways, told in the log and in `durations`:

    constant    no object at all
    index       simple columns and conditions of one object that has an index: no Spark job
    shard       the same without an index, if little must be read: by plain Python, pruned
    standard    Spark, over native snapshots of the objects, or an index's cached frame

Invariants:
    Each peek has exactly one response, whatever happens: refused, cancelled, failed, stopped; one
    that is forgotten has none. The same peek may come again then, and is another one.
    All objects are read at the same time, and nothing that is read is deleted meanwhile.
    Temporary views of a peek are gone when it ends.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Literal

from shardline.app.compute.index.index import INDEXES, Indexes
from shardline.app.compute.peek.answer import (
    DEFAULTS,
    Answer,
    Bind,
    Cancelled,
    Decided,
    Means,
    PeekSettings,
    Relations,
    Task,
)
from shardline.app.compute.peek.results import to_ipc
from shardline.app.compute.shard_follower import Catalog
from shardline.app.execution.host import Host
from shardline.app.execution.spark_errors import sentence
from shardline.app.protocol.compute import Peek, PeekResponse, PeekStrategy

__all__ = ["ActivePeek", "PeekDuration", "PeekSettings", "Peeks"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActivePeek:
    """A row of `active_peeks`.

    Attributes:
        uuid: The peek's.
        objects: That it reads.
        strategy: How; "" while that is not decided.
        as_of: At which time.
        since_ms: When it came, ms since the epoch.
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
        strategy: How they were answered.
        duration_ns: Upper bound of the bucket, inclusive: a power of two.
        count: How many took so long, and longer than the bucket before.
    """

    strategy: PeekStrategy
    duration_ns: int
    count: int


class Peeks:
    """See the module. One for a runtime; safe to use from any thread."""

    def __init__(
        self,
        host: Host,
        catalog: Catalog,
        relations: Relations,
        bind: Bind,
        *,
        indexes: Indexes = INDEXES,
        settings: PeekSettings = DEFAULTS,
        decided: Decided = lambda *_: None,
    ) -> None:
        """Nothing runs yet; threads are started when there is something to do.

        Args:
            host: Whose session, location and report.
            catalog: Knows what objects are made of.
            relations: Gives `introspection.<name>`.
            bind: Puts views in the place of objects in a query.
            indexes: That may answer.
            settings: Bounds.
            decided: Is told how each peek is answered.
        """
        self._host = host
        self._means = Means(host, catalog, relations, bind, indexes, settings, decided)
        self._settings = settings
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._numbers = itertools.count()
        self._queue: deque[Task] = deque()
        self._free = set(range(settings.threads))
        self._threads: dict[int, threading.Thread] = {}
        self._stopped = False
        self._durations: Counter[tuple[PeekStrategy, int]] = Counter()

    def start(self, peek: Peek) -> None:
        """Run `peek`; returns at once. One that runs already is not run again."""
        refused = ""
        with self._lock:
            if peek.uuid in self._tasks:
                return
            task = Task(peek, self._host.clock.now_ms(), next(self._numbers))
            if self._stopped:
                refused = "[STOPPED] the runtime is stopping — hint: ask again when it runs"
            elif len(self._queue) >= self._settings.waiting:
                refused = (
                    f"[TOO_MANY_PEEKS] {len(self._queue)} queries are waiting already — hint: "
                    "ask again later"
                )
            else:
                self._tasks[peek.uuid] = task
                self._queue.append(task)
                self._employ()
        if refused:
            self._host.report(PeekResponse(uuid=peek.uuid, error=refused))

    def cancel(self, uuid: str) -> None:
        """The answer is not needed any more; it may come all the same. Unknown: does nothing."""
        with self._lock:
            task = self._tasks.get(uuid)
            waiting = task is not None and self._take_out(task)
            if waiting:
                del self._tasks[uuid]
        if waiting:
            self._host.report(PeekResponse(uuid=uuid, cancelled=True))
        elif task is not None:
            self._end(task)

    def forget(self, uuid: str) -> None:
        """End a peek that is not to be answered: who has asked is gone. Unknown: does nothing."""
        with self._lock:
            task = self._tasks.pop(uuid, None)
            waiting = task is not None and self._take_out(task)
        if task is not None and not waiting:
            self._end(task)

    def _take_out(self, task: Task) -> bool:
        """Whether the peek has not begun, and now never will; under the lock."""
        waiting = task in self._queue
        if waiting:
            self._queue.remove(task)
            task.cancelled.set()
        return waiting

    def _end(self, task: Task) -> None:
        task.cancelled.set()
        if task.strategy in ("standard", "constant"):
            from shardline.app.compute.peek.collect import cancel_group  # noqa: PLC0415 - loads pyspark

            cancel_group(self._host.spark, task.group)

    def tune(self, settings: PeekSettings) -> None:
        """Answer later peeks within other bounds; how many run at once stays."""
        with self._lock:
            self._settings = settings
            self._means = replace(self._means, settings=settings)

    def stop(self) -> None:
        """Cancel all and wait until they have ended; later ones are refused."""
        with self._lock:
            self._stopped = True
            uuids, threads = list(self._tasks), list(self._threads.values())
        for uuid in uuids:
            self.cancel(uuid)
        for thread in threads:
            thread.join()

    def active(self) -> list[ActivePeek]:
        """Peeks that have no response yet, in the order that they came."""
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
        """How long peeks took that were answered with rows, from the first to the last."""
        with self._lock:
            found = sorted(self._durations.items())
        return [PeekDuration(strategy, bound, count) for (strategy, bound), count in found]

    # --- threads ---------------------------------------------------------------------------------

    def _employ(self) -> None:
        """Start a thread if one is free; under the lock."""
        if not self._free:
            return
        slot = min(self._free)
        self._free.remove(slot)
        thread = threading.Thread(target=self._work, args=(slot,), name=f"peek-{slot}", daemon=True)
        self._threads[slot] = thread
        thread.start()

    def _work(self, slot: int) -> None:
        """Answer peeks until none waits."""
        while True:
            with self._lock:
                if not self._queue:
                    self._free.add(slot)
                    self._threads.pop(slot, None)
                    return
                task = self._queue.popleft()
            began = self._host.clock.elapsed_ms()
            response = self._answer(task, slot)
            took_ms = self._host.clock.elapsed_ms() - began
            with self._lock:
                wanted = self._tasks.get(task.peek.uuid) is task
                if wanted:
                    del self._tasks[task.peek.uuid]
                if response.rows is not None and task.strategy:
                    self._durations[task.strategy, _bucket(took_ms)] += 1
            _told(task, response, took_ms)
            if wanted:
                self._host.report(response)

    def _answer(self, task: Task, slot: int) -> PeekResponse:
        """The one response to a peek."""
        uuid = task.peek.uuid
        try:
            table = Answer(self._means, task, pool=f"peek-{slot}").table()
            return PeekResponse(uuid=uuid, rows=to_ipc(table))
        except Cancelled:
            return PeekResponse(uuid=uuid, cancelled=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            if task.cancelled.is_set():
                return PeekResponse(uuid=uuid, cancelled=True)
            _log.info("a query failed", exc_info=error, extra={"context": {"peek": uuid}})
            return PeekResponse(uuid=uuid, error=sentence(error, "QUERY_FAILED"))


def _bucket(took_ms: float) -> int:
    """The least power of two that is at least so many nanoseconds."""
    nanoseconds = max(int(took_ms * 1_000_000), 1)
    return 1 << (nanoseconds - 1).bit_length()


def _told(task: Task, response: PeekResponse, took_ms: float) -> None:
    """Log what became of a peek."""
    context = {
        "peek": task.peek.uuid,
        "objects": list(task.peek.inputs),
        "as_of": task.peek.as_of,
        "strategy": task.strategy,
        "took_ms": round(took_ms, 3),
        "bytes": len(response.rows or b""),
        "error": response.error,
        "cancelled": response.cancelled,
    }
    _log.info("a query was answered", extra={"context": context})
