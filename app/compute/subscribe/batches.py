"""The batches of a subscription: cut where the frontiers are when somebody asks for the next one.

    with Feed(host, description, catalog, shard, as_of) as feed:
        while feed.frontier.time is not None:
            batch = feed.next(stopped, batch_bytes, poll_ms)      None if stopped before

What batches promise is in `subscribe`. Between two calls nothing is kept in memory.

Invariants:
    A batch goes only as far as the error shards of all that count are settled, too.
    Whether an error shard is there is asked after the object was looked at: one that was made since
    has errors of later times only, because errors are written before the upper passes them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Final, Self

import pyarrow as pa

from shardline.app.compute.peek.results import to_ipc
from shardline.app.compute.shard_follower import (
    Catalog,
    Followed,
    LiveErrors,
    error_shards,
    live_errors,
    watch,
)
from shardline.app.execution.host import Host
from shardline.app.protocol.compute import SubscribeResponse
from shardline.app.protocol.objects import SubscribeDescription
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier, meet
from shardline.datasource.shard.state import ShardState
from shardline.datasource.types.schema import DIFF, TS
from shardline.datasource.updates import consolidate, update_schema

__all__ = ["Feed"]

_FOREVER_MS: Final = 3_600_000.0


@dataclass(frozen=True, slots=True)
class _Looked:
    """States that a batch is made from: of the object, and of error shards by object."""

    own: ShardState
    errors: Mapping[str, ShardState]

    @property
    def upper(self) -> Frontier:
        return meet([self.own.upper, *(state.upper for state in self.errors.values())])


class Feed:
    """See the module. A context manager that closes the shard.

    Attributes:
        frontier: The end of the last batch; `as_of` before the first.
    """

    def __init__(
        self,
        host: Host,
        what: SubscribeDescription,
        catalog: Catalog,
        shard: Followed,
        as_of: int,
    ) -> None:
        """Nothing is read yet.

        Args:
            host: Whose shards.
            what: Which changes.
            catalog: Knows what the object is made of.
            shard: The object's, held at `as_of`.
            as_of: Where it begins.
        """
        self.frontier = Frontier(as_of)
        self._host = host
        self._what = what
        self._catalog = catalog
        self._shard = shard
        self._as_of = as_of
        self._errors: dict[str, Followed] = {}
        self._stack = ExitStack()
        self._stack.callback(shard.close)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give all leases up."""
        self._stack.close()

    def next(
        self, stopped: threading.Event, batch_bytes: int, poll_ms: float
    ) -> SubscribeResponse | None:
        """The next batch, once there is one; None when stopped.

        Args:
            stopped: Ends the waiting.
            batch_bytes: Most Arrow memory of the batch.
            poll_ms: Longest pause between two looks.

        Raises:
            ShardError: Something could not be read; asking again is safe.
        """
        lower = self.frontier.time
        assert lower is not None, self._what
        if self._what.up_to == lower:
            return self._batch(lower, EMPTY, self._table(iter(()), batch_bytes))
        looked = None
        while looked is None and not stopped.is_set():
            looked = watch(
                lambda: self._look(lower),
                self._host.clock,
                stopped,
                timeout_ms=_FOREVER_MS,
                poll_ms=poll_ms,
            )
        return None if looked is None else self._cut(looked, lower, batch_bytes)

    def _look(self, lower: int) -> _Looked | None:
        """What there is once all of it is settled at `lower`."""
        own = self._shard.look()
        if not own.upper.is_beyond(lower):
            return None
        objects = {self._what.on, *self._catalog.inputs_of(self._what.on)}
        unknown = objects - self._errors.keys()
        for of, name in error_shards(self._host.client, unknown).items():
            purpose = f"subscription {self._what.name}"
            shard = Followed.open(self._host.client, name, since=lower, purpose=purpose)
            self._stack.callback(shard.close)
            self._errors[of] = shard
        found = _Looked(own, {of: shard.look() for of, shard in self._errors.items()})
        return found if found.upper.is_beyond(lower) else None

    def _cut(self, looked: _Looked, lower: int, batch_bytes: int) -> SubscribeResponse:
        """The batch from `lower` on: shorter if there is too much, or before an error."""
        upper = min(looked.upper, Frontier(self._what.up_to))
        error = self._first_error(looked, lower, upper)
        if error is not None and error.at == lower:
            return self._poisoned(lower, error.error())
        if error is not None:
            upper = Frontier(error.at)
        updates = self._updates(looked.own, lower, upper, batch_bytes)
        while updates is None:
            last = _last_time(looked.own, lower) if upper.time is None else upper.time - 1
            if last <= lower:
                return self._poisoned(lower, _too_large(self._what.on, lower, batch_bytes))
            upper = Frontier(lower + (last - lower + 1) // 2)
            updates = self._updates(looked.own, lower, upper, batch_bytes)
        batch = self._batch(lower, upper, updates)
        if upper.time is not None:
            self._shard.release_before(upper.time - 1, looked.own)
            for of, shard in self._errors.items():
                shard.release_before(upper.time - 1, looked.errors[of])
        return batch

    def _first_error(self, looked: _Looked, lower: int, upper: Frontier) -> LiveErrors | None:
        """The errors that are live at the first time of the interval at which any are."""
        found = []
        for of, shard in self._errors.items():
            at = self._error_time(shard, of, looked.errors[of], lower, upper)
            if at is not None:
                found.append((at, of))
        if not found:
            return None
        at, of = min(found)
        return live_errors(self._errors[of], of, looked.errors[of], at)

    def _error_time(
        self, shard: Followed, of: str, state: ShardState, lower: int, upper: Frontier
    ) -> int | None:
        if live_errors(shard, of, state, lower) is not None:
            return lower
        total: dict[int, int] = {}
        for batch in shard.changes(state, lower + 1, upper.time):
            times, diffs = batch.column(TS).to_pylist(), batch.column(DIFF).to_pylist()
            for time, diff in zip(times, diffs, strict=True):
                total[time] = total.get(time, 0) + diff
        live = 0
        for time in sorted(total):
            live += total[time]
            if live > 0:
                return time
        return None

    def _updates(
        self, state: ShardState, lower: int, upper: Frontier, batch_bytes: int
    ) -> pa.Table | None:
        """The updates of an interval, consolidated; None if they are too many."""
        if lower > self._as_of:
            return self._table(self._shard.changes(state, lower, upper.time), batch_bytes)
        # What happened at as_of itself is part of the contents there.
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
        self.frontier = end
        return SubscribeResponse(
            id=self._what.name, lower=lower, upper=end.time, updates=to_ipc(updates)
        )

    def _poisoned(self, lower: int, error: InvalidUsage) -> SubscribeResponse:
        self.frontier = EMPTY
        return SubscribeResponse(id=self._what.name, lower=lower, upper=None, error=str(error))


def _last_time(state: ShardState, lower: int) -> int:
    """The greatest time that something happens at, for a shard that is finished."""
    parts = (part for batch in state.trace.batches for part in batch.parts)
    return max([lower, *(bounds[1] for part in parts if (bounds := part.time_bounds))])


def _too_large(on: str, time: int, batch_bytes: int) -> InvalidUsage:
    return InvalidUsage(
        f"what happens in '{on}' at {time} alone needs more than {batch_bytes:,} bytes",
        code="SUBSCRIBE_TOO_LARGE",
        hint="subscribe without a snapshot, to a view with fewer rows, or raise the limit",
    )
