"""A view's query at one time: over its inputs' contents then, with now() as that time.

    query = QueryAt(host, description, schema, one_task)
    query.result(session, at, states)     the view's rows at a time
    query.anew(session, at, states)       the same for a step that is run anew
    query.next_time(session, at, states)  when they change by themselves, if no input does

Invariants:
    The clock of no machine is in a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from shardline import datasource
from shardline.app.compute.view.current_time import at_time
from shardline.app.compute.view.due_times import DueTimes, NextTime
from shardline.app.compute.view.input_changes import volume_of_shards
from shardline.app.compute.view.kept_jobs import FewRows
from shardline.app.compute.view.kept_plan import Leaf
from shardline.app.compute.view.kept_query import KeptQuery
from shardline.app.compute.view.one_task import OneTask
from shardline.app.compute.view.output_correction import Result, few_contents
from shardline.app.compute.view.view_columns import fit_columns
from shardline.app.execution.host import Host
from shardline.app.protocol.objects import ViewDescription
from shardline.app.sql.temporal_filters import has_clock_word
from shardline.datasource.frames import ROWS_MAX, clone_of, struct_of
from shardline.datasource.read import current_schema
from shardline.datasource.state import ShardState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["BY_DRIVER", "QueryAt"]

BY_DRIVER: Final = 8_192
"""An input or a change with no more updates reaches Spark as rows: no file is opened for them."""


class QueryAt:
    """The query of one view. Used by one thread at a time."""

    def __init__(
        self, host: Host, description: ViewDescription, schema: StructType, one_task: OneTask
    ) -> None:
        """Nothing is analysed yet."""
        self._host = host
        self._description = description
        self._schema = schema
        self._one_task = one_task
        self._query = KeptQuery(description.query)
        self._due = DueTimes(description.query)

    @cached_property
    def is_temporal(self) -> bool:
        """True if rows come and go by themselves; a project's check lets no other now() pass."""
        if not has_clock_word(self._description.query):
            return False
        return self._due.are_any(clone_of(self._host.spark), self._columns())

    def snapshot(self, session: SparkSession, name: str, at: int) -> DataFrame:
        """The rows of a shard at one time."""
        return datasource.snapshot(
            session,
            location=self._host.client.location.url,
            shard=name,
            as_of=at,
            storage=self._host.storage,
            by_driver=BY_DRIVER,
            pads=False,
        )

    def result(self, session: SparkSession, at: int, states: Sequence[ShardState]) -> DataFrame:
        """The view's rows at one time; `states` of its inputs are of that time or later."""
        return self._over(session, self._inputs(session, at, states), at)

    def anew(self, session: SparkSession, at: int, states: Sequence[ShardState]) -> Result:
        """The query's result at one time, by a kept plan where its inputs are little."""
        # A kept plan has the time of its query in it.
        volume = volume_of_shards(states)
        little = volume.rows <= ROWS_MAX and not self.is_temporal

        def read_few_rows() -> Mapping[Leaf, FewRows] | None:
            found: dict[Leaf, FewRows] = {}
            for state in states if little else ():
                columns = struct_of(current_schema(state).record)
                few = few_contents(self._host.client, state.name, at + 1, columns)
                if few is None:
                    return None
                found[Leaf(state.name)] = few
            return found or None

        def over(frames: Mapping[Leaf, DataFrame]) -> DataFrame:
            return self._over(session, {leaf.name: frame for leaf, frame in frames.items()}, at)

        key = ("anew", *((state.shard, state.schema_id) for state in states))
        return Result(lambda: self.result(session, at, states), volume, key, read_few_rows, over)

    def next_time(self, session: SparkSession, at: int, states: Sequence[ShardState]) -> NextTime:
        """The first time after `at` at which the rows may change, if no input does.

        That is read from the inputs at `at`.
        """
        return self._due.after(session, self._inputs(session, at, states), at)

    def _over(self, session: SparkSession, inputs: Mapping[str, DataFrame], at: int) -> DataFrame:
        found = self._query.evaluate(session, inputs)
        return fit_columns(at_time(session, found, at) if self.is_temporal else found, self._schema)

    def _inputs(
        self, session: SparkSession, at: int, states: Sequence[ShardState]
    ) -> dict[str, DataFrame]:
        names = self._description.inputs
        inputs = {name: self.snapshot(session, name, at) for name in names}
        return self._one_task.inputs(session, inputs, volume_of_shards(states))

    def _columns(self) -> dict[str, StructType]:
        states = self._host.client.readable(*self._description.inputs)
        return {state.name: struct_of(current_schema(state).record) for state in states}
