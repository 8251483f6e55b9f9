"""States of first rows follow what is ordered, as long as they have the rows that are needed.

    steps.change(…)              the state's change in a step, staged
    steps.checked(…)             the rows of a state that is made, if they are enough

Most changes are behind the rows that a state has, and leave it as it is: then nothing is appended,
and the view has nothing to do. Rows of the state are few, and read by this process; for a LIMIT of
thousands, and where much has changed, Spark reads them.

Invariants:
    A state has, at each time of a step, as many rows as the query needs, or all that there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline.app.compute.cached_frames import cache_frame
from shardline.app.compute.view.change_operators import NotIncremental
from shardline.app.compute.view.first_rows_rule import END, FirstRowsState
from shardline.app.compute.view.found_rows import Found, FoundRows, rows_in_driver
from shardline.app.compute.view.input_changes import volume_of_shards
from shardline.app.compute.view.kept_jobs import FewRows, KeptJobs, ShardRows
from shardline.app.compute.view.kept_plan import Leaf
from shardline.app.compute.view.one_task import OneTask
from shardline.datasource.frames import StagedInterval, small_target, stage_interval
from shardline.datasource.schema import DIFF, TS
from shardline.datasource.state import ShardState, Volume

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from shardline.app.compute.view.change_plan import StepPlan
    from shardline.app.compute.view.state_rules import State
    from shardline.app.compute.view.state_shard import StateShard
    from shardline.app.compute.view.state_step import StateStep

__all__ = ["FirstRowsSteps"]

_HELD: Final = Leaf("first rows", before=True)
"""Rows of a state; no object has such a name."""


class FirstRowsSteps:
    """Of one view. Used by one thread at a time."""

    def __init__(self, rows: FoundRows, one_task: OneTask, jobs: KeptJobs) -> None:
        """No I/O; all are the view's."""
        self._rows = rows
        self._one_task = one_task
        self._jobs = jobs

    def change(
        self,
        shard: StateShard,
        group: FirstRowsState,
        step: StateStep,
        state: ShardState,
        source: tuple[StepPlan, Found],
    ) -> StagedInterval | None:
        """A state's change in a step, staged; None if nothing changes.

        Args:
            shard: The state's shard.
            group: What it is a state of.
            step: The step.
            state: The shard's state, which holds until the step begins.
            source: The plan of the changes of what is ordered, with what it is over.

        Raises:
            NotIncremental: Of the rows that are needed too few would be left at one of its times.
        """
        rows = self._of_few(shard, group, step, state, source)
        if rows is None:
            rows = self._of_many(shard, group, step, state, source)
        if rows.rows:
            return rows
        rows.discard()
        return None

    @contextmanager
    def checked(self, group: State, contents: DataFrame) -> Iterator[DataFrame]:
        """The rows of a state that is made, if they are as many as are needed, or all that are.

        Those of other kinds always are.

        Args:
            group: What it is a state of.
            contents: Its rows.

        Raises:
            NotIncremental: They are fewer.
        """
        if not isinstance(group, FirstRowsState):
            yield contents
            return
        cached = cache_frame(contents)
        try:
            _check(group, _counted(cached.rows.groupBy(END).agg(F.count("*"))), ())
            yield cached.rows
        finally:
            cached.release()

    def _of_few(
        self,
        shard: StateShard,
        group: FirstRowsState,
        step: StateStep,
        state: ShardState,
        source: tuple[StepPlan, Found],
    ) -> StagedInterval | None:
        """A change by a kept plan, staged; None if what it follows from, or is, is much."""
        plan, found = source
        at = state.upper.time
        assert at is not None, shard.name
        given = self._rows.few(step, plan, found)
        few = None if given is None else shard.few(state, at, group.schema)
        if given is None or few is None:
            return None
        session, target = step.session, small_target(group.changes, shard.options)
        trimmed = few.table.num_rows > group.rows_max
        held = FewRows(group.held_table(few.table, step.lower), group.held)
        given = {**given, _HELD: held}

        def over(frames: Mapping[Leaf, DataFrame]) -> DataFrame:
            others = {leaf: one for leaf, one in frames.items() if leaf != _HELD}
            changes = plan.over_leaves(session, others)
            return group.change(session, changes, frames[_HELD], trimmed=trimmed)

        def frame() -> DataFrame:
            frames = {leaf: rows_in_driver(session, *one) for leaf, one in given.items()}
            rows = sum(one.table.num_rows for one in given.values())
            return over(self._one_task.inputs(session, frames, Volume(rows=rows)))

        asked = ShardRows(target, over, frame)
        rows = asked.by(self._jobs, (step.plan, group.name, plan, trimmed), session, given)
        if rows is None:
            return None
        _check(group, _counts_of(few.table), _moves_of(rows))
        return target.stage(rows)

    def _of_many(
        self,
        shard: StateShard,
        group: FirstRowsState,
        step: StateStep,
        state: ShardState,
        source: tuple[StepPlan, Found],
    ) -> StagedInterval:
        """A change by Spark, staged."""
        session, at = step.session, state.upper.time
        assert at is not None, shard.name
        plan, found = source
        contents = {"held": shard.contents(session, state, at)}
        held = self._one_task.inputs(session, contents, volume_of_shards([state]))["held"]
        counts = _counted(held.groupBy(END).agg(F.count("*")))
        changes = self._one_task.over(session, plan, step.changes, found)
        given = group.held_frame(held, step.lower)
        # Kept, as it is looked at before it is staged.
        cached = cache_frame(group.change(session, changes, given, trimmed=True))
        try:
            moves = cached.rows.groupBy(TS, END).agg(F.sum(DIFF)).collect()
            _check(group, counts, ((time, is_end, diff) for time, is_end, diff in moves))
            return stage_interval(cached.rows, shard.options)
        finally:
            cached.release()


def _counted(rows: DataFrame) -> dict[bool, int]:
    return {bool(is_end): int(count) for is_end, count in rows.collect()}


def _counts_of(rows: pa.Table) -> dict[bool, int]:
    """How many rows there are, and how many ends."""
    counts = rows.group_by(END).aggregate([(END, "count")]).to_pylist()
    return {row[END]: row[f"{END}_count"] for row in counts}


def _moves_of(rows: pa.Table) -> Iterable[tuple[int, bool, int]]:
    """By how many rows, and how many ends, a change is more at each of its times."""
    counts = rows.group_by([TS, END]).aggregate([(DIFF, "sum")]).to_pylist()
    return ((row[TS], row[END], row[f"{DIFF}_sum"]) for row in counts)


def _check(
    group: FirstRowsState, held: Mapping[bool, int], moves: Iterable[tuple[int, bool, int]]
) -> None:
    """Refuse a step in which a state has too few rows at a time.

    Args:
        group: What it is a state of.
        held: How many rows are held before, and how many ends.
        moves: Times with how many rows, or ends, are more from then on.
    """
    by_time: dict[int, int] = {}
    ends = held.get(True, 0)
    for time, is_end, diff in moves:
        if is_end:
            ends += diff  # it goes at the step's first time
        else:
            by_time[time] = by_time.get(time, 0) + diff
    if ends > 0:
        return  # there are no others
    rows = least = held.get(False, 0)
    for time in sorted(by_time):
        rows += by_time[time]
        least = min(least, rows)
    if least < group.needed:
        raise NotIncremental("too few of the first rows are left")
