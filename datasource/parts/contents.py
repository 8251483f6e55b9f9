"""Turns planned parts into rows: contents at one time, or changes in an interval.

A partition of a Spark read and a reader without Spark do the same: fetch, and, for a snapshot,
consolidate those parts that retractions may concern. Other parts are returned as they are, so
append-only data do not pay for consolidation. Memory is bounded by record batches, whatever the
parts' size: groups of parts are merged as streams. Only parts of a group that are not in order,
those of Spark's own writer, are sorted in memory, each as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.parts.fetch import BATCH_ROWS, Fetcher
from shardline.datasource.rows.merge_runs import merge_snapshot
from shardline.datasource.rows.updates import expand_copies, sort_rows
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart, SnapshotPlan
from shardline.datasource.types.schema import DIFF, TS, ShardSchema

__all__ = ["Contents"]


@dataclass(frozen=True, slots=True)
class Contents:
    """Reads the rows of one shard from planned parts.

    Attributes:
        fetcher: Reads parts with the shard's whole schema and the reader's filter.
        key: The shard's key, which runs are sorted by.
        columns: The columns to return, in order.
    """

    fetcher: Fetcher
    key: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def _projected_fetcher(self) -> Fetcher:
        """A fetcher of `columns`, followed by those that only the filter needs."""
        where, whole = self.fetcher.where, self.fetcher.target
        more = () if where is None else where.columns - set(self.columns)
        names = (*self.columns, *(name for name in whole.names if name in more))
        return replace(self.fetcher, target=whole.select(names))

    @property
    def target(self) -> ShardSchema:
        """The schema of the returned rows."""
        return self.fetcher.target.select(self.columns)

    def snapshot(self, plan: SnapshotPlan, as_of: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a whole plan: those of its plain parts, then those of its groups.

        Args:
            plan: Of the state that these contents are of.
            as_of: As of `plain`; a row of parts without retractions may come in several updates,
                whose diffs add up.

        Raises:
            Corrupt: More copies of a row were retracted than added.
        """
        for planned in plan.plain:
            yield from self.plain(planned, as_of)
        for group in plan.groups:
            yield from self.group(group, as_of)

    def plain(self, planned: PlannedPart, as_of: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a part that needs no consolidation.

        Args:
            planned: One of a snapshot plan's plain parts.
            as_of: If given, each row is returned once, with this time as `_ts` and its number of
                copies as `_diff`; if None, each row is returned as often as it is there.
        """
        counted = _has_counts(planned.part) or as_of is not None
        wanted = [*self.columns, *([DIFF] if counted else [])]
        for found in self._projected_fetcher.fetch(planned, with_ts=False, with_diff=counted):
            batch = found.select(wanted)
            if counted:
                yield from self._snapshot_rows(pa.Table.from_batches([batch]), as_of)
            else:
                yield batch

    def group(
        self, parts: Sequence[PlannedPart], as_of: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows that remain after the updates of all `parts`, merged and consolidated.

        Raises:
            Corrupt: More copies of a row were retracted than added.
        """
        # All columns decide if two rows are the same, so all are read, whatever `columns` is. The
        # filter may come before the merge: of equal rows either all pass it or none.
        runs = [self.read_sorted_run(planned) for planned in parts]
        for table in merge_snapshot(runs, self.key):
            yield from self._snapshot_rows(table.select([*self.columns, DIFF]), as_of)

    def changes(self, planned: PlannedPart) -> Iterator[pa.RecordBatch]:
        """The updates of a part: `columns`, then `_ts` and `_diff`; not consolidated."""
        names = [*self.columns, TS, DIFF]
        for batch in self._projected_fetcher.fetch(planned, with_ts=True, with_diff=True):
            yield batch.select(names)

    def read_inserts(self, planned: PlannedPart) -> Iterator[pa.RecordBatch]:
        """The rows that a part adds, each as often as its diff says.

        Raises:
            InvalidUsage: Some row is retracted.
        """
        part = planned.part
        for found in self._projected_fetcher.fetch(
            planned, with_ts=False, with_diff=_has_counts(part)
        ):
            if not _has_counts(part):
                yield found.select(list(self.columns))
                continue
            batch = found.select([*self.columns, DIFF])
            if pc.min(batch.column(DIFF)).as_py() < 0:
                raise InvalidUsage(
                    f"part '{part.key}' retracts rows, and this stream takes added rows only",
                    code="RETRACTION_IN_APPEND_ONLY_STREAM",
                    hint="set option readChangeFeed to true: rows then carry _ts and _diff",
                )
            yield from self._snapshot_rows(pa.Table.from_batches([batch]), None)

    def _snapshot_rows(self, counted: pa.Table, as_of: int | None) -> Iterator[pa.RecordBatch]:
        """Counted rows as repeated rows, or, if `as_of` is given, as updates at that time."""
        if as_of is None:
            for table in expand_copies(counted, BATCH_ROWS):
                yield from _batches(table)
            return
        times = pa.repeat(pa.scalar(as_of, pa.int64()), counted.num_rows)
        at = counted.num_columns - 1
        yield from _batches(counted.add_column(at, pa.field(TS, pa.int64(), nullable=False), times))

    def read_updates(self, planned: PlannedPart) -> Iterator[pa.Table]:
        """All updates of a part with the whole schema, in the order of the part."""
        for batch in self.fetcher.fetch(planned, with_ts=True, with_diff=True):
            yield pa.Table.from_batches([batch])

    def read_sorted_run(self, planned: PlannedPart) -> Iterator[pa.Table]:
        """As `read_updates`, in sort order: a part that is not in order is held in memory."""
        updates = self.read_updates(planned)
        if planned.ordered:
            yield from updates
        elif held := list(updates):
            yield sort_rows(pa.concat_tables(held), self.key)


def _has_counts(part: Part) -> bool:
    """True if some diff of the part is not 1."""
    return part.diff_min != 1 or part.diff_max != 1


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
        if batch.num_rows:
            yield batch
