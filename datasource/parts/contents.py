"""From planned parts to rows: contents at a time, and changes in an interval.

What a partition of a Spark read does, and a reader without Spark: fetch, and for a snapshot
consolidate where something was retracted. Memory is bounded by record batches, whatever the parts'
size: groups are merged as streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.parts.fetch import BATCH_ROWS, Fetcher
from shardline.datasource.rows.merge_runs import merge_snapshot
from shardline.datasource.rows.updates import expand, sort_rows
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart
from shardline.datasource.types.schema import DIFF, TS, ShardSchema

__all__ = ["Contents"]


@dataclass(frozen=True, slots=True)
class Contents:
    """Reads rows of one shard by plan.

    Attributes:
        fetcher: Reads parts under the shard's whole schema; a filter of its is the reader's.
        key: The shard's key, which runs are sorted by.
        columns: The columns wanted, in order.
    """

    fetcher: Fetcher
    key: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def _narrow(self) -> Fetcher:
        """Reads the columns wanted, then those that only the filter looks at."""
        where, whole = self.fetcher.where, self.fetcher.target
        more = () if where is None else where.columns - set(self.columns)
        names = (*self.columns, *(name for name in whole.names if name in more))
        return replace(self.fetcher, target=whole.select(names))

    @property
    def target(self) -> ShardSchema:
        """The schema of the rows that come out."""
        return self.fetcher.target.select(self.columns)

    def plain(self, planned: PlannedPart, as_of: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a part that needs no consolidation.

        Args:
            planned: Of a snapshot plan.
            as_of: Give each row once, with `_ts` (this time) and its number of copies in `_diff`;
                None gives each row as often as it is there.
        """
        counted = _counted(planned.part) or as_of is not None
        wanted = [*self.columns, *([DIFF] if counted else [])]
        for found in self._narrow.fetch(planned, with_ts=False, with_diff=counted):
            batch = found.select(wanted)
            if counted:
                yield from self._snapshot_rows(pa.Table.from_batches([batch]), as_of)
            else:
                yield batch

    def group(
        self, parts: Sequence[PlannedPart], as_of: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are there after the updates of all `parts`, merged and consolidated.

        Raises:
            Corrupt: More copies of a row were retracted than added.
        """
        # Whether two rows are the same is decided by all columns, so all are read. The same rows
        # pass a filter or do not, so it is applied before they are merged.
        runs = [self.ordered_run(planned) for planned in parts]
        for table in merge_snapshot(runs, self.key):
            yield from self._snapshot_rows(table.select([*self.columns, DIFF]), as_of)

    def changes(self, planned: PlannedPart) -> Iterator[pa.RecordBatch]:
        """The updates of a part: wanted columns, `_ts`, `_diff`; not consolidated."""
        names = [*self.columns, TS, DIFF]
        for batch in self._narrow.fetch(planned, with_ts=True, with_diff=True):
            yield batch.select(names)

    def inserts(self, planned: PlannedPart) -> Iterator[pa.RecordBatch]:
        """The rows that a part adds, each as often as its diff says.

        Raises:
            InvalidUsage: Some row is retracted.
        """
        part = planned.part
        for found in self._narrow.fetch(planned, with_ts=False, with_diff=_counted(part)):
            if not _counted(part):
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
        """Rows with their number of copies: spelled out, or as updates at `as_of`."""
        if as_of is None:
            for table in expand(counted, BATCH_ROWS):
                yield from _batches(table)
            return
        times = pa.repeat(pa.scalar(as_of, pa.int64()), counted.num_rows)
        at = counted.num_columns - 1
        yield from _batches(counted.add_column(at, pa.field(TS, pa.int64(), nullable=False), times))

    def ordered_run(self, planned: PlannedPart) -> Iterator[pa.Table]:
        """All updates of a part under the whole schema, in sort order."""
        batches = self.fetcher.fetch(planned, with_ts=True, with_diff=True)
        if planned.ordered:
            for batch in batches:
                yield pa.Table.from_batches([batch])
        elif held := list(batches):
            yield sort_rows(pa.Table.from_batches(held), self.key)


def _counted(part: Part) -> bool:
    """Whether some row of the part is there more or less often than once."""
    return part.diff_min != 1 or part.diff_max != 1


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
        if batch.num_rows:
            yield batch
