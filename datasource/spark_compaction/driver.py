"""The driver's half of a large merge: plans ranges, claims, runs the job, applies one result.

    compact_on_spark(spark, client, "orders")      what is due; force=True for everything

A merge is applied as any other one: if its inputs are still there, if all of their rows were read
by exactly one task each, and if the diffs that went in came out. The claim is renewed while the job
runs. If the driver dies, its claim runs out and the staged parts are the sweeper's; nothing of the
shard has changed.

Invariants:
    One merge is applied by one transition, however many tasks made it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, InvalidUsage, ShardError
from shardline.datasource.filters.predicates import Known
from shardline.datasource.ids import owner
from shardline.datasource.maintenance.compact import (
    apply_merged,
    is_there,
    merge_batches,
    merge_in_turn,
)
from shardline.datasource.maintenance.compaction_claim import MergeClaim, Superseded
from shardline.datasource.parts.merge_parts import (
    Merged,
    Source,
    Tally,
    merge_since,
    sources,
    span,
    weigh,
)
from shardline.datasource.parts.part_file import read_metadata
from shardline.datasource.parts.row_groups import RowGroups
from shardline.datasource.shard.batch import Batch, Part, Run
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import Claim, ShardState
from shardline.datasource.spark_compaction.ranges import (
    Piece,
    RowRange,
    cut,
    cut_kind,
    known_of_part,
    piece_of,
    plan_cuts,
)
from shardline.datasource.spark_compaction.task import MergeTask, RangeMerged, merge_range
from shardline.datasource.stores.location import Blob
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RANGE_BYTES", "compact_on_spark", "plan_tasks"]

RANGE_BYTES: Final = 128 << 20
"""Encoded bytes that one task reads, about: it writes one to three parts of the usual size."""

_TASKS_MAX: Final = 10_000
"""Ranges of one merge, at most: a driver takes milliseconds for each."""

_FOOTERS: Final = 16
"""Footers read side by side."""

_LOOK_MS: Final = 1000
"""How often the driver looks how far a job is."""

_MESSAGE: Final = re.compile(r"\[([A-Z_]{4,})\] ([^\n]+)")
"""What is left of an error on its way through the JVM."""

Report = Callable[[str], None]


def compact_on_spark(
    spark: SparkSession,
    client: ShardClient,
    name: str,
    *,
    storage: Mapping[str, str],
    force: bool = False,
    range_bytes: int = RANGE_BYTES,
    report: Report = lambda _: None,
) -> int:
    """Merge what is due on shard `name` by Spark jobs; the number of merges applied.

    Merges that fit into one range are made here, without a job. While somebody else has claimed
    what is due, it is left alone.

    Args:
        spark: The session; its executors must reach the location.
        client: Of the location.
        name: The shard's.
        storage: Options of the store that `client` was opened with, for the executors.
        force: Merge all that is there into one batch.
        range_bytes: Encoded bytes that one task reads, about. Less means more tasks, and parts
            that are smaller than they could be.
        report: Is told what goes on, in words.

    Raises:
        InvalidUsage: There is no such shard.
        MissingBlob: A part is not there.
        Corrupt: A part is not what was written.
        ShardError: A task failed for another reason, which is told.
        Determinate: The store did not answer; merges made before stay.
        Indeterminate: It is not known whether the last merge was applied.
    """
    if range_bytes < 1:
        raise InvalidUsage(
            f"a range of {range_bytes} bytes", code="INVALID_SETTING", hint="use 1 or more"
        )
    client.state(name)
    machine = client.machine(name)
    merge = _SparkMerge(spark, machine, storage, range_bytes, report)

    def left_to(claims: tuple[Claim, ...]) -> None:
        for claim in claims:
            report(f"{name}: [{claim.lower}, {claim.upper}) is left to {claim.purpose}")

    return merge_in_turn(machine, merge.run, force=force, left_to=left_to)


class _SparkMerge:
    """Merges batches of one shard by jobs."""

    def __init__(
        self,
        spark: SparkSession,
        machine: Machine,
        storage: Mapping[str, str],
        range_bytes: int,
        report: Report,
    ) -> None:
        self._context = spark.sparkContext
        self._machine = machine
        self._storage = storage
        self._range_bytes = range_bytes
        self._report = report

    def run(self, state: ShardState, inputs: tuple[Batch, ...]) -> bool:
        """Put one batch in the place of `inputs`; False if somebody else did, or is at it."""
        machine = self._machine
        weight = weigh(part for batch in inputs for part in batch.parts)
        where = f"{machine.name}: [{inputs[0].desc.lower}, {inputs[-1].desc.upper})"
        if weight <= self._range_bytes:
            self._report(f"{where}: {len(inputs)} batches are merged here")
            return merge_batches(machine, state, inputs, may_inline=False)
        with MergeClaim.on(machine, inputs, f"merge on Spark by {owner()}") as claim:
            if not claim.held:
                return False
            staged_ms = machine.clock.now_ms()
            try:
                tasks = plan_tasks(machine, self._storage, state, inputs, self._range_bytes)
                self._report(f"{where}: {len(inputs)} batches are merged by {len(tasks)} tasks")
                done = self._collect(tasks, claim, where)
            except Superseded:
                return False
            except ShardError:
                if not is_there(machine.state(), inputs):
                    return False  # merged by another, and collected
                raise
            read = Tally(sum(d.read.rows for d in done), sum(d.read.diffs for d in done))
            parts = tuple(part for one in done for run in one.runs for part in run.parts)
            merged = Merged((Run(parts),) if parts else (), read)
            return apply_merged(machine, state, inputs, merged, claim=claim, staged_ms=staged_ms)

    def _collect(
        self, tasks: Sequence[MergeTask], claim: MergeClaim, where: str
    ) -> list[RangeMerged]:
        """Run the job, and keep the claim meanwhile.

        Raises:
            Superseded: The claim is somebody else's: the job was cancelled.
            ShardError: A task failed.
        """
        superseded = threading.Event()
        # The name of the claim: a name that no other job has.
        self._context.setJobGroup(claim.name, f"merge {where}")
        try:
            with self._watched(len(tasks), claim, where, superseded):
                return self._context.parallelize(tasks, len(tasks)).map(merge_range).collect()
        except Exception as error:
            if superseded.is_set():
                raise Superseded(where) from error
            raise _told(error) from error
        finally:
            for key in ("spark.jobGroup.id", "spark.job.description"):
                self._context.setLocalProperty(key, None)  # type: ignore[arg-type]  # unsets it

    @contextmanager
    def _watched(
        self, count: int, claim: MergeClaim, where: str, superseded: threading.Event
    ) -> Iterator[None]:
        """Keep the claim, and tell how far the job is, for as long as the block runs."""
        stop = threading.Event()

        def watch() -> None:
            told = 0
            while not self._machine.clock.wait(stop, _LOOK_MS):
                try:
                    if not superseded.is_set():
                        claim.keep()
                except Superseded:
                    superseded.set()
                if superseded.is_set():
                    # At every look: a job that is submitted only now was not cancelled before.
                    self._context.cancelJobGroup(claim.name)
                    continue
                if (done := self._completed(claim.name)) > told:
                    told = done
                    self._report(f"{where}: {done} of {count} tasks are done")

        thread = threading.Thread(target=watch, name="merge-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _completed(self, group: str) -> int:
        tracker = self._context.statusTracker()
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
        stages = [stage for job in jobs if job for stage in job.stageIds]
        infos = map(tracker.getStageInfo, stages)
        return sum(info.numCompletedTasks for info in infos if info)


def plan_tasks(
    machine: Machine,
    storage: Mapping[str, str],
    state: ShardState,
    inputs: tuple[Batch, ...],
    range_bytes: int,
) -> list[MergeTask]:
    """The ranges of a merge, in order, each with what may have rows in it.

    Raises:
        MissingBlob: A part is not there.
    """
    schemas = {number: ShardSchema.parse(text) for number, text in state.schemas.items()}
    schema = schemas[state.schema_id]
    column = (*state.key, *schema.names)[0]
    kind = cut_kind(schema.field(column))
    parts = [part for batch in inputs for part in batch.parts]
    known = {part.key: known_of_part(part, column) for part in parts}
    wanted = min(-(-sum(part.size_bytes for part in parts) // range_bytes), _TASKS_MAX)
    ranges = cut(column, kind, [])
    if kind is not None and wanted > 1:
        survey = _Survey(machine.location.blob, schemas, column, kind, range_bytes // 8, known)
        ranges = cut(column, kind, plan_cuts(survey.all(parts), wanted))
    read = sources(inputs)
    return [
        MergeTask(
            location=machine.location.url,
            storage=dict(storage),
            settings=machine.settings,
            name=machine.name,
            directory=machine.directory,
            schemas=state.schemas,
            schema_id=state.schema_id,
            key=state.key,
            desc=span(inputs),
            since=merge_since(state, inputs),
            sources=_within(read, rows, known),
            rows=rows,
            share=1 / len(ranges),
        )
        for rows in ranges
    ]


def _within(
    read: Sequence[Source], rows: RowRange, known: Mapping[str, Known | None]
) -> tuple[Source, ...]:
    """What may have rows in a range."""
    kept = []
    for source in read:
        some = tuple(planned for planned in source.parts if rows.may_hold(known[planned.part.key]))
        if some:
            kept.append(replace(source, parts=some))
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class _Survey:
    """Finds out where the rows of parts are in one column.

    Attributes:
        fine_bytes: What is told of a part of this size or less by the state is fine enough; of
            larger ones the footers are read.
        known: What the state tells, by part.
    """

    blob: Blob
    schemas: Mapping[int, ShardSchema]
    column: str
    kind: Kind
    fine_bytes: int
    known: Mapping[str, Known | None]

    def all(self, parts: Sequence[Part]) -> list[Piece]:
        """What is known of all parts."""
        with ThreadPoolExecutor(_FOOTERS) as threads:
            return [piece for found in threads.map(self._one, parts) for piece in found]

    def _one(self, part: Part) -> list[Piece]:
        piece = piece_of(self.known[part.key], self.kind, part.size_bytes)
        known = [] if piece is None else [piece]
        if part.inline is not None or (known and part.size_bytes <= self.fine_bytes):
            return known
        source = self.blob.open(part.key, part.size_bytes)
        # Of a part that is missing or damaged the task that reads it will tell.
        if source is None or self.column not in self.schemas[part.schema]:
            return known
        try:
            groups = RowGroups(read_metadata(source, part), self.schemas[part.schema])
        except (Corrupt, pa.ArrowException):
            return known
        return list(self._of_groups(part, groups)) or known

    def _of_groups(self, part: Part, groups: RowGroups) -> Iterator[Piece]:
        for group in range(groups.count):
            weight = part.size_bytes * groups.rows([group]) // part.rows
            piece = piece_of(groups.known(group, (self.column,)), self.kind, weight)
            if piece is not None:
                yield piece


def _told(error: Exception) -> ShardError:
    """A task's error, of which the JVM has left a text."""
    found = _MESSAGE.search(str(error))
    if isinstance(error, ShardError):
        return error
    if found is None:
        return ShardError(f"the job of a merge failed: {error}"[:1000], code="MERGE_JOB_FAILED")
    return ShardError(found[2], code=found[1])
