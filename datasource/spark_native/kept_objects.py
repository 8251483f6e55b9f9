"""Keeps what a job has made of the rows of parts, for later reads of the same parts.

    kept.find(spark, identity)              -> what is kept, or None
    kept.make(spark, identity, rows, make)  -> the same, made now; None if its job failed

Parts never change, so what is made of certain parts is the same for ever: the keys that they take
back (`kept_broadcast`), or which of their rows are closed (`closed_rows`).

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
from typing import Generic, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from shardline.datasource.spark_native.jvm import as_active

__all__ = ["KeptObjects"]

_log = logging.getLogger(__name__)

_Made = TypeVar("_Made")


class KeptObjects(Generic[_Made]):
    """What was made by what it is of; what was used last is kept. Safe for threads."""

    def __init__(self, rows_max: int) -> None:
        """Keep what was made of `rows_max` rows in all, at most."""
        self._rows_max = rows_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[int, _Made]] = OrderedDict()

    def __len__(self) -> int:
        """How many are kept."""
        with self._lock:
            return len(self._kept)

    def find(self, spark: SparkSession, identity: Hashable) -> _Made | None:
        """What is kept under `identity`; None if there is nothing."""
        key = (spark.sparkContext.applicationId, identity)
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][1]

    def make(
        self, spark: SparkSession, identity: Hashable, rows: int, make: Callable[[], _Made]
    ) -> _Made | None:
        """Make it and keep it; None if that failed.

        Not under the lock: others need not wait for this job. Two queries that want the same at
        once make it twice.

        Args:
            spark: The session of the query.
            identity: Equal for equal rows of one location.
            rows: How many there are, at most.
            make: Runs the job.
        """
        try:
            # A node of a plan is of the session that is active when it is made, and a thread may
            # have none.
            with as_active(spark):
                made = make()
        except (Py4JError, PySparkException) as error:
            _log.debug("what was made of parts is not kept", exc_info=error)
            return None
        with self._lock:
            self._kept[spark.sparkContext.applicationId, identity] = (rows, made)
            held = sum(own for own, _ in self._kept.values())
            while held > self._rows_max:
                _, (own, _) = self._kept.popitem(last=False)
                held -= own
        return made
