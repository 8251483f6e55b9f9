"""Starts the steps of a view: its plan over changes, before anything of a step is computed.

    starts = StepStarts(…)
    starts.over_changes(session, interval, news, states)    what follows from changes
    starts.over_states(session, at, states, is_first=…)     contents at one time, over states

Invariants:
    A step over changes ends at the first time to which an interrupted one has brought a state.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from shardline import datasource
from shardline.app.compute.view.input_changes import (
    InputChanges,
    find_input_changes,
    volume_of_shards,
)
from shardline.app.compute.view.query_at import BY_DRIVER, QueryAt
from shardline.app.compute.view.state_step import StateStep
from shardline.app.compute.view.step_changes import StepChanges
from shardline.app.compute.view.touched_keys import OUTPUT
from shardline.app.compute.view.view_columns import with_times
from shardline.app.execution.spark_errors import error_line
from shardline.datasource.frames import struct_of
from shardline.datasource.frontier import Frontier
from shardline.datasource.read import current_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from shardline.app.compute.view.change_plan import ChangePlan
    from shardline.app.compute.view.change_query import ChangeQuery
    from shardline.app.compute.view.self_check import SelfCheck
    from shardline.app.compute.view.view_states import ViewStates
    from shardline.app.execution.host import Host
    from shardline.app.protocol.objects import ViewDescription
    from shardline.datasource.state import ShardState

__all__ = ["StepStarts"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class StepStarts:
    """Of one rendering of a view. Used by one thread at a time.

    Attributes:
        host: What the view runs in.
        description: The view.
        changes: Its query over changes.
        query: Its query at a time.
        states: Its states.
        check: Its self-check.
    """

    host: Host
    description: ViewDescription
    changes: ChangeQuery
    query: QueryAt
    states: ViewStates
    check: SelfCheck
    _columns: dict[tuple[str, int], StructType] = field(default_factory=dict, init=False)

    def over_changes(
        self,
        session: SparkSession,
        lower: int,
        upper: int | None,
        news: InputChanges,
        states: Sequence[ShardState],
    ) -> StateStep | None:
        """A step over `[lower, upper)`, which may end earlier; None if it must be recomputed.

        Args:
            session: The one that the view runs in.
            lower: First time of the step.
            upper: Where it would end; None for no end.
            news: Of the interval.
            states: Of all inputs, in their order.
        """
        plan = self._plan(session, states)
        if plan is None:
            return None
        # What an interrupted step has brought a state to is read up to there.
        end = self.states.end_of_step(plan, lower, upper)
        if end != upper:
            news = find_input_changes(states, lower, end)
            return self.over_changes(session, lower, end, news, states)
        # The hold of the stream keeps them: what is older than the step is not compacted into it.
        named = self._named(states)
        named[OUTPUT] = self.host.client.machine(self.description.name).state()
        return StateStep(
            session,
            plan,
            lower,
            upper,
            named,
            self._changes(session, lower, upper),
            set(news.changed),
            partial(self._before, session),
            news,
            upper is not None and self.check.is_due(),
        )

    def over_states(
        self, session: SparkSession, at: int, states: Sequence[ShardState], *, is_first: bool
    ) -> StateStep | None:
        """A step in which nothing changes, over states as of `at`; None to run the query itself.

        Of the first step of a view: the next one makes states anyhow, and so inputs are read once,
        and their rows added up once. And where states choose among equal rows, of every step.

        Args:
            session: The one that the view runs in.
            at: A time at which all inputs are settled.
            states: Of all inputs, in their order, of that time or later.
            is_first: True of a first step.
        """
        known = self._at_rest(session, at, states)
        if known is None or not known.plan.states:
            return None
        if not known.plan.chooses:
            if not is_first:
                return None
            self._catch_up(known, states)
        return known if self.states.settle(known) else None

    def _at_rest(
        self, session: SparkSession, at: int, states: Sequence[ShardState]
    ) -> StateStep | None:
        """A step in which nothing changes, right behind `at`; None without a plan over changes."""
        plan = self._plan(session, states)
        if plan is None:
            return None
        return StateStep(
            session,
            plan,
            at + 1,
            at + 1,
            self._named(states),
            StepChanges(),
            set(),
            partial(self._before, session),
            InputChanges(),
        )

    def _catch_up(self, known: StateStep, states: Sequence[ShardState]) -> None:
        """Let states of the definition before this one follow what has changed since.

        Where they cannot, the step at rest finds them behind, and they are made of the inputs.
        """
        lower = self.states.last_end(known.plan, known.lower)
        if lower is None or any(one.since > Frontier(lower - 1) for one in states):
            return
        news = find_input_changes(states, lower, known.lower)
        # Else to make them of the inputs, in one job, is no more work.
        if news.volume.rows >= volume_of_shards(states).rows:
            return
        try:
            step = self.over_changes(known.session, lower, known.lower, news, states)
            if step is not None:
                self.states.follow(step)
        except Exception as error:
            # The stream holds inputs from its first time on. What they were before may have gone
            # since it was asked for above; and raised, it would be taken for the stream's own.
            if "[HISTORY_GONE]" not in str(error):
                raise
            _log.info(
                "states of the definition before are made anew",
                extra={"context": {"view": self.description.name, "reason": error_line(error)}},
            )

    def _changes(self, session: SparkSession, lower: int, upper: int | None) -> StepChanges:
        changes = StepChanges()
        for name in self.description.inputs:
            changes.add(
                name,
                partial(
                    datasource.changes,
                    session,
                    location=self.host.client.location.url,
                    shard=name,
                    start=lower,
                    end=upper,
                    storage=self.host.storage,
                    by_driver=BY_DRIVER,
                ),
            )
        return changes

    def _plan(self, session: SparkSession, states: Sequence[ShardState]) -> ChangePlan | None:
        columns = {state.name: self._columns_of(state) for state in states}
        return self.changes.plan(session, columns)

    def _columns_of(self, state: ShardState) -> StructType:
        """The columns of an input's changes."""
        key = (state.shard, state.schema_id)
        if key not in self._columns:
            self._columns[key] = with_times(struct_of(current_schema(state).record))
        return self._columns[key]

    def _named(self, states: Sequence[ShardState]) -> dict[str, ShardState]:
        return dict(zip(self.description.inputs, states, strict=True))

    def _before(self, session: SparkSession, name: str, at: int) -> DataFrame:
        """The rows of an input at one time, or those that the view itself has shown."""
        shard = self.description.name if name == OUTPUT else name
        return self.query.snapshot(session, shard, at)
