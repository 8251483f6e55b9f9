"""A subscription as its reader has it: over lost connections without a gap and without a repeat.

    for batch in subscription: ...          until one says that nothing more will come

The controller says a subscription anew at each connection, behind the last batch that has come:
without snapshot at `upper - 1`, under another name, because batches of the name before may still be
on their way. (`shardline.app.compute.subscribe.subscription` says why that loses and repeats
nothing.)

A batch is acknowledged when the reader takes it, so no more than the runtime's window ever waits.

Invariants:
    Batches are contiguous: each begins where the one before it has ended.
    After a batch that says so nothing comes: an error, an end, a drop. Each reader gets one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from msgspec.structs import replace

from shardline.app.protocol.compute import SubscribeDropped, SubscribeResponse
from shardline.app.protocol.objects import SubscribeDescription
from shardline.datasource.errors import InvalidUsage, ShardError

__all__ = ["SubscribeBatch", "Subscription", "is_last"]

_BATCHES: Final = 256
"""Batches that wait for the reader, from a runtime that does not wait for acknowledgements."""

_LOOK_MS: Final = 200.0

SubscribeBatch: TypeAlias = SubscribeResponse | SubscribeDropped


def is_last(batch: SubscribeBatch) -> bool:
    """Whether nothing comes after this one."""
    return isinstance(batch, SubscribeDropped) or batch.upper is None or bool(batch.error)


class Subscription:
    """The batches of one subscription, in order; close it.

    Attributes:
        name: By which the runtime knows it at present.
    """

    def __init__(
        self,
        described: SubscribeDescription,
        as_of: int,
        taken: Callable[[Subscription, int], None],
        close: Callable[[Subscription], None],
    ) -> None:
        """An open subscription.

        Args:
            described: What of.
            as_of: Where it begins.
            taken: Is told to where the reader has taken its batches.
            close: Ends it.
        """
        self.name = described.name
        self._described = described
        self._as_of = as_of
        self._taken = taken
        self._close = close
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._batches: queue.Queue[SubscribeBatch] = queue.Queue()
        self._upper: int | None = None
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the last batch has come."""
        return self._ended

    def beginning(self, name: str) -> tuple[SubscribeDescription, int]:
        """What goes on, called `name`, behind the last batch that has come; and its `as_of`."""
        with self._lock:
            if self._upper is None:
                return replace(self._described, name=name), self._as_of
            # Nothing of the time right before is in what comes
            # (`shardline.app.compute.subscribe.subscription`).
            return replace(self._described, name=name, snapshot=False), self._upper - 1

    def put(self, batch: SubscribeBatch) -> None:
        """Add what the runtime says; what has come already, and what comes after the end, is not.

        If the reader is too far behind, it gets an error instead, and nothing more.
        """
        with self._lock:
            fits = self._following(batch)
            if self._ended or fits is None:
                return
            if isinstance(fits, SubscribeResponse) and fits.lower > self._reached:
                fits = self._failure(_gap(self._reached, fits.lower))
            elif self._batches.qsize() >= _BATCHES:
                fits = self._failure(_too_slow())
            self._ended = is_last(fits)
            if isinstance(fits, SubscribeResponse) and fits.upper is not None:
                self._upper = fits.upper
            self._batches.put(fits)

    def fail(self, error: ShardError) -> None:
        """End it by an error, unless it has ended."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._batches.put(self._failure(error))

    def drop(self) -> None:
        """End it where its last batch has, unless it has ended."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._batches.put(SubscribeDropped(self.name, self._reached))

    def take(self, timeout_ms: float) -> SubscribeBatch | None:
        """The next batch; None if there was none in time."""
        try:
            batch = self._batches.get(timeout=timeout_ms / 1000)
        except queue.Empty:
            return None
        if isinstance(batch, SubscribeResponse) and batch.upper is not None:
            self._taken(self, batch.upper)
        return batch

    def close(self) -> None:
        """End it; again does nothing."""
        if not self._closed.is_set():
            self._closed.set()
            self._close(self)

    def __iter__(self) -> Iterator[SubscribeBatch]:
        """All batches, until one says that nothing more will come, or it is closed."""
        while not self._closed.is_set():
            batch = self.take(_LOOK_MS)
            if batch is None:
                continue
            yield batch
            if is_last(batch):
                return

    def _following(self, batch: SubscribeBatch) -> SubscribeBatch | None:
        """What of a batch the reader does not have; None if it has it all."""
        if isinstance(batch, SubscribeDropped) or self._upper is None:
            return batch
        if batch.upper is not None and batch.upper <= self._upper:
            return None
        if batch.lower < self._upper - 1:
            return None
        return replace(batch, lower=max(batch.lower, self._upper))

    @property
    def _reached(self) -> int:
        return self._as_of if self._upper is None else self._upper

    def _failure(self, error: ShardError) -> SubscribeResponse:
        return SubscribeResponse(id=self.name, lower=self._reached, upper=None, error=str(error))


def _gap(upper: int, lower: int) -> InvalidUsage:
    return InvalidUsage(
        f"after a batch up to {upper} the runtime has sent one from {lower} on",
        code="SUBSCRIPTION_BROKEN",
        hint="subscribe again, with a snapshot",
    )


def _too_slow() -> InvalidUsage:
    return InvalidUsage(
        f"{_BATCHES} batches of the subscription wait to be taken",
        code="SUBSCRIBER_TOO_SLOW",
        hint="subscribe again behind the last batch: WITHOUT SNAPSHOT AS OF its upper - 1",
    )
