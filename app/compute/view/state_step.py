"""A step of a view has what is known of it while it is taken: interval, inputs, states, changes.

States are brought along one after the other, each before what reads it. The step is where each
finds the shards and changes of those before it, under the names by which the plan knows them.

Invariants:
    Contents are as of right before the step, whatever has been appended since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from shardline.app.compute.view.change_plan import ChangePlan, StepPlan
from shardline.app.compute.view.input_changes import InputChanges, volume_of_shards
from shardline.app.compute.view.kept_jobs import FewRows
from shardline.app.compute.view.kept_plan import Leaf
from shardline.app.compute.view.state_shard import StateShard
from shardline.app.compute.view.step_changes import StepChanges
from shardline.app.compute.view.temporal_rule import TemporalState
from shardline.datasource.frames import BYTES_MAX
from shardline.datasource.state import ShardState, Volume, plan_changes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TOUCHED_MAX", "StateStep"]

TOUCHED_MAX: Final = 10_000_000
"""Rows of touched keys, counted at each of their times, that one step computes whatever the size of
its inputs; above it no more than they have."""


@dataclass(slots=True)
class StateStep:
    """A step of a view, as far as it is known; states add to it.

    Attributes:
        session: The one that the frames are of.
        plan: The view's.
        lower: First time, the output's upper.
        upper: Its end, exclusive; None for no end.
        inputs: States of the inputs, by name.
        changes: Changes of the inputs in the step, and of the states that have been brought along.
        changed: Names of those in which there may be a row.
        snapshot: Contents of an input at a time.
        news: When inputs change in the step, as far as their states show it.
        checked: True if one of its keys is recomputed, and compared; it has an end then.
        states: Those that have been brought along: their shards, and these' states.
        tables: Changes that have been read into this process; None of those that are many.
    """

    session: SparkSession
    plan: ChangePlan
    lower: int
    upper: int | None
    inputs: Mapping[str, ShardState]
    changes: StepChanges
    changed: set[str]
    snapshot: Callable[[str, int], DataFrame]
    news: InputChanges
    checked: bool = False
    states: dict[str, tuple[StateShard, ShardState]] = field(default_factory=dict)
    tables: dict[str, pa.Table | None] = field(default_factory=dict)

    @property
    def has_large_news(self) -> bool:
        """True if what has changed is not small: a few rows of it may be large."""
        return self.news.volume.size_bytes > BYTES_MAX

    @property
    def last(self) -> int:
        """The last time of the step, which has an end."""
        assert self.upper is not None, self.lower
        return self.upper - 1

    def is_too_large(self, plan: StepPlan, read: Volume) -> bool:
        """True if keys that are computed anew have too many rows at their times.

        The query, run anew at each time, has more; but one time after the other. Rows are counted
        only where there may be so many, as that reads them.

        Args:
            plan: Of the step, or of what a state groups.
            read: An upper bound of what the plan reads.
        """
        if plan.numbers is None or read.rows * (self._times_max() + 1) <= TOUCHED_MAX:
            return False
        # Before the plan is run: it has all rows of a key at each time at which the key changes, in
        # one job, where the query run anew takes one time after the other.
        counted = plan.numbers()
        frame = counted.over(self.session, self.changes, self.contents(counted.before))
        rows = volume_of_shards(self.inputs.values()).rows
        return sum(int(number) for (number,) in frame.collect()) > max(TOUCHED_MAX, rows)

    def _times_max(self) -> int:
        """An upper bound of the number of times at which anything changes."""
        # Each row of a temporal filter may come or go at a time of its own.
        timed = {one.name for one in self.plan.states if isinstance(one, TemporalState)}
        parts = (
            planned.part
            for name, (_, state) in self.states.items()
            if name in timed
            for planned in plan_changes(state, self.lower, self.upper)
        )
        return len(self.news.known) + Volume.of(parts).rows

    def contents(self, names: frozenset[str]) -> dict[str, DataFrame]:
        """Contents before the step, of inputs and of states."""
        # Not at its end: rules combine them with the step's changes, which would count twice.
        return {name: self._contents(name) for name in names}

    def contents_at(self, names: frozenset[str], time: int) -> dict[str, DataFrame]:
        """Contents at a time of the step or right before it, of inputs and of states.

        All states have been brought to the step's end.
        """
        inputs = {name: self.snapshot(name, time) for name in names if name in self.inputs}
        return inputs | {
            name: shard.contents(self.session, state, time + 1)
            for name, (shard, state) in self.states.items()
            if name in names
        }

    def few_at(self, plan: StepPlan, time: int) -> dict[Leaf, FewRows] | None:
        """The same, read by this process; None if they are not few, or if it reads inputs, too."""
        found: dict[Leaf, FewRows] = {}
        if not plan.before <= self.states.keys():
            return None
        for name in sorted(plan.before):
            shard, state = self.states[name]
            few = shard.few(state, time + 1, plan.columns[name])
            if few is None:
                return None
            found[Leaf(name, before=True)] = few
        return found

    def shard(self, name: str) -> tuple[ShardState, int, int | None]:
        """An input or a state by its name: its shard, and the step's interval in it."""
        if name not in self.states:
            return self.inputs[name], self.lower, self.upper
        # A state that nothing has changed may end before the step does, or before it begins.
        _, state = self.states[name]
        settled = state.upper.time
        if settled is None:
            return state, self.lower, self.upper
        upper = settled if self.upper is None else min(settled, self.upper)
        return state, min(self.lower, settled), upper

    def _contents(self, name: str) -> DataFrame:
        if name not in self.states:
            return self.snapshot(name, self.lower - 1)
        shard, state = self.states[name]
        # Not up to its upper: the state has been brought to the step's end before what reads it.
        return shard.contents(self.session, state, self.lower)
