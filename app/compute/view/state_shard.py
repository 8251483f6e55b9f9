"""A state of a view is a shard: the groups of one aggregate, at every time of its history.

It is a cache of the view's inputs. Whatever is wrong with it, or not known of it, it is dropped and
made anew from them, and until then the view is recomputed. So nothing protects its history but a
retention, which is longer than what usually lies between its append and the output's.

The name of its durable writer says what it is a state of (`state_identity`): a definition that has
changed goes on from states that it has in common with the one before, and drops the others. One
with other columns than the plan's is of another definition, too: what a plan adds up can have other
types than the one before had.

Invariants:
    Contents at a time before the upper are the aggregate's accumulators over the inputs then.
    Nothing is written or dropped before `gate` has let it pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from shardline import datasource
from shardline.app.compute.view.kept_jobs import FewRows
from shardline.app.compute.view.output_correction import few_contents
from shardline.app.execution.host import Host
from shardline.app.execution.object_shards import drop_object_shard
from shardline.datasource.frames import StagedInterval
from shardline.datasource.frontier import TIME_MAX, Frontier
from shardline.datasource.read import current_schema
from shardline.datasource.schema import ShardSchema
from shardline.datasource.sink import SinkOptions, parse_sink
from shardline.datasource.state import Appended, ShardState, is_tombstone, plan_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["WRITERS", "StateShard"]

WRITERS: Final = ("state:", "view:")
"""Beginnings of the names of durable writers of states: by what they are of, and by definition."""

_MADE: Final = "text:made anew"
"""The range that an append covers by which a state becomes what its source is, not by a change."""

_RETAIN_MS: Final = 600_000
"""A step that was interrupted longer ago than that finds its state's past gone, and recomputes."""

_BY_DRIVER: Final = 8_192
"""A state, or a change of one, with no more updates is read by the driver."""


class StateShard:
    """The shard of one state. Used by one thread at a time."""

    def __init__(
        self,
        host: Host,
        name: str,
        gate: Callable[[], None],
    ) -> None:
        """No I/O.

        Args:
            host: What the view runs in.
            name: Name of the shard.
            gate: Raises if nothing may be written any more.
        """
        self._host = host
        self.name = name
        self.writer = ""
        """Name of the durable writer of the state that it has, or is to have; "" if not known."""
        self._gate = gate

    # -- what is there ------------------------------------------------------------------------

    def look(self, columns: StructType | None = None) -> ShardState | None:
        """Its state; None if it is not there, or is of another definition.

        Args:
            columns: What it is to have: with others it is of another definition, whoever has
                written to it, and as long as nobody has. None for any.
        """
        state = self._there()
        if state is None or not self._is_mine(state):
            return None
        if columns is not None and current_schema(state) != ShardSchema.parse(columns.json()):
            return None
        return state

    def is_there(self) -> bool:
        """True if it is there, whatever it is a state of."""
        return self._there() is not None

    def is_of_a_stranger(self) -> bool:
        """True if it is there, and what has written to it last was no state of any view."""
        state = self._there()
        return state is not None and _last_writer(state) is None

    def last_writer(self) -> str:
        """The durable writer of the state that it has; "" if it has none, or is not there."""
        state = self._there()
        return "" if state is None else _last_writer(state) or ""

    def _there(self) -> ShardState | None:
        # Not `readable`: no transaction ever writes to it.
        state = self._host.client.machine(self.name).refresh()
        return None if state is None or is_tombstone(state) else state

    def _is_mine(self, state: ShardState) -> bool:
        mine = state.writers.get(self.writer)
        fresh = state.upper.time == 0
        return fresh or (mine is not None and mine.upper == state.upper.time)

    def is_made_beyond(self, state: ShardState, time: int) -> bool:
        """True if its last append made it anew, up to beyond `time`.

        If the output ends at `time`, that was a step that ended before the output was appended.
        """
        mine = state.writers.get(self.writer)
        return mine is not None and mine.covers == _MADE and state.upper > Frontier(time)

    def contents(self, session: SparkSession, state: ShardState, before: int) -> DataFrame:
        """The rows right before a time, which may be beyond the upper: then those of the upper."""
        return datasource.snapshot(
            session,
            location=self._location,
            shard=self.name,
            as_of=_until(state, before) - 1,
            storage=self._host.storage,
            by_driver=_BY_DRIVER,
            pads=False,
        )

    def few(self, state: ShardState, before: int, columns: StructType) -> FewRows | None:
        """The same rows, read by this process; None if they are not few."""
        return few_contents(self._host.client, self.name, _until(state, before), columns)

    def changes(
        self, session: SparkSession, state: ShardState, lower: int, upper: int | None
    ) -> Callable[[], DataFrame] | None:
        """Makes the updates in `[lower, upper)`, with `_ts` and `_diff`; None if there are none."""
        if not plan_changes(state, lower, upper):
            return None
        settled = state.upper.time
        if settled is not None and (upper is None or upper > settled):
            upper = settled
        return partial(
            datasource.changes,
            session,
            location=self._location,
            shard=self.name,
            start=lower,
            end=upper,
            storage=self._host.storage,
            by_driver=_BY_DRIVER,
            pads=False,
        )

    # -- what becomes of it -------------------------------------------------------------------

    def make_anew(self, schema: StructType) -> None:
        """Make it without contents; one that is there is dropped."""
        self.drop()
        self._gate()
        columns = ShardSchema.parse(schema.json())
        self._host.client.create(self.name, columns, retain_ms=_RETAIN_MS)

    def drop(self) -> None:
        """Drop it, if it is there."""
        drop_object_shard(self._host.client, self.name, self._gate)

    def append(
        self,
        rows: StagedInterval,
        lower: int,
        upper: int | None,
        *,
        made_at: int | None = None,
    ) -> bool:
        """Append `[lower, upper)`; False if somebody else was first.

        Args:
            rows: Updates, staged by `options`. They are taken over: appended, or discarded.
            lower: Its upper.
            upper: Its upper afterwards.
            made_at: Time of updates that have none: those that make it what its source is.
        """
        try:
            self._gate()
        except BaseException:
            rows.discard()
            raise
        sequence = TIME_MAX + 1 if upper is None else upper
        covers = "" if made_at is None else _MADE
        outcome = rows.append(
            lower, upper, writer=self.writer, sequence=sequence, at=made_at, covers=covers
        )
        return isinstance(outcome, Appended)

    @cached_property
    def options(self) -> SinkOptions:
        """By which rows are staged for it."""
        given = {"location": self._location, "shard": self.name}
        return parse_sink({**self._host.storage, **given})

    @property
    def _location(self) -> str:
        return self._host.client.location.url


def _last_writer(state: ShardState) -> str | None:
    """Who has appended to a state last; "" if nobody has; None if it was no state of a view."""
    if state.upper.time == 0:
        return ""
    last = (name for name, one in state.writers.items() if one.upper == state.upper.time)
    return next((name for name in last if name.startswith(WRITERS)), None)


def _until(state: ShardState, before: int) -> int:
    settled = state.upper.time
    return before if settled is None else min(before, settled)
