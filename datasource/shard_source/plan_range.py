"""Plans the partitions of one range of a streaming query, from its start to its end.

A range is planned anew each time that Spark asks for it: after a restart the parts may be others (a
merge has put one in the place of many), but their rows up to the end are the same. The parts are
leased before the states are read that the plan is made from; the other way round, a part of the
plan could be collected before its lease is there.

Invariants:
    A range has the same updates whenever and by whomever it is planned.
    Pieces of a snapshot are cut from the pinned states, whatever newer ones there are.
    Whether a range has rows of the snapshot is in its offsets: the options may be others by now.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.offsets import ShardOffset, Start, check_advance
from shardline.datasource.read import current_schema
from shardline.datasource.shard.plan import PlannedPart, SnapshotPlan, plan_changes
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard_source.descs import SnapshotUnit, snapshot_units
from shardline.datasource.shard_source.fetch_task import PlanLease, ShardPartition
from shardline.datasource.shard_source.freeze import Freezer
from shardline.datasource.shard_source.options import SourceOptions
from shardline.datasource.shard_source.partition_planner import PartitionPlanner
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.shard_source.stream_inputs import (
    StreamInputs,
    in_snapshot,
    time_needed,
)

__all__ = ["RangePlanner"]


class RangePlanner:
    """Plans ranges of one query; keeps nothing between two of them but the inputs' holds."""

    def __init__(
        self,
        options: SourceOptions,
        client: ShardClient,
        shape: RowShape,
        inputs: StreamInputs,
        freezer: Freezer | None,
    ) -> None:
        """Prepare to plan; no I/O. With a freezer, a range waits until its parts can be read."""
        self._options = options
        self._client = client
        self._row_shape = shape
        self._inputs = inputs
        self._freezer = freezer

    def plan(self, start: Start | ShardOffset, end: Start | ShardOffset) -> list[ShardPartition]:
        """The partitions of the range from `start` to `end`.

        Raises:
            InvalidUsage: The range goes back, or is of other shards.
            Determinate: A shard's upper is before the end.
        """
        check_advance(start, end, self._inputs.who)
        # An empty range has no parts: no lease is taken for it, and no look at the store.
        if isinstance(end, Start) or start == end:
            return []
        needed = end if isinstance(start, Start) else start
        if not self._inputs.states:
            # The first call after a restart. What was made anew under the name is another shard,
            # and a hold that was taken over there would be nobody's.
            self._inputs.check_shards(end, self._inputs.look())
        # The holds first: they may be those of an earlier run, and only a hold that is there
        # keeps the history that the lease and the plan are about.
        self._inputs.take_over(end, time_needed(needed))
        self._inputs.confirm()
        states = self._inputs.protect(end, time_needed(needed))
        self._inputs.check_shards(end, states)
        planners = [self._planner(index, state) for index, state in enumerate(states)]
        partitions = self._snapshot_range(planners, start, end)
        lower = end.as_of + 1 if in_snapshot(start) else needed.frontier.time
        if end.cut is None and end.frontier > Frontier(lower):
            partitions += self._changes_range(planners, lower, end.frontier)
        return partitions

    def _snapshot_range(
        self, planners: list[PartitionPlanner], start: Start | ShardOffset, end: ShardOffset
    ) -> list[ShardPartition]:
        """The part of a range that is of the snapshot: all of it, a piece, or nothing."""
        if not self._has_snapshot(start, end):
            return []
        begun = start.cut if isinstance(start, ShardOffset) else None
        cut = end.cut or begun
        if cut is None:
            units = snapshot_units([planner.state for planner in planners], end.as_of)
        else:
            units = self._inputs.pinned_units(end, cut)
        piece = units[begun.done if begun else 0 : end.cut.done if end.cut else len(units)]
        if self._freezer is not None:
            self._freezer.wait([p for unit in piece for p in unit.parts])
        as_of = end.as_of if self._options.read_change_feed else None
        return [
            partition
            for index, planner in enumerate(planners)
            for partition in planner.snapshot(_plan_of(piece, index), as_of)
        ]

    def _has_snapshot(self, start: Start | ShardOffset, end: ShardOffset) -> bool:
        """True if a range has rows of the snapshot."""
        if not in_snapshot(start):
            return False
        # Between two pieces, or at the end of the first, the snapshot is under way: an option that
        # was added since would leave its rows out, and the offsets would go on as if they had come.
        if isinstance(start, ShardOffset) or end.cut is not None:
            return True
        if end.begins is not None:
            return end.begins == "snapshot"
        # Planned by a version that did not note it. Only changes begin at a time of their own.
        return end.frontier == Frontier(end.as_of + 1) and self._options.reads_snapshot

    def _changes_range(
        self, planners: list[PartitionPlanner], lower: int | None, end: Frontier
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

    def _planner(self, index: int, state: ShardState) -> PartitionPlanner:
        each = self._inputs[index]
        self._row_shape.check(index, each.name, current_schema(state))
        guard = PlanLease(
            each.holds.reader,
            self._client.settings.lease_ms,
            self._client.clock.now_ms(),
            renew=False,
            shard=state.shard,
        )
        return PartitionPlanner(self._options.of(each.name), state, self._row_shape, index, guard)


def _plan_of(units: Sequence[SnapshotUnit], index: int) -> SnapshotPlan:
    """The plan of an input's share of some units."""
    own = [unit for unit in units if unit.input == index]
    plain: list[PlannedPart] = [p for unit in own if unit.kind == "plain" for p in unit.parts]
    return SnapshotPlan(tuple(plain), tuple(unit.parts for unit in own if unit.kind == "group"))
