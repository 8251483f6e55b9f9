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

Invariants:
    An identity stands for one set of rows, for ever: it names the parts and their order.
    What is kept refers to no file, no frame and no session: it keeps no lease.
    A failure is not kept and raises nothing here: the caller reads without numbers, and the error
    comes when its query runs.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from shardline.datasource.shard.batch import Part
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.consolidate import fresh_name
from shardline.datasource.spark_native.jvm import as_active
from shardline.datasource.spark_native.scan import RowNumbers, ScanKind
from shardline.datasource.spark_native.types import ROW_INDEX

__all__ = ["CLOSED_ROWS", "ClosedRows", "RowBits", "number_rows"]

_log = logging.getLogger(__name__)

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
        rows: How many rows are numbered.
        java: The object in the JVM that has a bit for each; None if numbers cannot tell.
    """

    rows: int
    java: Any

    def open_rows(self, frame: DataFrame, numbers: RowNumbers) -> DataFrame:
        """The rows of `frame`, which has the columns of their numbers, that are not closed."""
        java = self.java.unset(frame._jdf, numbers.name, ROW_INDEX)  # noqa: SLF001 - no public door
        return DataFrame(java, frame.sparkSession)


class ClosedRows:
    """Bits of closed rows by what they are of; those used last are kept. Safe for threads."""

    def __init__(self, rows_least: int = _ROWS_LEAST) -> None:
        """Remember groups of at least `rows_least` rows."""
        self._rows_least = rows_least
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._kept: OrderedDict[str, RowBits] = OrderedDict()

    def __len__(self) -> int:
        """How many groups have bits."""
        with self._lock:
            return len(self._kept)

    def find(
        self, spark: SparkSession, identity: object, rows: int, make: Callable[[], DataFrame]
    ) -> RowBits | None:
        """The bits of a group's closed rows; runs a job at its second read.

        Args:
            spark: The session of the query.
            identity: What the numbers are of, as `repr` tells it apart.
            rows: How many rows are numbered.
            make: Makes a frame of the numbers of closed rows, its only column. With `NO_NUMBER`
                among them numbers cannot tell.

        Returns:
            None at the first read, for groups that are too small or too large, if numbers cannot
            tell, and if the job failed.
        """
        if not self._rows_least <= rows <= _ROWS_MOST:
            return None
        wanted = repr((spark.sparkContext.applicationId, identity))
        digest = hashlib.sha256(wanted.encode()).hexdigest()
        with self._lock:
            found = self._kept.get(digest)
            if found is not None:
                self._kept.move_to_end(digest)
            elif not self._was_seen(digest):
                return None
        if found is None:
            # Not under the lock: others need not wait for this job. Two queries that want the same
            # at once make it twice.
            try:
                with as_active(spark):
                    made = java_object(spark, _CLASS, make()._jdf, rows)  # noqa: SLF001 - no public door
            except (Py4JError, PySparkException) as error:
                _log.debug("closed rows are not kept", exc_info=error)
                return None
            found = RowBits(rows, made) if made.canTell() else RowBits(0, None)
            self._store(digest, found)
        return None if found.java is None else found

    def _was_seen(self, digest: str) -> bool:
        """True if the group was read before. Remembers that it was."""
        seen = digest in self._seen
        self._seen[digest] = None
        self._seen.move_to_end(digest)
        if len(self._seen) > _SEEN_MOST:
            self._seen.popitem(last=False)
        return seen

    def _store(self, digest: str, made: RowBits) -> None:
        with self._lock:
            self._kept[digest] = made
            held = sum(one.rows for one in self._kept.values())
            while held > _KEPT_MOST:
                _, dropped = self._kept.popitem(last=False)
                held -= dropped.rows


CLOSED_ROWS: Final = ClosedRows()
"""Those of this process."""


def number_rows(
    alike: Mapping[ScanKind, Sequence[Part]], taken: Sequence[str]
) -> tuple[RowNumbers, int]:
    """Number the rows of parts, in their order; returns how many rows there are, too.

    Args:
        alike: The parts by scan.
        taken: Names of columns of the updates.
    """
    first: dict[str, int] = {}
    rows = 0
    for part in (part for parts in alike.values() for part in parts):
        first[part.key] = rows
        rows += part.rows
    return RowNumbers(fresh_name("_shardline_first", taken), first), rows
