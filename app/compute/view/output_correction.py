"""A correction is what a view's output lacks of its query's result at one time, staged.

    corrections = OutputCorrections(…)
    corrections.of(session, result, upper)      the correction of the output before `upper`

A small output is known in memory, and compared there. Where what the query is over is small as
well, it is read by this process, and handed to a kept plan (`kept_jobs`): no job is run at all. Of
an output that has nothing yet, the rows of such a query are collected: that is half of what it
takes Spark to group them and to write a file.

Invariants:
    The correction is the same, whichever way was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.compute.view.correction import correction_frame
from shardline.app.compute.view.kept_jobs import FewRows, KeptJobs, ShardRows
from shardline.app.compute.view.kept_plan import Leaf
from shardline.app.compute.view.output_contents import OutputContents, correct_in_memory
from shardline.datasource.frames import (
    BYTES_MAX,
    ROWS_MAX,
    SmallTarget,
    StagedInterval,
    small_target,
    stage_interval,
    updates_in_driver,
)
from shardline.datasource.schema import DIFF, TS
from shardline.datasource.updates import consolidate, expand_copies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from shardline.datasource.client import ShardClient
    from shardline.datasource.sink import SinkOptions
    from shardline.datasource.state import Volume

__all__ = ["Correction", "OutputCorrections", "Result", "few_contents"]

_FEW: Final = 8_192
"""Updates of a shard whose contents are read by this process."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What makes an output what its query says at one time.

    Attributes:
        rows: Updates of the output, staged; None where they are none or not known.
        desired: The contents afterwards, if they are few.
    """

    rows: StagedInterval | None = None
    desired: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A query's result at one time; nothing of it is run yet.

    Attributes:
        frame: Makes it of frames of what the query is over.
        volume: Of all that the query is over.
        key: Stands for its plan.
        read_few_rows: Reads all that the query is over; None if that is not little.
        over: Makes the result of frames of these rows.
    """

    frame: Callable[[], DataFrame]
    volume: Volume
    key: Hashable
    read_few_rows: Callable[[], Mapping[Leaf, FewRows] | None]
    over: Callable[[Mapping[Leaf, DataFrame]], DataFrame]


@dataclass(frozen=True, slots=True)
class OutputCorrections:
    """Of one rendering of a view. Used by one thread at a time.

    Attributes:
        contents: Of the output, as far as they are known.
        schema: The view's columns.
        options: By which rows are staged for its shard.
        jobs: The view's kept plans.
        held: All updates of the output before a time, without times.
    """

    contents: OutputContents
    schema: StructType
    options: SinkOptions
    jobs: KeptJobs
    held: Callable[[SparkSession, int], DataFrame]

    def of(self, session: SparkSession, result: Result, upper: int) -> Correction:
        """The correction of the output before `upper`, staged."""
        target = small_target(self.schema, self.options)
        if upper == 0:
            return self._first(result, target)
        known = self.contents.at(upper)
        rows = None if known is None else self._few(session, result, target)
        if known is None or rows is None:
            held = self.held(session, upper)
            return Correction(stage_interval(correction_frame(result.frame(), held), self.options))
        desired = consolidate(rows)
        return Correction(target.stage(correct_in_memory(desired, known)), desired)

    def _first(self, result: Result, target: SmallTarget) -> Correction:
        """The result as the first rows of an output."""
        # Not of much: a result that is too large to be collected is computed a second time. And not
        # of large rows: all that are collected are in memory before their bytes are counted.
        little = result.volume.is_at_most(ROWS_MAX, BYTES_MAX)
        rows = target.collect(result.frame()) if little else None
        if rows is None:
            return Correction(stage_interval(correction_frame(result.frame(), None), self.options))
        desired = consolidate(rows)
        return Correction(target.stage(desired), desired)

    def _few(self, session: SparkSession, result: Result, target: SmallTarget) -> pa.Table | None:
        """The result's rows, each with a diff; None if they are too many to be collected."""
        given = result.read_few_rows()
        if given is None:
            # As before there may be few of them, and now each may be large.
            may_be_large = result.volume.size_bytes > BYTES_MAX
            return target.collect(result.frame(), may_be_large=may_be_large)
        rows = ShardRows(target, result.over, result.frame)
        return rows.by(self.jobs, result.key, session, given)


def few_contents(client: ShardClient, name: str, end: int, columns: StructType) -> FewRows | None:
    """The rows of a shard right before a time; None if Spark is to read them.

    Args:
        client: Of the shard's location.
        name: The shard.
        end: The time, which is settled before.
        columns: The shard's columns.
    """
    updates = updates_in_driver(
        client, name, start=None, end=end, rows_max=_FEW, bytes_max=BYTES_MAX
    )
    if updates is None:
        return None
    rows = consolidate(updates.drop_columns([TS]))
    diffs = pc.min_max(rows[DIFF])
    # Of rows that are there less often than never, Spark's own reader says what there is to say.
    if rows.num_rows and (diffs["min"].as_py() < 0 or diffs["max"].as_py() > _FEW):
        return None
    copies = list(expand_copies(rows)) if rows.num_rows else [rows.drop_columns([DIFF])]
    table = pa.concat_tables(copies)
    return FewRows(table, columns) if table.num_rows <= _FEW else None
