"""Merges the parts of several batches into one sorted run, in bounded memory.

    sources(inputs)                  the inputs as sorted streams, small parts pooled
    Merger.of(state, inputs, …)      how they are read and written
    merger.merge(sources) -> Merged  the run, and a count of its input

This is the work of a compaction; committing the result is done elsewhere. Diffs of equal rows at
equal times are summed, and times before `since` are advanced to it, so that rows which were added
and retracted before `since` disappear. Small parts are read and sorted together. What is too large
to be sorted in memory (a part of Spark's own writer, which is in no order and as large as Spark
likes) is first written again in sorted pieces, as a writer would: once so much of it was read.
Sources that still do not fit into memory side by side are merged in several passes.

One thing is not bounded by the memory limit: rows that agree in the shard's key are merged as one
group, whichever parts they come from (`rows.merge_runs`). A key is meant to have few rows a value.

It reads and writes blobs only, never Consensus, so it runs wherever there is room: in a writer's
process as well as in an executor's task, which merges one range of the rows
(`contents.fetcher.where`).

Invariants:
    The diffs that were read and those that were written have the same sum, in each pass; otherwise
    the merge fails and what it has written is deleted.
    Blobs that an earlier pass wrote are deleted when the merge ends, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from shardline.datasource.parts.contents import Contents
from shardline.datasource.parts.fetch import BATCH_ROWS, Fetcher
from shardline.datasource.parts.stage import Staged, Stager, UncommittedParts
from shardline.datasource.rows.merge_runs import merge, merge_loaded
from shardline.datasource.rows.updates import sort_rows
from shardline.datasource.shard.batch import Batch, Part, Run
from shardline.datasource.shard.commands.merge import not_conserved, same_sum, sum_of_diffs
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.plan import PlannedPart, TimeFilter
from shardline.datasource.shard.state import ShardState
from shardline.datasource.types.schema import DIFF, ShardSchema

__all__ = [
    "MergeSource",
    "Merged",
    "Merger",
    "Tally",
    "check_all_read",
    "covered_interval",
    "merge_since",
    "merge_work_bytes",
    "sources",
]

_ROW_BYTES: Final = 16
"""Least weight of a row: well compressed rows take as long to merge as others."""

_OPEN_BYTES: Final = 4096
"""Additional weight of a part: opening it, and its share of a log record."""

_LEAST_SORTED_BYTES: Final = 1 << 20
"""As much is sorted in memory whatever its limit: smaller pieces cost more to open than to sort."""


def merge_work_bytes(parts: Iterable[Part]) -> int:
    """The work of merging `parts`, in encoded bytes to read."""
    return sum(max(part.size_bytes, _ROW_BYTES * part.rows) + _OPEN_BYTES for part in parts)


@dataclass(slots=True)
class Tally:
    """A running count of updates.

    Attributes:
        rows: Number of updates.
        diffs: The sum of their diffs, to be compared modulo 2**64.
        memory_bytes: What they take in memory.
    """

    rows: int = 0
    diffs: int = 0
    memory_bytes: int = 0

    def add(self, updates: pa.Table) -> None:
        """Count the rows of `updates`."""
        self.rows += updates.num_rows
        self.memory_bytes += updates.nbytes
        for chunk in updates.column(DIFF).chunks:
            self.diffs += int(chunk.to_numpy().sum(dtype=np.int64))


@dataclass(frozen=True, slots=True)
class MergeSource:
    """Parts that are read as one run.

    Attributes:
        parts: The parts to read.
        pooled: True if they are read at once and sorted together; otherwise they are in order, one
            part after the other.
        passing: The updates that an earlier pass of the same merge has read to write them; None if
            none has.
    """

    parts: tuple[PlannedPart, ...]
    pooled: bool
    passing: Tally | None = None

    @property
    def rows(self) -> int:
        """How many updates its parts have."""
        return sum(planned.part.rows for planned in self.parts)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The updates of a pooled source, in memory; emptied when they are merged."""

    tables: list[pa.Table]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _Opened:
    """A source in order, of which the first table was read; `memory_bytes` goes by that one."""

    tables: Iterator[pa.Table]
    memory_bytes: int


_Source: TypeAlias = MergeSource | _Loaded | _Opened
"""A source on its way into a merge: as it was asked for, or read as far as it has to be."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge.

    Attributes:
        runs: One run of staged parts; none if no update is left.
        read: Count of the updates that were read.
    """

    runs: tuple[Run, ...]
    read: Tally


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Merger:
    """Merges parts of one shard as a state describes them.

    Attributes:
        name: The shard's name.
        desc: The interval that is merged, for error messages.
        contents: Reads the parts with the current schema; its fetcher's filter selects the range of
            rows that is merged.
        stager: Writes the result.
        since: Earlier times are advanced to it; None leaves all as they are.
        memory_bytes: Approximate limit of the memory that is used at once.
        progress: Called for every table that was read; may raise to end the merge.
    """

    name: str
    desc: Description
    contents: Contents
    stager: Stager
    since: int | None
    memory_bytes: int
    progress: Callable[[], None] = _nothing

    @classmethod
    def of(cls, state: ShardState, inputs: tuple[Batch, ...], stager: Stager) -> Merger:
        """A merger of `inputs`, batches of `state`.

        Args:
            stager: Writes the result; its blob store and settings are used for reading, too.
        """
        schemas = {number: ShardSchema.parse(text) for number, text in state.schemas.items()}
        fetcher = Fetcher(stager.blob, schemas, stager.schema)
        return cls(
            name=state.name,
            desc=covered_interval(inputs),
            contents=Contents(fetcher, state.key, stager.schema.names),
            stager=stager,
            since=merge_since(state, inputs),
            memory_bytes=stager.settings.compact_memory_bytes,
        )

    def merge(self, wanted: Sequence[MergeSource]) -> Merged:
        """Merge `wanted` into one run of staged parts.

        Raises:
            MissingBlob: A part is not there.
            Corrupt: A part's bytes are not those that were written; or the sum of diffs changed.
        """
        read = Tally()
        # Only the next pass reads the parts of an earlier one: no record will ever name them.
        with UncommittedParts(self.stager.blob) as passing:
            left: list[_Source] = list(wanted)
            while (count := self._load_fitting(left, read, passing)) < len(left):
                here = Tally()
                run = self._staged(left[:count], here, read)
                passing.add(run)
                left = [*left[count:], *(_as_source(one, here) for one in run)]
            return Merged(self._staged(left, Tally(), read), read)

    @property
    def _sorted_bytes(self) -> int:
        """How much may be sorted at once: sorting makes a copy, and two sources are the least."""
        return max(self.memory_bytes // 4, _LEAST_SORTED_BYTES)

    def _load_fitting(self, left: list[_Source], read: Tally, passing: UncommittedParts) -> int:
        """Read as many of the first of `left` as fit into memory; their number.

        At least two, or all. One that is too large to be sorted is replaced by its sorted pieces.
        What fits is decided by what was read: a file's size tells little, as repeated texts may
        take hundreds of times as much in memory.
        """
        total = count = 0
        while count < len(left):
            source = left[count]
            is_enough = count >= 2  # noqa: PLR2004 - fewer is no merge
            if isinstance(source, MergeSource) and source.pooled:
                # Before it is read: it is kept until it is merged.
                if is_enough and total + self._sorted_bytes > self.memory_bytes:
                    break
                left[count : count + 1] = self._loaded(source, read, passing, beside=total > 0)
                continue
            if isinstance(source, MergeSource) and source.passing is None:
                source = left[count] = self._opened(source)
            total += self._memory_bytes(source)
            if is_enough and total > self.memory_bytes:
                break
            count += 1
        return count

    @staticmethod
    def _memory_bytes(source: _Source) -> int:
        """What a source takes while it is merged; two tables of one that is in order."""
        if not isinstance(source, MergeSource):
            return source.memory_bytes
        read = source.passing
        assert read is not None, "others are opened"
        return read.memory_bytes * min(source.rows, 2 * BATCH_ROWS) // read.rows

    def _opened(self, source: MergeSource) -> _Opened:
        tables = chain.from_iterable(map(self.contents.read_updates, source.parts))
        first = next(tables, None)
        # Of thousands of sources the first tables take longer than a claim lasts.
        self.progress()
        if first is None:
            return _Opened(iter(()), 0)
        return _Opened(chain([first], tables), 2 * first.nbytes)

    def _loaded(
        self, source: MergeSource, read: Tally, passing: UncommittedParts, *, beside: bool
    ) -> Sequence[_Source]:
        """A pooled source in memory, or its updates in sorted pieces if they are too many.

        `beside` says that others are in memory already.
        """
        updates = chain.from_iterable(map(self.contents.read_updates, source.parts))
        held: list[pa.Table] = []
        size = 0
        for table in updates:
            self.progress()
            held.append(table)
            size += table.nbytes
            if size > self._sorted_bytes:
                here = Tally()
                limit = self._sorted_bytes if beside else 2 * self._sorted_bytes
                runs = self._sorted_pieces(chain(_drained(held), updates), here, read, limit)
                passing.add(runs)
                return [_as_source(run, here) for run in runs]
        return [_Loaded(held, size)]

    def _sorted_pieces(
        self, updates: Iterable[pa.Table], here: Tally, read: Tally, piece_bytes: int
    ) -> tuple[Run, ...]:
        """Updates that are in no order, as runs of one part.

        Cut by what the rows take in memory, not by row groups: those of other software are as large
        as it likes. Larger pieces are fewer, and take fewer passes.
        """
        settings = replace(self.stager.settings, part_buffer_bytes=piece_bytes)
        stager = replace(self.stager, settings=settings)
        staged = stager.stage(self._counted(updates, (here, read)))
        return self._checked(staged, here).runs

    def _staged(self, wanted: Sequence[_Source], here: Tally, read: Tally) -> tuple[Run, ...]:
        staged = self.stager.stage(self._merged(wanted, here, read), in_order=True)
        parts = tuple(part for run in self._checked(staged, here).runs for part in run.parts)
        return (Run(parts),) if parts else ()

    def _checked(self, staged: Staged, here: Tally) -> Staged:
        """The staged parts of one pass, which has read `here`; deleted if they are not its sum."""
        parts = tuple(part for run in staged.runs for part in run.parts)
        with UncommittedParts(self.stager.blob, staged.runs) as uncommitted:
            if not same_sum(here.diffs, sum_of_diffs(parts)):
                raise not_conserved(self.name, self.desc, here.diffs, sum_of_diffs(parts))
            uncommitted.hand_over(staged.runs)
        return staged

    def _merged(self, wanted: Sequence[_Source], here: Tally, read: Tally) -> Iterator[pa.Table]:
        """The sum of `wanted`, in order."""
        key = self.contents.key
        if len(wanted) == 1 and isinstance(wanted[0], _Loaded):
            # Most merges after an append are of tiny parts, all in memory: one sort of their rows
            # takes half the time of cursors over sorted runs, and gives the same.
            if wanted[0].tables:
                yield merge_loaded(self._table(wanted[0], (here, read)), key, self.since)
            return
        runs = [self._run(source, here, read) for source in wanted]
        yield from merge(runs, key, self.since)

    def _run(self, source: _Source, here: Tally, read: Tally) -> Iterator[pa.Table]:
        if isinstance(source, _Loaded):
            if source.tables:
                yield sort_rows(self._table(source, (here, read)), self.contents.key)
            return
        if isinstance(source, _Opened):
            yield from self._counted(source.tables, (here, read))
            return
        # Written by an earlier pass, which has counted what it read.
        tables = chain.from_iterable(map(self.contents.read_updates, source.parts))
        yield from self._counted(tables, (here,))

    @staticmethod
    def _table(source: _Loaded, tallies: Sequence[Tally]) -> pa.Table:
        """The updates of a source in one table; the source lets go of them."""
        table = pa.concat_tables(source.tables)
        source.tables.clear()
        for tally in tallies:
            tally.add(table)
        return table

    def _counted(self, tables: Iterable[pa.Table], tallies: Sequence[Tally]) -> Iterator[pa.Table]:
        for table in tables:
            self.progress()
            for tally in tallies:
                tally.add(table)
            yield table


def check_all_read(name: str, inputs: Sequence[Batch], read: Tally) -> None:
    """Check that all updates of `inputs` were read, by the counts in the state.

    Not possible for a trimmed batch: its parts have rows that do not belong to the batch.

    Raises:
        Corrupt: `SUM_OF_DIFFS`: parts do not hold the updates that their descriptions say.
    """
    if any(batch.is_trimmed for batch in inputs):
        return
    rows = sum(batch.rows for batch in inputs)
    expected = sum_of_diffs(part for batch in inputs for part in batch.parts)
    if rows != read.rows or not same_sum(expected, read.diffs):
        raise not_conserved(name, covered_interval(inputs), expected, read.diffs)


def covered_interval(inputs: Sequence[Batch]) -> Description:
    """The interval that neighbouring batches cover together."""
    return Description(inputs[0].desc.lower, inputs[-1].desc.upper)


def merge_since(state: ShardState, inputs: Sequence[Batch]) -> int | None:
    """The time to which earlier ones are advanced when `inputs` are merged; None for no advance.

    At most the last time of the merged interval: the shard's since may be beyond it, and readers
    ignore updates outside of their batch's interval.
    """
    upper = inputs[-1].desc.upper
    ends = (state.since.time, None if upper is None else upper - 1)
    return min((time for time in ends if time is not None), default=None)


def sources(inputs: Iterable[Batch]) -> list[MergeSource]:
    """The runs of all batches; small ones are pooled, as thousands of streams merge slowly."""
    found: list[MergeSource] = []
    pool: list[PlannedPart] = []
    pooled_rows = 0
    for batch in inputs:
        times = TimeFilter(batch.desc.lower, batch.desc.upper)
        for run in batch.runs:
            planned = tuple(PlannedPart(p, times, run.order == "sorted") for p in run.parts)
            rows = sum(part.rows for part in run.parts)
            if rows > BATCH_ROWS:
                found += _large(planned)
                continue
            if pooled_rows + rows > BATCH_ROWS:
                found.append(MergeSource(tuple(pool), pooled=True))
                pool, pooled_rows = [], 0
            pool += planned
            pooled_rows += rows
    return [*found, MergeSource(tuple(pool), pooled=True)] if pool else found


def _large(planned: tuple[PlannedPart, ...]) -> list[MergeSource]:
    """A sorted run as one source; of an unsorted run each part by itself, to be sorted."""
    if planned[0].ordered:
        return [MergeSource(planned, pooled=False)]
    return [MergeSource((part,), pooled=True) for part in planned]


def _as_source(run: Run, read: Tally) -> MergeSource:
    """The run that an earlier pass has written from what it `read`, as a source of the next one."""
    everything = TimeFilter(None, None)
    planned = tuple(PlannedPart(p, everything, ordered=True) for p in run.parts)
    return MergeSource(planned, pooled=False, passing=read)


def _drained(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """The tables, each let go of when it is taken."""
    tables.reverse()
    while tables:
        yield tables.pop()
