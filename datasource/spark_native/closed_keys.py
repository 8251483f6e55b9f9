"""Reads merged contents without consolidation where retractions take back whole keys.

An upsert takes back all that a shard holds under a key, and its parts say so (`Part.closes`). Then
no row needs to be compared with its retraction: of a key that was taken back, the rows from before
that time are gone, and all others stay. That is one pass over the parts, of the wanted columns and
the key, and no shuffle: rows are looked up by key among the keys that were taken back, which are
broadcast (Iceberg reads equality deletes in this way, and Delta rows' positions).

    closed keys     of the retractions: key, time
    rows            all others, unless their key was closed after their time

Invariants:
    The rows are those that consolidation gives, as every retraction is of a part with `closes`, and
    every row is read with its time.
    Keys are equal as rows are: only keys of types that Spark compares as `types/row_keys` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline.datasource.shard.batch import Part
from shardline.datasource.spark_native.consolidate import fresh_name
from shardline.datasource.spark_native.touched_rows import hashed_columns
from shardline.datasource.spark_native.types import quoted
from shardline.datasource.types.schema import DIFF, TS, ShardSchema

__all__ = ["ClosedKeys", "can_close"]

_MOST_RETRACTIONS = 2_000_000
"""Keys that are broadcast, at most."""

_MOST_BYTES = 128 << 20
"""Size of the parts that they are in, at most: a bound of what keys of text take."""

_NEVER = f"{2**63 - 1}L"
_ALWAYS = "-1L"


def can_close(parts: Iterable[Part], schema: ShardSchema, key: Sequence[str]) -> bool:
    """True if the contents of `parts` can be read by closed keys.

    Args:
        parts: A group that needs consolidation.
        schema: The shard's schema.
        key: The shard's key.
    """
    retracting = [part for part in parts if part.retracts]
    if not key or hashed_columns(schema, key) != list(key):
        return False
    few = sum(part.rows for part in retracting) <= _MOST_RETRACTIONS
    few = few and sum(part.size_bytes for part in retracting) <= _MOST_BYTES
    return few and all(part.closes for part in retracting)


@dataclass(frozen=True)
class ClosedKeys:
    """The keys that retractions have taken back.

    Attributes:
        key: The shard's key.
        taken: Names of columns of the updates to look at; no other column has one of them.
    """

    key: Sequence[str]
    taken: Sequence[str]

    def of(self, retracting: Sequence[DataFrame]) -> DataFrame:
        """The closed keys and the times when: a hash first, which is never null.

        Args:
            retracting: Updates of all parts that retract: `_ts`, which is not negative, `_diff` and
                at least the key.
        """
        hashed, time = self._named("_shardline_hash"), self._named("_shardline_time")
        wanted = [self._hash().alias(hashed), quoted(TS).alias(time)]
        for number, name in enumerate(self.key):
            wanted.append(quoted(name).alias(self._named(f"_shardline_k{number}")))
        first, *others = (one.where(F.col(DIFF) < 0).select(*wanted) for one in retracting)
        for other in others:
            first = first.unionAll(other)
        return first

    def left(self, updates: DataFrame, closed: DataFrame, *, older: bool) -> DataFrame:
        """The updates that no later retraction takes back.

        Args:
            updates: With the key, without retractions.
            closed: What `of` gives, to be broadcast.
            older: True if all updates are from before every retraction; otherwise they have `_ts`.
        """
        return updates.join(closed, self._is_closed(older=older), "left_anti")

    def taken_back(self, updates: DataFrame, closed: DataFrame) -> DataFrame:
        """The others of these updates, which have `_ts`."""
        return updates.join(closed, self._is_closed(older=False), "left_semi")

    def _is_closed(self, *, older: bool) -> Column:
        same = F.lit(True)
        for number, name in enumerate(self.key):
            same &= quoted(name).eqNullSafe(F.col(self._named(f"_shardline_k{number}")))
        # The hash alone is looked up, as a long. Spark would add to it, or do without it, if it saw
        # that the keys must be equal, too; and this tells it only where the hash was found.
        time = F.expr(_ALWAYS) if older else quoted(TS)
        later = F.when(same, time).otherwise(F.expr(_NEVER)) < F.col(self._named("_shardline_time"))
        return (self._hash() == F.col(self._named("_shardline_hash"))) & later

    def _named(self, name: str) -> str:
        return fresh_name(name, self.taken)

    def _hash(self) -> Column:
        return F.xxhash64(*map(quoted, self.key))
