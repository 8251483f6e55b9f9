"""Streaming reads: the planner of one query, behind Spark's offset protocol.

Spark runs all hooks but `read` in one process per query run, one call at a time:

    latestOffset(start)  ->  [offset log]  ->  commit(previous end)  ->  partitions(start, end)

What Spark does not promise, and what follows from it:
    `initialOffset` is asked for twice, again after a restart, and never recorded: it is a constant,
    and the end of the first micro-batch fixes `as_of`.
    After a restart, `partitions(start, end)` of the last planned range may be the very first call.
    `commit(end)` comes while the *next* micro-batch is made, the last one never: moving holds late
    is harmless, moving them early is not.
    `stop` may never be called: leases expire by time.
    An idle query asks for the latest offset up to 100 times a second: without news the answer is
    its argument, to the letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from typing_extensions import override

from datasource.client import ShardClient, owner
from datasource.errors import Determinate, InvalidUsage
from datasource.frontier import Frontier
from datasource.plan import plan_changes, plan_snapshot
from datasource.read import first_sort_column, history_gone, latest_readable
from datasource.shard_source.descs import Limits, has_news, next_frontier
from datasource.shard_source.holds import StreamHolds
from datasource.shard_source.offsets import (
    START,
    ShardOffset,
    Start,
    check_advance,
    parse_offset,
)
from datasource.shard_source.options import SourceOptions
from datasource.shard_source.partition import Guard, ShardPartition, read_partition
from datasource.shard_source.planner import Planner, open_client
from datasource.state import ShardState

__all__ = ["ShardStreamReader"]


class ShardStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of one query; its pickled twin reads partitions in executors."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        """Remember what to read; no I/O, since Spark makes a second one only to pickle it."""
        self._options = options
        self._columns = columns
        self._run: _Run | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:
        """The constant start. Called several times per query, also after restarts."""
        return START.json()

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        """The first of the limits that are set; `latestOffset` respects all of them."""
        options = self._options
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_files is not None:
            return ReadMaxFiles(options.max_files)
        return ReadAllAvailable()

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch, or `start` itself when there is no news."""
        return self._running().latest(parse_offset(start), self._limits(limit)).json()

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The shard's upper, for the progress events; None before anything was looked at."""
        return self._run.report() if self._run else None

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what "now" is: the upper at this moment."""
        self._running().fix_target()

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of `[start, end)`, planned anew from the newest state at each call."""
        return self._running().plan(parse_offset(start), parse_offset(end), self._columns)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The updates of one partition; runs in executors, once per task attempt."""
        return read_partition(partition)

    @override
    def commit(self, end: dict[str, Any]) -> None:
        """Everything before `end` is done: move the holds. Late, idempotent, may be skipped."""
        self._running().commit(parse_offset(end))

    @override
    def stop(self) -> None:
        """Nothing that correctness needs; Spark seldom calls it."""
        if self._run is not None:
            self._run.holds.release()

    def _running(self) -> _Run:
        if self._run is None:
            self._run = _Run(self._options, open_client(self._options))
        return self._run

    def _limits(self, limit: ReadLimit) -> Limits:
        if isinstance(limit, ReadAllAvailable):
            return Limits()
        options = self._options
        return Limits(
            limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes,
            limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_rows,
            limit.max_files if isinstance(limit, ReadMaxFiles) else options.max_files,
        )


class _Run:
    """One run of one query: what the planner process remembers between calls."""

    def __init__(self, options: SourceOptions, client: ShardClient) -> None:
        self._options = options
        self._client = client
        self._machine = client.machine(options.shard)
        self._name = options.hold or f"stream-{client.ids.token().hex()}"
        self._target: Frontier | None = None
        self._state: ShardState | None = None
        self._first: ShardOffset | None = None
        self._quiet_since_ms = client.clock.elapsed_ms()
        self._confirmed = False
        self.holds = StreamHolds(
            self._machine,
            epoch=client.ids.token().hex(),
            purpose=f"stream by {owner()}",
            interval_ms=options.hold_interval_ms,
        )

    def latest(self, start: Start | ShardOffset, limits: Limits) -> Start | ShardOffset:
        state = self._look()
        if isinstance(start, Start):
            return self._begin(state)
        self._check_shard(start, state)
        if start.frontier.time is None:
            return start
        self.holds.take_over(start.hold, self._needed(start))
        upper = self._upper(state)
        if upper <= start.frontier:
            return start
        if has_news(state, start.frontier.time, upper):
            end = next_frontier(state, start.frontier.time, upper, limits)
        elif self._progress_due(upper):
            end = upper
        else:
            return start
        self._quiet_since_ms = self._client.clock.elapsed_ms()
        return ShardOffset(start.shard, start.hold, start.as_of, end)

    def report(self) -> dict[str, Any] | None:
        if self._state is None:
            return None
        return {"shard": self._state.shard, "upper": self._state.upper.time}

    def fix_target(self) -> None:
        self._target = self._look().upper

    def plan(
        self, start: Start | ShardOffset, end: Start | ShardOffset, columns: tuple[str, ...]
    ) -> list[ShardPartition]:
        check_advance(start, end)
        if isinstance(end, Start) or start == end:
            return []
        lower = None if isinstance(start, Start) else start.frontier.time
        needed = end.as_of if isinstance(start, Start) else self._needed(start)
        self.holds.take_over(end.hold, needed)
        if not self._confirmed:
            self.holds.confirm()
            self._confirmed = True
        state = self.holds.protect(needed)
        self._check_shard(end, state)
        state = self._settled(end, state)
        planner = Planner(self._options, state, columns, self._guard())
        if lower is not None:
            return planner.updates(plan_changes(state, lower, end.frontier.time))
        return self._first_range(planner, end)

    def commit(self, end: Start | ShardOffset) -> None:
        if isinstance(end, Start):
            return
        self.holds.take_over(end.hold, self._needed(end))
        self.holds.advance(end.frontier)

    def _guard(self) -> Guard:
        lease_ms = self._client.settings.lease_ms
        return Guard(self.holds.reader, lease_ms, self._client.clock.now_ms(), renew=False)

    def _begin(self, state: ShardState) -> Start | ShardOffset:
        """The end of the first range, which fixes `as_of`; `START` while nothing is readable."""
        if self._first is not None:
            return self._first
        as_of = self._as_of(state)
        if as_of is None or not state.upper.is_beyond(as_of):
            return START
        if Frontier(as_of) < state.since:
            raise history_gone(state, as_of, state.since)
        held = self.holds.acquire(self._name, as_of)
        if held > Frontier(as_of):
            raise history_gone(state, as_of, held)
        # Remembered: the same question must have the same answer until it is in the offset log.
        self._first = ShardOffset(state.shard, self._name, as_of, Frontier(as_of + 1))
        return self._first

    def _as_of(self, state: ShardState) -> int | None:
        options = self._options
        if options.starting_timestamp is not None:
            return max(options.starting_timestamp - 1, 0)
        if options.timestamp_as_of is not None:
            return options.timestamp_as_of
        if state.upper == Frontier(0):
            return None
        return latest_readable(state)

    def _first_range(self, planner: Planner, end: ShardOffset) -> list[ShardPartition]:
        """The snapshot, unless it is excluded, and what came after it before the end."""
        later = planner.updates(plan_changes(planner.state, end.as_of + 1, end.frontier.time))
        if self._options.starting_timestamp is not None or self._options.snapshot == "exclude":
            return later
        plan = plan_snapshot(planner.state, end.as_of, first_sort_column(planner.state))
        as_of = end.as_of if self._options.read_change_feed else None
        return [*planner.snapshot(plan, as_of), *later]

    def _settled(self, end: ShardOffset, state: ShardState) -> ShardState:
        """`state`, or a newer one, that knows everything before the end."""
        if end.frontier <= state.upper:
            return state
        raise Determinate(
            f"the checkpoint has read shard '{state.name}' up to {end.frontier}, but its upper is "
            f"{state.upper}",
            code="SHARD_WENT_BACK",
            hint="the location was restored from an older copy: restore the checkpoint to match",
        )

    def _needed(self, offset: ShardOffset) -> int:
        """The `as_of` that must be readable for a range that starts at `offset`."""
        return offset.as_of if offset.frontier.time is None else max(offset.frontier.time - 1, 0)

    def _upper(self, state: ShardState) -> Frontier:
        until = self._options.ending_timestamp
        limits = [state.upper, *([Frontier(until)] if until is not None else [])]
        return min([*limits, *([self._target] if self._target is not None else [])])

    def _progress_due(self, upper: Frontier) -> bool:
        quiet_ms = self._client.clock.elapsed_ms() - self._quiet_since_ms
        interval_ms = self._options.progress_interval_ms
        # A finished shard is news by itself. A run to a fixed target ends without progress.
        return upper.is_empty or (self._target is None and quiet_ms >= interval_ms)

    def _look(self) -> ShardState:
        self._state = self._client.state(self._options.shard)
        return self._state

    def _check_shard(self, offset: ShardOffset, state: ShardState) -> None:
        if offset.shard != state.shard:
            raise InvalidUsage(
                f"the checkpoint belongs to shard {offset.shard}, but '{state.name}' at "
                f"{self._options.location} is {state.shard}",
                code="FOREIGN_OFFSET",
                hint="the shard was dropped and made again, or the query reads another one now: "
                "use a new checkpoint",
            )
