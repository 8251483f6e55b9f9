"""The harvester reads from Spark's status store how much each operator has done in a micro-batch.

    harvester = Harvester(sink, StatusStore(spark))
    QueryListener(sink.inbox, harvester.ask)      from then on, for each micro-batch that is done
    harvester.start()

A progress event has times of phases only: nearly all work is inside of one of them, `addBatch`.

An object's micro-batch is one SQL execution, with those that its `foreachBatch` function runs
inside of it. Spark describes all of them by the query's name, its run and the number of the
micro-batch. A thread of its own reads, a while after the progress event, the executions that are
new or were running at the last read, and takes the plans of those that counted something.

Spark keeps its newest executions only (`spark.sql.ui.retainedExecutions`), and their text is no
interface: an execution that is missing, or has an unknown form, is counted and left out.

Invariants:
    `ask` returns at once and never raises: a micro-batch for which there is no room is counted.
    Nothing waits for the harvester.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from shardline.app.introspection.events import Event, Harvested, QueryProgress
from shardline.app.introspection.facts import Facts
from shardline.app.introspection.sink import Sink
from shardline.app.introspection.spark_plan.execution_plan import SparkPlan
from shardline.app.introspection.spark_plan.kept_runs import KeptRunReader
from shardline.app.introspection.spark_plan.matching import Work, match_execution
from shardline.app.introspection.spark_plan.operators import OperatorPlan
from shardline.app.introspection.spark_plan.status_store import (
    Execution,
    StatusStore,
    micro_batch_of,
)
from shardline.app.protocol.objects import Description
from shardline.datasource.background import PeriodicThread

__all__ = ["Harvester"]

_log = logging.getLogger(__name__)

_PAUSE_MS: Final = 1_000.0
"""Pause between a progress event and the read: Spark fills the store by another queue, and a read
costs about as much for one micro-batch as for all of a second."""

_REST_MS: Final = 60_000.0

_ASKED_MAX: Final = 1_000
"""Most micro-batches that wait for a read."""

_TRIES: Final = 20
"""Reads after which a micro-batch whose end is not in the store is given up."""

_RUNS_MAX: Final = 1_000
"""Most micro-batches whose executions are remembered, and most executions of each."""

_REREAD_MAX: Final = 64
"""An execution that is running, or is not there yet, is read again with the new ones until so many
are newer. Then one that runs is read by itself, and one that is not there is given up: none of them
may make every read a long one."""

_STOP_MS: Final = 5_000.0

_Key: TypeAlias = tuple[str, int]
"""Run and number of a micro-batch."""


@dataclass(slots=True)
class _Request:
    """A micro-batch whose numbers are wanted."""

    event: QueryProgress
    tries: int = 0


class Harvester:
    """Reads executions of micro-batches from Spark's status store, and reports them to the sink."""

    def __init__(self, sink: Sink, store: StatusStore, kept_runs: KeptRunReader) -> None:
        """Read nothing yet.

        Args:
            sink: Has the objects; takes the events.
            store: Of the application.
            kept_runs: Of the same.
        """
        self._sink = sink
        self._store = store
        self._kept_runs = kept_runs
        self._kept: OrderedDict[_Key, list[SparkPlan]] = OrderedDict()
        self._asked: deque[_Request] = deque()
        self._found: OrderedDict[_Key, dict[int, Execution]] = OrderedDict()
        self._next = 0
        self._going: set[int] = set()
        self._missing: set[int] = set()
        self._thread = PeriodicThread(
            "introspection-plans", self._round, sink.clock, first_ms=_REST_MS, retry_ms=_REST_MS
        )

    def start(self) -> None:
        """Begin to read; call once."""
        self._thread.start()

    def stop(self) -> None:
        """End; micro-batches that wait for a read are left out."""
        self._thread.stop(_STOP_MS)

    def ask(self, event: Event) -> None:
        """Ask for the plans of a micro-batch, if the event is the end of one."""
        if not isinstance(event, QueryProgress) or "addBatch" not in event.phases_ms:
            return
        if len(self._asked) >= _ASKED_MAX:
            self._sink.inbox.missed()
            return
        self._asked.append(_Request(event))
        self._thread.wake.set()

    def step(self) -> None:
        """Read all micro-batches that were asked for."""
        # Before the read: of what is asked for during it, the store may not have all yet.
        self._thread.wake.clear()
        self._read_executions()
        self._read_kept_runs()
        for _ in range(len(self._asked)):
            asked = self._asked.popleft()
            if self._harvest(asked):
                continue
            asked.tries += 1
            if asked.tries < _TRIES:
                self._asked.append(asked)
            elif not asked.event.in_group:
                self._sink.inbox.missed()
                # It was, though nothing is known of its rows: a sum without them is not of all.
                self._sink.put(_summed(asked.event, []))
        if self._asked:
            self._thread.wake.set()

    def _round(self) -> float | None:
        stopping = self._thread.stopping
        if self._sink.clock.wait(stopping, _PAUSE_MS):
            return None
        try:
            self.step()
        except Exception:
            # The JVM ends together with the application: that is no error.
            if stopping.is_set():
                return None
            raise
        return _REST_MS

    # --- the store -------------------------------------------------------------------------------

    def _read_kept_runs(self) -> None:
        """Read what kept plans have counted, and remember it by its micro-batch."""
        for run in self._kept_runs.read():
            self._kept.setdefault(run.key, []).append(run.plan)
            if len(self._kept) > _RUNS_MAX:
                self._kept.popitem(last=False)

    def _read_executions(self) -> None:
        """Read new and running executions, and remember them by their micro-batch.

        Spark numbers an execution first, and plans it before it tells the store: one that another
        thread has begun later may be there sooner.
        """
        oldest = self._next - _REREAD_MAX
        self._missing = {number for number in self._missing if number >= oldest}
        again = [number for number in self._going if number >= oldest]
        self._going.clear()
        for execution in self._store.since(min([*again, *self._missing, self._next])):
            key = micro_batch_of(execution.description)
            if key is not None:
                self._remember(key, execution)
            number = execution.number
            self._missing.update(range(max(self._next, number - _REREAD_MAX), number))
            self._missing.discard(number)
            self._next = max(self._next, number + 1)

    def _remember(self, key: _Key, execution: Execution) -> None:
        number = execution.number
        if number >= self._next or number in self._missing:
            found = self._found.setdefault(key, {})
            if len(found) < _RUNS_MAX:
                found[number] = execution
            if len(self._found) > _RUNS_MAX:
                self._found.popitem(last=False)
        elif number in self._found.get(key, ()):
            self._found[key][number] = execution
        if execution.ended_ms is None:
            self._going.add(number)

    def _harvest(self, asked: _Request) -> bool:
        """Report a micro-batch to the sink; False if the store does not have all of it yet."""
        event = asked.event
        key = (event.run, event.micro_batch)
        executions = self._executions(asked)
        if executions is None:
            return False
        self._found.pop(key, None)
        kept = self._kept.pop(key, [])
        name = event.name.split(":")[0]
        known = self._sink.read(lambda facts, _: _known(facts, name))
        if known is None:
            return True
        description, operators = known
        plans = self._plans(executions)
        if plans is None:
            self._sink.put(_summed(event, []))
        elif plans or kept:
            work = [match_execution(description, operators, plan) for plan in (*plans, *kept)]
            self._sink.put(_summed(event, work))
        return True

    def _executions(self, asked: _Request) -> list[Execution | None] | None:
        """Those of a micro-batch, as they are now; None if there may be more of it."""
        key = (asked.event.run, asked.event.micro_batch)
        found = self._found.get(key)
        if found is None:
            # A step in a group has no execution that wraps it, and none at all if kept plans have
            # done all of it. Another look, as Spark fills the store by another queue.
            return [] if asked.event.in_group and key in self._kept and asked.tries else None
        first, *others = (found[number] for number in sorted(found))
        outermost = self._latest(first)
        if outermost is not None and outermost.ended_ms is None:
            return None
        return [outermost, *map(self._latest, others)]

    def _latest(self, execution: Execution) -> Execution | None:
        """The execution as it is now; None if Spark has evicted it meanwhile."""
        if execution.ended_ms is not None:
            return execution
        return self._store.execution(execution.number)

    def _plans(self, executions: Iterable[Execution | None]) -> list[SparkPlan] | None:
        """Plans of the executions that succeeded and counted something; None if one is lost."""
        plans = []
        for execution in executions:
            if execution is None:
                return None
            if not execution.has_counted or not execution.went_well:
                continue
            try:
                plan = self._store.plan(execution)
            except ValueError:
                self._sink.inbox.failed()
                _log.warning("a plan of Spark's could not be read", exc_info=True)
                plan = None
            if plan is None:
                return None
            plans.append(plan)
        return plans


def _known(facts: Facts, name: str) -> tuple[Description, tuple[OperatorPlan, ...]] | None:
    found = facts.objects.get(name)
    return None if found is None else (found.installed.description, found.plan)


def _summed(event: QueryProgress, work: list[Work]) -> Harvested:
    rows: dict[tuple[int, int], int] = {}
    took: dict[int, float] = {}
    for one in work:
        for edge, count in one.rows.items():
            rows[edge] = rows.get(edge, 0) + count
        for place, ms in one.took_ms.items():
            took[place] = took.get(place, 0.0) + ms
    return Harvested(
        query=event.query,
        run=event.run,
        name=event.name,
        micro_batch=event.micro_batch,
        rows=tuple((receiver, port, count) for (receiver, port), count in sorted(rows.items())),
        took_ms=tuple(sorted(took.items())),
    )
