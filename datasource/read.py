"""A read handle reads the contents of a shard at a time, and every change after it.

    snapshot(as_of)   the exact multiset of rows at `as_of`, consolidated.
    listen(as_of)     every update with time `> as_of`, once, in steps `[lower, upper)`.
    look(), check()   a state to read from, for a reader that plans by itself.

The first two have neither gap nor overlap together (as in persist: `snapshot` and `listen`). A time
is readable when `since <= as_of < upper`: before the since history is gone for ever, at or after
the upper the answer is not known yet, and waiting for it is bounded.

Compaction and garbage collection go on while a shard is read. A `ReadHandle` holds a lease for as
long as it is open, so no part that it plans to read is deleted meanwhile.

Invariants:
    The lease exists before the state that is planned from is read.
    A listener whose frontier is F holds the since at F - 1, never at F: at since F an old update of
    F - 1 would be advanced to F and be delivered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from shardline.datasource.arguments import frontier_of, whole_number
from shardline.datasource.errors import Determinate, InvalidUsage, LeaseExpired
from shardline.datasource.frontier import EMPTY, Frontier, with_date
from shardline.datasource.lease import Lease, LeaseRenewer, take_lease
from shardline.datasource.parts.contents import Contents
from shardline.datasource.parts.fetch import Fetcher
from shardline.datasource.rows.updates import update_schema
from shardline.datasource.shard.commands.readers import SinceExceeded
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.plan import plan_changes, plan_snapshot
from shardline.datasource.shard.state import ShardState, is_tombstone, last_update
from shardline.datasource.stores.location import Blob
from shardline.datasource.types.schema import ShardSchema

__all__ = [
    "WAIT_MS",
    "ListenStep",
    "ReadHandle",
    "check_begun",
    "check_may_come",
    "contents_of",
    "current_schema",
    "first_sort_column",
    "first_time",
    "history_gone_error",
    "latest_readable",
    "not_yet_readable_error",
    "open_reader",
]


WAIT_MS: Final = 60_000
"""Longest wait of a read for its time to be settled, where no other is asked for."""


@dataclass(frozen=True, slots=True)
class ListenStep:
    """All updates with `lower <= time < upper`.

    Attributes:
        updates: The shard's columns, `_ts`, `_diff`; unconsolidated, in no particular order.
    """

    lower: int
    upper: Frontier
    updates: pa.Table


def current_schema(state: ShardState) -> ShardSchema:
    """The newest schema of the shard, parsed."""
    return ShardSchema.parse(state.schemas[state.schema_id])


def first_sort_column(state: ShardState) -> str:
    """The column that runs are sorted by before all others."""
    return state.key[0] if state.key else current_schema(state).names[0]


def contents_of(
    machine: Machine, state: ShardState, columns: Sequence[str] | None = None
) -> Contents:
    """A reader of the shard's parts as `state` describes them.

    Raises:
        InvalidUsage: A column is not in the schema.
    """
    return contents_in(machine.location.blob, state, columns)


def contents_in(blob: Blob, state: ShardState, columns: Sequence[str] | None = None) -> Contents:
    """As `contents_of`, for a shard whose parts are in `blob`."""
    schemas = {number: ShardSchema.parse(text) for number, text in state.schemas.items()}
    schema = schemas[state.schema_id]
    wanted = schema.names if columns is None else schema.select(columns).names
    return Contents(Fetcher(blob, schemas, schema), state.key, wanted)


def latest_readable(state: ShardState) -> int:
    """The greatest `as_of` that can be read now.

    Raises:
        InvalidUsage: There is none: nothing was ever appended, or the shard was dropped.
    """
    upper = state.upper.time
    if state.since.is_empty:
        raise _dropped(state)
    if upper is None:
        # Finished: every time can be read, and from the last update on they all show the same.
        return max(state.since.time or 0, last_update(state) or 0)
    if upper == 0:
        raise InvalidUsage(
            f"shard '{state.name}' has no contents yet: nothing was ever appended",
            code="NOTHING_APPENDED",
            hint="append to it, even nothing at all, to fix its contents at a first time",
        )
    return max(upper - 1, state.since.time or 0)


def open_reader(
    machine: Machine,
    *,
    since: int | None = None,
    lease_ms: int | None = None,
    purpose: str = "",
    look: Callable[[], ShardState] | None = None,
) -> ReadHandle:
    """A reader of everything at `as_of >= since`, or from the shard's since.

    Args:
        machine: The shard's machine.
        since: Least `as_of` to be read; None for the shard's since.
        lease_ms: How long the lease lasts without a heartbeat; None for the settings'.
        purpose: Who reads and what for, for people.
        look: Reads the states to read from, such as those of a registered shard, whose upper moves
            with its transactions shard; None for the shard's own.

    Raises:
        InvalidUsage: There is no such shard, or its history at `since` is gone.
    """
    duration = lease_ms or machine.settings.lease_ms
    lease = take_lease(machine, since=since, lease_ms=duration, purpose=purpose)
    if isinstance(lease, SinceExceeded):
        raise history_gone_error(machine.state(), since, lease.since)
    return ReadHandle(machine, lease, look)


class ReadHandle:
    """A leased reader. Use it as a context manager, or `close` it.

    Losing its lease fails reads with `LeaseExpired`; it never makes them wrong. A handle that is
    not closed keeps history and blobs until it is collected as garbage or its process ends, and
    then for half of its lease, or all of it.
    """

    def __init__(
        self, machine: Machine, lease: Lease, look: Callable[[], ShardState] | None = None
    ) -> None:
        """Start renewing `lease` until closed, or given up unclosed."""
        self.machine = machine
        self.lease = lease
        self._look = look or machine.state
        self._closed = False
        self._renewer = LeaseRenewer(lease, machine.clock, owner=self)
        self._renewer.start()

    def __enter__(self) -> Self:
        """Return the handle."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the handle."""
        self.close()

    def close(self) -> None:
        """Stop renewing the lease and give it up; else that waits for the garbage collector."""
        self._closed = True
        # In this order: a heartbeat after the release would find the lease gone and report a loss.
        self._renewer.stop()
        self.lease.release()

    def look(self) -> ShardState:
        """The state that readers see, no older than this call, under this handle's lease.

        Raises:
            InvalidUsage: The shard was dropped.
            LeaseExpired: The handle's lease is gone.
        """
        state = self._look()
        self._check_held(state)
        return state

    def snapshot(
        self,
        as_of: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> pa.Table:
        """The contents at `as_of`: each row as often as it occurs, in no particular order.

        Args:
            as_of: The time; None for the latest that can be read now.
            columns: Names of the columns to read; None for all.
            timeout_ms: How long to wait until `as_of` is settled; None for `WAIT_MS`, and for no
                wait if the clock is not there by then.

        Raises:
            InvalidUsage: `as_of` is before the shard's since; or a column is unknown; or the
                shard was dropped.
            LeaseExpired: The handle's lease is gone.
            Determinate: `as_of` was not settled in time, or is far ahead of the clock.
        """
        state, at = self._readable(as_of, timeout_ms)
        reader = contents_of(self.machine, state, columns)
        schema = reader.target.arrow
        plan = plan_snapshot(state, at, first_sort_column(state))
        return pa.Table.from_batches(reader.snapshot(plan), schema)

    def wait_until_settled(self, time: int, *, timeout_ms: float | None = None) -> None:
        """Wait until nothing can be added at `time` or before; errors as `snapshot`."""
        self._readable(time, timeout_ms)

    def listen(
        self, as_of: int, *, until: Frontier = EMPTY, timeout_ms: float = 60_000
    ) -> Iterator[ListenStep]:
        """Every update after `as_of`, step by step; waits for more at the end.

        Args:
            as_of: Updates at this time and before are not delivered.
            until: Exclusive end: stops once the frontier is there, and delivers nothing at it.
            timeout_ms: How long to wait for a step; then the iteration ends. It can be resumed
                from the last step's `upper - 1`.

        Raises:
            InvalidUsage: History right after `as_of` is gone; or the shard was dropped.
            LeaseExpired: The handle's lease is gone.
        """
        as_of, until = whole_number("as_of", as_of), frontier_of("until", until)
        self.check(self._look(), as_of)
        frontier = Frontier(as_of + 1)
        while frontier < until and frontier.time is not None:
            found = self.machine.wait_for_upper_past(frontier.time, timeout_ms, self._look)
            if found is None:
                return
            # On each new state: in one that was compacted up to the frontier, updates that were
            # delivered before have been advanced to it, and would be delivered again.
            self.check(found, frontier.time - 1)
            upper = min(found.upper, until)
            yield self._step(found, frontier.time, upper)
            frontier = upper
            if frontier.time is not None:
                # Only after the step was taken, and to one before the frontier (see the head).
                self.lease.downgrade(Frontier(frontier.time - 1), found.seqno)

    def _step(self, state: ShardState, lower: int, upper: Frontier) -> ListenStep:
        reader = contents_of(self.machine, state)
        batches = [
            batch
            for planned in plan_changes(state, lower, upper.time)
            for batch in reader.changes(planned)
        ]
        schema = update_schema(reader.target.arrow)
        return ListenStep(lower, upper, pa.Table.from_batches(batches, schema))

    def _readable(self, as_of: int | None, timeout_ms: float | None) -> tuple[ShardState, int]:
        state = self._look()
        at = latest_readable(state) if as_of is None else whole_number("as_of", as_of)
        self.check(state, at)
        if timeout_ms is None:
            timeout_ms = WAIT_MS
            check_may_come(state, at, self.machine.clock.now_ms(), ask="give `timeout_ms`")
        # Checked above already: for a time before the since this wait would be in vain.
        found = self.machine.wait_for_upper_past(at, timeout_ms, self._look)
        if found is None:
            raise not_yet_readable_error(self._look(), at, timeout_ms)
        # And again after it: this is another state, and it is the one that is planned from.
        self.check(found, at)
        return found, at

    def _check_held(self, state: ShardState) -> None:
        # The tombstone first: "lease expired, start again" would send the reader after a shard that
        # is gone for good.
        if is_tombstone(state):
            raise _dropped(state)
        if self._closed:
            raise LeaseExpired(
                f"this reader of shard '{state.name}' is closed, and its lease was given up",
                code="READER_CLOSED",
                hint="open another one, and read before the end of its 'with' block",
            )
        self.lease.check(state)

    def check(self, state: ShardState, as_of: int) -> None:
        """Raise unless `state` can be read at `as_of` under this handle's lease.

        Every state that is planned from must be checked: the shard may have been dropped, or made
        again, or compacted beyond a time that the lease did not cover.

        Raises:
            InvalidUsage: History at `as_of` is gone; or the shard was dropped.
            LeaseExpired: The handle's lease is gone.
        """
        self._check_held(state)
        if Frontier(as_of) < state.since:
            raise history_gone_error(state, as_of, state.since)


def history_gone_error(
    state: ShardState,
    as_of: int | None,
    since: Frontier,
    *,
    start: int | None = None,
    end: int | None = None,
) -> InvalidUsage:
    """The error for a time before the shard's since.

    Args:
        state: The shard.
        as_of: The time.
        since: The shard's since.
        start: The time from which on changes were asked for, if they were: the one after `as_of`.
        end: The time before which a read was to end, if one was given: the one after `as_of`.
    """
    if since.is_empty:
        return _dropped(state)
    asked = None if as_of is None else with_date(as_of)
    what, verb, first = f"shard '{state.name}' can no longer be read at {asked}", "read", since.time
    if start is not None:
        # At the since itself older updates are among the changes.
        what = (
            f"changes of shard '{state.name}' from {with_date(start)} on are no longer known apart"
        )
        verb, first = "start", (since.time or 0) + 1
    elif end is not None:
        what = f"shard '{state.name}' can no longer be read before {with_date(end)}"
        verb, first = "end", (since.time or 0) + 1
    return InvalidUsage(
        f"{what}: its since is {with_date(since)}",
        code="HISTORY_GONE",
        hint=f"{verb} at {first} or later; a since hold keeps history from being compacted",
    )


def check_begun(state: ShardState, as_of: int) -> None:
    """Refuse a moment before the shard began.

    Its contents are known then, and empty. But who names a moment by its date means one at which
    there was something, and would take the empty answer for one (Delta refuses a timestamp before
    the first commit, too).

    Raises:
        InvalidUsage: `BEFORE_FIRST_CHANGE`: at `as_of` the shard was not made yet, and no row in it
            is as old.
    """
    # What was compacted beyond its first time may have had any.
    if state.since.time != 0 or state.created_ms <= as_of:
        return
    first = first_time(state)
    if as_of < first:
        began = datetime.fromtimestamp(first / 1000, UTC).isoformat(" ", "milliseconds")
        raise InvalidUsage(
            f"shard '{state.name}' began at {began.removesuffix('+00:00')} UTC, after the time "
            f"that is asked for, {with_date(as_of)}",
            code="BEFORE_FIRST_CHANGE",
            hint=f"read at {first} or later; as a number, earlier times are empty and no error",
        )


def first_time(state: ShardState) -> int:
    """The time at which the shard was made, or that of its oldest row, if that is earlier.

    Compaction may have moved the times of rows up to the since.
    """
    # Rows may be older than the shard, when their times are those of the events.
    first = state.created_ms
    for batch in state.trace.batches:
        for part in batch.parts:
            first = min(first, (part.time_bounds or (batch.desc.lower, 0))[0])
    return first


def not_yet_readable_error(state: ShardState, as_of: int, timeout_ms: float) -> Determinate:
    """The error for a time that was not settled within the time that a read waited for it."""
    return Determinate(
        f"shard '{state.name}' was not settled at {with_date(as_of)} within {timeout_ms:.0f} ms: "
        f"its upper is {with_date(state.upper)}",
        code="NOT_YET_READABLE",
        hint=f"{_readable_now(state)}; wait longer, or see whether its writer still runs",
    )


def check_may_come(
    state: ShardState, as_of: int, now_ms: int, *, ask: str, wait_ms: float = WAIT_MS
) -> None:
    """Refuse to wait for a time that the clock does not reach while a read waits.

    Writers stamp rows with the clock, so such a wait ends with an error that can be had at once.
    It is not refused where the shard is ahead of the clock: then its times are no clock's.

    Args:
        state: The shard.
        as_of: The time that must be settled.
        now_ms: The clock.
        ask: The beginning of a sentence for those who want to wait nevertheless.
        wait_ms: How long the read would wait.

    Raises:
        Determinate: `NOT_YET_READABLE`, with the latest time that can be read.
    """
    if as_of <= now_ms + wait_ms or state.upper.is_beyond(now_ms):
        return
    raise Determinate(
        f"shard '{state.name}' cannot be read at {with_date(as_of)}, a time that is still to come: "
        f"its upper is {with_date(state.upper)}",
        code="NOT_YET_READABLE",
        hint=f"{_readable_now(state)}; {ask} to wait for a time to come",
    )


def _readable_now(state: ShardState) -> str:
    if is_tombstone(state) or state.upper == Frontier(0):
        return "nothing of it can be read yet, as nothing was ever appended"
    return f"read at {latest_readable(state)} or earlier, or name no time, for the latest contents"


def _dropped(state: ShardState) -> InvalidUsage:
    return InvalidUsage(
        f"shard '{state.name}' was dropped",
        code="SHARD_DROPPED",
        hint="make it again by writing to it; a stream over it then needs a new checkpoint",
    )
