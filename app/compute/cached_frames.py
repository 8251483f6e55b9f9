"""Caches frames in Spark in a form in which filters on them find every row.

Spark 4.3 records the least and the greatest value of each column for each batch of cached rows, and
skips the batches in which no row can pass a filter. NaN is in neither bound, though it is above all
numbers and equal to itself: `x = double('NaN')` and `x > 100` would find no row with NaN
(`InMemoryTableScanExec` with `DoubleColumnStats`). So columns of floats are cached inside of
structs, for which Spark records no bounds. All other columns are cached as they are, and pruned.

    kept = cache_frame(frame)
    kept.rows           the same rows, read from the cache
    kept.release()

Invariants:
    Columns, their types, nullability and metadata are those of the frame.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shardline.app.sql.references import quote_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["CachedFrame", "cache_frame"]

_INSIDE: Final = "value"


@dataclass(frozen=True, slots=True)
class CachedFrame:
    """A frame in Spark's cache.

    Losing cached rows, with an executor or under pressure of memory, costs time: Spark computes
    them again from what the frame reads. Losing this object without `release` keeps the memory
    until the session ends: Spark never removes an entry of its cache by itself.

    Attributes:
        rows: The frame, read from the cache; it is computed and cached when it is first run.
    """

    rows: DataFrame
    _kept: DataFrame

    def release(self) -> None:
        """Give its memory back; queries that still run on it compute the rows again."""
        with suppress(Exception):  # the session may be gone: then nothing is left to give up
            self._kept.unpersist()


def cache_frame(frame: DataFrame) -> CachedFrame:
    """Cache the rows of `frame` in memory, or on disk, from their first use on."""
    # Both load pyspark, which pure parts of this package do not.
    from pyspark.sql import functions as F  # noqa: N812, PLC0415
    from pyspark.sql.types import DoubleType, FloatType  # noqa: PLC0415

    floats = {
        field.name for field in frame.schema if isinstance(field.dataType, (DoubleType, FloatType))
    }
    if not floats:
        kept = frame.persist()
        return CachedFrame(kept, kept)
    columns = [(name, F.col(quote_name(name))) for name in frame.columns]
    kept = frame.select(
        [
            F.struct(column.alias(_INSIDE)).alias(name) if name in floats else column
            for name, column in columns
        ]
    ).persist()
    rows = kept.select(
        [
            column.getField(_INSIDE).alias(name) if name in floats else column
            for name, column in columns
        ]
    )
    return CachedFrame(rows, kept)
