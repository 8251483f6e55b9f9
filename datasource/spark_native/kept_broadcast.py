"""Broadcasts the keys of retractions once, for all merged reads that look rows up in them.

    BROADCASTS.broadcast_once(spark, identity, rows, make) -> a frame to join with, or None

A merged read looks each row up in the keys, or hashes, that retractions have (`closed_keys`,
`touched_rows`). To collect and broadcast these again in each query takes as long as a scan of two
columns of ten times as many rows. But parts never change: what certain parts retract is the same
for ever. So it is broadcast once and used by all later queries of this driver (Iceberg keeps loaded
delete files in its executors in the same way).

The invariants are those of `kept_objects`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.jvm import as_active
from shardline.datasource.spark_native.kept_objects import KeptObjects

__all__ = ["BROADCASTS", "KeptBroadcasts"]

_CLASS: Final = "KeptBroadcast"

_ROWS_MAX: Final = 1_000_000
"""Rows of all that is kept. With a key of two numbers they are 110 MB of the driver's memory, and
of each executor's, which Spark moves to disk where it is short."""


class KeptBroadcasts:
    """Broadcasts by what they are of; the ones used last are kept. Safe for threads."""

    def __init__(self, rows_max: int = _ROWS_MAX) -> None:
        """Keep at most `rows_max` rows."""
        self._rows_max = rows_max
        self._kept: KeptObjects[Any] = KeptObjects(rows_max)

    def __len__(self) -> int:
        """How many broadcasts are kept."""
        return len(self._kept)

    def broadcast_once(
        self, spark: SparkSession, identity: Hashable, rows: int, make: Callable[[], DataFrame]
    ) -> DataFrame | None:
        """The rows that `identity` stands for, broadcast; runs a job the first time.

        Args:
            spark: The session of the query.
            identity: Equal for equal rows of one location.
            rows: How many there are, at most.
            make: Makes a frame of them, whose first column is a long that is never null.

        Returns:
            A frame that can be the right side of a join and nothing else, joined by its first
            column; None if there are too many rows to keep, or if reading them failed.
        """
        if rows > self._rows_max:
            return None

        def broadcast() -> Any:
            return java_object(spark, _CLASS, make()._jdf)  # noqa: SLF001 - no public door

        found = self._kept.find(spark, identity)
        if found is None:
            found = self._kept.make(spark, identity, rows, broadcast)
        if found is None:
            return None
        # As where it was made: the frame has nodes of plans, too.
        with as_active(spark):
            return DataFrame(found.frame(spark._jsparkSession), spark)  # noqa: SLF001 - as above


BROADCASTS: Final = KeptBroadcasts()
"""Those of this process."""
