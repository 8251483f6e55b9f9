"""One run of a streaming query: what its planner process decides, between Spark's calls.

The protocol for one micro-batch, and what makes each step safe to repeat:

    latest(start)      look at all shards; choose the end; take the since hold before an end that
                       needs it is returned; pin the snapshot before an end inside of it is
    plan(start, end)   own the holds; lease first, then plan from the newest states (a snapshot in
                       pieces: from the pinned ones)
    commit(end)        everything before the end is done: move the holds up to it

All shards of a query have one frontier: the least of their uppers. One that is finished holds
nothing back; one that is idle holds all of them back until its upper moves.

Invariants:
    Without news, `latest` returns its argument.
    A hold covers whatever an offset that was ever returned needs, until the next one is committed.
    Nothing at or after the time of an unreadable part is published while the stream may freeze.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from shardline.datasource.client import ShardClient, owner
from shardline.datasource.errors import Determinate, InvalidUsage, MissingBlob
from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.parts.verify import verify
from shardline.datasource.read import current_schema, history_gone, latest_readable
from shardline.datasource.shard.plan import PlannedPart, SnapshotPlan, plan_changes
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard.state_history import state_at
from shardline.datasource.shard_source.descs import (
    Limits,
    SnapshotUnit,
    cut_units,
    horizon,
    news,
    next_frontier,
    snapshot_units,
    stop_before,
)
from shardline.datasource.shard_source.fetch_task import Guard, ShardPartition
from shardline.datasource.shard_source.freeze import Freezer
from shardline.datasource.shard_source.holds import StreamHolds
from shardline.datasource.shard_source.offsets import (
    START,
    ShardOffset,
    SnapshotCut,
    Start,
    check_advance,
    check_shards,
)
from shardline.datasource.shard_source.options import SourceOptions
from shardline.datasource.shard_source.partition_planner import Planner
from shardline.datasource.shard_source.row_shape import Shape

__all__ = ["StreamRun"]

_STARTS_MAX: Final = 16
"""How often in a row a start may find that history went on under it."""


@dataclass(frozen=True, slots=True)
class _Input:
    """One of the shards that a query reads."""

    name: str
    holds: StreamHolds


class StreamRun:
    """What the planner process of one query run remembers between calls."""

    def __init__(self, options: SourceOptions, client: ShardClient, shape: Shape) -> None:
        """Prepare to plan; no I/O."""
        self._options = options
        self._client = client
        self._shape = shape
        self._name = options.hold or f"stream-{client.ids.token().hex()}"
        self._who = f"stream of {_listed(options.inputs)} at {options.location}"
        epoch, purpose = client.ids.token().hex(), f"stream by {owner()}"
        self._inputs = [
            _Input(
                name,
                StreamHolds(
                    client.machine(name),
                    epoch=epoch,
                    purpose=purpose,
                    interval_ms=options.hold_interval_ms,
                    behind_ms=options.hold_behind_ms,
                ),
            )
            for name in options.inputs
        ]
        self._freezer = self._make_freezer() if options.on_missing_part == "freeze" else None
        self._pool = ThreadPoolExecutor(16, "look")
        self._target: Frontier | None = None
        self._states: list[ShardState] = []
        self._pinned: tuple[tuple[int, ...], list[SnapshotUnit]] | None = None
        self._first: ShardOffset | None = None
        self._quiet_since_ms = client.clock.elapsed_ms()
        self._confirmed = self._done = False

    # -- Spark's calls -----------------------------------------------------------------------

    def latest(self, start: Start | ShardOffset, limits: Limits) -> Start | ShardOffset:
        """The end of the next micro-batch; `start` itself when there is nothing to read."""
        states = self._look()
        if isinstance(start, Start):
            return self._begin(states, limits)
        self._check_shards(start, states)
        if start.frontier.time is None:
            # Everything has been read, and Spark commits an end only when it makes the next one.
            self._give_up(start)
            return start
        self._take_over(start)
        if start.cut is not None:
            end = self._next_piece(start, start.cut, limits)
        else:
            end = self._next_range(start, start.frontier.time, states, limits)
        if end != start:
            self._quiet_since_ms = self._client.clock.elapsed_ms()
        return end

    def report(self) -> dict[str, Any] | None:
        """What the progress of the query says of the shards: their upper, and what is in the way.

        None before anything was looked at.
        """
        if not self._states:
            return None
        uppers = {state.name: state.upper.time for state in self._states}
        said: dict[str, Any] = {"upper": meet(s.upper for s in self._states).time}
        if len(uppers) > 1:
            said["uppers"] = uppers
        if self._freezer is not None and self._freezer.frozen is not None:
            said["frozen"] = self._freezer.frozen.json()
        return said

    def fix_target(self) -> None:
        """Read no further than what is settled now."""
        self._target = meet(state.upper for state in self._look())

    def plan(self, start: Start | ShardOffset, end: Start | ShardOffset) -> list[ShardPartition]:
        """The partitions of a range, planned anew each time."""
        check_advance(start, end, self._who)
        if isinstance(end, Start) or start == end:
            return []
        needed = end if isinstance(start, Start) else start
        self._take_over(end, needed=_needed(needed))
        if not self._confirmed:
            for each in self._inputs:
                each.holds.confirm()
            self._confirmed = True
        states = [
            self._settled(each, end, each.holds.protect(_needed(needed))) for each in self._inputs
        ]
        self._check_shards(end, states)
        planners = [self._planner(index, state) for index, state in enumerate(states)]
        partitions = self._snapshot_range(planners, start, end)
        lower = end.as_of + 1 if _in_snapshot(start) else needed.frontier.time
        if end.cut is None and end.frontier > Frontier(lower):
            partitions += self._changes_range(planners, lower, end.frontier)
        return partitions

    def commit(self, end: Start | ShardOffset) -> None:
        """Everything before `end` is done: move the holds.

        A piece of a snapshot leaves them where they are: the others are planned from the same pin.
        """
        if isinstance(end, Start):
            return
        if end.frontier.time is None:
            self._give_up(end)
            return
        self._take_over(end)
        if end.cut is None:
            for each in self._inputs:
                each.holds.advance(end.frontier.time)

    def release(self) -> None:
        """Give the leases up; the since holds stay for the next run."""
        for each in self._inputs:
            each.holds.release()

    # -- choosing the end --------------------------------------------------------------------

    def _begin(self, states: list[ShardState], limits: Limits) -> Start | ShardOffset:
        """The end of the first range, which fixes `as_of`; `START` while nothing is readable."""
        if self._first is not None:
            return self._first
        held = self._held_start(states)
        if held is None:
            return START
        as_of, states = held
        shards = tuple(state.shard for state in states)
        started = self._options.starting_timestamp
        frontier = Frontier(as_of + 1 if started is None else started)
        begun = ShardOffset(shards, self._name, as_of, frontier)
        first = self._first_piece(begun, limits) if self._reads_snapshot else begun
        if isinstance(first, ShardOffset):
            # Remembered: the same question has the same answer until it is in the offset log.
            self._first = first
        return first

    def _held_start(self, states: list[ShardState]) -> tuple[int, list[ShardState]] | None:
        """When to start from, with history held from there; None while nothing is readable."""
        left = _STARTS_MAX
        while True:
            as_of = self._as_of(states)
            if as_of is None or not all(state.upper.is_beyond(as_of) for state in states):
                return None
            try:
                self._hold_from(as_of, states)
            except InvalidUsage as error:
                # Between the look and the hold, other readers may have let the latest time go.
                left -= 1
                if error.code != "HISTORY_GONE" or self._starts_at_a_time or not left:
                    raise
                states = self._look()
            else:
                return as_of, states

    def _hold_from(self, as_of: int, states: list[ShardState]) -> None:
        for state, each in zip(states, self._inputs, strict=True):
            if Frontier(as_of) < state.since:
                raise history_gone(state, as_of, state.since)
            held = each.holds.acquire(self._name, as_of)
            if held > Frontier(as_of):
                raise history_gone(state, as_of, held)

    @property
    def _starts_at_a_time(self) -> bool:
        """Whether the user has said from when on, so that no other time will do."""
        options = self._options
        return options.starting_timestamp is not None or options.timestamp_as_of is not None

    def _as_of(self, states: list[ShardState]) -> int | None:
        """When the query starts from; None while that is not known."""
        options = self._options
        if options.starting_timestamp is not None:
            return max(options.starting_timestamp - 1, 0)
        if options.timestamp_as_of is not None:
            return options.timestamp_as_of
        if any(state.upper == Frontier(0) for state in states):
            return None
        upper = self._upper(states)
        # The greatest time that all shards can be read at; it waits if one of them has history
        # only from a later time on.
        latest = max(map(latest_readable, states)) if upper.time is None else upper.time - 1
        as_of = max([latest, *(state.since.time or 0 for state in states)])
        until = options.ending_timestamp
        if until is not None and as_of >= until:
            slowest = max(states, key=lambda state: state.since)
            raise history_gone(slowest, until - 1, slowest.since)
        return as_of

    def _first_piece(self, begun: ShardOffset, limits: Limits) -> Start | ShardOffset:
        """All of the snapshot if the limits admit that, or else its first piece, pinned."""
        states = self._look()
        units = snapshot_units(states, begun.as_of)
        done = self._readable(units, 0, cut_units(units, 0, limits))
        if done == len(units):
            return begun
        if done == 0:
            return START
        seqnos = tuple(state.seqno for state in states)
        for each, seqno in zip(self._inputs, seqnos, strict=True):
            if not each.holds.pin(seqno):
                return START  # collected just now: the next look finds a newer state
        self._pinned = (seqnos, units)
        return replace(begun, frontier=Frontier(begun.as_of), cut=SnapshotCut(seqnos, done))

    def _next_piece(self, start: ShardOffset, cut: SnapshotCut, limits: Limits) -> ShardOffset:
        units = self._pinned_units(start, cut)
        done = self._readable(units, cut.done, cut_units(units, cut.done, limits))
        if done == cut.done < len(units):
            return start
        if done == len(units):
            return replace(start, frontier=Frontier(start.as_of + 1), cut=None)
        return replace(start, cut=SnapshotCut(cut.seqnos, done))

    def _next_range(
        self, start: ShardOffset, lower: int, states: list[ShardState], limits: Limits
    ) -> ShardOffset:
        upper = self._upper(states)
        if upper <= start.frontier:
            return start
        near = horizon(states, lower, upper, limits)
        planned = news(states, lower, near)
        if planned:
            end = self._readable_end(states, lower, next_frontier(planned, near, limits))
        elif self._progress_due(upper):
            end = upper
        else:
            return start
        return start if end <= start.frontier else replace(start, frontier=end)

    def _upper(self, states: list[ShardState]) -> Frontier:
        """The greatest end there may be now."""
        until = self._options.ending_timestamp
        limits = [state.upper for state in states]
        limits += [Frontier(until)] if until is not None else []
        limits += [self._target] if self._target is not None else []
        return meet(limits)

    def _progress_due(self, upper: Frontier) -> bool:
        quiet_ms = self._client.clock.elapsed_ms() - self._quiet_since_ms
        interval_ms = self._options.progress_interval_ms
        # A finished shard is news by itself. A run to a fixed target ends without progress.
        return upper.is_empty or (self._target is None and quiet_ms >= interval_ms)

    # -- freezing ----------------------------------------------------------------------------

    def _readable(self, units: list[SnapshotUnit], done: int, wanted: int) -> int:
        """How far, up to `wanted`, the units after `done` can be read."""
        if self._freezer is None:
            return wanted
        piece = units[done:wanted]
        bad = self._freezer.unreadable([p for unit in piece for p in unit.parts])
        for count, unit in enumerate(piece):
            found = {p.part.key: bad[p.part.key] for p in unit.parts if p.part.key in bad}
            if found:
                if count == 0:
                    self._stand(found)
                return done + count
        self._freezer.move()
        return wanted

    def _readable_end(self, states: list[ShardState], lower: int, end: Frontier) -> Frontier:
        """How far, up to `end`, the changes from `lower` can be read."""
        if self._freezer is None:
            return end
        planned = news(states, lower, end)
        bad = self._freezer.unreadable(planned)
        stop = stop_before(planned, bad)
        if stop is None:
            self._freezer.move()
            return end
        if stop <= lower:
            self._stand(bad)
        return Frontier(stop)

    def _stand(self, bad: dict[str, str]) -> None:
        assert self._freezer is not None
        self._freezer.stand(bad)
        if self._target is not None:
            # A run to a fixed target would end here, as if it had read everything.
            key = min(bad)
            raise MissingBlob(
                f"{self._who} cannot reach its target: {bad[key]}",
                hint="restore the part and start the query again; nothing was skipped",
            )

    def _make_freezer(self) -> Freezer:
        return Freezer(
            partial(verify, self._client.location.blob),
            self._describe,
            self._client.clock,
            self._who,
            self._options.freeze_timeout_ms,
        )

    def _describe(self, status: str) -> None:
        for each in self._inputs:
            each.holds.describe(status)

    # -- planning ----------------------------------------------------------------------------

    @property
    def _reads_snapshot(self) -> bool:
        return self._options.starting_timestamp is None and self._options.snapshot == "include"

    def _snapshot_range(
        self, planners: list[Planner], start: Start | ShardOffset, end: ShardOffset
    ) -> list[ShardPartition]:
        """The part of a range that is of the snapshot: all of it, a piece, or nothing."""
        if not _in_snapshot(start) or not self._reads_snapshot:
            return []
        begun = start.cut if isinstance(start, ShardOffset) else None
        cut = end.cut or begun
        if cut is None:
            units = snapshot_units([planner.state for planner in planners], end.as_of)
        else:
            units = self._pinned_units(end, cut)
        piece = units[begun.done if begun else 0 : end.cut.done if end.cut else len(units)]
        if self._freezer is not None:
            self._freezer.wait([p for unit in piece for p in unit.parts])
        as_of = end.as_of if self._options.read_change_feed else None
        return [
            partition
            for index, planner in enumerate(planners)
            for partition in planner.snapshot(_plan_of(piece, index), as_of)
        ]

    def _changes_range(
        self, planners: list[Planner], lower: int | None, end: Frontier
    ) -> list[ShardPartition]:
        assert lower is not None
        planned = [plan_changes(planner.state, lower, end.time) for planner in planners]
        if self._freezer is not None:
            self._freezer.wait([part for parts in planned for part in parts])
        return [
            partition
            for planner, parts in zip(planners, planned, strict=True)
            for partition in planner.updates(parts)
        ]

    def _planner(self, index: int, state: ShardState) -> Planner:
        each = self._inputs[index]
        self._shape.check(index, each.name, current_schema(state))
        guard = Guard(
            each.holds.reader,
            self._client.settings.lease_ms,
            self._client.clock.now_ms(),
            renew=False,
        )
        return Planner(self._options.of(each.name), state, self._shape, index, guard)

    def _pinned_units(self, offset: ShardOffset, cut: SnapshotCut) -> list[SnapshotUnit]:
        """The units of the snapshot that is under way: always the same ones."""
        if self._pinned is None or self._pinned[0] != cut.seqnos:
            states = [
                state_at(self._client.machine(each.name), seqno)
                for each, seqno in zip(self._inputs, cut.seqnos, strict=True)
            ]
            self._pinned = (cut.seqnos, snapshot_units(states, offset.as_of))
        return self._pinned[1]

    # -- holds and checks --------------------------------------------------------------------

    def _take_over(self, offset: ShardOffset, *, needed: int | None = None) -> None:
        for each in self._inputs:
            each.holds.take_over(offset.hold, _needed(offset) if needed is None else needed)

    def _give_up(self, offset: ShardOffset) -> None:
        """Let go of all holds, once: nothing more will come."""
        if not self._done:
            for each in self._inputs:
                each.holds.give_up(offset.hold)
            self._done = True

    def _look(self) -> list[ShardState]:
        """All shards' states, none older than this call."""
        names = [each.name for each in self._inputs]
        self._states = self._client.readable(*names, pool=self._pool if len(names) > 1 else None)
        return self._states

    def _check_shards(self, offset: ShardOffset, states: Sequence[ShardState]) -> None:
        check_shards(offset, [(state.name, state.shard) for state in states], self._who)

    def _settled(self, each: _Input, end: ShardOffset, state: ShardState) -> ShardState:
        """`state`, or a newer one, that knows everything before the end."""
        state = self._client.door.extended(state)
        if end.frontier > state.upper:
            (state,) = self._client.readable(each.name)
        if end.frontier <= state.upper:
            return state
        raise Determinate(
            f"{self._who}: the checkpoint has read up to {end.frontier}, but the upper of "
            f"'{state.name}' is {state.upper}",
            code="SHARD_WENT_BACK",
            hint="the location was restored from an older copy: restore the checkpoint to match",
        )


def _in_snapshot(offset: Start | ShardOffset) -> bool:
    """Whether a range that starts at `offset` starts with the snapshot, or goes on with it."""
    return isinstance(offset, Start) or offset.cut is not None


def _needed(offset: ShardOffset) -> int:
    """The `as_of` that must be readable for a range that starts at `offset`."""
    if offset.frontier.time is None or offset.cut is not None:
        return offset.as_of
    return max(offset.frontier.time - 1, 0)


def _plan_of(units: Sequence[SnapshotUnit], index: int) -> SnapshotPlan:
    """The plan of an input's share of some units."""
    own = [unit for unit in units if unit.input == index]
    plain: list[PlannedPart] = [p for unit in own if unit.kind == "plain" for p in unit.parts]
    return SnapshotPlan(tuple(plain), tuple(unit.parts for unit in own if unit.kind == "group"))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
