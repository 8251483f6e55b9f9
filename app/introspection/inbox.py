"""The inbox is the bounded queue in front of the sink: any thread adds to it, and none ever waits.

When it is full, events are dropped and counted. Events that can be missed go first: one progress
event more or less changes a sum, while a lost `Dropped` would leave an object there for ever. So
the first kind may fill the queue up to its capacity, the second one up to ten times that.

Invariants:
    `put` returns at once and never raises.
    Events come out in the order in which they went in.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from shardline.app.execution.observations import Measured, Progress, Stepped
from shardline.app.introspection.events import (
    Event,
    Harvested,
    Polled,
    QueryIdle,
    QueryProgress,
    RuntimeSeen,
    ShardSeen,
)
from shardline.datasource.clock import Clock

__all__ = ["Inbox"]

_MISSABLE: Final = (
    QueryProgress,
    QueryIdle,
    Harvested,
    Measured,
    Progress,
    Stepped,
    Polled,
    ShardSeen,
    RuntimeSeen,
)
_RESERVE: Final = 10


class Inbox:
    """A bounded queue with one reader.

    Attributes:
        capacity: Events that can be missed, at most.
        taken: Events put into it so far.
        dropped: Events that it had no room for.
        unconverted: Events of Spark that could not be converted.
        arrived: Set when there is an event to take.
    """

    def __init__(self, clock: Clock, capacity: int = 10_000) -> None:
        self._clock = clock
        self._events: deque[tuple[float, Event]] = deque()
        self._lock = threading.Lock()
        self.capacity = capacity
        self.taken = 0
        self.dropped = 0
        self.unconverted = 0
        self.arrived = threading.Event()

    def put(self, event: Event) -> None:
        """Add an event; counts it as dropped if there is no room."""
        room = self.capacity if isinstance(event, _MISSABLE) else self.capacity * _RESERVE
        with self._lock:
            if len(self._events) >= room:
                self.dropped += 1
                return
            self._events.append((self._clock.elapsed_ms(), event))
            self.taken += 1
        self.arrived.set()

    def missed(self) -> None:
        """Count an event that was dropped before it got here."""
        with self._lock:
            self.dropped += 1

    def failed(self) -> None:
        """Count a callback whose event could not be converted."""
        with self._lock:
            self.unconverted += 1

    def drain(self) -> list[tuple[float, Event]]:
        """Take all events, each with the `elapsed_ms` at which it was put."""
        with self._lock:
            self.arrived.clear()
            events, self._events = self._events, deque()
        return list(events)

    def __len__(self) -> int:
        return len(self._events)
