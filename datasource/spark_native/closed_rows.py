"""Remembers which rows of parts are closed, so that later merged reads need not find them again.

    CLOSED_ROWS.find(spark, identity, rows, make) -> bits, or None
    bits.open_rows(frame, numbers)                -> the rows of a frame that are not closed

To look each row up by key takes reading the key, a hash and a look at a table far greater than a
processor's caches: of two columns that is four times the scan. To consolidate rows takes all of
their columns and a shuffle. But parts never change, so the rows that certain retractions take back
from certain parts are the same for ever. They are found once, and remembered by number, as one bit
for each row; Spark's Parquet reader counts rows as it reads them (Delta's deletion vectors are such
bits, in a file beside each part; these are in memory only, and made by the reader).

    first read of a group of parts    by key, or consolidated; that it was read is remembered
    second                            one job finds the closed rows of the whole group, for the bits
    from then on                      the bits

The job takes as long as a read of the keys of all rows, or of all that retractions may concern. A
group of which only a few rows are read, once before the next upsert, is not worth that, so the
first read does without.

The invariants are those of `kept_objects`; an identity names the order of the parts, too.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.kept_objects import KeptObjects
from shardline.datasource.spark_native.scan import RowNumbers
from shardline.datasource.spark_native.types import ROW_INDEX

__all__ = ["CLOSED_ROWS", "ClosedRows", "RowBits"]

_CLASS: Final = "RowBits"

_ROWS_LEAST: Final = 100_000
"""Rows of a group from which on their bits are worth a job: looking so many up takes about as long
as Spark needs for any job."""

_ROWS_MOST: Final = 1 << 25
"""Rows of a group, at most: each task is sent their bits, of which these are 4 MB."""

_KEPT_MOST: Final = 1 << 29
"""Rows of all groups whose bits are kept, at most: 64 MB of the driver's memory."""

_SEEN_MOST: Final = 1 << 10
"""Groups that are remembered as read once, at most."""


@dataclass(frozen=True, slots=True)
class RowBits:
    """The closed rows of a group of parts.

    Attributes:
        java: The object in the JVM that has a bit for each row.
        can_tell: False if numbers cannot tell which rows are closed; there are no bits then.
    """

    java: Any
    can_tell: bool

    def open_rows(self, frame: DataFrame, numbers: RowNumbers) -> DataFrame:
        """The rows of `frame`, which has the columns of their numbers, that are not closed."""
        java = self.java.unset(frame._jdf, numbers.name, ROW_INDEX)  # noqa: SLF001 - no public door
        return DataFrame(java, frame.sparkSession)


class ClosedRows:
    """Bits of closed rows by what they are of; those used last are kept. Safe for threads."""

    def __init__(self, rows_least: int = _ROWS_LEAST, rows_max: int = _KEPT_MOST) -> None:
        """Keep bits of groups of at least `rows_least` rows, of `rows_max` rows in all, at most."""
        self._rows_least = rows_least
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._kept: KeptObjects[RowBits] = KeptObjects(rows_max)

    def __len__(self) -> int:
        """How many groups have bits."""
        return len(self._kept)

    def find(
        self, spark: SparkSession, identity: object, rows: int, make: Callable[[], DataFrame]
    ) -> RowBits | None:
        """The bits of a group's closed rows; runs a job at its second read.

        Args:
            spark: The session of the query.
            identity: What the numbers are of, as `repr` tells it apart.
            rows: How many rows are numbered.
            make: Makes a frame of the numbers of closed rows, its only column. A negative one says
                that numbers cannot tell.

        Returns:
            None at the first read, for groups that are too small or too large, if numbers cannot
            tell, and if the job failed.
        """
        if not self._rows_least <= rows <= _ROWS_MOST:
            return None
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()

        def bits() -> RowBits:
            java = java_object(spark, _CLASS, make()._jdf, rows)  # noqa: SLF001 - no public door
            return RowBits(java, java.canTell())

        found = self._kept.find(spark, digest)
        if found is None and self._was_seen(digest):
            found = self._kept.make(spark, digest, rows, bits)
        return found if found is not None and found.can_tell else None

    def _was_seen(self, digest: str) -> bool:
        """True if the group was read before. Remembers that it was."""
        with self._lock:
            seen = digest in self._seen
            self._seen[digest] = None
            self._seen.move_to_end(digest)
            if len(self._seen) > _SEEN_MOST:
                self._seen.popitem(last=False)
        return seen


CLOSED_ROWS: Final = ClosedRows()
"""Those of this process."""
