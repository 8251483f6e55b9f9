"""A view's query over the contents of its inputs: analysed when their columns are new, then kept.

    query = KeptQuery(text)
    query.evaluate(session, frames)      the rows of the query over these frames

Invariants:
    The result is that of the text over frames of these names, whichever way was taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardline.app.compute.view.kept_plan import KeptPlan
from shardline.datasource.frames import analyse_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KeptQuery"]


class KeptQuery:
    """The query of one view. Used by one thread at a time."""

    def __init__(self, text: str) -> None:
        """Nothing is analysed yet."""
        self._text = text
        self._plan: KeptPlan | None = None

    def evaluate(self, session: SparkSession, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """The query's result; nothing is run yet.

        Args:
            session: The streaming query's, which the inputs' frames must be of, too.
            inputs: Frames by the names that the query uses.
        """
        if self._plan is None or not self._plan.fits(inputs):
            columns = {name: frame.schema for name, frame in inputs.items()}
            self._plan = KeptPlan(session, self._text, columns)
        if not self._plan.usable:
            return analyse_query(session, self._text, inputs)
        return self._plan.over(session, inputs)
