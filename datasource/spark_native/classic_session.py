"""Our own functions for Spark need its classic session: they call the driver's JVM.

    check_classic(frame, "save", "frame.write.format('shard')")

A session of Spark Connect has none, and says so by an error that names an attribute of PySpark.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from shardline.datasource.errors import InvalidUsage

__all__ = ["check_classic", "check_frame"]

_CONNECT = "pyspark.sql.connect."


def check_frame(given: object, function: str) -> None:
    """Refuse what is no frame, such as one of pandas, or a name that stands in its place.

    Raises:
        InvalidUsage: It is none.
    """
    if not isinstance(given, DataFrame):
        raise InvalidUsage(
            f"{function} was given {type(given).__name__} for the rows",
            code="INVALID_ARGUMENT",
            hint="give the shard's name, then a frame of Spark: spark.createDataFrame(…)",
        )


def check_classic(
    given: object,
    function: str,
    instead: str,
    kind: type[DataFrame | SparkSession] = DataFrame,
) -> None:
    """Refuse a session or a frame of Spark Connect.

    Args:
        given: What a function was called with.
        function: Its name.
        instead: What works in such a session, as a sentence goes on behind "use".
        kind: What the function takes: a frame or a session, and never one in place of the other.

    Raises:
        InvalidUsage: `CLASSIC_SESSION_NEEDED`: it is of Spark Connect; or it is not of that kind.
    """
    if not isinstance(given, kind) and not type(given).__module__.startswith(_CONNECT):
        raise InvalidUsage(
            f"shardline.{function} was given {type(given).__name__} first",
            code="INVALID_ARGUMENT",
            hint=f"its first argument is a {kind.__name__} of Spark",
        )
    if type(given).__module__.startswith(_CONNECT):
        raise InvalidUsage(
            f"shardline.{function} calls the JVM of a classic session of Spark, and this one is of "
            "Spark Connect",
            code="CLASSIC_SESSION_NEEDED",
            hint=f"use {instead}, or a classic session",
        )
