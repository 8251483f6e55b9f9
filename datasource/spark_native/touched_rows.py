"""Splits the rows of a merged read: only those that a retraction may concern are consolidated.

Consolidation by aggregation groups all rows of a group of parts by all of their columns, and sends
all of them through a shuffle: of six million rows with some columns of text that takes twelve times
as long as the scan. But a retraction is equal to the row that it takes back, so a row whose hash no
retraction has is exact as it is. The hashes of the retractions are broadcast, and each part without
retractions is scanned twice (Iceberg: equality deletes, which are joined in the same way):

    untouched    rows whose hash no retraction has; they stream through, and keep the scan's pruning
    touched      the others, with all updates of the parts that retract; they are consolidated

Equal hashes of different rows only make more rows touched: which rows are equal is decided by the
aggregation over all columns, as before. The hash is of the shard's key if it has one, since hashing
few columns is cheaper, and a second scan for them is, too.

Invariants:
    Rows that are equal for consolidation have equal hashes: the hash leaves out every column whose
    equality Spark and `types/row_keys` may see differently.
    Every update of the parts is in exactly one of the two frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline.datasource.shard.batch import Part
from shardline.datasource.spark_native.consolidate import consolidate, fresh_name, retracted_rows
from shardline.datasource.spark_native.types import quoted
from shardline.datasource.types.schema import DIFF, ShardSchema
from shardline.datasource.types.spark_types import Atomic

__all__ = [
    "TouchedRows",
    "hashed_columns",
    "hashes_of",
    "is_worth_splitting",
    "most_retractions",
]

_LEAST_ROWS = 200_000
"""Rows of parts without retractions from which on splitting pays: a second scan and the job that
collects the hashes take about as long as aggregating so many."""

_MOST_RETRACTIONS = 4_000_000
"""Hashes that are broadcast, at most: 64 MB in each executor."""

_ROWS_PER_TASK = 200_000
"""Touched rows that a task consolidates; so few fit its memory, and are not sorted on disk."""

_HASHED = ("byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz", "string")
_HASHED_FAMILIES = ("decimal(",)


def hashed_columns(schema: ShardSchema, key: Sequence[str]) -> list[str]:
    """The columns whose hash tells rows apart; none if no column is sure to.

    Args:
        schema: The shard's schema.
        key: The shard's key; empty if it has none.
    """

    def is_hashed(name: str) -> bool:
        field = schema.field(name)
        if not isinstance(field.type, Atomic) or field.collations != "null":
            return False
        return field.type.name in _HASHED or field.type.name.startswith(_HASHED_FAMILIES)

    return [name for name in key if is_hashed(name)] or list(filter(is_hashed, schema.names))


def is_worth_splitting(parts: Iterable[Part]) -> bool:
    """True if consolidating only touched rows is cheaper than consolidating all rows of `parts`."""
    plain = touched = retractions = 0
    for part in parts:
        if not part.retracts:
            plain += part.rows
            continue
        touched += part.rows
        retractions += most_retractions(part)
    few = retractions <= _MOST_RETRACTIONS and touched + retractions <= plain
    return plain >= _LEAST_ROWS and few


def most_retractions(part: Part) -> int:
    """Rows of the part that retract: as many as there may be, exact where each diff is 1 or -1."""
    ones = part.diff_min == -1 and part.diff_max == 1
    return (part.rows - part.diff_sum) // 2 if ones else part.rows


@dataclass(frozen=True)
class TouchedRows:
    """The updates of a group of parts, split by a hash of their rows.

    Attributes:
        adding: Updates of parts that retract nothing; `_diff` where it is not always 1.
        retracting: Updates of the parts that retract, all with `_diff`.
        hashes: What `hashes_of` gives for these, to be broadcast.
        schema: The shard's schema, whose columns all frames have.
        columns: The columns to hash, at least one.
    """

    adding: Sequence[DataFrame]
    retracting: DataFrame
    hashes: DataFrame
    schema: ShardSchema
    columns: Sequence[str]

    def untouched(self) -> list[DataFrame]:
        """The rows that no retraction concerns, a frame for each of `adding`."""
        return [self._joined(frame, "left_anti") for frame in self.adding]

    def consolidated(self, rows: int) -> DataFrame:
        """The touched rows, consolidated: the columns of the schema, and `_diff` above 0.

        Args:
            rows: About how many updates are touched; decides the number of tasks.
        """
        hashed = self._hashed(rows)
        return consolidate(hashed, self.schema, (_hash_name(self.schema),))

    def retracted(self, rows: int, number: str) -> DataFrame:
        """The numbers of the rows that are taken back, as `retracted_rows` gives them.

        Args:
            rows: As of `consolidated`.
            number: A column that all updates have.
        """
        return retracted_rows(self._hashed(rows, number), self.schema, number)

    def _hashed(self, rows: int, *more: str) -> DataFrame:
        """The touched rows with `_diff` and columns `more`, equal ones in one task.

        They meet before they are aggregated for the first time: an aggregation on either side of a
        shuffle would find nothing to add up on the first.
        """
        wanted = [*map(quoted, self.schema.names), F.col(DIFF), *map(quoted, more)]
        touched = [
            (frame if DIFF in frame.columns else frame.withColumn(DIFF, F.lit(1).cast("bigint")))
            for frame in (self._joined(one, "left_semi") for one in self.adding)
        ]
        updates = reduce(
            DataFrame.unionByName, [one.select(*wanted) for one in (*touched, self.retracting)]
        )
        tasks = max(1, -(-rows // _ROWS_PER_TASK))
        name = _hash_name(self.schema)
        return updates.withColumn(name, _hash(self.columns)).repartition(tasks, name)

    def _joined(self, frame: DataFrame, how: str) -> DataFrame:
        return frame.join(self.hashes, _hash(self.columns) == F.col(_hash_name(self.schema)), how)


def hashes_of(retracting: DataFrame, schema: ShardSchema, columns: Sequence[str]) -> DataFrame:
    """The hashes of the rows that `retracting` takes back, which are never null.

    Args:
        retracting: Updates with `_diff`.
        schema: The shard's schema.
        columns: The columns to hash, at least one.
    """
    return retracting.where(F.col(DIFF) < 0).select(_hash(columns).alias(_hash_name(schema)))


def _hash_name(schema: ShardSchema) -> str:
    return fresh_name("_shardline_hash", schema.names)


def _hash(columns: Sequence[str]) -> Column:
    return F.xxhash64(*map(quoted, columns))
