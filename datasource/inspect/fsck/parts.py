"""Checks parts: each exists, has the bytes that were written, and fits its description.

    check_exists(part, sizes, found)          shallow: in the listing, with the right size
    check_bounds(part, schemas, found)        files of older versions, whose bounds leave out NaN
    examine_parts(blob, parts, schemas, key)  deep: reads all bytes and rows

A plan trusts descriptions: with wrong ones a read skips parts that have its rows, or leaves out a
consolidation. A deep check compares checksum, columns, number of rows, diffs, times and order, and
that statistics enclose every value. Parts are read in parallel, each as a stream of record batches:
memory does not grow with them.
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from shardline.datasource.errors import (
    STORE_REFUSALS,
    Corrupt,
    Determinate,
    InvalidUsage,
    MissingBlob,
)
from shardline.datasource.inspect.fsck.findings import Findings
from shardline.datasource.parts.collect_stats import exact_part_stats
from shardline.datasource.parts.nan_bounds import float_paths, trusts_bounds
from shardline.datasource.parts.part_file import crc32_of, decode_inline, open_part, part_schema
from shardline.datasource.parts.row_groups import RowGroups
from shardline.datasource.rows.sorting import compare_rows, order_rows, take
from shardline.datasource.rows.updates import row_columns
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.commands.merge import same_sum
from shardline.datasource.stores.location import Blob
from shardline.datasource.stores.objects import Objects
from shardline.datasource.types.cast_to_schema import convert
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.types.spark_types import path_text
from shardline.datasource.types.stats import PartStats, bounds, merge_stats

__all__ = ["PartFacts", "check_bounds", "check_exists", "examine_parts", "stored_sizes"]

_THREADS: Final = 8
_BATCH_ROWS: Final = 1 << 16
_BATCH_BYTES: Final = 16 << 20


@dataclass(slots=True)
class PartFacts:
    """The result of reading the rows of one part.

    Attributes:
        part: Its description.
        readable: True if all rows could be decoded.
        ordered: True if the rows that were read are in the shard's order.
        first, last: Its first and its last row; None if they were not read.
        found: Findings about it.
    """

    part: Part
    readable: bool = False
    ordered: bool = True
    first: pa.Table | None = None
    last: pa.Table | None = None
    found: Findings = field(default_factory=Findings)


def stored_sizes(objects: Objects, parts: Iterable[Part]) -> dict[str, int]:
    """Sizes by key of those blobs of `parts` that are there now.

    Raises:
        Determinate: The store did not answer.
    """
    return {
        entry.key: entry.size_bytes
        for part in parts
        if part.inline is None
        for entry in objects.entries(part.key, limit=1)
    }


def check_exists(part: Part, sizes: Mapping[str, int], found: Findings) -> bool:
    """True if the part exists and has the right size; otherwise adds a finding."""
    size = sizes.get(part.key) if part.inline is None else len(part.inline)
    if size is None:
        found.add("PART_MISSING", part.key, f"part '{part.key}' ({part.rows} rows) is not there")
    elif size != part.size_bytes:
        found.add(
            "PART_SIZE", part.key, f"part '{part.key}' has {size} bytes, not {part.size_bytes}"
        )
    return size == part.size_bytes


def check_bounds(part: Part, schemas: Mapping[int, ShardSchema], found: Findings) -> None:
    """Add a finding if bounds in the part's file may leave out NaN: it is of an older version."""
    written = schemas.get(part.schema)
    if written is None or part.inline is not None:
        return
    doubtful = [
        path for path in float_paths(written.record.fields) if not trusts_bounds(part, [path])
    ]
    if doubtful:
        found.add(
            "PART_NAN_BOUNDS",
            part.key,
            f"part '{part.key}' is of an older version, whose files have bounds that leave NaN "
            f"out; filters on {', '.join(doubtful):.300} make no use of them",
        )


def examine_parts(
    blob: Blob, parts: Sequence[Part], schemas: Mapping[int, ShardSchema], key: tuple[str, ...]
) -> Iterator[PartFacts]:
    """Read `parts` in parallel and compare them with their descriptions; results are in order.

    Raises:
        Determinate: The store did not answer.
    """
    with ThreadPoolExecutor(_THREADS, "fsck") as pool:
        # In slices, so that the pool's queue is bounded, however many parts there are.
        for start in range(0, len(parts), 64 * _THREADS):
            some = parts[start : start + 64 * _THREADS]
            yield from pool.map(lambda part: _examine(blob, part, schemas, key), some)


def _examine(
    blob: Blob, part: Part, schemas: Mapping[int, ShardSchema], key: tuple[str, ...]
) -> PartFacts:
    facts = PartFacts(part)
    written = schemas.get(part.schema)
    if written is None:
        return facts
    try:
        # Inside, because a remote store finds out that a part is gone not before it is read.
        if not _is_whole(blob, part, facts.found):
            return facts
        sums = _Sums(part, written, key, facts)
        for batch in _batches(blob, part, written, facts.found):
            sums.add(batch)
        facts.readable = sums.compare()
    except MissingBlob as error:
        facts.found.add("PART_MISSING", part.key, error.detail)
    except (pa.ArrowException, OSError, KeyError, ValueError, InvalidUsage, Corrupt) as error:
        if isinstance(error, OSError) and error.errno not in {None, errno.EIO}:
            # The store's trouble, not the part's. With EIO a disk cannot read this one back.
            raise Determinate(
                f"cannot read part '{part.key}': {error.strerror or error}",
                hint="check the disk, then check again",
            ) from error
        if isinstance(error, InvalidUsage) and error.code in STORE_REFUSALS:
            raise
        why = error.detail if isinstance(error, (InvalidUsage, Corrupt)) else str(error)
        if isinstance(error, InvalidUsage) and error.hint:
            why = f"{why}; {error.hint}"
        facts.found.add("PART_UNREADABLE", part.key, f"part '{part.key}': {why:.300}")
    return facts


# --- bytes -------------------------------------------------------------------------------------


def _is_whole(blob: Blob, part: Part, found: Findings) -> bool:
    """True if the part's bytes have the checksum in its description, or that has none."""
    if part.crc32 is None:
        return True
    if part.inline is not None:
        checksum = zlib.crc32(part.inline)
    else:
        source = blob.open(part.key, part.size_bytes)
        if source is None:
            found.add("PART_MISSING", part.key, f"part '{part.key}' went away")
            return False
        checksum = crc32_of(source)
    if checksum == part.crc32:
        return True
    found.add("PART_CHECKSUM", part.key, f"the checksum of part '{part.key}' does not match")
    return False


def _batches(
    blob: Blob, part: Part, written: ShardSchema, found: Findings
) -> Iterator[pa.RecordBatch]:
    """All rows of the part, as written; with `_ts` unless one time for all is in the state."""
    if part.inline is not None:
        yield decode_inline(part, written)
        return
    source = blob.open(part.key, part.size_bytes)
    if source is None:
        raise MissingBlob(f"part '{part.key}' went away")
    file = open_part(source, part)
    names = [*written.names, *([TS] if part.ts is None else []), DIFF]
    there = file.schema_arrow.names
    if sorted(there) != sorted(names):
        found.add(
            "PART_COLUMNS", part.key, f"part '{part.key}' has the columns {there}, not {names}"
        )
        if not set(names) <= set(there):
            return
    groups = RowGroups(file.metadata, written)
    width = max(groups.row_bytes(range(groups.count)), 1)
    rows = max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / width)))
    schema = part_schema(written, names)
    for batch in file.iter_batches(rows, columns=names, use_threads=False):
        # Arrow takes a dot in a name for a path, and may return more columns than requested.
        columns = [convert(batch.column(f.name), f.type, (f.name,)) for f in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


# --- rows --------------------------------------------------------------------------------------


class _Sums:
    """Aggregates the rows of a part, to compare them with its description."""

    def __init__(
        self, part: Part, written: ShardSchema, key: tuple[str, ...], facts: PartFacts
    ) -> None:
        self._part = part
        self._facts = facts
        self._key = key
        self._rows = 0
        self._diffs: list[tuple[int, int, int]] = []
        self._times: list[tuple[int, int]] = []
        self._nulls: set[str] = set()
        self._required = [f.name for f in written.record.fields if not f.nullable]
        self._described = _described_schema(part, written)
        self._stats: PartStats | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of rows."""
        if batch.num_rows == 0:
            return
        self._rows += batch.num_rows
        diffs = batch.column(DIFF).to_numpy()
        self._diffs.append((_total(diffs), int(diffs.min()), int(diffs.max())))
        if TS in batch.schema.names:
            times = batch.column(TS).to_numpy()
            self._times.append((int(times.min()), int(times.max())))
        self._nulls |= {name for name in self._required if batch.column(name).null_count}
        table = pa.Table.from_batches([batch])
        if self._described is not None:
            more = exact_part_stats(table, self._described)
            self._stats = merge_stats([self._stats, more]) if self._stats else more
        self._order(table)

    def _order(self, table: pa.Table) -> None:
        facts = self._facts
        columns = list(self._key) or row_columns(table)
        steps_back = facts.last is not None and compare_rows(facts.last, 0, table, 0, columns) > 0
        if steps_back or order_rows(table, columns).indices is not None:
            facts.ordered = False
        if facts.first is None:
            facts.first = take(table, np.array([0])).select(columns)
        facts.last = take(table, np.array([table.num_rows - 1])).select(columns)

    def compare(self) -> bool:
        """Report differences from the description; False if the rows are not the part's at all."""
        part, key, found = self._part, self._part.key, self._facts.found
        if ("PART_COLUMNS", key) in found:
            return False
        if self._nulls:
            found.add("PART_COLUMNS", key, f"part '{key}' has nulls in {sorted(self._nulls)}")
        if self._rows != part.rows:
            found.add("PART_ROWS", key, f"part '{key}' has {self._rows} rows, not {part.rows}")
            return False
        sums = sum(total for total, _, _ in self._diffs)
        least, most = min(d[1] for d in self._diffs), max(d[2] for d in self._diffs)
        said = (part.diff_sum, part.diff_min, part.diff_max)
        if not same_sum(sums, part.diff_sum) or (least, most) != said[1:]:
            detail = f"sum, least and greatest diff are {(sums, least, most)}, not {said}"
            found.add("PART_DIFFS", key, f"of part '{key}' {detail}")
        times = (
            (min(t[0] for t in self._times), max(t[1] for t in self._times))
            if self._times
            else None
        )
        if times is not None and times != part.time_bounds:
            detail = f"part '{key}' has rows at {times}, not {part.time_bounds}"
            found.add("PART_TIMES", key, detail)
        if part.stats is not None:
            wrong = _wrong_stats(part.stats, self._stats, part.rows)
            if wrong:
                found.add("PART_STATISTICS", key, f"of part '{key}' {wrong}")
        return True


def _total(diffs: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> int:
    """The exact sum of int64 values, by halves that cannot overflow."""
    return (int((diffs >> 32).sum()) << 32) + int((diffs & 0xFFFFFFFF).sum())


def _described_schema(part: Part, written: ShardSchema) -> ShardSchema | None:
    """A schema of the columns that the part's statistics describe; None if there are none."""
    if part.stats is None:
        return None
    paths = part.stats.columns
    names = [
        name
        for name in written.names
        if any(p == path_text((name,)) or p.startswith(path_text((name,)) + ".") for p in paths)
    ]
    return written.select(names) if names else None


def _wrong_stats(said: PartStats, found: PartStats | None, rows: int) -> str:
    """The first statement of `said` that is wrong, as text; empty if all are right."""
    if said.rows != rows:
        return f"statistics say that it has {said.rows} rows"
    for path, column in said.columns.items():
        actual = None if found is None else found.columns.get(path)
        if found is None or actual is None:
            return f"statistics speak of a column {path} that it has not"
        if (column.nulls, column.nans) != (actual.nulls, actual.nans):
            return (
                f"statistics of {path} say {column.nulls} nulls and {column.nans} NaN, "
                f"it has {actual.nulls} and {actual.nans}"
            )
        if column.kind is None:
            continue
        if column.kind != actual.kind:
            return f"statistics of {path} are of kind {column.kind}, its values {actual.kind}"
        (lo, hi), (least, most) = bounds(said, path), bounds(found, path)
        if (lo is not None and least is not None and least < lo) or (  # type: ignore[operator]
            hi is not None and most is not None and most > hi  # type: ignore[operator]
        ):
            return f"statistics of {path} say {lo!r} to {hi!r}, it has {least!r} to {most!r}"
    return ""
