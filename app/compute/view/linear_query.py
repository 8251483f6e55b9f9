"""A view's query over the changes of its inputs, where its change can be computed from them alone.

A linear view (DBSP's word: filters, projections, unions) costs what has changed, not what there is.
Its text is rewritten so that every SELECT hands the time and the diff on (`sql.over_changes`). That
the rewritten text means the same is not taken on trust: once, before it is used for the first time,
Spark analyses both, and the plans are compared expression by expression (`linear_check`). Where
there is any doubt the view is recomputed, which is slower and always right.

Invariants:
    A query that is doubted once is never taken over changes by this rendering.
"""

from __future__ import annotations

import logging

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from shardline.app.compute.view.evaluate import analyse_query
from shardline.app.compute.view.linear_check import find_nonlinearity
from shardline.app.execution.spark_errors import error_line
from shardline.app.protocol.objects import ViewDescription
from shardline.app.sql.over_changes import NotLinear, rewrite_over_changes

__all__ = ["LinearQuery"]

_log = logging.getLogger(__name__)


class LinearQuery:
    """The query of one view over changes; checked when it is first used."""

    def __init__(self, description: ViewDescription, schema: StructType) -> None:
        """Nothing is checked yet."""
        self._description = description
        self._schema = schema
        self._checked: str | NotLinear | None = None

    def evaluate(self, session: SparkSession, changes: dict[str, DataFrame]) -> DataFrame | None:
        """The view's change as a frame of changes of its inputs; None if it must be recomputed."""
        if self._checked is None:
            self._checked = self._check(session, changes)
        if isinstance(self._checked, NotLinear):
            return None
        return analyse_query(session, self._checked, changes)

    def _check(self, session: SparkSession, changes: dict[str, DataFrame]) -> str | NotLinear:
        query = rewrite_over_changes(self._description.query)
        if isinstance(query, str):
            reason = self._reason_to_doubt(session, query, changes)
            query = NotLinear(reason) if reason else query
        if isinstance(query, NotLinear):
            context = {"view": self._description.name, "reason": query.reason}
            _log.warning(
                "a linear view is recomputed: its query cannot be taken over changes",
                extra={"context": context},
            )
        return query

    def _reason_to_doubt(
        self, session: SparkSession, query: str, changes: dict[str, DataFrame]
    ) -> str:
        """Why the rewritten query does not mean what the view's does; "" if it does."""
        columns = {name: frame.schema for name, frame in changes.items()}
        try:
            return find_nonlinearity(session, self._description.query, query, columns, self._schema)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is the other way
            return error_line(error)
