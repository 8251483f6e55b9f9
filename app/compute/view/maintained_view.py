"""A view, brought up to the frontier of its inputs: the steps taken, by Spark where there are rows.

    advance(session, interval)   in a micro-batch: everything up to its end
    follow(states)               between micro-batches: while nothing changes, without Spark

What a caller relies on: after `advance` the output's upper is at or beyond the interval's end, and
its contents at each time of it are those of the query over the inputs' contents at that time, or
the errors shard says why there are none.

Invariants:
    Inputs are read at times of the interval only, where the stream's holds protect them.
    The two methods are never in use side by side.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from shardline import datasource
from shardline.app.compute.errors import data_error
from shardline.app.compute.view.correction import check_comparable, difference
from shardline.app.compute.view.evaluate import analysed, columns_of, fitted
from shardline.app.compute.view.input_changes import News, news_of, quiet_until
from shardline.app.compute.view.linear_check import refusal
from shardline.app.compute.view.next_step import Done, Linear, Output, Quiet, Recompute, next_step
from shardline.app.compute.view.one_task import OneTask
from shardline.app.compute.view.output import ViewSink
from shardline.app.compute.view.output_contents import Contents, correction
from shardline.app.compute.view.session_settings import meaning_of
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import Health, Hydrated, Measured, Observation, Progress
from shardline.app.execution.spark_errors import gist
from shardline.app.protocol.objects import Strategy, ViewDescription
from shardline.app.sql.over_changes import NotLinear, over_changes
from shardline.datasource.errors import Determinate
from shardline.datasource.frontier import meet
from shardline.datasource.shard.batch import Volume
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard_source.options import SinkOptions, parse_sink
from shardline.datasource.spark_native.read import every_update, times_of_changes
from shardline.datasource.spark_native.small_results import ROWS_MAX
from shardline.datasource.spark_native.time_interval import (
    Interval,
    StagedInterval,
    collect_interval,
    stage_interval,
)
from shardline.datasource.types.schema import DIFF, TS
from shardline.datasource.updates import consolidate

__all__ = ["View"]

_log = logging.getLogger(__name__)

_RACES_MAX: Final = 64
"""How often, in one micro-batch, somebody else may append to the output before the view gives up
and is started again."""


_BY_DRIVER: Final = 8_192
"""An input or a change with no more updates reaches Spark as rows: no file is opened for them."""


class View:
    """One rendering of a view. Used by one thread at a time."""

    def __init__(
        self,
        host: Host,
        incarnation: Incarnation,
        description: ViewDescription,
        gate: Callable[[], None],
    ) -> None:
        """A view whose inputs are there.

        Args:
            gate: Raises if nothing may be appended any more.

        Raises:
            InvalidUsage: An input is not there, or a column's values cannot be compared.
        """
        assert incarnation.as_of is not None, incarnation
        self._host = host
        self._incarnation = incarnation
        self._description = description
        self._as_of = incarnation.as_of
        self._schema = columns_of(description.schema)
        check_comparable(description.name, self._schema)
        states = host.client.readable(*description.inputs)
        shards = [state.shard for state in states]
        meaning = meaning_of(host.spark)
        self._sink = ViewSink(host.client, description, shards, gate, meaning)
        self._gate = gate
        self._begun_ms = host.clock.elapsed_ms()
        self._output: Output | None = None
        self._health: Health | None = None
        self._hydrated = self._made = False
        self._over_changes: str | NotLinear | None = None
        self._contents = Contents(host.client, description.name)
        self._changed_rows = 0
        self._one_task = OneTask()

    # -- with Spark --------------------------------------------------------------------------

    def advance(self, session: SparkSession, interval: Interval) -> None:
        """Bring the output up to the end of `interval`; writing is allowed.

        Args:
            session: That of the streaming query, inside of `foreachBatch`.
            interval: Of the micro-batch.

        Raises:
            Determinate: Others append to the output all the time.
            Fenced: Another runtime has taken over.
        """
        if not self._made:
            self._sink.make()
            self._made = True
        floor, end = max(self._as_of, interval.lower), interval.upper
        # Changes at the time of the snapshot itself may not be known apart any more.
        strategy: Strategy = "recompute" if interval.starts else self._description.strategy
        output = self._sink.look()
        first = floor if output.upper is None else max(floor, output.upper)
        if not output.ours and output.upper is not None:
            end = self._end_beyond(first, end)
        states = self._host.client.readable(*self._description.inputs)
        news = news_of(states, first, end) if end is None or first < end else News()
        refused = 0
        while refused < _RACES_MAX:
            step = next_step(output, news.known, floor=floor, end=end, strategy=strategy)
            match step:
                case Done():
                    self._arrived(output)
                    return
                case Quiet():
                    self._follow(step)
                case Linear():
                    strategy = self._take_linear(session, step, news)
                case Recompute() if news.spread:
                    news = self._read_times(session, news, first, end)
                    continue
                case Recompute():
                    self._recompute(session, step, states)
            before, output = output, self._sink.look()
            refused += output == before
            self._arrived(output)
        raise Determinate(
            f"others wrote to view '{self._description.name}' all through one micro-batch",
            code="CONTENTION",
            hint="stop whatever else writes to it",
        )

    def _end_beyond(self, time: int, end: int | None) -> int | None:
        """Where to go instead of `end`, so that it is beyond `time`; waits until inputs are.

        What another definition left in the output must be replaced, and while inputs rest no later
        micro-batch may come that would do it.
        """
        while end is not None and end <= time:
            self._gate()
            states = self._host.client.readable(*self._description.inputs)
            settled = meet(state.upper for state in states)
            if settled.time is None or settled.time > time:
                return settled.time
            self._host.clock.wait(threading.Event(), self._host.interval_ms)
        return end

    def rehearse(self, session: SparkSession, interval: Interval) -> None:
        """Run the query once at the end of `interval` and throw the rows away; writes nothing."""
        if self._hydrated:
            return
        at = max(self._as_of, interval.lower if interval.upper is None else interval.upper - 1)
        try:
            states = self._host.client.readable(*self._description.inputs)
            result = self._result(session, at, states)
            result.write.format("noop").mode("overwrite").save()
        except Exception as error:
            if data_error(error) is None:
                raise
        self._report_hydrated()

    def reached(self, end: int | None) -> bool:
        """Whether the output, whoever writes it, is at or beyond `end`."""
        self._output = self._sink.look()
        upper = self._output.upper
        return upper is None or (end is not None and upper >= end)

    def _result(self, session: SparkSession, at: int, states: Sequence[ShardState]) -> DataFrame:
        """The view's rows at one time; `states` of its inputs are of that time or later."""
        host = self._host
        inputs = {
            name: datasource.snapshot(
                session,
                location=self._location,
                shard=name,
                as_of=at,
                storage=host.storage,
                by_driver=_BY_DRIVER,
            )
            for name in self._description.inputs
        }
        parts = [part for s in states for batch in s.trace.batches for part in batch.parts]
        inputs = self._one_task.inputs(session, inputs, Volume.of(parts))
        return fitted(analysed(session, self._description.query, inputs), self._schema)

    def _recompute(
        self, session: SparkSession, step: Recompute, states: Sequence[ShardState]
    ) -> None:
        error, rows, desired = None, None, None
        try:
            result = self._result(session, step.at, states)
            rows, desired = self._corrected_here(result, step.lower)
            if rows is None:
                rows = self._corrected(session, result, step.lower)
        except Exception as found:
            error = data_error(found)
            if error is None:
                raise
        if self._sink.append(step, rows, error):
            if desired is not None:
                self._contents.become(step.upper, desired)
            elif rows is None:
                self._contents.moved(step.lower, step.upper)
            self._measured("recompute", rows, error)
            if step.lower == 0:
                self._sink.begin_at(step.at)

    def _corrected_here(
        self, result: DataFrame, upper: int
    ) -> tuple[StagedInterval | None, pa.Table | None]:
        """What the output lacks, staged, and what it is then, if both are small; else nothing."""
        held = self._contents.at(upper) if upper > 0 else None
        small = None if held is None else collect_interval(result, self._options)
        if held is None or small is None:
            return None, None
        desired = consolidate(small.rows)
        return small.stage(correction(desired, held)), desired

    def _corrected(self, session: SparkSession, result: DataFrame, upper: int) -> StagedInterval:
        """What the output lacks before `upper`, whatever its size, by Spark."""
        held = None
        if upper > 0:
            held = every_update(
                session,
                location=self._location,
                shard=self._description.name,
                upper=upper,
                storage=self._host.storage,
            ).drop(TS)
        return stage_interval(difference(result, held), self._options)

    def _take_linear(self, session: SparkSession, step: Linear, news: News) -> Strategy:
        """Take the step if the query allows it; how to go on in this micro-batch."""
        host = self._host
        inputs = {
            name: datasource.changes(
                session,
                location=self._location,
                shard=name,
                start=step.lower,
                end=step.upper,
                storage=host.storage,
                by_driver=_BY_DRIVER,
            )
            for name in self._description.inputs
        }
        inputs = self._one_task.inputs(session, inputs, news.volume)
        changed = self._changed(session, inputs)
        if isinstance(changed, NotLinear):
            return "recompute"
        try:
            # What the last change came to tells what to expect; half, so that one whose changes
            # are as large as that is not run twice every other time.
            rows = stage_interval(
                fitted(changed, self._schema, (TS, DIFF)),
                self._options,
                small=self._changed_rows <= ROWS_MAX // 2,
            )
        except Exception as found:
            if data_error(found) is None:
                raise
            # At which of the times it fails, and what the view is until then, each of them tells.
            return "recompute"
        self._changed_rows = rows.rows
        if self._sink.append(step, rows, None):
            self._measured("linear", rows, None)
        return "linear"

    def _changed(
        self, session: SparkSession, inputs: dict[str, DataFrame]
    ) -> DataFrame | NotLinear:
        """The query over changes; the reason why not, if this one cannot be taken so."""
        if self._over_changes is None:
            self._over_changes = over_changes(self._description.query)
            if isinstance(self._over_changes, str):
                reason = self._doubt(session, self._over_changes, inputs)
                self._over_changes = NotLinear(reason) if reason else self._over_changes
            if isinstance(self._over_changes, NotLinear):
                _log.warning(
                    "a linear view is recomputed: its query cannot be taken over changes",
                    extra={
                        "context": {
                            "view": self._description.name,
                            "reason": self._over_changes.reason,
                        }
                    },
                )
        if isinstance(self._over_changes, NotLinear):
            return self._over_changes
        return analysed(session, self._over_changes, inputs)

    def _doubt(self, session: SparkSession, query: str, inputs: dict[str, DataFrame]) -> str:
        """Why the rewritten query does not mean what the view's does; "" if it does."""
        columns = {name: frame.schema for name, frame in inputs.items()}
        try:
            return refusal(session, self._description.query, query, columns, self._schema)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is the other way
            return gist(error)

    @cached_property
    def _options(self) -> SinkOptions:
        given = {"location": self._location, "shard": self._description.name}
        return parse_sink({**self._host.storage, **given})

    def _read_times(self, session: SparkSession, news: News, lower: int, upper: int | None) -> News:
        """The news with all times of the inputs whose parts do not tell: these are read."""
        found: set[int] = set()
        for name in news.spread:
            times = times_of_changes(
                self._host.client, name, start=lower, end=upper, rows_max=ROWS_MAX
            )
            if times is not None:
                found |= times
                continue
            updates = datasource.changes(
                session,
                location=self._location,
                shard=name,
                start=lower,
                end=upper,
                storage=self._host.storage,
            )
            found |= {row[0] for row in updates.select(TS).distinct().collect()}
        return news.with_times(found)

    @property
    def _location(self) -> str:
        return self._host.client.location.url

    # -- without Spark -----------------------------------------------------------------------

    def follow(self, states: Sequence[ShardState]) -> bool:
        """Move the output's upper along while nothing changes; whether it moved.

        Args:
            states: Of all inputs, in their order.
        """
        output = self._output
        if output is None:
            # After a restart, too: without news no micro-batch may come for long.
            output = self._output = self._sink.look()
        if not output.ours or output.upper is None:
            return False
        if not self._made:
            self._sink.make()
            self._made = True
        until = quiet_until(states, output.upper).time
        if until == output.upper:
            return False
        if not self._follow(Quiet(output.upper, until)):
            self._output = None  # somebody else was here: the next micro-batch looks at it
            return False
        self._arrived(replace(output, upper=until))
        return True

    def _follow(self, step: Quiet) -> bool:
        """Take a step without rows; False if somebody else was faster."""
        followed = self._sink.follow(step)
        if followed:
            self._contents.moved(step.lower, step.upper)
        return followed

    def behind_ms(self, states: Sequence[ShardState]) -> int | None:
        """How far the output is behind what all inputs have; None before it has caught up once.

        May be called while a micro-batch is under way.
        """
        output = self._output
        settled = meet(state.upper for state in states).time if states else None
        if output is None or output.upper is None or settled is None or not self._hydrated:
            return None
        return max(settled - output.upper, 0)

    # -- telling -----------------------------------------------------------------------------

    def _arrived(self, output: Output) -> None:
        """Remember and tell how far the output is."""
        before, self._output = self._output, output
        upper = output.upper
        if upper is None or upper > self._as_of:
            self._report_hydrated()
        if before == output:
            return
        inputs: dict[str, int | None] = dict.fromkeys(self._description.inputs, upper)
        self._tell(
            Progress(
                id=self._incarnation.id,
                epoch=self._incarnation.epoch,
                write=upper,
                read=upper,
                inputs=inputs,
            )
        )

    def _report_hydrated(self) -> None:
        if self._hydrated:
            return
        self._hydrated = True
        me, took_ms = self._incarnation, self._host.clock.elapsed_ms() - self._begun_ms
        self._tell(Hydrated(id=me.id, epoch=me.epoch, took_ms=int(took_ms)))

    def _measured(self, how: Strategy, rows: StagedInterval | None, error: str | None) -> None:
        """Tell of a step that Spark took, and of the view's health if that has changed."""
        me = self._incarnation
        added = {"evaluations": 1.0, f"evaluations_{how}": 1.0}
        added["updates_out"] = float(rows.rows if rows is not None else 0)
        self._tell(Measured(id=me.id, epoch=me.epoch, added=added))
        health = Health(
            id=me.id,
            epoch=me.epoch,
            namespace="compute",
            status="running" if error is None else "stalled",
            error=error or "",
            hint=""
            if error is None
            else "change the query, or correct the rows it fails at, or take them back",
        )
        if health != self._health:
            self._health = health
            self._tell(health)

    def _tell(self, observation: Observation) -> None:
        self._host.report(observation)
