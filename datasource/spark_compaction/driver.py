"""Drives a large merge: plans ranges, claims the batches, runs the job, applies one result.

    compact_on_spark(spark, client, "orders")      merges that are due; force=True merges everything

A merge is applied as any other one: if its inputs are still there, if all of their rows were read
by exactly one task each, and if the diffs that went in came out. The claim is renewed while the
merge is planned, and while tasks finish (`job_watch`). If the driver dies or the job hangs,
the claim expires; the orphan sweep deletes the staged parts, and the shard has not changed.

Invariants:
    One merge is applied by one transition, however many tasks made it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, InvalidUsage, MissingBlob, ShardError
from shardline.datasource.filters.predicates import ColumnKnowledge
from shardline.datasource.ids import process_name
from shardline.datasource.maintenance.compact import (
    apply_merged,
    are_all_parts_named,
    make_due_merges,
    merge_batches,
)
from shardline.datasource.maintenance.compaction_claim import MergeClaim, Superseded
from shardline.datasource.parts.merge_parts import (
    Merged,
    MergeSource,
    Tally,
    covered_interval,
    merge_since,
    merge_work_bytes,
    sources,
)
from shardline.datasource.parts.part_file import read_metadata
from shardline.datasource.parts.row_groups import RowGroups
from shardline.datasource.shard.batch import Batch, Part, Run
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import Claim, ShardState
from shardline.datasource.spark_compaction.job_watch import JobWatch, TaskCounts
from shardline.datasource.spark_compaction.ranges import (
    RowRange,
    WeightedSpan,
    cut_kind,
    known_of_part,
    plan_cuts,
    ranges_between,
    weighted_span,
)
from shardline.datasource.spark_compaction.task import MergeTask, RangeResult, merge_range
from shardline.datasource.stores.location import Blob
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RANGE_BYTES", "compact_on_spark", "plan_tasks"]

RANGE_BYTES: Final = 128 << 20
"""Encoded bytes that one task reads, about: it then writes one to three parts of usual size."""

_TASKS_MAX: Final = 10_000
"""Ranges of one merge, at most: a driver takes milliseconds for each."""

_FOOTERS: Final = 16
"""Footers read side by side."""

_MESSAGE: Final = re.compile(r"(?:\.(\w+): )?\[([A-Z_]{4,})\] ([^\n]+)")
"""The class, code and message of a `ShardError`, in the text that the JVM makes of a failure."""

_OF_INPUTS: Final = {kind.__name__: kind for kind in (Corrupt, MissingBlob)}

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
    """Run the merges that are due on shard `name` as Spark jobs; the number of merges applied.

    Merges that fit into one range are made here, without a job. Batches that somebody else has
    claimed are left alone.

    Args:
        spark: The session; its executors must reach the location.
        client: A client of the shard's location.
        name: Name of the shard.
        storage: Options of the store that `client` was opened with, for the executors.
        force: True merges all batches into one.
        range_bytes: Encoded bytes that one task reads, about. Less means more tasks, and parts
            that are smaller than they could be.
        report: Receives the progress, in words.

    Raises:
        InvalidUsage: There is no such shard.
        MissingBlob: A part is missing.
        Corrupt: A part is damaged.
        ShardError: A task failed for another reason, which the message gives.
        Determinate: The store did not answer; or `MERGED_ELSEWHERE`, other processes have replaced
            the batches of each merge. Merges made before stay.
        Indeterminate: The outcome of the last merge is unknown.
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

    return make_due_merges(machine, merge.run, force=force, left_to=left_to)


class _SparkMerge:
    """Merges batches of one shard by Spark jobs."""

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
        """Replace `inputs` by one batch; False if somebody else did so, or has claimed them."""
        machine = self._machine
        weight = merge_work_bytes(part for batch in inputs for part in batch.parts)
        where = f"{machine.name}: [{inputs[0].desc.lower}, {inputs[-1].desc.upper})"
        if weight <= self._range_bytes:
            self._report(f"{where}: {len(inputs)} batches are merged here")
            return merge_batches(machine, state, inputs, may_inline=False)
        with MergeClaim.on(machine, inputs, f"merge on Spark by {process_name()}") as claim:
            if not claim.held:
                return False
            staged_ms = machine.clock.now_ms()
            try:
                tasks = plan_tasks(
                    machine, self._storage, state, inputs, self._range_bytes, progress=claim.keep
                )
                self._report(f"{where}: {len(inputs)} batches are merged by {len(tasks)} tasks")
                done = self._collect(tasks, claim, where)
            except Superseded:
                return False
            except ShardError:
                # A part that is missing is no error if another merge has replaced the inputs, and
                # garbage collection has deleted them under this job.
                if not are_all_parts_named(machine.state(), inputs):
                    return False
                raise
            read = Tally(sum(d.read.rows for d in done), sum(d.read.diffs for d in done))
            parts = tuple(part for one in done for run in one.runs for part in run.parts)
            merged = Merged((Run(parts),) if parts else (), read)
            return apply_merged(machine, state, inputs, merged, claim=claim, staged_ms=staged_ms)

    def _collect(
        self, tasks: Sequence[MergeTask], claim: MergeClaim, where: str
    ) -> list[RangeResult]:
        """Run the job, and renew the claim while its tasks finish.

        Raises:
            Superseded: Somebody else has the claim now, and the job was cancelled.
            ShardError: A task failed.
        """
        # The claim's name is unique, so that cancelling the group cancels no other job.
        watch = JobWatch(
            claim,
            self._machine.clock,
            count=len(tasks),
            largest_bytes=max(task.size_bytes for task in tasks),
            where=where,
            counts=lambda: self._counts(claim.name),
            cancel=lambda: self._context.cancelJobGroup(claim.name),
            report=self._report,
        )
        self._context.setJobGroup(claim.name, f"merge {where}")
        try:
            with watch.running():
                return self._context.parallelize(tasks, len(tasks)).map(merge_range).collect()
        except Exception as error:
            if watch.superseded.is_set():
                raise Superseded(where) from error
            raise _task_error(error) from error
        finally:
            for key in ("spark.jobGroup.id", "spark.job.description"):
                self._context.setLocalProperty(key, None)  # type: ignore[arg-type]  # unsets it

    def _counts(self, group: str) -> TaskCounts:
        tracker = self._context.statusTracker()
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
        stages = [stage for job in jobs if job for stage in job.stageIds]
        infos = [info for info in map(tracker.getStageInfo, stages) if info]
        return TaskCounts(
            sum(info.numCompletedTasks for info in infos),
            sum(info.numActiveTasks for info in infos),
        )


def plan_tasks(
    machine: Machine,
    storage: Mapping[str, str],
    state: ShardState,
    inputs: tuple[Batch, ...],
    range_bytes: int,
    *,
    progress: Callable[[], None] = lambda: None,
) -> list[MergeTask]:
    """The tasks of a merge, in order of their ranges, each with the parts that may have its rows.

    Args:
        machine: The shard's machine.
        storage: As for `compact_on_spark`.
        state: The state that the merge is planned from.
        inputs: Neighbouring batches of `state`.
        range_bytes: As for `compact_on_spark`.
        progress: Called for each part that was looked at, and for each range; may raise to end the
            planning.

    Raises:
        MissingBlob: A part is missing.
    """
    schemas = {number: ShardSchema.parse(text) for number, text in state.schemas.items()}
    schema = schemas[state.schema_id]
    column = (*state.key, *schema.names)[0]
    kind = cut_kind(schema.field(column))
    parts = [part for batch in inputs for part in batch.parts]
    known = {part.key: known_of_part(part, column) for part in parts}
    wanted = min(-(-sum(part.size_bytes for part in parts) // range_bytes), _TASKS_MAX)
    ranges = ranges_between(column, kind, [])
    if kind is not None and wanted > 1:
        survey = _Survey(machine.location.blob, schemas, column, kind, range_bytes // 8, known)
        pieces = survey.all(parts, progress)
        ranges = ranges_between(column, kind, plan_cuts(pieces, wanted))
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
            desc=covered_interval(inputs),
            since=merge_since(state, inputs),
            sources=_sources_in_range(read, rows, known),
            rows=rows,
        )
        for rows in _reported(ranges, progress)
    ]


def _reported(ranges: Sequence[RowRange], progress: Callable[[], None]) -> Iterator[RowRange]:
    for rows in ranges:
        # Each is compared with every part: minutes, for ten thousand ranges of as many parts.
        progress()
        yield rows


def _sources_in_range(
    read: Sequence[MergeSource], rows: RowRange, known: Mapping[str, ColumnKnowledge | None]
) -> tuple[MergeSource, ...]:
    """The sources whose parts may have rows in a range, without their other parts."""
    kept = []
    for source in read:
        some = tuple(planned for planned in source.parts if rows.may_hold(known[planned.part.key]))
        if some:
            kept.append(replace(source, parts=some))
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class _Survey:
    """Finds out how the rows of parts are spread over the values of one column.

    Attributes:
        blob: The store of the parts.
        schemas: The shard's schemas by id.
        column: The column to cut by.
        kind: The kind of its bounds.
        fine_bytes: Up to this size the bounds in the state are fine enough; of larger parts the
            footers are read.
        known: The bounds in the state, by key of the part.
    """

    blob: Blob
    schemas: Mapping[int, ShardSchema]
    column: str
    kind: Kind
    fine_bytes: int
    known: Mapping[str, ColumnKnowledge | None]

    def all(self, parts: Sequence[Part], progress: Callable[[], None]) -> list[WeightedSpan]:
        """The pieces of all parts; nothing for parts without bounds."""
        pieces = []
        threads = ThreadPoolExecutor(_FOOTERS)
        try:
            for found in threads.map(self._one, parts):
                # A hundred thousand footers take longer than the lease of a claim.
                progress()
                pieces += found
        finally:
            # After an error nobody needs the other footers, of which there may be thousands.
            threads.shutdown(cancel_futures=True)
        return pieces

    def _one(self, part: Part) -> list[WeightedSpan]:
        piece = weighted_span(self.known[part.key], self.kind, part.size_bytes)
        known = [] if piece is None else [piece]
        if part.inline is not None or (known and part.size_bytes <= self.fine_bytes):
            return known
        source = self.blob.open(part.key, part.size_bytes)
        # A part that is missing or damaged is reported by the task that reads it.
        if source is None or self.column not in self.schemas[part.schema]:
            return known
        try:
            groups = RowGroups(read_metadata(source, part), self.schemas[part.schema])
        except (Corrupt, pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the store's trouble, not the part's
            return known
        return list(self._of_groups(part, groups)) or known

    def _of_groups(self, part: Part, groups: RowGroups) -> Iterator[WeightedSpan]:
        for group in range(groups.count):
            weight = part.size_bytes * groups.rows([group]) // part.rows
            piece = weighted_span(groups.known(group, (self.column,)), self.kind, weight)
            if piece is not None:
                yield piece


def _task_error(error: Exception) -> ShardError:
    """The task's error, from the text that the JVM has left of it."""
    found = _MESSAGE.search(str(error))
    if isinstance(error, ShardError):
        return error
    if found is None:
        return ShardError(f"the job of a merge failed: {error}"[:1000], code="MERGE_JOB_FAILED")
    # After these other merges can be made (`impossible_merges`), so the class must not be lost.
    return _OF_INPUTS.get(found[1], ShardError)(found[3], code=found[2])
