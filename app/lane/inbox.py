"""The lane's inbox holds commands, completions and reports until the lane takes them.

Any thread may put in; only the lane takes out. It must be bounded without ever blocking an object
that reports its failure: that report is what frees resources.

Invariants:
    A command that was accepted is answered exactly once: with its position or with an error.
    Commands wait for room; completions and reports never do. There is one completion per effect
    under way, and a report is kept once however often it is made, so both are bounded by what runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from shardline.app.execution.host import Running
from shardline.app.execution.observations import Ended, Failed, Hydrated
from shardline.app.lane.commands import LaneCommand, check_recordable
from shardline.app.lane.process_state import Effect
from shardline.datasource.errors import Determinate, ShardError

__all__ = ["Completion", "LaneInbox", "PendingCommand", "Report"]

Report: TypeAlias = Failed | Hydrated | Ended
"""The observations that the lane acts on."""


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A command that waits for its position; `sequence` is None until the lane numbers it."""

    producer: str
    sequence: int | None
    command: LaneCommand
    ticket: Future[int]


@dataclass(frozen=True, slots=True)
class Completion:
    """The completion of an effect: with what runs now, with an error, or with neither."""

    effect: Effect
    running: Running | None = None
    error: Exception | None = None


class LaneInbox:
    """Everything that has arrived; at most `room` commands.

    Attributes:
        wake: Set when something has arrived.
    """

    def __init__(self, room: int) -> None:
        self.wake = threading.Event()
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(room)
        self._offers: deque[PendingCommand] = deque()
        self._done: list[Completion] = []
        self._reports: dict[tuple[type, str, int], Report] = {}
        self._closed: ShardError | None = None

    def offer(
        self, producer: str, command: LaneCommand, sequence: int | None, *, wait: bool = True
    ) -> Future[int]:
        """Put a command in, as soon as there is room, and return the future of its position.

        Raises:
            InvalidUsage: `NOT_RECORDABLE`: what would be recorded could not be read again.
            Determinate: `LANE_FULL`: there is no room, and `wait` is not set.
        """
        # Here, where it is refused to its producer alone: an append has those of all others, too.
        check_recordable(command)
        offer = PendingCommand(producer, sequence, command, Future())
        if not self._room.acquire(blocking=wait):
            raise Determinate(
                "too many commands wait for the lane",
                code="LANE_FULL",
                hint="the store may be slow, or away; say it again later",
            )
        with self._lock:
            closed = self._closed
            if closed is None:
                self._offers.append(offer)
        # Outside of the lock: a future's callbacks run in this thread, and may offer again.
        if closed is not None:
            self.refuse([offer], closed)
        self.wake.set()
        return offer.ticket

    def __len__(self) -> int:
        """The number of commands that wait to be taken."""
        return len(self._offers)

    def done(self, done: Completion) -> None:
        """Put a completion in."""
        with self._lock:
            self._done.append(done)
        self.wake.set()

    def report(self, report: Report) -> None:
        """Put a report in; of equal ones about one incarnation the first is kept."""
        with self._lock:
            self._reports.setdefault((type(report), report.id, report.epoch), report)
        self.wake.set()

    def take(self) -> tuple[list[Completion], list[Report]]:
        """Take all completions and reports, in the order of their arrival."""
        with self._lock:
            done, self._done = self._done, []
            reports, self._reports = list(self._reports.values()), {}
        return done, reports

    def take_offers(self, count: int) -> list[PendingCommand]:
        """Take the first `count` commands; the caller must answer or refuse each."""
        with self._lock:
            taken = [self._offers.popleft() for _ in range(min(len(self._offers), count))]
            # What is left would otherwise wait for the next arrival, or the next tick.
            if self._offers:
                self.wake.set()
        return taken

    def answer(self, offer: PendingCommand, position: int) -> None:
        """Answer a command with its position."""
        # First: whoever is woken by the answer finds room for the next command.
        self._room.release()
        offer.ticket.set_result(position)

    def refuse(self, offers: Iterable[PendingCommand], error: ShardError) -> None:
        """Answer commands with an error."""
        for offer in offers:
            self._room.release()
            offer.ticket.set_exception(error)

    def close(self, error: ShardError) -> None:
        """Refuse the commands that wait, and all later ones. The first error stays."""
        with self._lock:
            self._closed = self._closed or error
            offers, self._offers = list(self._offers), deque()
            closed = self._closed
        self.refuse(offers, closed)
        self.wake.set()
