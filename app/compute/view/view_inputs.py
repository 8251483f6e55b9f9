"""A view's inputs are a part of its definition: the very shards, and the columns that it reads.

    inputs = ViewInputs(host, description)
    inputs.shards, inputs.determinants      what names the writer of the output
    inputs.states()                    the inputs as they are now, if they are still the same
    inputs.check(states)               the same of states that somebody else has read
    inputs.settled_beyond(time, …)     waits until they are settled beyond a time

A row that leaves a view is found by evaluating the query's expressions once more. So what the query
says of a row must stay what it was: an input that was dropped and made again has other rows, and of
a column that was widened the same row has another text, another hash, another key of a state. Such
a view has another definition, whose first step corrects the output. A rendering that meets one ends
itself, and the next one begins anew.

An input may get columns at any time, and most queries do not see them. Only columns that the query
reads count, and of these only those that the shard did not have, or not of this type, when it was
made: no other change of a shard's columns keeps its id. So nothing is analysed, and no writer has
another name, while no input has changed its columns.

Invariants:
    The same shards, with the same types of all columns that the query reads, give the same meaning.
    Where a query cannot be analysed over the columns, it is taken to read all of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from shardline.app.compute.errors import BEGINS_ANEW_HINT
from shardline.app.compute.view.concern import concerns
from shardline.app.compute.view.kept_plan import plan_of
from shardline.app.compute.view.session_settings import engine_versions, query_settings
from shardline.app.execution.host import Host
from shardline.app.execution.spark_errors import error_line
from shardline.app.protocol.objects import ViewDescription
from shardline.app.sql.query_tree import query_tree
from shardline.datasource.errors import Determinate
from shardline.datasource.frames import (
    analyse_query,
    clone_of,
    empty_frame,
    read_sequence,
    struct_of,
)
from shardline.datasource.frontier import meet
from shardline.datasource.read import current_schema
from shardline.datasource.schema import ShardSchema
from shardline.datasource.state import ShardState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["InputChanged", "ViewInputs"]

_log = logging.getLogger(__name__)

_INTERVALS: Final = 3
"""Intervals for which a first time is waited for that inputs may never reach."""


class InputChanged(Determinate):
    """A rendering's inputs are not those that it was made for: it must end, and begin anew."""


class ViewInputs:
    """The inputs of one rendering of a view. Used by one thread at a time.

    Attributes:
        shards: Ids of the inputs' shards, in the order of the description.
        determinants: What else decides what the query says of a row: settings, versions, and the
            types of columns that came after the shards were made.
    """

    def __init__(self, host: Host, description: ViewDescription) -> None:
        """The inputs as they are now.

        Raises:
            InvalidUsage: An input is not there.
        """
        self._host = host
        self._description = description
        states = self._readable()
        self.shards = [state.shard for state in states]
        self._columns = self._later_columns(states)
        self._seen = _schemas(states)
        self.determinants = (
            *query_settings(host.spark),
            *engine_versions(host.spark),
            *self._columns,
        )

    @property
    def shards_by_name(self) -> dict[str, str]:
        """The ids of the inputs' shards, by the names by which a plan knows the inputs."""
        names = (name.lower() for name in self._description.inputs)
        return dict(zip(names, self.shards, strict=True))

    def states(self) -> list[ShardState]:
        """The states of the inputs, no older than this call.

        Raises:
            InputChanged: See `check`.
            InvalidUsage: An input is not there.
        """
        states = self._readable()
        self.check(states)
        return states

    def settled_beyond(
        self, time: int, end: int | None, check_not_fenced: Callable[[], None]
    ) -> int | None:
        """Return `end` if it is beyond `time`; else wait until all inputs are settled beyond it.

        What another definition left in an output must be replaced, and while inputs rest no later
        micro-batch may come that would do it.
        """
        while end is not None and end <= time:
            # Each time: inputs may rest for ever, and a fenced runtime would wait here as long.
            check_not_fenced()
            settled = meet(state.upper for state in self.states())
            if settled.time is None or settled.time > time:
                return settled.time
            self._host.clock.wait(threading.Event(), self._host.interval_ms)
        return end

    def are_soon_beyond(self, time: int, check_not_fenced: Callable[[], None]) -> bool:
        """True once all inputs are settled beyond `time`; False if they are not in a few intervals.

        A source that is there moves in each; one that is paused, or a shard that nothing moves, may
        rest for ever.
        """
        for _ in range(_INTERVALS):
            check_not_fenced()
            if meet(state.upper for state in self.states()).is_beyond(time):
                return True
            self._host.clock.wait(threading.Event(), self._host.interval_ms)
        return False

    def check(self, states: Sequence[ShardState]) -> None:
        """Raise unless the query means over these inputs what it has meant.

        Raises:
            InputChanged: An input is another shard, or a column that the query reads has another
                type, or is new.
        """
        seen = _schemas(states)
        if seen == self._seen:
            return
        for state, shard in zip(states, self.shards, strict=True):
            if state.shard != shard:
                raise self._changed(f"input '{state.name}' was dropped and made again")
        columns = self._later_columns(states)
        if columns != self._columns:
            changed = ", ".join(sorted({*columns} - {*self._columns})) or "fewer columns"
            raise self._changed(f"an input has changed columns that the query reads: {changed}")
        self._seen = seen

    def _readable(self) -> list[ShardState]:
        return self._host.client.readable(*self._description.inputs)

    def _changed(self, reason: str) -> InputChanged:
        return InputChanged(
            f"view '{self._description.name}' must begin anew: {reason}",
            code="INPUT_CHANGED",
            hint=BEGINS_ANEW_HINT,
        )

    def _later_columns(self, states: Sequence[ShardState]) -> tuple[str, ...]:
        """Columns that the query reads, with their types, unless shards were made with them."""
        if all(state.schema_id == 0 for state in states):
            return ()
        columns = {state.name: struct_of(current_schema(state).record) for state in states}
        read = self._read(clone_of(self._host.spark), columns)
        return tuple(text for state in states for text in _later(state, read.get(state.name, ())))

    def _read(
        self, session: SparkSession, columns: Mapping[str, StructType]
    ) -> dict[str, Collection[str]]:
        """Names of the columns of each input that the query reads."""
        empty = {name: empty_frame(session, given) for name, given in columns.items()}
        try:
            # As it was analysed, and not its normal form: a rule may leave out what is constant,
            # such as the number or the types of all columns, and that is read as well.
            plan: Any = plan_of(analyse_query(session, self._description.query, empty))
            plans = [plan, *read_sequence(plan.subqueriesAll())]
            return {name: one.columns for name, one in concerns(map(query_tree, plans), {}).items()}
        except PySparkException as error:
            # The step says so, too, and then somebody can put it right.
            _log.info(
                "a view's query cannot be analysed over its inputs",
                extra={"context": {"view": self._description.name, "reason": error_line(error)}},
            )
            return {name: given.names for name, given in columns.items()}


def _schemas(states: Sequence[ShardState]) -> list[tuple[str, int]]:
    return [(state.shard, state.schema_id) for state in states]


def _later(state: ShardState, read: Collection[str]) -> Iterator[str]:
    """The columns of an input that are read, and that its shard was not made with."""
    first = _types(ShardSchema.parse(state.schemas[0]))
    for name, kind in _types(current_schema(state)).items():
        if name in read and first.get(name) != kind:
            yield f"{state.name}.{name} {kind}"


def _types(schema: ShardSchema) -> dict[str, str]:
    """The columns' types as SQL; whether values may be null changes nothing of what they mean."""
    return {field.name: field.dataType.simpleString() for field in struct_of(schema.record).fields}
