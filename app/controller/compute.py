"""The compute controller: which views and indexes there should be; peeks and subscriptions.

Before a dataflow is created a *hold* is taken on each of its inputs at its `as_of`, so that they
can be read there until it reads them under holds of its own: it has said so by an input frontier
beyond the `as_of`. (Materialize's read holds, with the shard's since holds.)

Invariants:
    From its creation on, a dataflow's inputs can be read at its `as_of` or its own frontier.
    Each peek that is asked for is answered, once: by the runtime, or by an error when it was lost.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from app.connection.client import Client
from app.controller.link import Link
from app.protocol.compute import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    ComputeCommand,
    ComputeResponse,
    CreateDataflow,
    CreateInstance,
    Frontiers,
    Hydration,
    InitializationComplete,
    Peek,
    PeekResponse,
    Schedule,
    SubscribeDropped,
    SubscribeResponse,
)
from app.protocol.objects import Dataflow, SubscribeDescription
from datasource.clock import Clock, IdGenerator
from datasource.errors import Determinate, ShardError

__all__ = ["ComputeController", "Hold", "Subscription"]

_log = logging.getLogger(__name__)

_BATCHES: Final = 256
"""Intervals of a subscription that wait for its reader; then it is dropped."""

_LOOK_MS: Final = 200.0

SubscribeBatch = SubscribeResponse | SubscribeDropped


class Hold(Protocol):
    """What keeps an input readable."""

    def expire(self) -> bool:
        """Give it up."""
        ...


@dataclass(slots=True)
class _Wanted:
    """A dataflow that should be there, and the holds that its beginning needs."""

    command: CreateDataflow
    holds: list[Hold]


@dataclass(slots=True)
class _Waiting:
    """Somebody who waits for a peek."""

    peek: Peek
    done: threading.Event = field(default_factory=threading.Event)
    response: PeekResponse | None = None


class Subscription:
    """The batches of one subscription, in order; close it."""

    def __init__(self, close: Callable[[], None]) -> None:
        """An open subscription; `close` ends it."""
        self._close = close
        self._closed = threading.Event()
        self._batches: queue.Queue[SubscribeBatch] = queue.Queue(_BATCHES)

    def put(self, batch: SubscribeBatch) -> bool:
        """Add a batch; False if the reader is too far behind."""
        try:
            self._batches.put_nowait(batch)
        except queue.Full:
            return False
        return True

    def take(self, timeout_ms: float) -> SubscribeBatch | None:
        """The next batch; None if there was none in time."""
        try:
            return self._batches.get(timeout=timeout_ms / 1000)
        except queue.Empty:
            return None

    def close(self) -> None:
        """End it; again does nothing."""
        self._closed.set()
        self._close()

    def __iter__(self) -> Iterator[SubscribeBatch]:
        """All batches, until one says that nothing more will come, or it is closed."""
        while not self._closed.is_set():
            batch = self.take(_LOOK_MS)
            if batch is None:
                continue
            yield batch
            if isinstance(batch, SubscribeDropped) or batch.upper is None or batch.error:
                return


class ComputeController:
    """Says what should be there, over one connection at a time.

    Attributes:
        frontiers: The newest frontiers of each object, as far as they were told.
        hydrated: Whether each object has caught up.
    """

    def __init__(
        self,
        connect: Callable[[], Client[ComputeCommand, ComputeResponse]],
        clock: Clock,
        ids: IdGenerator,
        *,
        hold: Callable[[Dataflow, int], list[Hold]],
        writes: bool = True,
    ) -> None:
        """A controller of nothing yet.

        Args:
            connect: As of `Link`.
            clock: Of the process.
            ids: Source of the names of peeks and subscriptions.
            hold: Takes holds on the inputs of a dataflow at its `as_of`.
            writes: Whether to allow writes at once; otherwise with `allow_writes`.
        """
        self.frontiers: dict[str, Frontiers] = {}
        self.hydrated: dict[str, bool] = {}
        self._wanted: dict[str, _Wanted] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._clock = clock
        self._ids = ids
        self._hold = hold
        self._writes = writes
        self._link: Link[ComputeCommand, ComputeResponse] = Link(
            connect, self._opening, self._on_response, clock, "compute"
        )

    def start(self) -> None:
        """Connect."""
        self._link.start()

    def stop(self) -> None:
        """Disconnect; everything runs on, and who waits for a peek is told."""
        self._link.stop()
        with self._link.lock:
            for waiting in self._waiting.values():
                waiting.done.set()
            for wanted in self._wanted.values():
                _release(wanted)

    def allow_writes(self) -> None:
        """Let everything write, from here on and for ever."""
        with self._link.lock:
            if not self._writes:
                self._writes = True
                self._link.send(AllowWrites())

    def wanted(self) -> Mapping[str, Dataflow]:
        """What should be there, by name; subscriptions apart."""
        with self._link.lock:
            found = {name: one.command.dataflow for name, one in self._wanted.items()}
        return {n: d for n, d in found.items() if not isinstance(d, SubscribeDescription)}

    def run(self, dataflow: Dataflow, as_of: int) -> None:
        """Create a dataflow, or change it; one that is the same already stays as it is."""
        with self._link.lock:
            known = self._wanted.get(dataflow.name)
            if known is not None and known.command.dataflow == dataflow:
                return
            holds = self._hold(dataflow, as_of)
            if known is not None:
                _release(known)
            command = CreateDataflow(dataflow=dataflow, as_of=as_of)
            self._wanted[dataflow.name] = _Wanted(command, holds)
            self._link.send(command)
            self._link.send(Schedule(dataflow.name))

    def drop(self, names: Iterable[str]) -> None:
        """Drop dataflows; those that are not there are left out."""
        with self._link.lock:
            for name in names:
                wanted = self._wanted.pop(name, None)
                if wanted is not None:
                    _release(wanted)
                    self._link.send(AllowCompaction(name, None))

    # -- reads -----------------------------------------------------------------------------------

    def peek(
        self,
        query: str,
        inputs: tuple[str, ...],
        as_of: int,
        *,
        limit_bytes: int,
        timeout_ms: float,
        cancelled: threading.Event | None = None,
    ) -> PeekResponse:
        """Run a query once, and wait for its answer.

        Args:
            query: SQL.
            inputs: Objects that it reads.
            as_of: At which time.
            limit_bytes: Largest result.
            timeout_ms: How long to wait; it is cancelled then.
            cancelled: May be set to cancel it; looked at when the answer is there or time is up.

        Raises:
            Determinate: There was no answer in time, or the connection was lost.
        """
        name = self._ids.token().hex()
        peek = Peek(uuid=name, query=query, inputs=inputs, as_of=as_of, limit_bytes=limit_bytes)
        waiting = _Waiting(peek)
        with self._link.lock:
            self._waiting[name] = waiting
            self._link.send(peek)
        try:
            answered = self._clock.wait(waiting.done, timeout_ms)
            given_up = cancelled is not None and cancelled.is_set()
            if waiting.response is not None and not given_up:
                return waiting.response
            raise Determinate(
                f"the query was not answered within {timeout_ms:.0f} ms"
                if not answered
                else "the query was given up before it was answered",
                code="PEEK_TIMEOUT",
                hint="ask for less, wait for longer (--timeout), or look at `status`: an input may "
                "be behind",
            )
        finally:
            with self._link.lock:
                self._waiting.pop(name, None)
                # Also after the answer: the runtime forgets the peek by it.
                self._link.send(CancelPeek(name))

    def subscribe(
        self, on: str, as_of: int, *, snapshot: bool = True, up_to: int | None = None
    ) -> Subscription:
        """Follow an object's changes."""
        name = f"t{self._ids.token().hex()}"
        subscription = Subscription(partial(self._unsubscribe, name))
        described = SubscribeDescription(name=name, on=on, snapshot=snapshot, up_to=up_to)
        with self._link.lock:
            self._subscriptions[name] = subscription
        self.run(described, as_of)
        return subscription

    def _unsubscribe(self, name: str) -> None:
        with self._link.lock:
            self._subscriptions.pop(name, None)
        self.drop([name])

    # -- the connection ----------------------------------------------------------------------------

    def _opening(self) -> list[ComputeCommand]:
        commands: list[ComputeCommand] = [CreateInstance()]
        commands += [one.command for one in self._wanted.values()]
        commands += [Schedule(name) for name in self._wanted]
        commands += [one.peek for one in self._waiting.values()]
        commands.append(InitializationComplete())
        return [*commands, AllowWrites()] if self._writes else commands

    def _on_response(self, response: ComputeResponse) -> None:
        match response:
            case Frontiers():
                self._on_frontiers(response)
            case Hydration(name, hydrated):
                self.hydrated[name] = hydrated
            case PeekResponse():
                with self._link.lock:
                    waiting = self._waiting.get(response.uuid)
                if waiting is not None:
                    waiting.response = response
                    waiting.done.set()
            case SubscribeResponse() | SubscribeDropped():
                subscription = self._subscriptions.get(response.id)
                if subscription is not None and not subscription.put(response):
                    self._unsubscribe(response.id)

    def _on_frontiers(self, response: Frontiers) -> None:
        self.frontiers[response.id] = response
        with self._link.lock:
            wanted = self._wanted.get(response.id)
            read = response.input
            if wanted is None or not wanted.holds or not (read is None or isinstance(read, int)):
                return
            if read is None or read > wanted.command.as_of:
                _release(wanted)


def _release(wanted: _Wanted) -> None:
    holds, wanted.holds = wanted.holds, []
    for hold in holds:
        try:
            hold.expire()
        except ShardError:
            # Another controller has it now, or the store is away: it ends with the dataflow's.
            context = {"id": wanted.command.id}
            _log.info("a hold was not given up", exc_info=True, extra={"context": context})
