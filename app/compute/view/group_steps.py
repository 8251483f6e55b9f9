"""States of groups follow what they group: each change adds to groups, or takes away from them.

    steps.change(…)      the state's change in a step, staged

Where the least or greatest value of a group goes, a state does not tell the next one. It is among
the first rows of the group in the order of the values, which are looked up (`first_of_keys`). Where
they cannot be, the groups that have changed are made anew of all of their rows (`touched_keys`), in
the same step.

Invariants:
    What is there of a group is looked up where few have moved, and read by Spark where many have.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from shardline.app.compute.cached_frames import cache_frame
from shardline.app.compute.view.change_operators import NotIncremental
from shardline.app.compute.view.found_rows import Found, FoundRows, rows_in_driver
from shardline.app.compute.view.input_changes import volume_of_shards
from shardline.app.compute.view.kept_jobs import (
    RESULT_BYTES_MAX,
    RESULT_ROWS_MAX,
    FewRows,
    KeptJobs,
    ShardRows,
    StepJob,
    is_too_much,
)
from shardline.app.compute.view.kept_plan import Leaf
from shardline.app.compute.view.moved_groups import HELD, MOVED, MergedGroups, MovedGroups
from shardline.app.compute.view.one_task import OneTask
from shardline.app.compute.view.result_steps import ResultSteps
from shardline.datasource.frames import (
    ROWS_MAX,
    SmallTarget,
    StagedInterval,
    collect_few,
    collect_interval,
    small_target,
    stage_interval,
    to_arrow,
)
from shardline.datasource.state import ShardState, Volume

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shardline.app.compute.view.aggregate_rule import GroupState
    from shardline.app.compute.view.change_plan import StepPlan
    from shardline.app.compute.view.state_shard import StateShard
    from shardline.app.compute.view.state_step import StateStep

__all__ = ["GroupSteps"]


class GroupSteps:
    """Of one view. Used by one thread at a time."""

    def __init__(
        self, rows: FoundRows, one_task: OneTask, jobs: KeptJobs, results: ResultSteps
    ) -> None:
        """No I/O; all are the view's."""
        self._rows = rows
        self._one_task = one_task
        self._jobs = jobs
        self._results = results
        self._moved_rows = 0

    def change(
        self,
        shard: StateShard,
        group: GroupState,
        step: StateStep,
        state: ShardState,
        source: tuple[StepPlan, Found],
    ) -> tuple[StagedInterval | None, pa.Table | None]:
        """A state's change in a step, staged, and as it would be read; None if there is none.

        Args:
            shard: The state's shard.
            group: What it is a state of.
            step: The step.
            state: The shard's state, which holds until the step begins.
            source: The plan of the changes of what is grouped, with what it is over.

        Returns:
            As it would be read is None as well where that is not known.

        Raises:
            NotIncremental: The step must be recomputed.
        """
        moved = self._moved(group, step, *source)
        try:
            if not moved.rows:
                return None, None
            return self._merged(shard, group, step, state, moved=moved, source=source)
        finally:
            moved.release()

    def _moved(
        self, group: GroupState, step: StateStep, source: StepPlan, found: Found
    ) -> MovedGroups:
        """What the step adds to groups, computed once: what follows reads it more than once."""
        # What the last change came to tells what to expect.
        if self._moved_rows <= RESULT_ROWS_MAX:
            table = self._few_moved(group, step, source, found)
            if table is not None and not is_too_much(table):
                self._moved_rows = table.num_rows
                make = partial(rows_in_driver, step.session, table, group.moved_columns)
                return MovedGroups(make, table.num_rows, table)
        cached = cache_frame(self._moved_frame(group, step, source, found))
        try:
            self._moved_rows = cached.rows.count()
        except BaseException:
            # Nobody else knows of it yet: Spark would keep its rows for as long as the process.
            cached.release()
            raise
        return MovedGroups(lambda: cached.rows, self._moved_rows, None, cached.release)

    def _moved_frame(
        self, group: GroupState, step: StateStep, source: StepPlan, found: Found
    ) -> DataFrame:
        session = step.session
        return group.moved(session, self._one_task.over(session, source, step.changes, found))

    def _few_moved(
        self, group: GroupState, step: StateStep, source: StepPlan, found: Found
    ) -> pa.Table | None:
        """The rows of `_moved`; None, or what `is_too_much`, if they are too many."""

        def make(frames: Mapping[Leaf, DataFrame]) -> DataFrame:
            return group.moved(step.session, source.over_leaves(step.session, frames))

        def ordinary(rows_max: int = RESULT_ROWS_MAX) -> pa.Table | None:
            moved = self._moved_frame(group, step, source, found)
            large = step.has_large_news
            return collect_few(moved, rows_max, RESULT_BYTES_MAX, may_be_large=large)

        given = self._rows.few(step, source, found)
        if given is None:
            # Of much: few groups may have moved, but many of them may be large.
            return ordinary(ROWS_MAX)
        key, most = (source, group.name), RESULT_ROWS_MAX + 1
        return self._jobs.rows(StepJob(key, step.session, given, make, ordinary, most))

    def _merged(
        self,
        shard: StateShard,
        group: GroupState,
        step: StateStep,
        state: ShardState,
        *,
        moved: MovedGroups,
        source: tuple[StepPlan, Found],
    ) -> tuple[StagedInterval, pa.Table | None]:
        """What `moved` makes of a state; as of `change`."""
        session, at, found = step.session, state.upper.time, None
        assert at is not None, shard.name
        if moved.table is not None:
            # Groups that have moved, and perhaps others; None if Spark must search.
            key = tuple(name for name in moved.table.column_names if name.startswith("k"))
            found = self._rows.rows(state, key, moved.table, at - 1)
        if found is not None and moved.table is not None:
            few_moved = FewRows(moved.table, group.moved_columns)
            merged = MergedGroups(group, few_moved, FewRows(found, group.schema))
            target = small_target(group.changes, shard.options)
            # Before the merge, which only compares values that come with the one that is kept: it
            # would go on showing a least value of which the last row has gone.
            if moved.takes_values_away() and self._loses_extremes(step, merged):
                fresh = self._refreshed(target, step, merged, source)
                if fresh is None:
                    return self._anew(shard, group, step)
                return target.stage(fresh), target.as_read(fresh)
            is_few = moved.rows <= RESULT_ROWS_MAX // 2  # each is two updates: one goes, one comes
            few = self._merged_few(target, step, merged) if is_few else None
            if few is not None:
                return target.stage(few), target.as_read(few)
            held, volume = rows_in_driver(session, *merged.held), Volume(rows=found.num_rows)
        else:
            held, volume = shard.contents(session, state, at), volume_of_shards([state])
        frames = self._one_task.inputs(session, {"moved": moved.frame(), "held": held}, volume)
        if found is None and moved.takes_values_away():
            lost = group.lost_extremes(session, frames["moved"], frames["held"])
            if lost is not None and lost.take(1):
                return self._anew(shard, group, step)
        rows = group.merged(session, frames["moved"], frames["held"], found=found is not None)
        is_small = found is not None and moved.rows <= ROWS_MAX // 2
        small = collect_interval(rows, shard.options) if is_small else None
        staged = stage_interval(rows, shard.options) if small is None else small.stage(small.rows)
        return staged, None

    def _merged_few(
        self, target: SmallTarget, step: StateStep, merged: MergedGroups
    ) -> pa.Table | None:
        """A state's change by a kept plan; None if it is to be computed another way."""
        session, group = step.session, merged.group

        def over(frames: Mapping[Leaf, DataFrame]) -> DataFrame:
            return group.merged(session, frames[MOVED], frames[HELD], found=True)

        def frame() -> DataFrame:
            volume = Volume(rows=merged.held.table.num_rows)
            return over(self._one_task.inputs(session, merged.frames(session), volume))

        asked = ShardRows(target, over, frame)
        return asked.by(self._jobs, (step.plan, group.name), session, merged.few_rows)

    def _refreshed(
        self,
        target: SmallTarget,
        step: StateStep,
        merged: MergedGroups,
        source: tuple[StepPlan, Found],
    ) -> pa.Table | None:
        """A state's change, its least and greatest values by the first rows of its groups.

        None if these are to be made anew of all of their rows.
        """
        session, group = step.session, merged.group
        changes = self._rows.few(step, *source)
        # Afterwards: nothing is looked up for a change of many rows.
        fronts = None if changes is None else self._fronts(step, group)
        if fronts is None or changes is None:
            return None
        plans = [plan for plan, _ in fronts]
        leaves = [Leaf(f"front {place}", before=True) for place, _ in enumerate(fronts)]
        given = {**merged.few_rows, **changes}
        given |= {leaf: rows for leaf, (_, rows) in zip(leaves, fronts, strict=True)}
        number = sum(one.table.num_rows for one in given.values())
        if number > ROWS_MAX:
            return None

        def over(frames: Mapping[Leaf, DataFrame]) -> DataFrame:
            news = source[0].over_leaves(session, {leaf: frames[leaf] for leaf in changes})
            there = [
                plan.over_leaves(session, {plan.look_ups[0].leaf: frames[leaf]})
                for plan, leaf in zip(plans, leaves, strict=True)
            ]
            tables = {"moved": frames[MOVED], "state": frames[HELD], "changes": news}
            return group.refreshed(session, tables, there)

        def frame() -> DataFrame:
            frames = {leaf: rows_in_driver(session, *one) for leaf, one in given.items()}
            return over(self._one_task.inputs(session, frames, Volume(rows=number)))

        asked = ShardRows(target, over, frame)
        return asked.by(self._jobs, (step.plan, group.name, *plans), session, given)

    def _fronts(self, step: StateStep, group: GroupState) -> list[tuple[StepPlan, FewRows]] | None:
        """For each least or greatest value of a state its plan and rows (`front_step`).

        None if one of them cannot be looked up.
        """
        fronts: list[tuple[StepPlan, FewRows]] = []
        if not group.extremes:
            return None
        for function, column in group.extremes:
            try:
                changed = step.changed & group.source.inputs
                plan = step.plan.front_step(group, function, column, changed)
            except NotIncremental:
                return None
            found = self._rows.find(step, plan)
            (one,) = plan.look_ups
            table = None if found is None else found.tables[one.leaf]
            if table is None:
                return None
            fronts.append((plan, FewRows(table, plan.columns[one.leaf.name])))
        return fronts

    def _loses_extremes(self, step: StateStep, merged: MergedGroups) -> bool:
        """True if the least or greatest value of a group may have gone."""
        session, group = step.session, merged.group

        def lost(frames: Mapping[Leaf, DataFrame]) -> DataFrame | None:
            return group.lost_extremes(session, frames[MOVED], frames[HELD])

        def ordinary() -> pa.Table | None:
            found = lost(merged.frames(session))
            return None if found is None else to_arrow(found.limit(1))

        key = (step.plan, group.name, "lost")
        rows = self._jobs.rows(StepJob(key, session, merged.few_rows, lost, ordinary, 1))
        return rows is not None and rows.num_rows > 0

    def _anew(
        self, shard: StateShard, group: GroupState, step: StateStep
    ) -> tuple[StagedInterval, pa.Table | None]:
        """What all rows of the groups that have moved come to; as of `change`."""
        # Of all rows of the groups: a state keeps one least value of each, and not the next one.
        plan = step.plan.anew_step(group, step.changed & group.source.inputs)
        found = self._rows.find(step, plan)
        if found is None or step.is_too_large(plan, found.volume):
            raise NotIncremental("a state could not follow")
        return self._results.staged(shard, group, step, (plan, found))
