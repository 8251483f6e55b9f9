"""Finds the rows that a step looks up by key, without a job of Spark, where they are few.

    rows = FoundRows(host)
    found = rows.find(step, plan)
    found.frames                   for each look-up of the plan its rows, or all of the input
    found.volume                   how much Spark gets to read

The look-ups of a plan are done in its order: the keys of each are values in the step's changes, or
in rows that were found before it. Where the changes or what they touch are many, Spark gets all of
the input, which it joins with many rows in less time than it takes to find and hand over each.

Invariants:
    Frames have the rows that were looked up, and perhaps others of the same input.
    All rows are as of right before the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from typing_extensions import override

from shardline.app.compute.index.first_of_keys import FirstOfKeys
from shardline.app.compute.index.shard_lookups import ROWS_MAX, lookups_of
from shardline.app.compute.view.change_plan import StepPlan
from shardline.app.compute.view.input_changes import volume_of_shards
from shardline.app.compute.view.kept_jobs import FewRows
from shardline.app.compute.view.kept_plan import Leaf
from shardline.app.compute.view.look_up import KeySource, LookUp
from shardline.app.compute.view.row_conditions import rows_that_satisfy
from shardline.app.compute.view.session_settings import evaluate_beside_empty
from shardline.app.compute.view.shared_changes import changes_of, read_changes
from shardline.app.compute.view.state_step import StateStep
from shardline.app.compute.view.view_columns import with_times
from shardline.app.execution.host import Host
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frames import local_relation
from shardline.datasource.state import ShardState, Volume

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Found", "FoundRows", "rows_in_driver"]

_FEW: Final = ROWS_MAX
"""Rows that are handed to a kept plan, one task: to plan a join of six tables takes longer."""

_SMALL: Final = 50_000
"""Updates of inputs that are read whole and handed over as rows: a job would take longer."""


@dataclass(frozen=True)
class Found:
    """What a plan is taken over, beside the step's changes.

    Attributes:
        before: Contents of the inputs in `StepPlan.before`, if Spark is to read them.
        tables: Rows of each look-up; None for those that Spark is to read. With them all rows of
            the inputs in `StepPlan.before`, if these are small.
        volume: An upper bound of what Spark reads: these, and the changes.
    """

    before: dict[str, DataFrame]
    tables: dict[Leaf, pa.Table | None]
    volume: Volume
    _frame: Callable[[Leaf], DataFrame]

    @cached_property
    def frames(self) -> dict[Leaf, DataFrame]:
        """Rows of each look-up."""
        return {leaf: self._frame(leaf) for leaf in self.tables}


class FoundRows:
    """Finds the rows of one view's steps. Used by one thread at a time."""

    def __init__(self, host: Host, view: str = "") -> None:
        """No I/O; `view` is whose steps they are."""
        self._view = view
        self._client = host.client
        self._lookups = lookups_of(host.client, host.checkpoints)
        self._changes = changes_of(host.client)
        self._taken = 0

    @override
    def __str__(self) -> str:
        """The name under which it uses arrangements."""
        return self._view

    def find(self, step: StateStep, plan: StepPlan) -> Found | None:
        """What a plan needs of the time before a step; None if that does not fit it any more."""
        tables: dict[Leaf, pa.Table | None] = {}
        whole: dict[Leaf, DataFrame] = {}
        for one in plan.look_ups:
            tables[one.leaf] = self._looked_up(step, one, tables)
            if tables[one.leaf] is None:
                whole[one.leaf] = step.contents(frozenset([one.leaf.name]))[one.leaf.name]
        small = {} if whole else self._small(step, plan.before)
        tables |= small
        before = {} if small else step.contents(plan.before)
        if not plan.fits(before | {leaf.name: frame for leaf, frame in whole.items()}):
            return None

        def frame(leaf: Leaf) -> DataFrame:
            table = tables[leaf]
            if table is None:
                return whole[leaf]
            return rows_in_driver(step.session, table, plan.columns[leaf.name])

        sizes = [table for table in tables.values() if table is not None]
        volume = Volume(
            step.news.volume.rows + sum(table.num_rows for table in sizes),
            step.news.volume.size_bytes + sum(table.nbytes for table in sizes),
        )
        if before or whole:
            volume = volume_of_shards(step.inputs.values())
        return Found(before, tables, volume, frame)

    def few(self, step: StateStep, plan: StepPlan, found: Found) -> dict[Leaf, FewRows] | None:
        """All rows that a plan is over, in the order of its leaves; None if Spark is to read some.

        Args:
            step: The step.
            plan: The plan.
            found: What `find` has found for it.
        """
        if found.before or found.volume.rows > _FEW:
            return None  # before changes are read that Spark has to read, too
        tables = {Leaf(name): self.changes(step, name) for name in sorted(plan.changed)}
        tables |= found.tables
        known = {leaf: table for leaf, table in tables.items() if table is not None}
        rows = sum(table.num_rows for table in known.values())
        if len(known) < len(tables) or rows > _FEW:
            return None
        return {
            leaf: FewRows(
                step.plan.without_unread(leaf.name, table),
                columns if leaf.before else with_times(columns),
            )
            for leaf, table in known.items()
            for columns in [plan.columns[leaf.name]]
        }

    def rows(
        self,
        state: ShardState,
        key: tuple[str, ...],
        keys: pa.Table | None,
        as_of: int,
        first: FirstOfKeys | None = None,
    ) -> pa.Table | None:
        """The rows of a shard whose key is among `keys`; None if Spark has to find them.

        All rows for a key without columns, and no keys. With `first` those that come first.
        """
        rows = self._lookups.rows(
            self._client, state, key, keys, as_of=as_of, user=self, first=first
        )
        self._taken += 0 if rows is None else rows.num_rows
        return rows

    def leave_out_the_rest(self, step: StateStep) -> None:
        """Leave out of a step those updates of inputs that do not concern its view.

        Where they are many they stay, and Spark filters them.
        """
        for name in sorted(step.changed):
            table, columns = self.changes(step, name), step.plan.columns_of(name)
            if table is None or not _have_columns(table, columns):
                continue
            left = step.plan.concerning(name, table)
            if left is table:
                continue
            step.tables[name] = left
            step.changes.add(name, partial(rows_in_driver, step.session, left, columns))
            if not left.num_rows:
                step.changed.discard(name)

    def note_appended(self, state: ShardState, upper: int, rows: pa.Table) -> None:
        """Know `rows` for the updates of a shard from the end of `state` until before `upper`."""
        self._lookups.note_appended(self._client, state, upper, rows)

    def forget(self, names: Iterable[str]) -> None:
        """Give up the arrangements of these shards, in doubt of them: they are made anew."""
        self._lookups.forget(names)

    def taken(self) -> int:
        """The number of rows that were found since the last call."""
        found, self._taken = self._taken, 0
        return found

    def _small(self, step: StateStep, names: frozenset[str]) -> dict[Leaf, pa.Table | None]:
        """All rows of what is read whole; none if that is not small, all of it together."""
        shards = {name: step.shard(name) for name in sorted(names)}
        if volume_of_shards(state for state, _, _ in shards.values()).rows > _SMALL:
            return {}
        found = {
            Leaf(name, before=True): self.rows(state, (), None, lower - 1)
            for name, (state, lower, _) in shards.items()
        }
        return {} if any(rows is None for rows in found.values()) else {**found}

    def _looked_up(
        self, step: StateStep, one: LookUp, tables: dict[Leaf, pa.Table | None]
    ) -> pa.Table | None:
        """The rows of a look-up; None if all of the input is to be read."""
        values = []
        for source in one.sources:
            table = self._rows_of(step, source, tables)
            if table is None:
                return None
            values.append(_keys(table, source, one))
        # Integers of several widths may be compared with each other.
        keys = pa.concat_tables(values, promote_options="permissive")
        if keys.num_rows > ROWS_MAX:
            return None
        state, lower, _ = step.shard(one.leaf.name)
        rows = self.rows(state, one.key, keys, lower - 1, self._first(step, one))
        return None if rows is None else rows_that_satisfy(rows, one.where)

    def _first(self, step: StateStep, one: LookUp) -> FirstOfKeys | None:
        """Which rows of each key a look-up is about; None for all of them."""
        if one.first is None:
            return None
        # The keys are those of the input's own changes, all of them, which have been read for that.
        changes = self.changes(step, one.leaf.name)
        assert changes is not None, one.leaf
        first = one.first
        return FirstOfKeys(
            first.order, first.number, changes, lambda rows: rows_that_satisfy(rows, first.where)
        )

    def _rows_of(
        self, step: StateStep, source: KeySource, tables: dict[Leaf, pa.Table | None]
    ) -> pa.Table | None:
        """The rows that have the values of a key; None if they are many."""
        leaf = source.leaf
        table = tables[leaf] if leaf.before else self.changes(step, leaf.name)
        if table is None:
            return None
        table = rows_that_satisfy(table, source.where)
        for match in source.matches:
            partners = [self._rows_of(step, one, tables) for one in match.partners]
            pairs = zip(partners, match.partners, strict=True)
            known = [rows.select(one.columns) for rows, one in pairs if rows is not None]
            if len(known) == len(partners):
                table = _that_match(table, match.columns, known)
        return table

    def changes(self, step: StateStep, name: str) -> pa.Table | None:
        """The changes of an input or a state in the step; None if they are many.

        Columns that the query does not read may be NULL.
        """
        if name not in step.tables:
            state, lower, upper = step.shard(name)
            if name in step.states:
                # This view's alone: it would take the room of what others read as well.
                step.tables[name] = read_changes(self._client, state, lower, upper)
            else:
                columns = step.plan.columns_read(name)
                step.tables[name] = self._changes.updates(
                    self._client, state, lower, upper, columns
                )
        return step.tables[name]


def rows_in_driver(session: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Rows as a frame that reads no file; their types are those of `schema`.

    Raises:
        InvalidUsage: `NULL_VALUE`: a column that is never NULL to Spark has one.
    """
    for field in schema.fields:
        # Spark would not look, and take what stands in its place in memory for the value.
        if not field.nullable and rows[field.name].null_count:
            raise InvalidUsage(
                f"column '{field.name}' has nulls but is not nullable", code="NULL_VALUE"
            )
    if not rows.num_rows:
        # Only then, and before Spark plans what they are joined with.
        evaluate_beside_empty(session)
    empty = [pa.RecordBatch.from_pylist([], rows.schema)]
    return local_relation(session, rows.to_batches() or empty, schema)


def _have_columns(rows: pa.Table, columns: StructType) -> bool:
    """True if rows have just these columns: those of a shard may have changed in the meantime."""
    wanted = to_arrow_schema(columns, timezone="UTC")
    return [(f.name, f.type) for f in rows.schema] == [(f.name, f.type) for f in wanted]


def _keys(table: pa.Table, source: KeySource, one: LookUp) -> pa.Table:
    """The keys that rows have, without those that are equal to nothing."""
    keys = table.select(list(source.columns)).rename_columns(list(one.key))
    for name, nulls in zip(one.key, one.nulls, strict=True):
        if not nulls:
            keys = keys.filter(pc.is_valid(keys.column(name)))
    return keys


def _that_match(rows: pa.Table, columns: Sequence[str], partners: Sequence[pa.Table]) -> pa.Table:
    """The rows that may have a partner: each of their columns has a value that one of these has."""
    for place, name in enumerate(columns):
        given = _widest(rows.column(name))
        values = [chunk for one in partners for chunk in _widest(one.column(place)).chunks]
        found = pc.is_in(given, value_set=pa.chunked_array(values, given.type))
        if not pc.all(found).as_py():
            rows = rows.filter(found)
    return rows


def _widest(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers of several widths may be compared with each other."""
    return column.cast(pa.int64()) if pa.types.is_integer(column.type) else column
