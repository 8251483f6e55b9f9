"""A view's query over the changes of its inputs, where its change can be computed from them alone.

A project's check has found the view linear (`app.sql.strategy`), over inputs of the same columns.
Since then the session's settings, Spark's version or an input may have changed. So the query is
analysed and judged again, in the session and over the columns that are used (`change_plan`). Where
there is any doubt the view is recomputed, which is slower and always right.

Invariants:
    A query that is doubted once is never taken over changes by this rendering.
    A plan is used only for changes with the columns that it was made for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from shardline.app.compute.view.change_plan import ChangePlan, NotLinear
from shardline.app.execution.spark_errors import error_line
from shardline.app.protocol.objects import ViewDescription

__all__ = ["LinearQuery"]

_log = logging.getLogger(__name__)


class LinearQuery:
    """The query of one view over changes; analysed when it is first used."""

    def __init__(self, description: ViewDescription, schema: StructType) -> None:
        """Nothing is analysed yet."""
        self._description = description
        self._schema = schema
        self._plan: ChangePlan | None = None
        self._doubted = False

    def evaluate(self, session: SparkSession, changes: Mapping[str, DataFrame]) -> DataFrame | None:
        """The view's change as a frame of changes of its inputs; None if it must be recomputed."""
        if self._plan is None or not self._plan.fits(changes):
            self._plan = self._make(session, changes)
        return None if self._plan is None else self._plan.over(session, changes)

    def _make(self, session: SparkSession, changes: Mapping[str, DataFrame]) -> ChangePlan | None:
        if self._doubted:
            return None
        inputs = {name: frame.schema for name, frame in changes.items()}
        try:
            plan = ChangePlan(session, self._description.query, inputs)
        except NotLinear as refused:
            reason = str(refused)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is the other way
            reason = error_line(error)
        else:
            if _columns(plan.columns) == _columns(self._schema):
                return plan
            reason = f"its columns are {', '.join(plan.columns.names)}"
        _log.warning(
            "a linear view is recomputed: its query cannot be taken over changes",
            extra={"context": {"view": self._description.name, "reason": reason}},
        )
        self._doubted = True
        return None


def _columns(schema: StructType) -> list[tuple[str, str]]:
    # By their text, which leaves out if values inside may be null: the stored columns lack it, too.
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
