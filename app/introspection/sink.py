"""The sink is the one thread that changes the facts, and the one lock under which they are read.

    sink = Sink(clock)
    spark.streams.addListener(QueryListener(sink.inbox))
    sink.start()
    sink.put(event)            any thread, never waits
    sink.read(relation.rows)   any thread, a consistent view

Events come from many threads, and those of one object must be applied in their order; a relation
must not be read in the middle of one. One thread and one lock give both, and keep the threads that
commit data free of either.

Once a second it does what no event does: it notes each object's lag, so that the history has a row
for each minute, also while nothing moves, and the verdict on each object where it has changed. If
it could not for some minutes, as on a machine that slept, it notes that nothing is known of them.
An event that cannot be applied is logged and counted, and the next one is taken.

Invariants:
    Facts change on one thread, under one lock, one event after the other.
    The sink never waits for Spark or for a store.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Final, TypeVar

from shardline.app.introspection.apply import apply, note_status
from shardline.app.introspection.events import Event
from shardline.app.introspection.facts import MINUTE_MS, Facts, lag_ms
from shardline.app.introspection.histories import note_standstill
from shardline.app.introspection.inbox import Inbox
from shardline.app.introspection.relation import MS, NUMBER, REAL, Column, Metric, Relation, Row
from shardline.app.introspection.verdicts.gather import backlog_size
from shardline.app.introspection.verdicts.noted import note_verdicts
from shardline.app.lane.commands import KINDS, Kind
from shardline.datasource.background import PeriodicThread
from shardline.datasource.clock import Clock

__all__ = ["TICK_MS", "Sink", "listener_relation"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

TICK_MS: Final = 1000
_STOP_MS: Final = 5_000.0
_SLICE: Final = 256
"""Events applied under the lock at once, before readers have their turn."""


class Sink:
    """Takes events and keeps the facts.

    Attributes:
        inbox: The queue of events.
        clock: Of the process.
    """

    def __init__(
        self, clock: Clock, *, capacity: int = 10_000, domains: Collection[Kind] = KINDS
    ) -> None:
        """Begin without facts.

        Args:
            clock: Of the process.
            capacity: Most events that wait, of those that can be missed.
            domains: Whose dataflows are watched.
        """
        self.inbox = Inbox(clock, capacity)
        self.clock = clock
        self._facts = Facts(domains)
        self._lock = threading.Lock()
        self._minute = clock.now_ms() // MINUTE_MS
        self._ticked_ms = float("-inf")
        self._noted_ms: int | None = None
        self._thread: PeriodicThread | None = None

    def start(self) -> None:
        """Begin to apply events, or go on."""
        self._thread = PeriodicThread(
            "introspection",
            self._round,
            self.clock,
            first_ms=TICK_MS,
            retry_ms=TICK_MS,
            wake=self.inbox.arrived,
            last=self.step,
        )
        self._thread.start()

    def stop(self) -> None:
        """Apply the events that wait, and end."""
        if self._thread is not None:
            self._thread.stop(_STOP_MS)

    def put(self, event: Event) -> None:
        """Take an event; returns at once and never raises."""
        self.inbox.put(event)

    def read(self, look: Callable[[Facts, int], T]) -> T:
        """Call `look` with the facts and the time in ms, under the lock; returns its result.

        Args:
            look: Must be quick, and keep no reference to the facts.
        """
        with self._lock:
            return look(self._facts, self.clock.now_ms())

    def step(self) -> None:
        """Apply the events that wait, and tick if it is time; for the thread, and for tests."""
        events = self.inbox.drain()
        for start in range(0, len(events), _SLICE):
            with self._lock:
                for put_ms, event in events[start : start + _SLICE]:
                    self._apply(put_ms, event)
        if self.clock.elapsed_ms() - self._ticked_ms >= TICK_MS:
            self._ticked_ms = self.clock.elapsed_ms()
            with self._lock:
                self._tick(self.clock.now_ms())

    def _round(self) -> float:
        self.step()
        return TICK_MS

    def _apply(self, put_ms: float, event: Event) -> None:
        received = self._facts.received
        received.lag_ms = self.clock.elapsed_ms() - put_ms
        try:
            apply(self._facts, event, self.clock.now_ms())
        except Exception:  # noqa: BLE001 - it is logged and counted; the next one counts as well
            received.failed += 1
            context = {"event": type(event).__name__}
            _log.exception("an event could not be applied", extra={"context": context})

    def _tick(self, now_ms: int) -> None:
        """Note each object's lag; at the end of a minute, add the largest to the history."""
        facts = self._facts
        facts.revision += 1
        if self._noted_ms is not None:
            # Not into the time before a take-over: of that the one before it has noted what was.
            since_ms = max(self._noted_ms, facts.histories_since_ms or 0)
            note_standstill(facts.runs, since_ms, now_ms)
        self._noted_ms = now_ms
        if self._minute == now_ms // MINUTE_MS:
            if any(history.is_too_long for history in facts.histories()):
                facts.prune(now_ms)
        else:
            facts.prune(now_ms)
            at_ms = self._minute * MINUTE_MS
            self._minute = now_ms // MINUTE_MS
            for found in facts.objects.values():
                if found.lag_max_ms is not None:
                    facts.lags.add(at_ms, (found.id, found.lag_max_ms))
                found.lag_max_ms = None
        for found in facts.objects.values():
            lag = lag_ms(found.write, now_ms)
            if lag is not None:
                found.lag_max_ms = max(lag, found.lag_max_ms or 0)
            found.lag_trend.note(now_ms, lag_ms(found.reached, now_ms))
            found.backlog_trend.note(now_ms, backlog_size(found))
            if found.failure:
                note_status(facts, found, now_ms)  # it may have run for long enough by now
        note_verdicts(facts, now_ms)


_LISTENER_COLUMNS: Final = (
    Column(
        "queue_depth",
        NUMBER,
        "events that wait",
        Metric("introspection_queue_depth", "Of introspection itself: queue_depth."),
    ),
    Column("queue_capacity", NUMBER, "how many may, of those that can be missed"),
    Column(
        "events",
        NUMBER,
        "events taken so far",
        Metric("introspection_events", "Events of introspection: events.", grows=True),
    ),
    Column(
        "dropped",
        NUMBER,
        "events that there was no room for",
        Metric("introspection_dropped", "Events of introspection: dropped.", grows=True),
    ),
    Column(
        "unconverted",
        NUMBER,
        "events of Spark that could not be understood",
        Metric("introspection_unconverted", "Events of introspection: unconverted.", grows=True),
    ),
    Column(
        "stale",
        NUMBER,
        "events of an earlier run or incarnation",
        Metric("introspection_stale", "Events of introspection: stale.", grows=True),
    ),
    Column(
        "foreign",
        NUMBER,
        "events about what is not ours, or is dropped",
        Metric("introspection_foreign", "Events of introspection: foreign.", grows=True),
    ),
    Column(
        "failed",
        NUMBER,
        "events that could not be applied",
        Metric("introspection_failed", "Events of introspection: failed.", grows=True),
    ),
    Column(
        "unheard_queries",
        NUMBER,
        "queries that run and that Spark never told of",
        Metric("introspection_unheard_queries", "Of introspection itself: unheard_queries."),
    ),
    Column(
        "lag",
        REAL,
        "how long the last event waited, in ms",
        Metric("introspection_lag_seconds", "Of introspection itself: lag_seconds.", MS),
    ),
)


def listener_relation(inbox: Inbox) -> Relation:
    """The relation about introspection itself: events taken, dropped and failed, in one row."""

    def rows(facts: Facts, _now_ms: int) -> Iterator[Row]:
        received = facts.received
        unheard = sum(bool(o.run) and not o.heard for o in facts.objects.values())
        yield (
            len(inbox),
            inbox.capacity,
            inbox.taken,
            inbox.dropped,
            inbox.unconverted,
            received.stale,
            received.foreign,
            received.failed,
            unheard,
            received.lag_ms,
        )

    return Relation(
        "listener",
        "How far introspection itself is: one row",
        _LISTENER_COLUMNS,
        rows,
        labels=(),
    )
