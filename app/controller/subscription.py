"""A subscription gives its reader every change once, over lost connections.

The runtime forgets a subscription with its connection, so the reader's place is kept here. At each
new connection the controller creates the subscription again, from the last batch that has come:
without a snapshot, at `upper - 1`, under another name, because batches of the old name may still be
under way. (`shardline.app.compute.subscribe.subscription` says why that loses and repeats nothing.)
It names the shard that the batches were of: the object may have been made again meanwhile.

    for batch in subscription: ...          until the last one: an error, an end or a drop
    subscription.watch(notify)              or take(0) whenever notified, without a thread

A batch is acknowledged when the reader takes it, so no more than the runtime's window ever waits.

Invariants:
    Batches are contiguous: each begins where the one before it has ended.
    After a last batch (an error, an end, a drop) nothing comes. Each reader gets one.
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
"""Most batches that wait for the reader; reached only if a runtime ignores acknowledgements."""

_LOOK_MS: Final = 200.0
"""Between two looks at whether it was closed, by a reader that waits for the next batch."""

SubscribeBatch: TypeAlias = SubscribeResponse | SubscribeDropped


def is_last(batch: SubscribeBatch) -> bool:
    """True if nothing comes after this batch: it is an error, the end, or a drop."""
    return isinstance(batch, SubscribeDropped) or batch.upper is None or bool(batch.error)


class Subscription:
    """The batches of one subscription, in order; the reader must close it.

    Attributes:
        name: Its present name in the runtime; another one after each connection.
    """

    def __init__(
        self,
        described: SubscribeDescription,
        as_of: int,
        taken: Callable[[Subscription, int], None],
        close: Callable[[Subscription], None],
    ) -> None:
        """Make an open subscription.

        Args:
            described: Its description at its first connection.
            as_of: The time at which it begins.
            taken: Called with the upper of each batch that the reader takes.
            close: Called once, when the reader closes it.
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
        self._shard = described.shard
        self._ended = False
        self._notify: Callable[[], None] = lambda: None

    @property
    def ended(self) -> bool:
        """True if the last batch has come; the reader may not have taken it yet."""
        return self._ended

    def continuation(self, name: str) -> tuple[SubscribeDescription, int]:
        """Describe what follows the last batch that has come, under `name`; and its as_of."""
        with self._lock:
            if self._upper is None:
                return replace(self._described, name=name), self._as_of
            # `upper - 1`: the as_of itself is left out without a snapshot, so the first change is
            # that at `upper` (`shardline.app.compute.subscribe.subscription`).
            described = replace(self._described, name=name, snapshot=False, shard=self._shard)
            return described, self._upper - 1

    def watch(self, notify: Callable[[], None]) -> None:
        """Call `notify` now, and from now on after each batch that comes.

        For a reader that has no thread to wait in `take`.

        Args:
            notify: Called in any thread; must return at once and never raise.
        """
        with self._lock:
            self._notify = notify
        # For batches that came before: nobody has heard of them.
        notify()

    def put(self, batch: SubscribeBatch) -> None:
        """Add a batch of the runtime, without what has come before; nothing after the end.

        A gap, or a reader that is `_BATCHES` behind, ends the subscription with an error.
        """
        with self._lock:
            fits = self._new_part_of(batch)
            if self._ended or fits is None:
                return
            if isinstance(fits, SubscribeResponse) and fits.lower > self._reached:
                fits = self._failure(_gap(self._reached, fits.lower))
            elif self._batches.qsize() >= _BATCHES:
                fits = self._failure(_too_slow())
            self._ended = is_last(fits)
            if isinstance(fits, SubscribeResponse) and fits.upper is not None:
                self._upper, self._shard = fits.upper, fits.shard
            self._add(fits)

    def fail(self, error: ShardError) -> None:
        """End it with an error, unless it has ended."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._add(self._failure(error))

    def drop(self) -> None:
        """End it after its last batch, unless it has ended."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._add(SubscribeDropped(self.name, self._reached))

    def _add(self, batch: SubscribeBatch) -> None:
        # In this order: a reader that is notified first finds nothing, and is not notified again.
        self._batches.put(batch)
        self._notify()

    def take(self, timeout_ms: float) -> SubscribeBatch | None:
        """Take and acknowledge the next batch; None if there was none in time.

        Args:
            timeout_ms: How long to wait for one; 0 for not at all.
        """
        try:
            batch = self._batches.get(timeout=timeout_ms / 1000)
        except queue.Empty:
            return None
        if isinstance(batch, SubscribeResponse) and batch.upper is not None:
            self._taken(self, batch.upper)
        return batch

    def close(self) -> None:
        """End it; harmless to repeat."""
        if not self._closed.is_set():
            self._closed.set()
            self._close(self)

    def __iter__(self) -> Iterator[SubscribeBatch]:
        """Yield all batches up to the last one, or until it is closed."""
        while not self._closed.is_set():
            batch = self.take(_LOOK_MS)
            if batch is None:
                continue
            yield batch
            if is_last(batch):
                return

    def _new_part_of(self, batch: SubscribeBatch) -> SubscribeBatch | None:
        """The part of a batch that the reader does not have; None if it has it all."""
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
        hint="subscribe again behind the last batch: WITHOUT SNAPSHOT AS OF its upper - 1 OF SHARD "
        "its shard",
    )
