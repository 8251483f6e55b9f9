"""The states of a view follow its inputs, step by step, each before what reads it.

    states.settle(…)           before a view's first contents: all states, of the inputs then
    states.end_of_step(…)      a step may have to end where a state has ended before
    states.follow(step)        all states up to the step's end; their changes
    states.rested(…)           nothing has changed: states stay as they are

States are appended before the output. What an interruption leaves behind is put right by the next
step, whatever it was:

    a state is ahead of the output     its change is read from it; nothing is computed again
    it is behind                       if no input has changed since, it holds; else it is made
                                       equal to what the inputs are now, by one aggregation
    it is not of the definition        it is dropped, and made anew; one that is of the same as
                                       before goes on, whatever else has changed
    a number of rows below 0           all states are dropped, and the view is recomputed
    another writer was at it           it is made anew
    a key that was recomputed differs  all states are dropped, and the view is recomputed

The last three cannot be if all is well, and are reported (`ViewReports.report_doubt`).

The state of a LIMIT is a choice: of equal rows any may come through, and the query run anew may
choose others. So are results that ties decide, or the order in which floats are added
(`choice_rule`). An output of one choice, followed by changes of another, would be wrong for ever.
So such a view is run anew over its states. Where it cannot be, these states are dropped before; and
a step in which one would be made, or differs, is run anew. States that were made of a choice go
with it.

An append that makes a state is marked as such. One that was made beyond the output's end is of a
step that was killed in between: it is not followed, and the view is run anew over it.

A state is not appended to in a step that leaves it as it is. So it may end long before the output
does, and that is remembered, or found out from the inputs' history.

Invariants:
    A step reads a state as it was before the step, at the time at which the output ends.
    States are never needed: without them, or in doubt, the view is recomputed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.errors import AnalysisException

from shardline.app.compute.errors import data_error_text
from shardline.app.compute.view.accumulators import NEGATIVE
from shardline.app.compute.view.aggregate_rule import GroupState
from shardline.app.compute.view.change_plan import ChangePlan, NotIncremental, StepPlan
from shardline.app.compute.view.choice_rule import ChoiceState, LimitState, ResultState
from shardline.app.compute.view.correction import additions, correction_frame
from shardline.app.compute.view.first_rows_rule import FirstRowsState
from shardline.app.compute.view.first_rows_steps import FirstRowsSteps
from shardline.app.compute.view.found_rows import Found, FoundRows
from shardline.app.compute.view.group_steps import GroupSteps
from shardline.app.compute.view.input_changes import find_input_changes, volume_of_shards
from shardline.app.compute.view.kept_jobs import (
    KeptJobs,
)
from shardline.app.compute.view.limit_steps import LimitSteps
from shardline.app.compute.view.one_task import OneTask
from shardline.app.compute.view.reports import ViewReports
from shardline.app.compute.view.result_steps import ResultSteps
from shardline.app.compute.view.self_check import SelfCheck
from shardline.app.compute.view.state_check import difference_of
from shardline.app.compute.view.state_identity import StateNames
from shardline.app.compute.view.state_rules import State
from shardline.app.compute.view.state_shard import StateShard
from shardline.app.compute.view.state_step import StateStep
from shardline.app.compute.view.temporal_rule import TemporalState
from shardline.app.compute.view.temporal_steps import TemporalSteps
from shardline.app.execution.host import Host
from shardline.app.execution.spark_errors import error_line, find_unreadable_part
from shardline.app.protocol.objects import state_shards
from shardline.datasource.frames import (
    BYTES_MAX,
    ROWS_MAX,
    StagedInterval,
    stage_interval,
)
from shardline.datasource.frontier import Frontier
from shardline.datasource.state import ShardState

__all__ = ["ViewStates"]

_log = logging.getLogger(__name__)

_CHOSEN: Final = "what ties decide is chosen anew"


class ViewStates:
    """The states of one rendering of a view. Used by one thread at a time."""

    def __init__(
        self,
        host: Host,
        view: str,
        names: StateNames,
        gate: Callable[[], None],
        *,
        one_task: OneTask,
        rows: FoundRows,
        reports: ViewReports,
        check: SelfCheck,
        jobs: KeptJobs,
    ) -> None:
        """No I/O.

        Args:
            host: What the view runs in.
            view: The view.
            names: Of the states of the view's definition.
            gate: Raises if nothing may be written any more.
            one_task: Of the view.
            rows: Of the view.
            reports: Of the view.
            check: Of the view.
            jobs: Of the view.
        """
        self._host = host
        self._view = view
        self._reports = reports
        self._check = check
        self.refusal = ""
        """Why a step had to be recomputed; "" if none had."""
        self._names = names
        self._shards = [StateShard(host, name, gate) for name in state_shards(view)]
        self._plan: ChangePlan | None = None
        """The one whose states they have, in their order."""
        self._replaces = False
        """True while there may be states of the definition before this one."""
        self._one_task = one_task
        self._rows = rows
        self._resting: dict[str, tuple[int | None, int | None]] = {}
        """For each shard its upper, and until when it is known to stay as it is there."""
        self._results = ResultSteps(rows, one_task, jobs)
        self._groups = GroupSteps(rows, one_task, jobs, self._results)
        self._temporal = TemporalSteps(rows, one_task, jobs)
        self._first_rows = FirstRowsSteps(rows, one_task, jobs)
        self._limits = LimitSteps(host, one_task, jobs)
        self._timed: list[StateShard] = []
        """Those of temporal filters, once a step has shown which they are."""
        self._choosing: list[StateShard] = []
        """Those of choices and what was made of them, likewise."""
        self._dropped: set[str] = set()
        """Names of shards that have gone in this step, since what they were made of was chosen."""

    def drop(self) -> None:
        """Drop all states."""
        # First: if a drop fails half way, what is remembered of a state that has gone would be
        # believed of the one that is made in its place.
        self._resting.clear()
        for shard in self._from_the_last():
            shard.drop()

    def _from_the_last(self) -> list[StateShard]:
        # States are made from the first on, and dropped from the last on: after a kill the first
        # one is there as long as any is, and tells of the others.
        return self._shards[::-1]

    def replace_others(self, *, has_contents: bool) -> None:
        """States that are there may be of another definition: those that this one lacks go.

        Args:
            has_contents: True if the other one has appended to the output. Where it has not, most
                often there was none, and no state is looked for but the first.
        """
        self._replaces = has_contents or self._shards[0].is_there()

    def drop_others(self) -> None:
        """Drop states of another definition, if this one has found none of its own among them."""
        if self._replaces:
            self.drop()
            self._replaces = False

    def last_end(self, plan: ChangePlan, before: int) -> int | None:
        """Where the last of a plan's states ends before a time; None if none is there."""
        found = [
            state.upper.time or 0
            for shard, group in self._pairs(plan)
            if (state := shard.look(group.schema)) is not None and state.upper <= Frontier(before)
        ]
        last = max(found, default=0)
        return last if 0 < last < before else None

    def _pairs(self, plan: ChangePlan) -> list[tuple[StateShard, State]]:
        """The states of a plan, each with its shard: states have numbers, as `view_plan` tells."""
        if plan is not self._plan:
            writers = self._names.of(plan)
            for place, shard in enumerate(self._shards):
                shard.writer = writers[place] if place < len(writers) else ""
            for shard in self._from_the_last() if self._replaces else ():
                # One that has no rows yet tells nobody whose it is.
                if not shard.writer or shard.last_writer() != shard.writer:
                    shard.drop()
            self._plan, self._replaces = plan, False
        return list(zip(self._shards, plan.states, strict=False))

    def drop_choices(self) -> None:
        """Drop the states of choices and those above them, as far as they are known."""
        for shard in reversed(self._choosing):
            self._drop(shard)

    def _drop(self, shard: StateShard) -> None:
        self._resting.pop(shard.name, None)
        shard.drop()

    def recompute_after(self, error: Exception, *, lower: int, used: bool) -> None:
        """Return if a step that has met `error` is to be recomputed; the error is raised otherwise.

        States that may be what is wrong are dropped: a part of one that is lost is in no input, so
        that it would be missed in each further step, and the view could go on without it. If the
        part is of an input, the recomputation says so.

        Args:
            error: Of the step.
            lower: First time of the step.
            used: True if the step reads states.
        """
        if used and "[HISTORY_GONE]" in str(error) and self._have_forgotten(lower):
            # Nothing is wrong with them: the next step begins where they are.
            self.refusal = "what a state was before the step is not known any more"
            return
        if used and "[NULL_VALUE]" in str(error):
            # If it is of the output, the query run anew says so.
            self.refusal = "a state would have NULL where its operator has none"
            return
        if isinstance(error, AnalysisException):
            # Of what was put together of the query's plan: the query itself says if it is wrong.
            self.refusal = "Spark refuses the plan of the step"
            return
        lost, negative = find_unreadable_part(error) is not None, NEGATIVE in str(error)
        damaged = used and (lost or negative)
        if data_error_text(error) is None and not damaged:
            raise error
        self.refusal = "an error at a row, or of a state"
        if damaged or negative:
            # Which of the states it is the error does not say; without any it is an input.
            shard = self._shards[0].name if used else self._view
            self._reports.report_doubt(
                "negative count" if negative else "lost part", shard, error_line(error)
            )
        if damaged:
            self.drop()

    def _have_forgotten(self, lower: int) -> bool:
        """True if what one of the states was right before `lower` is not known any more."""
        found = (shard.look() for shard in self._shards)
        return any(state is not None and state.since > Frontier(lower - 1) for state in found)

    def rested(self, lower: int, upper: int | None) -> None:
        """Nothing has changed in `[lower, upper)`."""
        for name, (settled, until) in self._resting.items():
            # Only without a gap: in one, an input may have changed and the state not followed.
            if until == lower:
                self._resting[name] = (settled, upper)

    def is_due(self, lower: int, upper: int | None) -> bool:
        """True if a row of a temporal filter may come or go in `[lower, upper)`; without Spark.

        No input changes in the interval, and the output ends at `lower`. Where a state does not
        tell, something may be due.
        """
        return not self._timed or any(self._is_due(one, lower, upper) for one in self._timed)

    def _is_due(self, shard: StateShard, lower: int, upper: int | None) -> bool:
        state = shard.look()
        at = None if state is None else state.upper.time
        if state is None or at is None or self._resting.get(shard.name) != (at, lower):
            return True
        due = self._temporal.due(state, at, lower, upper)
        return due is None or due.num_rows > 0

    def end_of_step(self, plan: ChangePlan, lower: int, upper: int | None) -> int | None:
        """Where a step must end that starts at `lower` and would end at `upper`.

        A state that an earlier attempt has brought to a time inside of it is read up to there.
        """
        for shard, group in self._pairs(plan):
            state = shard.look(group.schema)
            settled = None if state is None else state.upper.time
            # A longer step would have to extend the state from the middle on, by changes that are
            # combined with what was before the step: the first half of them would count twice.
            if settled is not None and settled > lower and (upper is None or settled < upper):
                upper = settled
        return upper

    def follow(self, step: StateStep) -> bool:
        """Bring all states to the step's end, and add their changes to it.

        Returns:
            False if the step must be recomputed.
        """
        self.refusal = "a state could not follow"
        self._note_kinds(step.plan)
        try:
            for shard, group in self._pairs(step.plan):
                if not self._bring_along(shard, group, step):
                    # Those before it have moved already, and stay: the next step reads them as of
                    # its start, as after a crash here.
                    return False
                # Before any that reads it: what is wrong in one would be appended to the next.
                if step.checked and not self._is_right(shard, group, step):
                    return False
        except Exception as error:  # noqa: BLE001 - raised again if it is not known
            self.recompute_after(error, lower=step.lower, used=True)
            return False
        return True

    def settle(self, step: StateStep) -> bool:
        """Make all states what they are right before the first step of a view.

        Returns:
            False if another writer was at one of them.
        """
        self._note_kinds(step.plan)
        pairs = self._pairs(step.plan)
        there: list[ShardState] = []
        # All of them, before one can fail: of an attempt that was to begin later, and of which no
        # contents were appended. What it has at its start would be taken for changes.
        for shard, group in pairs:
            state = self._there(shard, group)
            if state.upper > Frontier(step.lower):
                shard.drop()
                state = self._there(shard, group)
            there.append(state)
        for (shard, group), known in zip(pairs, there, strict=True):
            state = self._there(shard, group) if shard.name in self._dropped else known
            settled = self._settled(shard, group, step, state, may_choose=True)
            if settled is None:
                return False
            step.states[group.name] = (shard, settled)
        return True

    def _note_kinds(self, plan: ChangePlan) -> None:
        """Note which states have times of their own, and which choose; none was dropped yet."""
        pairs = self._pairs(plan)
        self._timed = [shard for shard, group in pairs if isinstance(group, TemporalState)]
        self._choosing = [shard for shard, group in pairs if _is_of_choice(plan, group)]
        self._dropped.clear()

    def _there(self, shard: StateShard, group: State) -> ShardState:
        """A state, which is made without contents if it is not there."""
        state = shard.look(group.schema)
        if state is None:
            if shard.is_of_a_stranger():
                self._reports.report_doubt("foreign writer", shard.name)
            shard.make_anew(group.schema)
            state = shard.look(group.schema)
            assert state is not None, shard.name
        return state

    def _bring_along(self, shard: StateShard, group: State, step: StateStep) -> bool:
        state = self._there(shard, group)
        if state.upper > Frontier(step.lower) and (
            state.upper < Frontier(step.upper) or state.since > Frontier(step.lower - 1)
        ):
            return False  # its upper has moved meanwhile, or what it was before is not known
        if shard.is_made_beyond(state, step.lower):
            # By a step that was killed before its output was appended. What the state has at its
            # start is no change, and of rows that tie it may have others than the output.
            return False
        settled = self._settled(shard, group, step, state, may_choose=False)
        if settled is None:
            return False
        state = settled
        if state.upper < Frontier(step.upper):
            if not self._extend(shard, group, step, state):
                return False
            # Once more: the state from before the append has none of its parts, so that no change
            # would be found below, and the view would miss it without an error.
            moved = shard.look(group.schema)
            assert moved is not None, shard.name
            state = moved
        elif state.upper == Frontier(step.upper):
            # By a step that was interrupted. Noted as after an append: the next step would have to
            # prove from the inputs' history that the state still holds.
            self._resting[shard.name] = (state.upper.time, step.upper)
        step.states[group.name] = (shard, state)
        changes = shard.changes(step.session, state, step.lower, step.upper)
        if changes is not None:
            step.changes.add(group.name, changes)
            step.changed.add(group.name)
        return True

    def _settled(
        self,
        shard: StateShard,
        group: State,
        step: StateStep,
        state: ShardState,
        *,
        may_choose: bool,
    ) -> ShardState | None:
        """The state, not behind the step; None if it cannot be, or another writer was at it.

        Args:
            shard: Its shard.
            group: What it is a state of.
            step: The step.
            state: The shard's state.
            may_choose: True if the output will be of what is chosen. Else it shows another choice,
                and so nothing is appended: after a kill nobody would know.
        """
        at = state.upper.time
        if at is None or at >= step.lower or self._rests(shard, group, step, state):
            return state
        chooses = isinstance(group, ChoiceState)
        if chooses and at == 0 and not may_choose:
            self.refusal = _CHOSEN
            return None
        session, plan = step.session, step.plan
        source = plan.source_contents(group)
        # As of right before the step, not of where the state ends: the holds of the stream may have
        # let go of the inputs' history there.
        before = step.contents(source.before)
        if not source.fits(before):
            return None
        volume = volume_of_shards(step.inputs.values())
        rows = source.over(session, {}, self._one_task.inputs(session, before, volume))
        contents = group.contents(session, rows, step.lower - 1)
        try:
            with self._first_rows.checked(group, contents) as desired:
                if at == 0 and isinstance(group, GroupState):
                    updates = additions(desired)  # each group is one row
                else:
                    held = None if at == 0 else shard.contents(session, state, at)
                    updates = correction_frame(desired, held)
                # Little input makes few groups. If it makes too many to be collected, they are
                # computed twice.
                little = volume.is_at_most(ROWS_MAX, BYTES_MAX)
                staged = stage_interval(updates, shard.options, small=little)
        except NotIncremental as refused:
            self.refusal = str(refused)
            return None
        if chooses and staged.rows > 0 and not may_choose:
            staged.discard()
            self.refusal = _CHOSEN
            return None
        _log.info(
            "a view's state is made from its inputs",
            extra={"context": {"state": shard.name, "rows": staged.rows}},
        )
        if isinstance(group, ChoiceState) and (at == 0 or staged.rows > 0):
            # First: after a kill nobody would know that they are of another choice.
            self._drop_made_of(step.plan, group)
        # Not to the step's end: the view needs the state's change in the step, known from here on.
        is_first = shard.append(staged, at, step.lower, made_at=step.lower - 1)
        return shard.look(group.schema) if is_first else None

    def _drop_made_of(self, plan: ChangePlan, chosen: ChoiceState) -> None:
        """Drop all states that read a choice, themselves or by others."""
        read = {chosen.name}
        above: list[StateShard] = []
        for shard, group in self._pairs(plan):  # each behind those that it reads
            if group.source.inputs & read:
                read.add(group.name)
                there = shard.look(group.schema)
                if there is not None and there.upper.time != 0:
                    above.append(shard)
        for shard in reversed(above):
            self._drop(shard)
            self._dropped.add(shard.name)

    def _rests(self, shard: StateShard, group: State, step: StateStep, state: ShardState) -> bool:
        """True if what the state is of has not changed since its upper, up to the step."""
        at = state.upper.time
        if at == 0:
            return False
        if self._resting.get(shard.name) == (at, step.lower):
            return True
        inputs = [step.inputs[name] for name in _roots(step.plan, group)]
        if at is None or any(one.since > Frontier(at) for one in inputs):
            return False
        # What one above a temporal filter is of may have changed by itself.
        by_itself = _reads(step.plan, group, TemporalState)
        if by_itself or find_input_changes(inputs, at, step.lower).changed:
            return False
        if not isinstance(group, TemporalState):
            return True
        due = self._temporal.due(state, at, at, step.lower)
        return due is not None and not due.num_rows

    def _extend(self, shard: StateShard, group: State, step: StateStep, state: ShardState) -> bool:
        """Bring a state from before the step to its end; False if the step must be recomputed."""
        at = state.upper.time
        assert at is not None, shard.name
        try:
            rows, as_read = self._change(shard, group, step, state)
        except NotIncremental as refused:
            self.refusal = str(refused)
            return False
        if rows is None:
            self._resting[shard.name] = (at, step.upper)
            return True
        if not shard.append(rows, at, step.upper):
            return False  # whose rows are there now is not known: the next step looks
        self._resting[shard.name] = (step.upper, step.upper)
        if as_read is not None and step.upper is not None:
            # Neither the output's change nor the next look-up has to read them again.
            step.tables[group.name] = as_read
            self._rows.note_appended(state, step.upper, as_read)
        return True

    def _change(
        self, shard: StateShard, group: State, step: StateStep, state: ShardState
    ) -> tuple[StagedInterval | None, pa.Table | None]:
        """The change of a state, staged, and as it would be read if that is known; None if none.

        Raises:
            NotIncremental: The step must be recomputed.
        """
        changed = step.changed & group.source.inputs
        if isinstance(group, LimitState):
            return self._limits.change(shard, group, step, state) if changed else None, None
        if isinstance(group, ResultState):
            # What goes is in no other place: the plan reads the state as it was before the step.
            step.states[group.name] = (shard, state)
        source = self._source(group, step, changed) if changed else None
        if isinstance(group, TemporalState):
            return self._temporal.change(shard, group, step, state, source), None
        if source is None:
            return None, None
        if isinstance(group, FirstRowsState):
            return self._first_rows.change(shard, group, step, state, source), None
        if isinstance(group, ResultState):
            return self._results.change(shard, group, step, source)
        return self._groups.change(shard, group, step, state, source)

    def _source(self, group: State, step: StateStep, changed: set[str]) -> tuple[StepPlan, Found]:
        """The change of what a state is of, with what it is over."""
        plan = step.plan.source_step(group, changed)
        found = self._rows.find(step, plan)
        if found is None or step.is_too_large(plan, found.volume):
            raise NotIncremental("a state could not follow")
        return plan, found

    def _is_right(self, shard: StateShard, group: State, step: StateStep) -> bool:
        """True if a group that the step has changed is what its source gives; else it is dropped.

        As of the step's end: what it has been before is in it.
        """
        if group.name not in step.changed or group.name not in step.changes:
            return True
        if self._check.finds(shard.name, partial(difference_of, self._check, group, step)):
            self.refusal = "a self-check has found a difference"
            # All of them: it may come from a state below, and those above were made of this one.
            self.drop()
            return False
        return True


def _is_of_choice(plan: ChangePlan, group: State) -> bool:
    """True of a choice, and of what is made of one."""
    return isinstance(group, ChoiceState) or _reads(plan, group, ChoiceState)


def _reads(plan: ChangePlan, group: State, kind: type[object]) -> bool:
    """True if a state is made of one of a kind, itself or by others."""
    states = {state.name: state for state in plan.states}
    read = [states[name] for name in group.source.inputs if name in states]
    return any(isinstance(one, kind) or _reads(plan, one, kind) for one in read)


def _roots(plan: ChangePlan, group: State) -> set[str]:
    """The inputs that a state is of, itself or by other states."""
    states = {state.name: state for state in plan.states}
    found: set[str] = set()
    for name in group.source.inputs:
        found |= _roots(plan, states[name]) if name in states else {name}
    return found
