"""Reads the status of a streaming query in one call of the JVM.

    read_status = status_reader(spark)
    read_status(query)["message"]        as of query.status

PySpark's `status` asks for an object of the JVM, then for its text, and lets the JVM know when the
object is given up: three calls. An application at rest looks at each of its sources once a second,
and this was a quarter of all its calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.rule_loader import is_checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ReadStatus", "status_reader"]

_CLASS: Final = "QueryStatus"

ReadStatus: TypeAlias = "Callable[[StreamingQuery], Mapping[str, Any]]"
"""Gives what `StreamingQuery.status` does; waits for the JVM."""


def status_reader(spark: SparkSession) -> ReadStatus:
    """Reads statuses of the queries of a session's application, by any thread.

    Under another Spark than was checked it is PySpark's own `status`. Nothing is asked of the JVM
    before the first read.

    Args:
        spark: Any session of the application.
    """

    @cache
    def in_one_call() -> Any:
        return java_object(spark, _CLASS) if is_checked(spark) else None

    def read(query: StreamingQuery) -> Mapping[str, Any]:
        if in_one_call() is None:
            return dict(query.status)
        jsq: Any = query._jsq  # noqa: SLF001 - no public door
        found: dict[str, Any] = json.loads(in_one_call().of(jsq))
        return found

    return read
