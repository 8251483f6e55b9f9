"""The feed cuts an object's changes into the batches of a subscription, one for each request.

A batch ends where the frontiers are when it is requested. So a slow client gets fewer and larger
batches, and nothing needs to be kept for it between two requests.

    with SubscriptionFeed(host, description, catalog, shard, as_of) as feed:
        while feed.frontier.time is not None:
            batch = feed.next(stopped, batch_bytes, poll_ms)      None if stopped before

The contract of batches is in `subscription`.

Invariants:
    A batch ends at the latest where the error shards of the object and of all its inputs are
    settled.
    What `frontier` has passed was returned: a request that fails leaves it as it was.
    Error shards are looked for after the object was looked at (`live_errors`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Self

import pyarrow as pa

from shardline.app.compute.results import to_ipc
from shardline.app.execution.host import Host
from shardline.app.execution.live_errors import Catalog, InputErrors
from shardline.app.execution.shard_follower import ShardFollower
from shardline.app.protocol.compute import SubscribeResponse
from shardline.app.protocol.objects import SubscribeDescription
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier, meet
from shardline.datasource.state import ShardState
from shardline.datasource.updates import consolidate, update_schema
from shardline.datasource.waiting import poll_until

__all__ = ["SubscriptionFeed"]


@dataclass(frozen=True, slots=True)
class _BatchStates:
    """The states that a batch is made from: the object's, and those of error shards by object."""

    own: ShardState
    errors: Mapping[str, ShardState]

    @property
    def upper(self) -> Frontier:
        return meet([self.own.upper, *(state.upper for state in self.errors.values())])


class SubscriptionFeed:
    """The changes of one subscription, batch by batch. A context manager that closes its shards.

    Its leases are a capability: they keep what was not read yet. When one is lost
    (`LeaseExpired`), the subscription ends with that error, and its client subscribes again.

    Attributes:
        frontier: The end of the last batch; `as_of` before the first.
    """

    def __init__(
        self,
        host: Host,
        what: SubscribeDescription,
        catalog: Catalog,
        shard: ShardFollower,
        as_of: int,
    ) -> None:
        """A feed that begins at `as_of`; nothing is read yet.

        Args:
            host: Gives the location and the clock.
            what: The subscription.
            catalog: The inputs of the object, whose errors end the subscription.
            shard: The object's shard, held at `as_of`.
            as_of: First time of the first batch.
        """
        self.frontier = Frontier(as_of)
        self._host = host
        self._what = what
        self._shard = shard
        self._as_of = as_of
        self._read: _BatchStates | None = None
        self._stack = ExitStack()
        self._stack.callback(shard.close)
        self._errors = self._stack.enter_context(
            InputErrors(host.client, what.on, catalog, purpose=f"subscription {what.name}")
        )

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give up all leases."""
        self._stack.close()

    def next(
        self, stopped: threading.Event, batch_bytes: int, poll_ms: float
    ) -> SubscribeResponse | None:
        """Wait for the next batch; None when stopped.

        Args:
            stopped: Ends the wait when it is set.
            batch_bytes: Most Arrow memory of the batch.
            poll_ms: Longest pause between two looks.

        Raises:
            ShardError: Something could not be read; asking again is safe.
        """
        lower = self.frontier.time
        assert lower is not None, self._what
        self._release(lower)
        if self._what.up_to == lower:
            return self._batch(lower, EMPTY, self._table(iter(()), batch_bytes))
        clock = self._host.clock
        looked = poll_until(lambda: self._look(lower), clock, stopped, poll_ms=poll_ms)
        return None if looked is None else self._cut_batch(looked, lower, batch_bytes)

    def _look(self, lower: int) -> _BatchStates | None:
        """The states to read from, if all of them are settled at `lower`; else None."""
        # The object first, its error shards after it: see the module. In the other order an error
        # shard could be made in between, and rows would go out that do not count.
        own = self._shard.look()
        if not own.upper.is_beyond(lower):
            return None
        found = _BatchStates(own, self._errors.look(lower))
        return found if found.upper.is_beyond(lower) else None

    def _cut_batch(self, looked: _BatchStates, lower: int, batch_bytes: int) -> SubscribeResponse:
        """The batch from `lower` on: up to the frontier, the first error, or the limit of bytes."""
        upper = min(looked.upper, Frontier(self._what.up_to))
        error = self._errors.first(looked.errors, lower, upper)
        if error is not None and error.at == lower:
            return self._error_batch(lower, error.error())
        if error is not None:
            upper = Frontier(error.at)
        updates = self._updates(looked.own, lower, upper, batch_bytes)
        # Half of the times at each turn: parts do not show how many bytes a time has.
        while updates is None:
            last = _last_time(looked.own, lower) if upper.time is None else upper.time - 1
            if last <= lower:
                return self._error_batch(lower, _too_large(self._what.on, lower, batch_bytes))
            upper = Frontier(lower + (last - lower + 1) // 2)
            updates = self._updates(looked.own, lower, upper, batch_bytes)
        batch = self._batch(lower, upper, updates)
        self._read = looked
        return batch

    def _release(self, end: int) -> None:
        """Let history before the last batch's end go; once for each batch, if it was read at all.

        Not when the batch is cut: a failure would lose it, since it is cut already and was not sent
        yet. Here nothing depends on it, and the next batch's release does what this one could not.
        """
        read, self._read = self._read, None
        if read is not None:
            self._shard.release_before(end - 1, read.own)
            self._errors.release_before(end - 1, read.errors)

    def _updates(
        self, state: ShardState, lower: int, upper: Frontier, batch_bytes: int
    ) -> pa.Table | None:
        """The updates of an interval, consolidated; None if they exceed `batch_bytes`."""
        if lower > self._as_of:
            return self._table(self._shard.changes(state, lower, upper.time), batch_bytes)
        # The first batch. Changes at as_of itself are part of the contents there: with a snapshot
        # they would come twice, without one they are not wanted.
        later: Iterator[pa.RecordBatch] = iter(())
        if Frontier(lower + 1) < upper:
            later = self._shard.changes(state, lower + 1, upper.time)
        if self._what.snapshot:
            later = chain(self._shard.contents(state, lower), later)
        return self._table(later, batch_bytes)

    def _table(self, batches: Iterator[pa.RecordBatch], batch_bytes: int) -> pa.Table | None:
        schema, size, found = update_schema(self._shard.schema.arrow), 0, []
        for batch in batches:
            size += batch.nbytes
            if size > batch_bytes:
                return None
            found.append(batch.select(schema.names))
        return consolidate(pa.Table.from_batches(found, schema), self._shard.key)

    def _batch(self, lower: int, upper: Frontier, updates: pa.Table | None) -> SubscribeResponse:
        assert updates is not None, (lower, upper)
        end = EMPTY if upper.time == self._what.up_to else upper
        batch = SubscribeResponse(
            id=self._what.name,
            lower=lower,
            upper=end.time,
            updates=to_ipc(updates),
            shard=self._shard.shard,
        )
        # Last: until here a failure is repeated by the same request, which reads the same again.
        self.frontier = end
        return batch

    def _error_batch(self, lower: int, error: InvalidUsage) -> SubscribeResponse:
        self.frontier = EMPTY
        return SubscribeResponse(id=self._what.name, lower=lower, upper=None, error=str(error))


def _last_time(state: ShardState, lower: int) -> int:
    """The last time at which a finished shard changes; `lower` if it does not after that."""
    parts = (part for batch in state.trace.batches for part in batch.parts)
    return max([lower, *(bounds[1] for part in parts if (bounds := part.time_bounds))])


def _too_large(on: str, time: int, batch_bytes: int) -> InvalidUsage:
    return InvalidUsage(
        f"what happens in '{on}' at {time} alone needs more than {batch_bytes:,} bytes",
        code="SUBSCRIBE_TOO_LARGE",
        hint="subscribe without a snapshot, to a view with fewer rows, or raise the limit",
    )
