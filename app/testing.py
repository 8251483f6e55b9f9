"""A lab tests the views of a project without files, streams or waiting: push rows, advance, look.

    with Lab(spark, "CREATE SOURCE … CREATE MATERIALIZED VIEW …") as lab:
        lab.push("orders", [(1, 10), (2, 60)], at=1000)
        lab.advance(2000)
        assert_df_equality(lab.contents("large"), expected, ignore_row_order=True)
        assert_follows_changes(lab, "large")

The project is checked like every project, and views are maintained by the very code of the runtime,
only the streams that drive it are left out. The test sets the time: rows take effect at the time
they are pushed at, and nothing else moves.

As in the runtime, a view takes the way that costs less, which for the few rows of a test is to run
its query anew. `follow_changes=True` lets views follow changes wherever they can, as they do over
many rows. That a view can, whatever its inputs hold, is what `assert_follows_changes` is about.

Shards are in memory where the machine has a file system there, else in a temporary folder; they
are removed when the block ends.

Invariants:
    Time never goes back.
    After `advance(to)` the contents of every view at each time before `to` equal its query's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from typing_extensions import override

from shardline import datasource
from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.step_costs import StepCosts
from shardline.app.compute.view.view_columns import parse_columns
from shardline.app.compute.view.view_plan import plan_view
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.object_shards import create_object_shard, parse_ddl_schema
from shardline.app.execution.observations import Observation, Stepped
from shardline.app.project.project import CheckedProject, Project
from shardline.app.protocol.graph import reachable_names
from shardline.app.protocol.objects import (
    SourceDescription,
    ViewDescription,
    errors_shard,
    inputs_of,
)
from shardline.app.protocol.view_plan import ViewPlan, obstacles
from shardline.app.spark_session import read_as_written
from shardline.app.storage.envelope import in_source_order, stage_replacements
from shardline.app.storage.kafka import DELETED, is_kafka
from shardline.app.storage.reading import POSITION, write_options
from shardline.datasource.arguments import text_of, whole_number, wrong_kind
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import Determinate, InvalidUsage, unknown_name
from shardline.datasource.frames import clone_of, to_arrow
from shardline.datasource.frontier import Frontier
from shardline.datasource.ids import new_id
from shardline.datasource.scratch_folder import ScratchFolder
from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.shard_sink.envelope import EnvelopeConverter
from shardline.datasource.shard_sink.frame_columns import assign_roles
from shardline.datasource.shard_sink.target import find_shard, resolve_target
from shardline.datasource.shard_sink.writers import ShardBatchWriter
from shardline.datasource.spark_native.leases import LEASE_KEEPER
from shardline.datasource.spark_native.time_interval import Interval
from shardline.datasource.spark_native.types import quoted, struct_of
from shardline.datasource.types.arrow_to_spark import neutral_type
from shardline.datasource.types.cast_to_schema import check_data
from shardline.datasource.types.schema import DIFF, TS
from shardline.datasource.write import Staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Lab", "LabClock", "Rows", "assert_follows_changes"]

Rows: TypeAlias = DataFrame | pa.Table | Iterable[Sequence[Any] | Mapping[str, Any]]
"""Rows of a source: a frame, an Arrow table, or tuples or dicts."""

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - its own folder in it is made safely
"""A file system in memory, on systems that have one."""


class LabClock(SystemClock):
    """The clock of a lab: its wall-clock time is the time that the test has advanced to."""

    def __init__(self) -> None:
        """Begin at 0."""
        self._now_ms = 0

    @override
    def now_ms(self) -> int:
        return self._now_ms

    def move(self, to_ms: int) -> None:
        """Set the time to `to_ms`, unless it is later already."""
        self._now_ms = max(self._now_ms, to_ms)


class _AlwaysFollow(StepCosts):
    """Changes are followed wherever that is right, however few rows there are."""

    @override
    def follows(self, times: int, rows: int, changed: int) -> bool:
        super().follows(times, rows, changed)  # for its predictions
        return True


class Lab:
    """One project under test. Use it as a context manager.

    Attributes:
        clock: The lab's clock.
        client: The client of its shards.
    """

    def __init__(
        self, spark: SparkSession, project: Project | str, *, follow_changes: bool = False
    ) -> None:
        """Check the project, and make its shards.

        Args:
            spark: The session. What is registered in it later is not known to the views.
            project: The project, or its SQL. Sinks and indexes are checked and then left alone.
            follow_changes: True if views are to follow changes wherever they can; else each step
                takes the way that costs less, as in the runtime.

        Raises:
            InvalidUsage: The project has problems.
        """
        parsed = Project.parse({"test.sql": project}) if isinstance(project, str) else project
        if not isinstance(parsed, Project):
            raise wrong_kind("project", project, "give its SQL, or Project.load(folder)")
        self._spark = spark
        # As in the runtime views run in a clone: steps change settings of their session.
        self._session = clone_of(spark)
        read_as_written(self._session)
        self._resolved: CheckedProject = parsed.check(spark)
        self.clock = LabClock()
        self._scratch = ScratchFolder("shardline-lab-", _MEMORY if _MEMORY.is_dir() else None)
        self._folder = self._scratch.path
        self.client = ShardClient.open(str(self._folder / "shards"), clock=self.clock)
        self._pending: list[tuple[int, str, pa.Table, int]] = []
        self._reached = 0
        self._stopped_at: int | None = None
        self._is_closed = False
        self._follows = follow_changes
        self._steps: list[Stepped] = []
        writes = threading.Event()
        writes.set()
        self._host = Host(
            spark=self._session,
            client=self.client,
            storage={},
            report=self._observe,
            clock=self.clock,
            ids=SystemIds(),
            checkpoints=self._folder / "checkpoints",
            writes=writes,
            check_fence=lambda: None,
        )
        for description in self._resolved.descriptions.values():
            if isinstance(description, SourceDescription | ViewDescription):
                columns = self._resolved.schemas[description.name]
                create_object_shard(self.client, description, columns)
        described = self._resolved.descriptions.values()
        self._sources = [d for d in described if isinstance(d, SourceDescription)]
        self._views = [
            self._view(number, description)
            for number, description in enumerate(self._resolved.descriptions.values(), 1)
            if isinstance(description, ViewDescription)
        ]

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the shards."""
        self._is_closed = True
        # First: afterwards whoever gives them up finds their shards gone, and says so.
        LEASE_KEEPER.release(self.client.location.url)
        self._scratch.remove()

    # -- for tests -------------------------------------------------------------------------------

    def push(self, source: str, rows: Rows, at: int, *, diff: int = 1) -> None:
        """Push rows to a source at time `at`; they are readable after the next `advance`.

        Args:
            source: Name of the source.
            rows: Columns by name; tuples have the source's columns in order. Rows of an upsert
                source replace those of their key, and one with nothing but its key deletes it.
                What is pushed at one time is one micro-batch: of several rows of a key the last
                one counts, or the one that the source's `orderingColumn` says.
            at: The time at which they take effect; not before the last `advance`.
            diff: Number of copies; -1 removes the rows, those of an upsert source by their keys.

        Raises:
            InvalidUsage: There is no such source, the rows do not fit it, `at` is in the past, or
                an `advance` has failed.
        """
        found = self._resolved.descriptions.get(text_of("source", source))
        if not isinstance(found, SourceDescription):
            known = [d.name for d in self._sources]
            raise unknown_name("source", source, known)
        self._check_usable()
        at, diff = whole_number("at", at), whole_number("diff", diff)
        _check_copies(found, diff)
        if at < self._reached:
            raise InvalidUsage(
                f"rows of '{source}' at {at}, which is settled",
                code="TIME_PASSED",
                hint=f"push at {self._reached} or later",
            )
        self._pending.append((at, source, self._table(found, rows), diff))

    def advance(self, to: int) -> None:
        """Advance all sources to `to`, and let the views follow.

        If that fails, the lab can be read as it was, and advances no further.

        Raises:
            InvalidUsage: `to` is not after the last `advance`, or that has failed.
        """
        self._check_usable()
        to = whole_number("to", to)
        if to <= self._reached:
            raise InvalidUsage(
                f"cannot advance to {to}",
                code="TIME_PASSED",
                hint=f"advance to {self._reached + 1} or later",
            )
        # Until the end: what fails between leaves some objects at `to` and others behind it.
        self._stopped_at = to
        self.clock.move(to)
        due = [one for one in self._pending if one[0] < to]
        self._pending = [one for one in self._pending if one[0] >= to]
        for source in self._sources:
            mine = [(at, rows, diff) for at, name, rows, diff in due if name == source.name]
            self._append(source, sorted(mine, key=lambda one: one[0]), to)
        for view in self._views:
            view.advance(self._session, Interval(self._reached, to, starts=self._reached == 0))
        self._reached, self._stopped_at = to, None

    def contents(self, name: str, as_of: int | None = None) -> DataFrame:
        """The contents of a source or view at a time, by default right before the last `advance`.

        Raises:
            InvalidUsage: There is no such object, or it cannot be read at that time; or the lab's
                block has ended.
            Determinate: The query of the view, or of one that it is made of, fails at that time;
                the error has its message.
        """
        self._check_open()
        if name not in self._resolved.schemas:
            raise unknown_name("object", name, self._resolved.schemas)
        at = max(self._reached - 1, 0) if as_of is None else whole_number("as_of", as_of)
        if at >= self._reached:
            raise InvalidUsage(
                f"'{name}' has no contents at {at} yet",
                code="NOT_YET_READABLE",
                hint=f"advance to {at + 1} first",
            )
        known = self._resolved.descriptions
        below = reachable_names(name, lambda one: inputs_of(known[one]) if one in known else ())
        # Those below first: their error is the reason for what is wrong above.
        for of in (*sorted(below), name):
            error = self._error_of(of, at)
            if error is not None:
                raise Determinate(
                    f"'{name}' has no contents at {at}: {'' if of == name else f'{of}: '}{error}",
                    code="DATA_ERROR",
                    hint=f"push rows that the query of '{of}' can take",
                )
        return datasource.snapshot(
            self._spark, location=self.client.location.url, shard=name, as_of=at
        )

    def plan(self, view: str) -> ViewPlan:
        """How a view is kept: its operators with their rules, and what it keeps; see `str(plan)`.

        Raises:
            InvalidUsage: There is no such view.
        """
        found = self._found_view(view)
        columns = {name: parse_columns(self._resolved.schemas[name]) for name in found.inputs}
        return plan_view(self._session, found.name, found.query, columns)

    def steps(self, view: str) -> list[Stepped]:
        """The steps that Spark took for a view so far: the way of each, its rows, and why.

        Raises:
            InvalidUsage: There is no such view.
        """
        found = self._found_view(view)
        return [one for one in self._steps if one.id == found.name]

    # -- inside ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidUsage(
                "the lab is closed, and its shards are gone",
                code="LAB_CLOSED",
                hint="look at contents inside of its `with` block, or collect them there",
            )

    def _check_usable(self) -> None:
        self._check_open()
        if self._stopped_at is not None:
            raise InvalidUsage(
                f"the advance to {self._stopped_at} has failed half-way",
                code="LAB_FAILED",
                hint="mend its error, and begin with a new Lab",
            )

    def _observe(self, observation: Observation) -> None:
        if isinstance(observation, Stepped):
            self._steps.append(observation)

    def _error_of(self, name: str, at: int) -> str | None:
        """Why the query of an object fails at a time; None if it works, or has none."""
        errors = errors_shard(name)
        if not self.client.exists(errors):
            return None
        with self.client.reader(errors) as reader:
            failed = reader.snapshot(at)
        return str(failed["error"][0].as_py()) if failed.num_rows else None

    def _found_view(self, name: str) -> ViewDescription:
        found = self._resolved.descriptions.get(name)
        if isinstance(found, ViewDescription):
            return found
        descriptions = self._resolved.descriptions.values()
        known = [one.name for one in descriptions if isinstance(one, ViewDescription)]
        raise unknown_name("view", name, known)

    def _view(self, number: int, description: ViewDescription) -> View:
        life = Incarnation(
            id=description.name,
            global_id=f"u{number}",
            dataflow=number,
            epoch=1,
            operators=(number, 1),
            as_of=0,
        )
        costs = _AlwaysFollow() if self._follows else StepCosts()
        return View(self._host, life, description, lambda: None, costs)

    def _append(
        self, source: SourceDescription, due: list[tuple[int, pa.Table, int]], to: int
    ) -> None:
        """Append the rows of a source before `to`, and advance its upper to there."""
        if source.envelope == "upsert":
            self._upsert(source, due, to)
            return
        updates = [
            rows.append_column(TS, _repeat(at, rows)).append_column(DIFF, _repeat(diff, rows))
            for at, rows, diff in due
        ]
        table = pa.concat_tables(updates) if updates else None
        writer = self.client.writer(source.name)
        outcome = writer.compare_and_append(table, Frontier(self._reached), Frontier(to))
        assert isinstance(outcome, Appended), outcome

    def _upsert(
        self, source: SourceDescription, due: list[tuple[int, pa.Table, int]], to: int
    ) -> None:
        """As `_append`, by the runtime's own code: what is pushed at one time is a micro-batch."""
        upper = Frontier(self._reached)
        for at, pushed in groupby(due, key=lambda one: one[0]):
            replaced = self._stage_upsert(source, [(rows, diff) for _, rows, diff in pushed])
            writer = self.client.writer(source.name)
            outcome = writer.commit_at(
                replaced,
                upper,
                sequence=1,
                attempt=new_id("t", self.client.ids),
                upper=Frontier(at + 1),
            )
            assert isinstance(outcome, Appended), outcome
            upper = outcome.upper
        if upper < Frontier(to):
            outcome = self.client.writer(source.name).compare_and_append(None, upper, Frontier(to))
            assert isinstance(outcome, Appended), outcome

    def _stage_upsert(
        self, source: SourceDescription, pushed: list[tuple[pa.Table, int]]
    ) -> Staged:
        """Stage the changes by which the rows of one micro-batch replace those of their keys."""
        position = count()
        found = [self._carriers(source, rows, diff, position) for rows, diff in pushed]
        runs = tuple(run for staged, _ in found for run in staged.runs)
        carriers = replace(found[-1][0], runs=runs)
        return stage_replacements(self.client, source.name, carriers, found[-1][1])

    def _carriers(
        self, source: SourceDescription, rows: pa.Table, diff: int, position: Iterator[int]
    ) -> tuple[Staged, EnvelopeConverter]:
        """Stage rows that replace others, as the tasks of the runtime do."""
        options = in_source_order(write_options(self._host, source))
        positions = [f"{next(position):020}" for _ in range(rows.num_rows)]
        added = {POSITION: pa.array(positions, pa.string())}
        # Of Kafka, a message without a value deletes.
        if diff < 0 or is_kafka(source.format):
            deletes = pc.is_null(rows["value"]) if diff > 0 else pa.repeat(True, rows.num_rows)
            added[DELETED] = deletes
            options = replace(options, delete_column=DELETED)
        kind = struct_of(parse_ddl_schema(self._resolved.schemas[source.name]).record)
        for name, values in added.items():
            rows = rows.append_column(name, values)
            kind = kind.add(name, "boolean" if name == DELETED else "string")
        found = find_shard(self.client, source.name)
        target = resolve_target(self.client, options, assign_roles(options, kind), found)
        writer = ShardBatchWriter(options, target, replace=False)
        return writer.stage(iter(rows.to_batches())), target.unwrapper

    def _table(self, source: SourceDescription, rows: Rows) -> pa.Table:
        """Convert rows to the source's columns and types."""
        schema = parse_ddl_schema(self._resolved.schemas[source.name])
        if isinstance(rows, pa.Table):
            rows = self._spark.createDataFrame(rows)
        if not isinstance(rows, DataFrame | Iterable):
            raise wrong_kind("rows", rows, "give a frame, an Arrow table, or a list of rows")
        if not isinstance(rows, DataFrame):
            listed, names = list(rows), schema.names
            # Spark takes keys as they are spelt, and NULL for a column that no key names.
            given = (key for one in listed if isinstance(one, Mapping) for key in one)
            _check_known(given, names, names)
            rows = self._spark.createDataFrame(listed, struct_of(schema.record))
        else:
            _check_known(map(str.lower, rows.columns), map(str.lower, schema.names), schema.names)
        found = to_arrow(rows.select(*map(quoted, schema.names)))
        columns = [_cast(found[field.name], field) for field in schema.arrow]
        return check_data(pa.table(columns, schema.names), schema)


def _check_known(given: Iterable[str], known: Iterable[str], names: Sequence[str]) -> None:
    """Refuse rows with a column that is not in the source, whose columns are `names`."""
    unknown = next(iter(set(given) - set(known)), None)
    if unknown is not None:
        raise unknown_name("column", unknown, names)


def _repeat(value: int, rows: pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows)


def _cast(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Values in the type of a column, if they are exactly values of it."""
    # Arrow's casts take what is below a NULL for a value: only where the type is another one.
    if neutral_type(values.type).equals(neutral_type(field.type)):
        return values
    try:
        return values.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidUsage(
            f"column '{field.name}' is {field.type}, and the rows have {values.type}: {error}",
            code="WRONG_TYPE",
            hint="cast it in the frame, or give rows of the source's types",
        ) from error


def _check_copies(source: SourceDescription, diff: int) -> None:
    if diff == 0 or (source.envelope == "upsert" and diff not in (1, -1)):
        raise InvalidUsage(
            f"{diff} copies of rows are pushed to '{source.name}'",
            code="INVALID_ARGUMENT",
            hint="an upsert source has one row of each key: diff is 1, or -1 to delete"
            if source.envelope == "upsert"
            else "diff is the number of copies to add, or below 0 to remove",
        )


def assert_follows_changes(lab: Lab, view: str, *, of: str | Iterable[str] = ()) -> None:
    """Assert that a view can follow the changes of its inputs, so that a change costs what it is.

    A view fails that would be recomputed at each change, and one that would be at the changes of
    some input, such as a left join by a range at those of its right side.

    Args:
        lab: Of the project.
        view: The view.
        of: Inputs whose changes it must follow, or one input; none for all of them.

    Raises:
        AssertionError: It cannot; names the operators because of which, each with the reason.
        InvalidUsage: There is no such view, or it has no such input.
    """
    plan = lab.plan(view)
    wanted = ((of,) if isinstance(of, str) else tuple(of)) or plan.inputs
    for name in wanted:
        if name not in plan.inputs:
            raise unknown_name("input", name, plan.inputs)
    reasons = [f"{one.text}: {one.obstacle}" for one in obstacles(plan)]
    if plan.strategy == "recompute" and not reasons:
        reasons = [plan.reason]
    reasons += [f"where {name} changes: {why}" for name, why in plan.recomputed if name in wanted]
    if reasons:
        listed = "\n".join(f"  {one}" for one in reasons)
        raise AssertionError(
            f"view '{view}' does not follow the changes of {', '.join(wanted)}: its query is run "
            f"anew\n{listed}\n\nits plan:\n{plan}"
        )
