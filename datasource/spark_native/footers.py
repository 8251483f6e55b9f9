"""Describes parts that Spark's writer made, from the footers of their Parquet files.

Our own writer collects statistics while it writes; of a file by Spark only the footer is there, and
reading all of its rows again would cost what the native write saves. Bounds are taken only where a
footer's mean the same as ours: of plain columns with a natural order, not of floating-point numbers
(footers do not count NaN), not of nested columns. A column without bounds may hold anything, which
is always right.

The checksum of a footer is computed when it is described, right after it was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shardline.datasource.errors import MissingBlob
from shardline.datasource.parts.collect_stats import collect_part_stats
from shardline.datasource.parts.part_file import describe_end
from shardline.datasource.shard.batch import Part
from shardline.datasource.stores.location import Blob
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.types.spark_types import Atomic, Field, arrow_field, path_text
from shardline.datasource.types.stats import PartStats, encode_stats

__all__ = ["DescribedPart", "PartDescriber"]

_UNBOUNDED = ("float", "double", "variant", "void", "geometry", "geography", "time(")

_NAN_SAFE = "parquet-mr "
"""Prefix of the writers whose bounds never leave NaN out: they order NaN above all numbers, and
readers ignore bounds that are NaN. Another writer may be plugged in for Spark's own."""

_Bounds = list[tuple[Any, Any]]
"""Least and greatest value of each row group that has any, in the file's physical type."""


@dataclass(frozen=True, slots=True)
class DescribedPart:
    """A part that Spark has written.

    Attributes:
        part: What the state has of it.
        plain_bytes: Size of its columns before compression.
    """

    part: Part
    plain_bytes: int


@dataclass(frozen=True, slots=True)
class PartDescriber:
    """Describes parts of one shard.

    Attributes:
        blob: The store that they are in.
        schema: The schema that they were written with.
        schema_id: Id of that schema in the shard's state.
        never_dropped: Columns whose statistics are never dropped.
        stats_bytes: Budget of a part's statistics, in bytes.
    """

    blob: Blob
    schema: ShardSchema
    schema_id: int
    never_dropped: tuple[str, ...]
    stats_bytes: int

    def describe(self, key: str, size_bytes: int) -> DescribedPart | None:
        """The part at `key`; None if it has no rows.

        Raises:
            MissingBlob: There is no object.
        """
        source = self.blob.open(key, size_bytes)
        if source is None:
            raise MissingBlob(f"part '{key}' is not there, although it was just written")
        end, footer = describe_end(source)
        with pq.ParquetFile(source, metadata=footer) as file:
            if footer.num_rows == 0:
                return None
            columns = _columns_by_path(footer)
            least, most, total = self._diffs(file, columns[DIFF])
            times = self._times(file, columns.get(TS))
        part = Part(
            key=key,
            rows=footer.num_rows,
            size_bytes=size_bytes,
            schema=self.schema_id,
            ts_min=times[0] if times else None,
            ts_max=times[1] if times else None,
            diff_sum=total,
            diff_min=least,
            diff_max=most,
            encoded_stats=encode_stats(self._stats(footer)),
            footer=end,
            nan_safe=footer.created_by.startswith(_NAN_SAFE),
        )
        groups = map(footer.row_group, range(footer.num_row_groups))
        return DescribedPart(part, sum(group.total_byte_size for group in groups))

    def _diffs(self, file: pq.ParquetFile, column: int) -> tuple[int, int, int]:
        """Least, greatest and sum of the diffs."""
        found = _bounds(file.metadata, column)
        if found is not None and found[0] and {v for pair in found[0] for v in pair} == {1}:
            return 1, 1, file.metadata.num_rows
        diffs = [value.to_numpy() for value in _chunks(file, DIFF)]
        least, most = min(int(d.min()) for d in diffs), max(int(d.max()) for d in diffs)
        return least, most, sum(int(d.sum()) for d in diffs)

    def _times(self, file: pq.ParquetFile, column: int | None) -> tuple[int, int] | None:
        if column is None:
            return None
        found = _bounds(file.metadata, column)
        if found is not None and found[0]:
            return min(lo for lo, _ in found[0]), max(hi for _, hi in found[0])
        times = [value.to_numpy() for value in _chunks(file, TS)]
        return min(int(t.min()) for t in times), max(int(t.max()) for t in times)

    def _stats(self, footer: pq.FileMetaData) -> PartStats:
        """Statistics, collected by the same code as all others, from the bounds taken for rows."""
        arrays: dict[str, pa.Array] = {}
        nulls: dict[str, int] = {}
        columns = _columns_by_path(footer)
        for field in self.schema.record.fields:
            column = columns.get(field.name)
            found = None if column is None or not _is_bounded(field) else _bounds(footer, column)
            values = None if found is None else _values(field, found[0])
            if found is not None and values is not None:
                arrays[field.name], nulls[field.name] = values, found[1]
        length = max(map(len, arrays.values()), default=0)
        padded = {
            name: pa.concat_arrays([array, pa.nulls(length - len(array), array.type)])
            for name, array in arrays.items()
        }
        if not padded:
            return PartStats(footer.num_rows, {})
        made = collect_part_stats(
            pa.table(padded), self.schema.select(list(padded)), self._kept(padded), self.stats_bytes
        )
        by_path = {path_text((name,)): count for name, count in nulls.items()}
        return PartStats(
            footer.num_rows,
            {
                path: msgspec.structs.replace(stats, nulls=by_path[path])
                for path, stats in made.columns.items()
            },
        )

    def _kept(self, known: dict[str, pa.Array]) -> list[str]:
        return [name for name in self.never_dropped if name in known]


def _columns_by_path(footer: pq.FileMetaData) -> dict[str, int]:
    """The numbers of leaf columns, by their path; of those that share one, none.

    A column `a.b` and the field `b` of a column `a` do. Bounds of the other one would have reads
    leave out rows; a column that is not found has no statistics.
    """
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    counts = Counter(paths)
    return {path: number for number, path in enumerate(paths) if counts[path] == 1}


def _chunks(file: pq.ParquetFile, name: str) -> Iterator[pa.Array]:
    for batch in file.iter_batches(1 << 20, columns=[name], use_threads=False):
        if batch.num_rows:
            yield batch.column(name)


def _is_bounded(field: Field) -> bool:
    return isinstance(field.type, Atomic) and not field.type.name.startswith(_UNBOUNDED)


def _bounds(footer: pq.FileMetaData, column: int) -> tuple[_Bounds, int] | None:
    """Bounds of the row groups that have values, and the number of nulls; None if one lacks any."""
    found: _Bounds = []
    nulls = 0
    for number in range(footer.num_row_groups):
        chunk = footer.row_group(number).column(column)
        stats = chunk.statistics
        if stats is None or stats.null_count is None:
            return None
        nulls += stats.null_count
        if stats.null_count == chunk.num_values:
            continue
        if not stats.has_min_max:
            return None
        found.append((stats.min_raw, stats.max_raw))
    return found, nulls


def _values(field: Field, found: _Bounds) -> pa.Array | None:
    """Stored values under the column's Arrow type; None if they do not fit it."""
    kind = arrow_field(field).type
    raw = [value for pair in found for value in pair]
    try:
        if pa.types.is_decimal(kind):
            return pa.array([_decimal(value, kind.scale) for value in raw], kind)
        if pa.types.is_string(kind):
            return pa.array([value.decode() for value in raw], kind)
        if any(is_one(kind) for is_one in _AS_STORED):
            return pa.array(raw, kind)
        width = pa.int32() if kind.bit_width == 32 else pa.int64()  # noqa: PLR2004 - bits
        return pa.array(raw, width).view(kind)
    except (pa.ArrowException, ValueError, TypeError, AttributeError):
        return None


_AS_STORED = (pa.types.is_binary, pa.types.is_boolean, pa.types.is_integer)


def _decimal(value: int | bytes, scale: int) -> Decimal:
    unscaled = int.from_bytes(value, "big", signed=True) if isinstance(value, bytes) else value
    # Not by arithmetic, which rounds to the context's digits.
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
