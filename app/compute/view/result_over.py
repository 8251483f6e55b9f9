"""A view's rows at one time, by what its query says of the contents of its states.

    result = result_over(step, plan, at, schema, one_task)

States have added up what the query's aggregates read: nobody reads it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardline.app.compute.view.input_changes import volume_of_shards
from shardline.app.compute.view.output_correction import Result
from shardline.app.compute.view.view_columns import fit_columns
from shardline.datasource.frames import ROWS_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from shardline.app.compute.view.change_plan import StepPlan
    from shardline.app.compute.view.kept_jobs import FewRows
    from shardline.app.compute.view.kept_plan import Leaf
    from shardline.app.compute.view.one_task import OneTask
    from shardline.app.compute.view.state_step import StateStep

__all__ = ["result_over"]


def result_over(
    step: StateStep, plan: StepPlan, at: int, schema: StructType, one_task: OneTask
) -> Result:
    """The rows at a time of the step, to whose end all states have been brought.

    Args:
        step: The step.
        plan: The query over contents of states, and perhaps of inputs.
        at: The time.
        schema: The view's columns.
        one_task: Of the view.
    """
    session = step.session
    read = [state for name, (_, state) in step.states.items() if name in plan.before]
    read += [step.inputs[name] for name in plan.before - step.states.keys()]
    volume = volume_of_shards(read)

    def over_frames(contents: Mapping[str, DataFrame]) -> DataFrame:
        return fit_columns(plan.over(session, {}, contents), schema)

    def frame() -> DataFrame:
        return over_frames(one_task.inputs(session, step.contents_at(plan.before, at), volume))

    def over(frames: Mapping[Leaf, DataFrame]) -> DataFrame:
        return over_frames({leaf.name: one for leaf, one in frames.items()})

    def read_few_rows() -> Mapping[Leaf, FewRows] | None:
        return step.few_at(plan, at) if volume.rows <= ROWS_MAX else None

    return Result(frame, volume, plan, read_few_rows, over)
