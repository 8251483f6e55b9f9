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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline.app.compute.view.found_rows import Found, FoundRows, rows_in_driver
from shardline.app.compute.view.input_changes import volume_of_shards
from shardline.app.compute.view.kept_jobs import FewRows, KeptJobs, ShardRows
from shardline.app.compute.view.kept_plan import Leaf
from shardline.app.compute.view.one_task import OneTask
from shardline.app.compute.view.temporal_rule import DUE
from shardline.datasource.frames import (
    ROWS_MAX,
    StagedInterval,
    collect_interval,
    small_target,
    stage_interval,
)
from shardline.datasource.schema import TS
from shardline.datasource.state import ShardState, Volume

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

_HELD: Final = Leaf("held rows", before=True)
"""Rows of a state that are due; no object has such a name."""


class TemporalSteps:
    """Of one view. Used by one thread at a time."""

    def __init__(self, rows: FoundRows, one_task: OneTask, jobs: KeptJobs) -> None:
        """No I/O; all are the view's."""
        self._rows = rows
        self._one_task = one_task
        self._jobs = jobs

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
        at = state.upper.time
        assert at is not None, shard.name
        due = self.due(state, at, step.lower, step.upper)
        if due is not None and not due.num_rows and source is None:
            return None
        rows = None if due is None else self._of_few(shard, group, step, due, source)
        if rows is None:
            rows = self._of_many(shard, group, step, state, due=due, source=source)
        if rows.rows:
            return rows
        rows.discard()
        return None

    def _of_few(
        self,
        shard: StateShard,
        group: TemporalState,
        step: StateStep,
        due: pa.Table,
        source: tuple[StepPlan, Found] | None,
    ) -> StagedInterval | None:
        """A change by a kept plan, staged; None if what it follows from, or is, is much."""
        plan = None if source is None else source[0]
        given = {} if source is None else self._rows.few(step, *source)
        if given is None or due.num_rows > ROWS_MAX:
            return None
        session, target = step.session, small_target(group.changes, shard.options)
        given = {**given, _HELD: FewRows(group.held_table(due, step.lower - 1), group.held)}

        def over(frames: Mapping[Leaf, DataFrame]) -> DataFrame:
            others = {leaf: one for leaf, one in frames.items() if leaf != _HELD}
            changes = None if plan is None else plan.over_leaves(session, others)
            return group.elapsed(session, changes, frames[_HELD])

        def frame() -> DataFrame:
            frames = {leaf: rows_in_driver(session, *one) for leaf, one in given.items()}
            rows = sum(one.table.num_rows for one in given.values())
            return over(self._one_task.inputs(session, frames, Volume(rows=rows)))

        asked = ShardRows(target, over, frame)
        rows = asked.by(self._jobs, (step.plan, group.name, plan), session, given)
        return None if rows is None else target.stage(_within(rows, step.lower, step.upper))

    def _of_many(
        self,
        shard: StateShard,
        group: TemporalState,
        step: StateStep,
        state: ShardState,
        *,
        due: pa.Table | None,
        source: tuple[StepPlan, Found] | None,
    ) -> StagedInterval:
        """A change by Spark, staged."""
        session, at = step.session, state.upper.time
        assert at is not None, shard.name
        if due is None:
            held, volume = shard.contents(session, state, at), volume_of_shards([state])
        else:
            held = rows_in_driver(session, due, group.schema)
            volume = Volume(rows=due.num_rows)
        held = self._one_task.inputs(session, {"held": held}, volume)["held"]
        changes = None
        if source is not None:
            plan, found = source
            changes = self._one_task.over(session, plan, step.changes, found)
        change = group.elapsed(session, changes, group.held_frame(held, step.lower - 1))
        change = change.where(F.col(TS) >= F.lit(step.lower).cast("bigint"))
        if step.upper is not None:
            change = change.where(F.col(TS) < F.lit(step.upper).cast("bigint"))
        few = collect_interval(change, shard.options) if due is not None else None
        return stage_interval(change, shard.options) if few is None else few.stage(few.rows)


def _within(rows: pa.Table, lower: int, upper: int | None) -> pa.Table:
    """The updates of an interval."""
    found = rows.filter(pc.greater_equal(rows[TS], lower))
    return found if upper is None else found.filter(pc.less(found[TS], upper))
