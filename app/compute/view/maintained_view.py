"""Brings a view up to the frontier of its inputs, step by step, by Spark where there are rows.

    advance(session, interval)   in a micro-batch: everything up to its end
    follow(states)               between micro-batches: while nothing changes, without Spark

A view's output is a shard that says, at each time, what the query says of the inputs at that time.
Which step is next, and how it may be computed, is decided by `choose_next_step`; this module takes
it. Every step is one compare-and-append to the output, so that a step that was taken twice, or by
two runtimes, is refused the second time.

What a caller relies on: after `advance` the output's upper is at or beyond the interval's end, and
its contents at each time of it are those of the query over the inputs' contents at that time, or
the errors shard says why there are none.

Invariants:
    Inputs are read at times of the interval only, where the stream's holds protect them.
    The two methods are never in use side by side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from shardline.app.compute.errors import data_error_text
from shardline.app.compute.view.called_functions import calls_user_functions
from shardline.app.compute.view.change_plan import StepPlan
from shardline.app.compute.view.change_query import ChangeQuery
from shardline.app.compute.view.change_times import read_times, times_over_states
from shardline.app.compute.view.correction import check_comparable
from shardline.app.compute.view.due_steps import DueSteps
from shardline.app.compute.view.fan_out import ShardFanOut
from shardline.app.compute.view.found_rows import FoundRows
from shardline.app.compute.view.input_changes import (
    InputChanges,
    find_news,
    lag_ms,
    news_left,
    unchanged_until,
    volume_of_shards,
)
from shardline.app.compute.view.kept_jobs import KeptJobs
from shardline.app.compute.view.next_step import (
    Done,
    FollowChanges,
    OutputProgress,
    Recompute,
    Unchanged,
    choose_next_step,
)
from shardline.app.compute.view.one_task import OneTask
from shardline.app.compute.view.output import ViewSink
from shardline.app.compute.view.output_change import OutputChange
from shardline.app.compute.view.output_contents import OutputContents
from shardline.app.compute.view.output_correction import Correction, OutputCorrections, Result
from shardline.app.compute.view.query_at import QueryAt
from shardline.app.compute.view.reports import TakenStep, ViewReports
from shardline.app.compute.view.result_over import result_over
from shardline.app.compute.view.self_check import SelfCheck
from shardline.app.compute.view.state_identity import StateNames
from shardline.app.compute.view.state_step import StateStep
from shardline.app.compute.view.step_costs import StepCosts
from shardline.app.compute.view.step_start import StepStarts
from shardline.app.compute.view.view_columns import parse_columns
from shardline.app.compute.view.view_inputs import ViewInputs
from shardline.app.compute.view.view_states import ViewStates
from shardline.app.execution.host import Host, Incarnation
from shardline.app.protocol.objects import Strategy, ViewDescription
from shardline.datasource.errors import Determinate
from shardline.datasource.frames import Interval, every_update
from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.schema import TS
from shardline.datasource.sink import SinkOptions, parse_sink
from shardline.datasource.state import ShardState

__all__ = ["View"]

_log = logging.getLogger(__name__)

_FIRST: Final = "its first contents"
_CHEAPER_ANEW: Final = "its query run anew has been the cheaper way"
_FUNCTIONS: Final = "its users' functions may be others than when it last ran"
"""Reasons to recompute that may end between two steps of a micro-batch; no others may."""

_RACES_MAX: Final = 64
"""How often, in one micro-batch, somebody else may append to the output before the view gives up
and is started again."""


class View:
    """One rendering of a view. Used by one thread at a time."""

    def __init__(
        self,
        host: Host,
        incarnation: Incarnation,
        description: ViewDescription,
        gate: Callable[[], None],
        costs: StepCosts | None = None,
    ) -> None:
        """A view whose inputs are there.

        Args:
            gate: Raises if nothing may be appended any more.
            costs: By which the way of a step is chosen, where several are right.

        Raises:
            InvalidUsage: An input is not there, or a column's values cannot be compared.
        """
        assert incarnation.as_of is not None, incarnation
        self._host = host
        self._description = description
        self._as_of = incarnation.as_of
        self._schema = parse_columns(description.schema)
        check_comparable(description.name, self._schema)
        inputs = self._inputs = ViewInputs(host, description)
        self._sink = ViewSink(host.client, description, inputs.shards, gate, inputs.determinants)
        self._gate, self._is_made = gate, False
        self._has_old_functions: bool | None = None
        """True until the query is run anew, if it calls functions of users: the body of one is in
        no definition, and what another one has made it could not retract. None if not known."""
        self._reports = ViewReports(host, incarnation, description, self._as_of)
        sizes = ShardFanOut(host.client, description.inputs)
        self._changes = ChangeQuery(description, self._schema, sizes)
        self._contents = OutputContents(host.client, description.name)
        self._reason = ""
        """Why the step is recomputed, if it is, although the view can follow changes."""
        self._one_task = OneTask()
        self._query = QueryAt(host, description, self._schema, self._one_task)
        self.is_due = False
        """True if `follow` has found that `advance` has to be called, and perhaps nobody will: rows
        come or go by themselves, or it found an input changed, and the output where it was, twice:
        in a group a view may have stepped alone, whose readers nothing triggers."""
        self._stands_at: int | None = None
        self._costs = StepCosts() if costs is None else costs
        self._rows = FoundRows(host, description.name)
        self._check, jobs = SelfCheck(host, self._reports), KeptJobs(description.name)
        self._states = ViewStates(
            host,
            description.name,
            StateNames(host.spark, self._sink.writer, inputs),
            gate,
            one_task=self._one_task,
            rows=self._rows,
            reports=self._reports,
            check=self._check,
            jobs=jobs,
        )
        self._starts = StepStarts(
            host, description, self._changes, self._query, self._states, self._check
        )
        self._due = DueSteps(self._query, self._states)
        self._corrections = OutputCorrections(
            self._contents, self._schema, self._options, jobs, self._held
        )
        self._output_change = OutputChange(
            description.name,
            description.inputs,
            self._schema,
            self._options,
            self._rows,
            self._one_task,
            jobs,
            self._check,
            self._query.result,
            self._held,
        )

    def is_replacing(self) -> bool:
        """True if the output is there, and is of another definition than this."""
        output = self._sink.look()
        return not output.ours and output.upper != 0

    def _make(self) -> None:
        """Make the output once; writing is allowed."""
        if not self._is_made:
            # Before: an output that has to be made anew tells nobody of whom its states are.
            output = self._sink.look()
            if not output.ours:
                self._states.replace_others(has_contents=output.upper != 0)
            self._sink.make()
            self._is_made = True
        if self._has_old_functions is None:
            self._has_old_functions = self.calls_user_functions
            if self._has_old_functions:
                self._states.drop()

    # -- with Spark --------------------------------------------------------------------------

    def advance(self, session: SparkSession, interval: Interval) -> None:
        """Bring the output up to the end of `interval`; writing is allowed.

        Args:
            session: That of the streaming query, inside of `foreachBatch`.
            interval: Of the micro-batch.

        Raises:
            InputChanged: The inputs are not those that the view was made for.
            Determinate: Others append to the output all the time.
            Fenced: Another runtime has taken over.
        """
        # Not when the view is made: that is also done by a runtime that may not write yet.
        self._make()
        end = interval.upper
        # Changes at the snapshot's own time may not be known apart any more, as later ones are.
        output = self._sink.look()
        floor = self._floor(output, max(self._as_of, interval.lower))
        is_further = output.ours and output.upper is not None and output.upper > interval.lower
        starts = interval.starts and not is_further
        anew = starts or self._has_old_functions
        strategy: Strategy = "recompute" if anew else self._description.strategy
        self._reason = _FIRST if starts else _FUNCTIONS if anew else ""
        first = floor if output.upper is None else max(floor, output.upper)
        if not output.ours and output.upper is not None:
            end = self._inputs.settled_beyond(first, end, self._gate)
        states = self._inputs.states()
        news = find_news(states, first, end)
        # Counts only looks at which the output has not moved. A step that moves it is progress,
        # whoever took it, however many there are in a micro-batch.
        refused = 0
        while refused < _RACES_MAX:
            times = self._due.times(
                session, output, news, states, floor=floor, end=end, strategy=strategy
            )
            step = choose_next_step(output, times, floor=floor, end=end, strategy=strategy)
            match step:
                case Done():
                    self._reports.report_output(output)
                    return
                case Unchanged():
                    self._follow(step)
                case FollowChanges():
                    began_ms = self._host.clock.elapsed_ms()
                    strategy = self._follow_changes(session, step, news, states)
                    if strategy == "recompute" and self._reason != _CHEAPER_ANEW:
                        took_ms = self._host.clock.elapsed_ms() - began_ms
                        self._costs.note_given_up(took_ms, news.volume.rows)
                case Recompute() if news.spread:
                    begins = first == floor and any(s.since >= Frontier(first) for s in states)
                    news = read_times(session, self._host, news, first, end, begins=begins)
                    continue
                case Recompute():
                    self._recompute(session, self._due.bounded(session, step, states), states)
            # Whatever the step came to, appended or refused because somebody else was first, the
            # output itself tells where to go on from.
            before, output = output, self._sink.look()
            refused += output == before
            self._reports.report_output(output)
            news = news_left(news, states, output.upper, end)
            if (
                isinstance(step, Recompute)
                and output != before
                and self._should_follow_the_rest(output, news, states)
            ):
                strategy, news = self._description.strategy, find_news(states, output.upper, end)
        raise Determinate(
            f"others wrote to view '{self._description.name}' all through one micro-batch",
            code="CONTENTION",
            hint="stop whatever else writes to it",
        )

    def _floor(self, output: OutputProgress, floor: int) -> int:
        """The first time at which the output is to be right, from `floor` on.

        A new output may be in the place of one that was dropped, whose errors are settled up to its
        upper. Before that time nobody can say any more that the new query fails, so the output
        begins there. Where inputs rest for ever there is no such time, and it begins at `floor`.
        """
        if output.upper != 0:
            return floor
        later = self._sink.first_time()
        if later > floor and self._inputs.are_soon_beyond(later, self._gate):
            return later
        return floor

    def _should_follow_the_rest(
        self, output: OutputProgress, news: InputChanges, states: Sequence[ShardState]
    ) -> bool:
        """True if what is left of a micro-batch is not to be recomputed at each of its times."""
        # Of which it may have many: behind by a minute, a view would be asked once in a minute,
        # and where many views start the first contents are of a time that is minutes ago.
        may_end = (
            self._reason in (_FIRST, _CHEAPER_ANEW, _FUNCTIONS)
            and self._description.strategy != "recompute"
        )
        if not may_end or output.upper is None or output.failing or not output.ours:
            return False
        times, changed = news.left_from(output.upper)
        is_left = times > 0 or self._query.is_temporal
        return is_left and self._is_better_followed(times, changed, states)

    def _is_better_followed(self, times: int, changed: int, states: Sequence[ShardState]) -> bool:
        """True if a step of so many times and changed rows should not run the query anew."""
        # Where rows come and go by themselves there are more times: nothing is cheap at each.
        if self._description.strategy != "incremental" or self._query.is_temporal:
            return True
        return self._costs.follows(times, volume_of_shards(states).rows, changed)

    def rehearse(self, session: SparkSession, interval: Interval) -> None:
        """Run the query once at the end of `interval` and throw the rows away; writes nothing."""
        if self._reports.hydrated:
            return
        at = max(self._as_of, interval.lower if interval.upper is None else interval.upper - 1)
        try:
            states = self._host.client.readable(*self._description.inputs)
            result = self._query.result(session, at, states)
            result.write.format("noop").mode("overwrite").save()
        except Exception as error:
            if data_error_text(error) is None:
                raise
        self._reports.report_hydrated()

    def reached(self, end: int | None) -> bool:
        """True if the output is at or beyond `end`, whichever runtime writes it."""
        upper = self._look().upper
        return upper is None or (end is not None and upper >= end)

    def _recompute(
        self, session: SparkSession, step: Recompute, states: Sequence[ShardState]
    ) -> None:
        # Before the append: a crash right after it would leave times readable without contents.
        self._sink.prepare_begin(step)
        error, correction = None, Correction()
        began_ms = self._host.clock.elapsed_ms()
        try:
            correction = self._correction(session, step, states)
        except Exception as found:
            error = data_error_text(found)
            # One of rows is appended: they fail at each attempt. Any other may be gone at the next
            # one, and if it were appended would stay in the view's history.
            if error is None:
                raise
        if self._append_anew(step, correction, error):
            took_ms = self._host.clock.elapsed_ms() - began_ms
            self._costs.note_anew(took_ms, volume_of_shards(states).rows)
            rows = 0 if correction.rows is None else correction.rows.rows
            why = self._reason if self._description.strategy != "recompute" else ""
            costs = self._costs.predictions
            done = TakenStep("recompute", step.lower, step.upper, rows, took_ms, costs, reason=why)
            self._reports.report_step(done, error)
            # Only now: as long as nothing is appended, a next attempt may begin at another time.
            self._sink.begin(step)
            self._has_old_functions = False

    def _correction(
        self, session: SparkSession, step: Recompute, states: Sequence[ShardState]
    ) -> Correction:
        """What the output lacks at the time of a step that runs the query anew, staged."""
        try:
            result = self._anew_over_states(session, step.at, states)
            if result is not None:
                return self._corrections.of(session, result, step.lower)
        except Exception as found:  # noqa: BLE001 - raised again if it is not known
            # At which row it fails, and how that is told, the query itself says.
            self._states.recompute_after(found, lower=step.at + 1, used=True)
        # Before the append: what the query chooses is in no state. See `ViewStates`.
        self._states.drop_choices()
        self._states.drop_others()
        result = self._query.anew(session, step.at, states)
        return self._corrections.of(session, result, step.lower)

    def _anew_over_states(
        self, session: SparkSession, at: int, states: Sequence[ShardState]
    ) -> Result | None:
        """The rows at a time over states; None if the query itself is to be run."""
        if self._description.strategy != "incremental":
            return None
        is_first = self._reason == _FIRST and not self._query.is_temporal
        known = self._starts.over_states(session, at, states, is_first=is_first)
        if known is None:
            return None
        return result_over(known, known.plan.contents, at, self._schema, self._one_task)

    def _append_anew(self, step: Recompute, correction: Correction, error: str | None) -> bool:
        """Make the output what a query says at one time; False if somebody else was first."""
        # What is held in memory follows only what this step itself has appended: where somebody
        # else was first, the rows of that time are not known here, and the output is read again.
        if not self._sink.append(step, correction.rows, error):
            return False
        if correction.desired is not None:
            self._contents.become(step.upper, correction.desired)
        elif correction.rows is None:
            self._contents.moved(step.lower, step.upper)
        return True

    def _held(self, session: SparkSession, upper: int) -> DataFrame:
        """All updates of the output before `upper`, without times."""
        return every_update(
            session,
            location=self._location,
            shard=self._description.name,
            upper=upper,
            storage=self._host.storage,
        ).drop(TS)

    def _follow_changes(
        self,
        session: SparkSession,
        step: FollowChanges,
        news: InputChanges,
        states: Sequence[ShardState],
    ) -> Strategy:
        """Take the step if the query allows it; how to go on in this micro-batch."""
        times = news.expected_times(self._host.interval_ms)
        if not self._is_better_followed(times, news.volume.rows, states):
            return self._give_up(_CHEAPER_ANEW)
        began_ms = self._host.clock.elapsed_ms()
        known = self._starts.over_changes(session, step.lower, step.upper, news, states)
        if known is None:
            return self._give_up(self._changes.refused)
        # Before states follow: they read the same changes, and would add up what is left out here.
        self._rows.leave_out_the_rest(known)
        # Before the output, which is computed of their changes. A crash in between leaves states
        # ahead, to be read as of the step's start; behind, they would be made from whole inputs.
        if not self._states.follow(known):
            return self._give_up(self._states.refusal)
        return self._take_step(known, began_ms)

    def _take_step(self, known: StateStep, began_ms: float) -> Strategy:
        """Take a step to whose end all states have been brought; how to go on."""
        if not known.changed:
            return self._rest(known)
        output = self._changes.step(known.changed)
        if output is not None:
            return self._append_change(known, output, began_ms)
        over_states = known.plan.over_states
        if over_states is None:
            return self._give_up(self._changes.refused)
        return self._run_over_states(known, over_states)

    def _rest(self, known: StateStep) -> Strategy:
        """Nothing was due, although it might have been; how to go on."""
        self._follow(Unchanged(known.lower, known.upper))
        return self._description.strategy

    def _give_up(self, reason: str) -> Strategy:
        """Recompute, for a reason that the step's report gives."""
        self._reason = reason
        return "recompute"

    def _append_change(self, known: StateStep, output: StepPlan, began_ms: float) -> Strategy:
        """Append what follows from the changes; how to go on in this micro-batch."""
        try:
            rows, way = self._output_change.staged(known, output)
        except Exception as found:  # noqa: BLE001 - raised again if it is not known
            # At which of the times it fails, and what the view is until then, each of them tells.
            used = bool(known.plan.states)
            self._states.recompute_after(found, lower=known.lower, used=used)
            return self._give_up(self._states.refusal)
        if rows is None and self._output_change.touches_too_much:
            return self._give_up("too many rows have the keys that have changed")
        if rows is None:
            # A state may be wrong or an arrangement: the check does not say, so both are made anew.
            self._states.drop()
            self._rows.forget(self._description.inputs)
            return self._give_up("a self-check has found a difference")
        if self._sink.append(FollowChanges(known.lower, known.upper), rows, None):
            self._report_followed(known, known.upper, way, rows.rows, began_ms)
        return self._description.strategy

    def _report_followed(
        self, known: StateStep, upper: int | None, way: Strategy, rows: int, began_ms: float
    ) -> None:
        took_ms = self._host.clock.elapsed_ms() - began_ms
        costs, taken, news = self._costs.predictions, self._rows.taken(), known.news.volume.rows
        self._costs.note_follow(took_ms, news)
        step = TakenStep(way, known.lower, upper, rows, took_ms, costs, taken, news)
        self._reports.report_step(step, None)

    def _run_over_states(self, known: StateStep, plan: StepPlan) -> Strategy:
        """Take the step up to its second change, by what the query says of states at the first.

        States are there already at all times of the step; those that are left are taken next.
        """
        began_ms = self._host.clock.elapsed_ms()
        times = times_over_states(self._host, known, is_temporal=self._query.is_temporal)
        if not times:
            if self._query.is_temporal:
                return self._rest(known)
            return self._give_up("the times of its change are not known")
        step = Recompute(times[0], known.lower, times[1] if len(times) > 1 else known.upper)
        try:
            result = result_over(known, plan, step.at, self._schema, self._one_task)
            correction = self._corrections.of(known.session, result, step.lower)
        except Exception as found:  # noqa: BLE001 - as above
            self._states.recompute_after(found, lower=known.lower, used=True)
            return self._give_up(self._states.refusal)
        if self._append_anew(step, correction, None):
            rows = 0 if correction.rows is None else correction.rows.rows
            self._report_followed(known, step.upper, "incremental", rows, began_ms)
        return self._description.strategy

    @cached_property
    def _options(self) -> SinkOptions:
        name = self._description.name
        return parse_sink({**self._host.storage, "location": self._location, "shard": name})

    @property
    def _location(self) -> str:
        return self._host.client.location.url

    # -- without Spark -----------------------------------------------------------------------

    def follow(self, states: Sequence[ShardState]) -> bool:
        """Move the output's upper along while nothing changes; whether it moved.

        Where rows come or go by themselves it does not move: see `is_due`.

        Args:
            states: Of all inputs, in their order.

        Raises:
            InputChanged: As of `advance`.
        """
        self._inputs.check(states)
        output, self.is_due = self._reports.output, False
        if output is None:
            # After a restart, too: without news no micro-batch may come for long.
            output = self._look()
        if output.upper is None:
            return False
        if output.ours:
            self._make()
        # What another definition has left is replaced: by a step, however quiet the inputs are.
        until = unchanged_until(states, output.upper).time if output.ours else output.upper
        if until == output.upper:
            has_news = meet(state.upper for state in states) > Frontier(output.upper)
            self.is_due = has_news and self._stands_at == output.upper
            self._stands_at = output.upper if has_news else None
            return False
        self.is_due = self._query.is_temporal and self._due.is_due(output.upper, until)
        if self.is_due:
            return False
        if not self._follow(Unchanged(output.upper, until)):
            self._reports.output = None  # somebody else was here: the next micro-batch looks at it
            return False
        self._reports.report_output(replace(output, upper=until))
        return True

    def is_due_within(self, ms: int) -> bool:
        """True if rows may come or go by themselves in the `ms` after what the output shows."""
        output = self._reports.output
        if not self.is_temporal or output is None or output.upper is None:
            return False
        return self._due.is_due(output.upper, output.upper + ms)

    def _look(self) -> OutputProgress:
        """The output as it is now, remembered."""
        output = self._sink.look()
        self._reports.note_output(output)
        return output

    def _follow(self, step: Unchanged) -> bool:
        """Take a step without rows; False if somebody else was faster."""
        followed = self._sink.follow(step)
        # Only after the append: refused, the output may have changed in the interval, and what is
        # kept in memory for its start must not be taken for right at its end.
        if followed:
            self._states.rested(step.lower, step.upper)
            self._contents.moved(step.lower, step.upper)
            self._due.rested(step.lower, step.upper)
        return followed

    @property
    def reports(self) -> ViewReports:
        """Its reports, with what they said last."""
        return self._reports

    @property
    def is_temporal(self) -> bool:
        """True if rows come and go by themselves."""
        return self._query.is_temporal

    @cached_property
    def calls_user_functions(self) -> bool:
        """True if the query calls functions of users, which may do anything."""
        states = self._host.client.readable(*self._description.inputs)
        return calls_user_functions(self._host.spark, self._description.query, states)

    def behind_ms(self, states: Sequence[ShardState]) -> int | None:
        """Milliseconds that it is behind all inputs (`lag_ms`); None before it has caught up once.

        May be called while a micro-batch is under way.
        """
        output = self._reports.output
        if output is None or output.upper is None or not states or not self._reports.hydrated:
            return None
        return lag_ms(states, output.upper, self._host.interval_ms)
