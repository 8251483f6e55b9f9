"""Broadcasts the keys of retractions once, for all merged reads that look rows up in them.

    BROADCASTS.broadcast_once(spark, identity, rows, make) -> a frame to join with, or None

A merged read looks each row up in the keys, or hashes, that retractions have (`closed_keys`,
`touched_rows`). To collect and broadcast these again in each query takes as long as a scan of two
columns of ten times as many rows. But parts never change: what certain parts retract is the same
for ever. So it is broadcast once and used by all later queries of this driver (Iceberg keeps loaded
delete files in its executors in the same way).

Invariants:
    An identity stands for one set of rows, for ever: it names the parts they are read from.
    What is kept refers to no file, no frame and no session: it keeps no lease.
    A failure is not kept and raises nothing here: the caller reads as if nothing could be kept, and
    the error comes when its query runs.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.jvm import as_active

__all__ = ["BROADCASTS", "KeptBroadcasts"]

_log = logging.getLogger(__name__)

_CLASS: Final = "KeptBroadcast"

_ROWS_MAX: Final = 1_000_000
"""Rows of all that is kept. With a key of two numbers they are 110 MB of the driver's memory, and
of each executor's, which Spark moves to disk where it is short."""


@dataclass(frozen=True, slots=True)
class _Broadcast:
    """Rows that are broadcast.

    Attributes:
        rows: How many, at most.
        java: The object in the JVM that makes frames of them.
    """

    rows: int
    java: Any


class KeptBroadcasts:
    """Broadcasts by what they are of; the ones used last are kept. Safe for threads."""

    def __init__(self, rows_max: int = _ROWS_MAX) -> None:
        """Keep at most `rows_max` rows."""
        self._rows_max = rows_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, _Broadcast] = OrderedDict()

    def __len__(self) -> int:
        """How many broadcasts are kept."""
        with self._lock:
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
        identity = (spark.sparkContext.applicationId, identity)
        with self._lock:
            found = self._kept.get(identity)
            if found is not None:
                self._kept.move_to_end(identity)
        if found is None:
            # Not under the lock: another query's rows need not wait for this job. Two queries that
            # want the same at once make it twice.
            try:
                with as_active(spark):
                    made = java_object(spark, _CLASS, make()._jdf)  # noqa: SLF001 - no public door
            except (Py4JError, PySparkException) as error:
                _log.debug("keys of retractions are not kept", exc_info=error)
                return None
            found = _Broadcast(rows, made)
            self._store(identity, found)
        # Here, too: a node of a plan is of the session that is active when it is made, and a thread
        # may have none.
        with as_active(spark):
            return DataFrame(found.java.frame(spark._jsparkSession), spark)  # noqa: SLF001 - above

    def _store(self, identity: Hashable, made: _Broadcast) -> None:
        with self._lock:
            self._kept[identity] = made
            held = sum(one.rows for one in self._kept.values())
            while held > self._rows_max:
                _, dropped = self._kept.popitem(last=False)
                held -= dropped.rows


BROADCASTS: Final = KeptBroadcasts()
"""Those of this process."""
