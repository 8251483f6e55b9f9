"""The change of a view's output in a step: found, computed, checked and staged.

    change = OutputChange(…)
    rows, way = change.staged(step, plan)      nothing refers to the rows yet

Where all rows that the plan is over are few, and so is its result, nothing is read by Spark: rows
are handed to a kept plan (`kept_jobs`), and its result is staged by this process. Otherwise the
plan is put together of frames, and large results are written by Spark's tasks.

Invariants:
    A step that is checked is not staged where the check has found a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql.types import StructType

from shardline.app.compute.view.found_rows import FoundRows, rows_in_driver
from shardline.app.compute.view.kept_jobs import RESULT_ROWS_MAX, KeptJobs, ShardRows
from shardline.app.compute.view.one_task import OneTask
from shardline.app.compute.view.self_check import AskedBy, SelfCheck, asked_by, difference, key_of
from shardline.app.compute.view.view_columns import UPDATE_COLUMNS, fit_columns, with_times
from shardline.datasource.frames import (
    ROWS_MAX,
    StagedInterval,
    collect_interval,
    quoted,
    small_target,
    stage_interval,
)
from shardline.datasource.schema import DIFF, TS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from shardline.app.compute.view.change_plan import StepPlan
    from shardline.app.compute.view.found_rows import Found
    from shardline.app.compute.view.kept_plan import Leaf
    from shardline.app.compute.view.state_step import StateStep
    from shardline.app.protocol.objects import Strategy
    from shardline.datasource.sink import SinkOptions
    from shardline.datasource.state import ShardState

__all__ = ["OutputChange"]

Contents: TypeAlias = Callable[["SparkSession", int], "DataFrame"]
Result: TypeAlias = Callable[["SparkSession", int, Sequence["ShardState"]], "DataFrame"]


@dataclass(slots=True)
class OutputChange:
    """Of one rendering of a view. Used by one thread at a time.

    Attributes:
        view: The view.
        inputs: Names of its inputs, in the order of its description.
        schema: Its columns.
        options: By which rows are staged for its shard.
        found: Finds rows by key.
        one_task: Of the view.
        jobs: Its kept plans.
        check: Its self-check.
        result: The query's rows at a time, from inputs of these states.
        held: All updates of the output before a time, without times.
        touches_too_much: True if the last step was given up because of too many rows.
    """

    view: str
    inputs: Sequence[str]
    schema: StructType
    options: SinkOptions
    found: FoundRows
    one_task: OneTask
    jobs: KeptJobs
    check: SelfCheck
    result: Result
    held: Contents
    touches_too_much: bool = False
    _changed_rows: int = field(default=0, init=False)

    def staged(self, step: StateStep, plan: StepPlan) -> tuple[StagedInterval | None, Strategy]:
        """The rows of the change, and how they are computed.

        None if it must be recomputed: too many rows have the keys that have changed, or a check has
        found that one of them is not what the query gives.
        """
        found = self.found.find(step, plan)
        self.touches_too_much = found is None or step.is_too_large(plan, found.volume)
        if found is None or self.touches_too_much:
            return None, "recompute"
        rows = None if step.checked else self._by_kept_plan(step, plan, found)
        if rows is None:
            rows = self._staged(step, self._frame(step, plan, found))
        if rows is None:
            return None, "recompute"
        self._changed_rows = rows.rows
        needs_more = found.before or found.tables or step.plan.states
        return rows, "incremental" if needs_more else "linear"

    def _frame(self, step: StateStep, plan: StepPlan, found: Found) -> DataFrame:
        return self._fitted(self.one_task.over(step.session, plan, step.changes, found))

    def _fitted(self, changed: DataFrame) -> DataFrame:
        return fit_columns(changed, self.schema, (TS, DIFF))

    def _by_kept_plan(self, step: StateStep, plan: StepPlan, found: Found) -> StagedInterval | None:
        """The rows, staged; None if they, or the rows that they follow from, are many."""
        given = self.found.few(step, plan, found)
        if given is None or self._changed_rows > RESULT_ROWS_MAX // 2:
            return None
        target = small_target(with_times(self.schema), self.options)
        session = step.session

        def over(frames: Mapping[Leaf, DataFrame]) -> DataFrame:
            return self._fitted(plan.over_leaves(session, frames))

        asked = ShardRows(target, over, partial(self._frame, step, plan, found))
        rows = asked.by(self.jobs, plan, session, given)
        return None if rows is None else target.stage(rows)

    def _staged(self, step: StateStep, changed: DataFrame) -> StagedInterval | None:
        """The rows of a change, staged; None if a key of them is not what the query gives."""
        asked = asked_by(step.session, step.plan.query) if step.checked else None
        large, few = step.has_large_news, None
        if asked is not None:
            few = collect_interval(changed, self.options, may_be_large=large)
        if few is not None and asked is not None:
            # Before the step is appended, so that what is found to be wrong is not shown.
            compare = partial(self._difference, step, few.rows, asked)
            if self.check.finds(self.view, compare):
                return None
            return few.stage(few.rows)
        # What the last change came to tells what to expect; half, so that one whose changes are as
        # large as that is not run twice every other time. How large a row is it does not tell.
        small = self._changed_rows <= ROWS_MAX // 2 and not large
        return stage_interval(changed, self.options, small=small)

    def _difference(self, step: StateStep, changed: pa.Table, asked: Sequence[AskedBy]) -> str:
        """What rows of the output with a touched key lack of the query's, after the step."""
        session, names = step.session, self.schema.names
        key = key_of(self.check.touched(step, asked, names, self.found.changes), self.schema)
        inputs = [step.inputs[name] for name in self.inputs]
        columns = StructType([*self.schema.fields, UPDATE_COLUMNS[-1]])
        news = rows_in_driver(session, changed.select(columns.names), columns)
        held = self.held(session, step.lower).select(*map(quoted, columns.names)).unionAll(news)
        return difference(key, self.result(session, step.last, inputs), held)
