"""now() of a query becomes the time at which a view is computed: a literal, in Spark's own plan.

Spark puts the time of the machine's clock in the place of now() when a plan is optimized. A view is
computed at times of its shard's axis, which are milliseconds since the epoch, so it is done here
before that, for all of a plan and the subqueries in it.

    at_time(session, frame, 1_700_000_000_000)     the frame with now() = that time

Invariants:
    Only `now()` and `current_timestamp()` are replaced: a view has no other expression of the time.
    Where a time is behind the last TIMESTAMP that Spark has, now() is that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shardline.app.compute.view.kept_plan import plan_of
from shardline.app.sql.strategy import CLOCKS
from shardline.datasource.frames import frame_of
from shardline.datasource.java_names import java_class, scala_object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["at_time"]

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"

_LAST_MS: Final = (2**63 - 1) // 1000
"""The last whole millisecond of Spark's timestamps: microseconds in 64 bits."""


def at_time(session: SparkSession, frame: DataFrame, time: int) -> DataFrame:
    """A frame whose now() is a time of shards; nothing is run.

    Args:
        session: The one that the frame is of.
        frame: The frame, of which nothing was run.
        time: Milliseconds since the epoch.
    """
    instant = java_class(session, "java.time.Instant").ofEpochMilli(min(time, _LAST_MS))
    literal = scala_object(session, f"{_EXPRESSIONS}.Literal").apply(instant)
    given = java_class(session, "java.util.HashMap")()
    for clock in sorted(CLOCKS):
        given.put(java_class(session, f"{_EXPRESSIONS}.{clock}")(), literal)
    # A map of Scala is a partial function, as the rules of Catalyst are.
    rule = java_class(session, "PythonUtils").toScalaMap(given)
    plan = plan_of(frame).transformAllExpressionsWithSubqueries(rule)
    java = session._jsparkSession  # noqa: SLF001 - no public door
    return frame_of(session, java, plan)
