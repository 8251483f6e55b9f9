"""States of LIMITs follow the first rows that they are over, one time of a step after the other.

    steps.change(…)      the state's change in a step, staged

Rows are read by this process, and a kept plan says which of them come through: at most a thousand.

Invariants:
    At each time of a step the state has what the LIMIT lets through of the first rows at that time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline.app.compute.view.change_operators import NotIncremental
from shardline.app.compute.view.change_times import read_times
from shardline.app.compute.view.input_changes import find_input_changes
from shardline.app.compute.view.kept_jobs import (
    RESULT_BYTES_MAX,
    RESULT_ROWS_MAX,
    KeptJobs,
    ShardRows,
    is_too_much,
)
from shardline.app.compute.view.one_task import OneTask
from shardline.app.compute.view.output_contents import correct_in_memory
from shardline.datasource.frames import SmallTarget, StagedInterval, small_target
from shardline.datasource.schema import DIFF, TS
from shardline.datasource.state import ShardState, Volume
from shardline.datasource.updates import consolidate, stamp

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from shardline.app.compute.view.change_plan import StepPlan
    from shardline.app.compute.view.choice_rule import LimitState
    from shardline.app.compute.view.kept_plan import Leaf
    from shardline.app.compute.view.state_shard import StateShard
    from shardline.app.compute.view.state_step import StateStep
    from shardline.app.execution.host import Host

__all__ = ["LimitSteps"]

_MANY: Final = "a LIMIT of too many first rows"


class LimitSteps:
    """Of one view. Used by one thread at a time."""

    def __init__(self, host: Host, one_task: OneTask, jobs: KeptJobs) -> None:
        """No I/O.

        Args:
            host: What the view runs in.
            one_task: Of the view.
            jobs: Of the view.
        """
        self._host = host
        self._one_task = one_task
        self._jobs = jobs

    def change(
        self, shard: StateShard, group: LimitState, step: StateStep, state: ShardState
    ) -> StagedInterval | None:
        """A state's change in a step in which the first rows have changed, staged.

        None if the same rows come through as before.

        Args:
            shard: The state's shard.
            group: What it is a state of.
            step: The step.
            state: The shard's state, which holds until the step begins.

        Raises:
            NotIncremental: Of the first rows there are too many to be read by this process.
        """
        at = state.upper.time
        assert at is not None, shard.name
        target = small_target(group.changes, shard.options)
        plan = step.plan.source_contents(group)
        few = shard.few(state, at, group.schema)
        if few is None:
            held = _collected(target, _as_updates(shard.contents(step.session, state, at)))
        else:
            held = _contents(few.table)
        changes = []
        for time in self._times(group, step):
            rows = self._rows(target, plan, group, step, time)
            moved = correct_in_memory(rows, held)
            changes.append(_at(moved, time))
            held = rows
        if not any(one.num_rows for one in changes):
            return None
        return target.stage(pa.concat_tables(changes))

    def _times(self, group: LimitState, step: StateStep) -> list[int]:
        """The times of the step at which the first rows change, ascending."""
        found = [step.states[name][1] for name in group.source.inputs]
        news = find_input_changes(found, step.lower, step.upper)
        if news.spread:
            news = read_times(step.session, self._host, news, step.lower, step.upper)
        return list(news.known)

    def _rows(
        self, target: SmallTarget, plan: StepPlan, group: LimitState, step: StateStep, time: int
    ) -> pa.Table:
        """The rows that come through at a time, consolidated."""
        session, given = step.session, step.few_at(plan, time)

        def over_frames(contents: Mapping[str, DataFrame]) -> DataFrame:
            rows = plan.over(session, {}, contents)
            # Each is at one time, which is told apart from the plan: that is kept.
            return _as_updates(rows)

        def over(frames: Mapping[Leaf, DataFrame]) -> DataFrame:
            return over_frames({leaf.name: one for leaf, one in frames.items()})

        if given is None:
            # Of few rows the history may be long: Spark adds it up.
            return _collected(target, over_frames(step.contents_at(plan.before, time)))

        def frame() -> DataFrame:
            contents = step.contents_at(plan.before, time)
            volume = Volume(rows=sum(one.table.num_rows for one in given.values()))
            return over_frames(self._one_task.inputs(session, contents, volume))

        asked = ShardRows(target, over, frame)
        rows = asked.by(self._jobs, (step.plan, group.name), session, given)
        if rows is None:
            raise NotIncremental(_MANY)
        return consolidate(rows.drop_columns([TS]))


def _as_updates(rows: DataFrame) -> DataFrame:
    return rows.withColumns({TS: _number(0), DIFF: _number(1)})


def _collected(target: SmallTarget, updates: DataFrame) -> pa.Table:
    """Updates by a job of Spark's, consolidated.

    Raises:
        NotIncremental: They are too many for this process.
    """
    rows = target.collect(
        updates, rows_max=RESULT_ROWS_MAX, bytes_max=RESULT_BYTES_MAX, may_be_large=True
    )
    if rows is None or is_too_much(rows):
        raise NotIncremental(_MANY)
    return consolidate(rows.drop_columns([TS]))


def _contents(rows: pa.Table) -> pa.Table:
    return consolidate(stamp(rows, 0).drop_columns([TS]))


def _at(rows: pa.Table, time: int) -> pa.Table:
    """Updates that happen at a time."""
    return rows.append_column(TS, pa.array([time] * rows.num_rows, pa.int64()))


def _number(value: int) -> Column:
    return F.lit(value).cast("bigint")
