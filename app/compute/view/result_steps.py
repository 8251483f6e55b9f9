"""States follow plans that have all of their change: results of regions, and groups made anew.

    steps.change(…)          the change of a state of results, staged
    steps.staged(…)          the rows of a plan, staged

Invariants:
    What follows reads a change from the state, and never computes it again: then others of the
    rows that tie might come.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shardline.app.compute.view.kept_jobs import KeptJobs, ShardRows
from shardline.datasource.frames import StagedInterval, small_target, stage_interval

if TYPE_CHECKING:
    import pyarrow as pa

    from shardline.app.compute.view.change_plan import StepPlan
    from shardline.app.compute.view.choice_rule import ResultState
    from shardline.app.compute.view.found_rows import Found, FoundRows
    from shardline.app.compute.view.one_task import OneTask
    from shardline.app.compute.view.state_rules import State
    from shardline.app.compute.view.state_shard import StateShard
    from shardline.app.compute.view.state_step import StateStep

__all__ = ["ResultSteps"]


class ResultSteps:
    """Of one view. Used by one thread at a time."""

    def __init__(self, rows: FoundRows, one_task: OneTask, jobs: KeptJobs) -> None:
        """No I/O; all are the view's."""
        self._rows = rows
        self._one_task = one_task
        self._jobs = jobs

    def change(
        self,
        shard: StateShard,
        group: ResultState,
        step: StateStep,
        source: tuple[StepPlan, Found],
    ) -> tuple[StagedInterval | None, pa.Table | None]:
        """A state's change in a step, staged, and as it would be read; None if there is none.

        Args:
            shard: The state's shard.
            group: What it is a state of.
            step: The step.
            source: The plan of the change of the results, with what it is over: what the state has
                is a part of that.

        Returns:
            As it would be read is None as well where that is not known.
        """
        rows, as_read = self.staged(shard, group, step, source)
        if rows.rows:
            return rows, as_read
        rows.discard()
        return None, None

    def staged(
        self, shard: StateShard, group: State, step: StateStep, source: tuple[StepPlan, Found]
    ) -> tuple[StagedInterval, pa.Table | None]:
        """The rows of a plan that has all of a state's change, as of `change`."""
        plan, found = source
        session, target = step.session, small_target(group.changes, shard.options)
        frame = partial(self._one_task.over, session, plan, step.changes, found)
        given, rows = self._rows.few(step, plan, found), None
        if given is not None:
            asked = ShardRows(target, partial(plan.over_leaves, session), frame)
            rows = asked.by(self._jobs, plan, session, given)
        if rows is None:
            return stage_interval(frame(), shard.options), None
        return target.stage(rows), target.as_read(rows)
