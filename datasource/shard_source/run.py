"""Answers Spark's calls for one run of a streaming query: in its planner process, or the driver.

The protocol for one micro-batch, and what makes each step safe to repeat:

    latest(start)      look at all shards; choose the end; take the since hold before an end that
                       needs it is returned; pin the snapshot before an end inside of it is
    plan(start, end)   own the holds; lease first, then plan from the newest states (a snapshot in
                       pieces: from the pinned ones)
    commit(end)        everything before the end is done: move the holds up to it

Spark may call in any order that a restart makes of this, and may repeat each call: an end that was
returned is planned by a later run, a range is planned twice, a commit comes again or never.
`choose_end` has the first step, `plan_range` the second, `stream_inputs` the shards and the holds.

Invariants:
    Without news, `latest` returns its argument.
    A hold covers whatever an offset that was ever returned needs, until the next one is committed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import meet
from shardline.datasource.offsets import ShardOffset, Start
from shardline.datasource.parts.verify import verify_part
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard_source.choose_end import EndChooser
from shardline.datasource.shard_source.descs import Limits
from shardline.datasource.shard_source.fetch_task import ShardPartition
from shardline.datasource.shard_source.freeze import Freezer
from shardline.datasource.shard_source.options import SourceOptions
from shardline.datasource.shard_source.plan_range import RangePlanner
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.shard_source.stream_inputs import StreamInputs, time_needed

__all__ = ["StreamRun"]


class StreamRun:
    """One run of a query: lives from the query's start to its end, in the planner process.

    Or in the driver, of a query whose rows nobody reads: there no range is ever planned.
    """

    def __init__(
        self, options: SourceOptions, client: ShardClient, shape: RowShape | None = None
    ) -> None:
        """Prepare to plan; no I/O. Without a shape of rows, `plan` is never called."""
        self._inputs = StreamInputs(options, client)
        self._freezer: Freezer | None = None
        if options.on_missing_part == "freeze":
            self._freezer = Freezer(
                partial(verify_part, client.location.blob),
                self._inputs.describe,
                client.clock,
                self._inputs.who,
                options.freeze_timeout_ms,
            )
        self._chooser = EndChooser(options, self._inputs, self._freezer, client.clock)
        self._planner: RangePlanner | None = None
        if shape is not None:
            self._planner = RangePlanner(options, client, shape, self._inputs, self._freezer)
        self._goes_on = False
        """True once this run was given an offset: whatever it held before is named by that."""

    def latest(self, start: Start | ShardOffset, limits: Limits) -> Start | ShardOffset:
        """The end of the next micro-batch; `start` itself when there is nothing to read."""
        states = self._inputs.look()
        if isinstance(start, Start):
            return self._begin(states, limits)
        # Before a hold is taken over: on a shard that was made again under the name there is none,
        # so it would be created there, and keep history for a query that cannot go on.
        self._inputs.check_shards(start, states)
        is_resumed, self._goes_on = not self._goes_on, True
        if start.frontier.time is None:
            # Everything has been read, and Spark commits an end only when it makes the next one.
            self._inputs.give_up(start)
            return start
        if is_resumed and start.cut is None and not self._chooser.has_begun:
            # What an earlier run has left is done: Spark asks for the next end behind it only. Its
            # commit never comes before there are news, and a pin keeps every file until then.
            self._inputs.take_over(start, time_needed(start))
            self._inputs.advance(start.frontier.time)
        return self._chooser.go_on(start, states, limits)

    def _begin(self, states: list[ShardState], limits: Limits) -> Start | ShardOffset:
        try:
            return self._chooser.begin(states, limits)
        except BaseException:
            # No checkpoint names the holds: left behind, they keep history for ever. Not if an end
            # was returned before: Spark's log may have it, and a restart needs what it names.
            if not self._chooser.has_begun:
                self._inputs.withdraw()
            raise

    @property
    def states(self) -> list[ShardState]:
        """The states of the last look, in the order of the inputs; empty before the first."""
        return self._inputs.states

    def may_have_news(self, start: Start | ShardOffset) -> bool:
        """False if what this process knows of the shards has nothing after `start`; no I/O.

        What others have written since this process has looked, nobody can know without a look.
        """
        if isinstance(start, Start) or start.cut is not None or start.frontier.time is None:
            return True
        return self._inputs.may_have_news(start, start.frontier.time)

    def report(self) -> dict[str, Any] | None:
        """The shards in the query's progress: their upper, and the part that it stands before.

        None before anything was looked at.
        """
        states = self._inputs.states
        if not states:
            return None
        uppers = {state.name: state.upper.time for state in states}
        report: dict[str, Any] = {"upper": meet(state.upper for state in states).time}
        if len(uppers) > 1:
            report["uppers"] = uppers
        if self._freezer is not None and self._freezer.frozen is not None:
            report["frozen"] = self._freezer.frozen.json()
        return report

    def fix_target(self) -> None:
        """Read no further than what is settled now (Spark's trigger `availableNow`)."""
        self._chooser.fix_target()

    def plan(self, start: Start | ShardOffset, end: Start | ShardOffset) -> list[ShardPartition]:
        """The partitions of a range, planned anew each time."""
        assert self._planner is not None, self._inputs.who
        # Before planning, which may fail: the range is in Spark's log and names the holds, so that
        # `release` must not end them.
        self._goes_on = True
        return self._planner.plan(start, end)

    def commit(self, end: Start | ShardOffset) -> None:
        """Move the holds: everything before `end` is done.

        A piece of a snapshot leaves them where they are: the others are planned from the same pin.
        """
        if isinstance(end, Start):
            return
        if end.frontier.time is None:
            self._inputs.give_up(end)
            return
        # A restart may commit first, when this run holds nothing yet; and another run of the query
        # is fenced by it before anything is let go.
        self._inputs.take_over(end, time_needed(end))
        # Where no range is planned nothing else does: a hold that looks as if nobody had ever used
        # it is one that people end.
        self._inputs.confirm()
        if end.cut is None:
            self._inputs.advance(end.frontier.time)

    def release(self) -> None:
        """Give the leases up; the since holds stay for the next run, if this one has begun."""
        self._inputs.release()
        # Of a run that has begun the offsets in the checkpoint name the holds.
        if not (self._goes_on or self._chooser.has_begun):
            self._inputs.withdraw()
