"""States of temporal filters follow the clock of shards: rows whose time has come are found by it.

    steps.due(state, before, lower, upper)     the rows of a state that change in [lower, upper)
    steps.change(…)                            the state's change, of these and of new rows, staged

Each row of such a state has the second in which it changes next, by which it is looked up, as rows
are by any key (`found_rows`): a step of a few seconds asks for a few values. What is found is cut
to the exact times here. Where the interval is long, or much is due, Spark reads all of the state.

Invariants:
    A time at which no row changes costs a look-up, and no job of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.compute.view.found_rows import Found, FoundRows, rows_in_driver
from shardline.app.compute.view.input_changes import volume_of_shards
from shardline.app.compute.view.one_task import OneTask
from shardline.app.compute.view.temporal_rule import DUE
from shardline.datasource.shard.batch import Volume
from shardline.datasource.shard.state import ShardState
from shardline.datasource.spark_native.time_interval import (
    StagedInterval,
    collect_interval,
    stage_interval,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shardline.app.compute.view.change_plan import StepPlan
    from shardline.app.compute.view.state_shard import StateShard
    from shardline.app.compute.view.state_step import StateStep
    from shardline.app.compute.view.temporal_rule import TemporalState

__all__ = ["TemporalSteps"]

_SECONDS_MAX: Final = 3_600
"""Longest interval whose rows are looked up second by second."""

_MS: Final = 1000


class TemporalSteps:
    """Of one view. Used by one thread at a time."""

    def __init__(self, rows: FoundRows, one_task: OneTask) -> None:
        """No I/O; both are the view's."""
        self._rows = rows
        self._one_task = one_task

    def due(self, state: ShardState, before: int, lower: int, upper: int | None) -> pa.Table | None:
        """The rows that change in `[lower, upper)`; None if they have to be found by Spark.

        Args:
            state: Of the shard.
            before: The rows are those right before this time, and nothing is due until `lower`.
            lower: First time, in ms.
            upper: The end, exclusive; None for no end.
        """
        if upper is None or before <= 0 or upper - lower > _SECONDS_MAX * _MS:
            return None
        seconds = range(lower // _MS, (upper - 1) // _MS + 1)
        keys = pa.table({DUE: pa.array(seconds, pa.int64())})
        found = self._rows.rows(state, (DUE,), keys, before - 1)
        if found is None:
            return None
        # One that is not here yet begins before it ends.
        times = pc.if_else(found["here"], found["ends"], found["begins"])
        within = pc.and_(pc.greater_equal(times, lower), pc.less(times, upper))
        return found.filter(within)

    def change(
        self,
        shard: StateShard,
        group: TemporalState,
        step: StateStep,
        state: ShardState,
        source: tuple[StepPlan, Found] | None,
    ) -> StagedInterval | None:
        """A state's change in a step, staged; None if nothing changes.

        Args:
            shard: The state's shard.
            group: What it is a state of.
            step: The step.
            state: The shard's state, which holds until the step begins.
            source: The plan of the changes of what is filtered, with what it is over; None if
                nothing of that has changed.
        """
        session, at = step.session, state.upper.time
        assert at is not None, shard.name
        due = self.due(state, at, step.lower, step.upper)
        held: DataFrame | None
        if due is None:
            volume = volume_of_shards([state])
            frames = {"held": shard.contents(session, state, at)}
            held = self._one_task.inputs(session, frames, volume)["held"]
        elif due.num_rows:
            frames = {"held": rows_in_driver(session, due, group.schema)}
            held = self._one_task.inputs(session, frames, Volume(rows=due.num_rows))["held"]
        else:
            held = None
        changes = None
        if source is not None:
            plan, found = source
            changes = self._one_task.over(session, plan, step.changes, found)
        if held is None and changes is None:
            return None
        change = group.elapsed(session, changes, held, step.lower, step.upper)
        few = collect_interval(change, shard.options) if due is not None else None
        rows = stage_interval(change, shard.options) if few is None else few.stage(few.rows)
        if rows.rows:
            return rows
        rows.discard()
        return None
