"""Chooses the end of a streaming query's next micro-batch.

Spark asks for an end again and again, and writes down each one that differs from the start. An end
is a promise: the rows before it are planned from it, perhaps by a later run, so everything that
they need is held before the end is returned, and nothing that could not be read lies before it.

All shards of a query have one frontier: the least of their uppers. One that is finished holds
nothing back; one that is idle holds all of them back until its upper moves.

Invariants:
    Without news, the end is the start itself.
    The since hold is there before the first end is returned, the pin before an end that lies inside
        of the snapshot.
    Nothing at or after the time of an unreadable part is published while the stream may freeze.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardline.datasource.clock import Clock
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.offsets import START, ShardOffset, SnapshotCut, Start
from shardline.datasource.read import history_gone_error, latest_readable
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard_source.descs import (
    Limits,
    SnapshotUnit,
    cut_units,
    next_frontier,
    parts_with_news,
    planning_horizon,
    snapshot_units,
    stop_before,
)
from shardline.datasource.shard_source.freeze import Freezer
from shardline.datasource.shard_source.options import SourceOptions
from shardline.datasource.shard_source.stream_inputs import StreamInputs, time_needed

__all__ = ["EndChooser"]

_LEAP_SHARE: Final = 10
"""An upper that has leapt is followed after this part of the interval."""

_STARTS_MAX: Final = 16
"""How often in a row a start may find that history went on under it."""


class EndChooser:
    """The choices of one run, which depend on the shards and on what it has answered before."""

    def __init__(
        self, options: SourceOptions, inputs: StreamInputs, freezer: Freezer | None, clock: Clock
    ) -> None:
        """Prepare to choose; no I/O. Without a freezer, parts are not looked at."""
        self._options = options
        self._inputs = inputs
        self._freezer = freezer
        self._clock = clock
        self._target: Frontier | None = None
        self._first: ShardOffset | None = None
        self._quiet_since_ms = clock.elapsed_ms()

    def fix_target(self) -> None:
        """Read no further than what is settled now (Spark's trigger `availableNow`)."""
        self._target = meet(state.upper for state in self._inputs.look())
        if self._freezer is not None:
            self._freezer.has_target = True

    def begin(self, states: list[ShardState], limits: Limits) -> Start | ShardOffset:
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
        reads_snapshot = self._options.reads_snapshot
        begun = ShardOffset(
            shards,
            self._inputs.hold,
            as_of,
            frontier,
            begins="snapshot" if reads_snapshot else "changes",
        )
        first = self._first_piece(begun, limits) if reads_snapshot else begun
        if isinstance(first, ShardOffset):
            # Remembered: the same question has the same answer until it is in the offset log. A
            # second answer would fix another as_of, for which no hold was taken.
            self._first = first
        return first

    def go_on(self, start: ShardOffset, states: list[ShardState], limits: Limits) -> ShardOffset:
        """The end of the range after `start`; `start` itself when there is nothing to read."""
        assert start.frontier.time is not None, start
        # Before anything is chosen: an end beyond a hold that is gone could never be planned.
        self._inputs.take_over(start, time_needed(start))
        if start.cut is not None:
            end = self._next_piece(start, start.cut, limits)
        else:
            end = self._next_range(start, start.frontier.time, states, limits)
        if end != start:
            self._quiet_since_ms = self._clock.elapsed_ms()
        return end

    # -- the first end -----------------------------------------------------------------------

    def _held_start(self, states: list[ShardState]) -> tuple[int, list[ShardState]] | None:
        """When to start from, with history held from there; None while nothing is readable."""
        left = _STARTS_MAX
        while True:
            as_of = self._as_of(states)
            if as_of is None or not all(state.upper.is_beyond(as_of) for state in states):
                return None
            try:
                self._inputs.hold_from(as_of, states)
            except InvalidUsage as error:
                # Between the look and the hold, other readers may have let the latest time go.
                # A time that the user has named is not exchanged for a later one.
                left -= 1
                if error.code != "HISTORY_GONE" or self._starts_at_a_time or not left:
                    raise
                states = self._inputs.look()
            else:
                return as_of, states

    @property
    def has_begun(self) -> bool:
        """True once an end was returned that an offset log may have: it names this run's hold."""
        return self._first is not None

    @property
    def _starts_at_a_time(self) -> bool:
        """True if the user has named the time to start from, so that no other one will do."""
        options = self._options
        return options.starting_timestamp is not None or options.timestamp_as_of is not None

    def _as_of(self, states: list[ShardState]) -> int | None:
        """The time to start from; None while that is not known."""
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
            raise history_gone_error(slowest, until - 1, slowest.since, end=until)
        return as_of

    def _first_piece(self, begun: ShardOffset, limits: Limits) -> Start | ShardOffset:
        """All of the snapshot if the limits admit that, or else its first piece, pinned."""
        # Anew: the states of the choice are from before the hold, and may have been collected.
        # Parts that are looked at need a lease besides: a hold keeps history, and not the files of
        # a state, and one that was merged and collected would be taken for one that is lost.
        states = (
            self._inputs.look()
            if self._freezer is None
            else self._inputs.protect(begun, begun.as_of)
        )
        units = snapshot_units(states, begun.as_of)
        done = self._readable(units, 0, cut_units(units, 0, limits))
        if done == len(units):
            return begun
        if done == 0:
            return START
        seqnos = tuple(state.seqno for state in states)
        if not self._inputs.pin(seqnos, units):
            return START  # collected just now: the next look finds a newer state
        cut = SnapshotCut(seqnos, done)
        return replace(begun, frontier=Frontier(begun.as_of), cut=cut, begins=None)

    # -- the next ends -----------------------------------------------------------------------

    def _next_piece(self, start: ShardOffset, cut: SnapshotCut, limits: Limits) -> ShardOffset:
        units = self._inputs.pinned_units(start, cut)
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
            # With nothing to plan nobody else compares them, and new times of an older copy would
            # be taken for those that the checkpoint has.
            self._inputs.check_known(start, states)
            return start
        near = planning_horizon(states, lower, upper, limits)
        planned = parts_with_news(states, lower, near)
        if planned and self._freezer is not None:
            # Leased before they are looked at, as the first piece is; the states may be newer.
            states = self._inputs.protect(start, time_needed(start))
            near = planning_horizon(states, lower, upper, limits)
            planned = parts_with_news(states, lower, near)
        if planned:
            end = self._readable_end(states, lower, next_frontier(planned, near, limits))
        elif self._is_progress_due(lower, upper):
            end = upper
        else:
            return start
        return start if end <= start.frontier else replace(start, frontier=end, begins=None)

    def _upper(self, states: list[ShardState]) -> Frontier:
        """The greatest end there may be now."""
        until = self._options.ending_timestamp
        limits = [state.upper for state in states]
        limits += [Frontier(until)] if until is not None else []
        limits += [self._target] if self._target is not None else []
        return meet(limits)

    def _is_progress_due(self, lower: int, upper: Frontier) -> bool:
        """True if the offset is to follow the upper from `lower` though there is nothing to read.

        Once in an interval, which is cheap. But an upper that has leapt over more than an interval
        belongs to a writer that is back, as a view is that has just hydrated: who waits for this
        query would wait for the rest of the interval without a reason. A tenth of it stays, for
        uppers that always move in leaps.
        """
        if upper.time is None:
            return True  # a finished shard is news by itself
        if self._target is not None:
            return False  # a run to a fixed target ends without progress
        quiet_ms = self._clock.elapsed_ms() - self._quiet_since_ms
        interval_ms = self._options.progress_interval_ms
        leapt = upper.time - lower > interval_ms
        return quiet_ms >= (interval_ms / _LEAP_SHARE if leapt else interval_ms)

    # -- freezing ----------------------------------------------------------------------------

    def _readable(self, units: list[SnapshotUnit], done: int, wanted: int) -> int:
        """The end, `wanted` at most, up to which the units after `done` can be read."""
        if self._freezer is None:
            return wanted
        piece = units[done:wanted]
        bad = self._freezer.find_unreadable([p for unit in piece for p in unit.parts])
        for count, unit in enumerate(piece):
            found = {p.part.key: bad[p.part.key] for p in unit.parts if p.part.key in bad}
            if found:
                # What is before the unreadable part is published; only without progress does
                # the stream stand.
                if count == 0:
                    self._freezer.record_frozen(found)
                return done + count
        self._freezer.move()
        return wanted

    def _readable_end(self, states: list[ShardState], lower: int, end: Frontier) -> Frontier:
        """The frontier, `end` at most, up to which the changes from `lower` can be read."""
        if self._freezer is None:
            return end
        planned = parts_with_news(states, lower, end)
        bad = self._freezer.find_unreadable(planned)
        stop = stop_before(planned, bad)
        if stop is None:
            self._freezer.move()
            return end
        if stop <= lower:
            self._freezer.record_frozen(bad)
        return Frontier(stop)
