"""Reads small inputs in one task, so that a query over them is one job of one stage.

For a few thousand rows the stages, not the rows, are what a step costs. Data in one partition needs
no exchange before an aggregate or a window: where Spark would run a stage for each input and one
for each exchange, and would plan anew between them, one task is left. A join still broadcasts its
small side, which is cheaper than to sort the other one. For many rows all cores are wanted, and
nothing is changed.

    one = OneTask()
    inputs = one.inputs(session, frames, volume)      each in one partition, if they are small

Invariants:
    The rows are the same, and so is the query's meaning.
    The session has the settings that it was found with whenever inputs are not small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shardline.app.compute.view.change_plan import StepPlan
    from shardline.app.compute.view.found_rows import Found
    from shardline.datasource.state import Volume

__all__ = ["OneTask"]

K = TypeVar("K")

_ROWS_MAX: Final = 200_000
_BYTES_MAX: Final = 16 << 20
"""One core reads and groups so much in well under a second; above that more cores pay."""

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
"""Switched off for small inputs: without exchanges there is nothing to plan anew, at a cost."""


class OneTask:
    """Prepares inputs in the session of one streaming query, where nothing else runs.

    Used by one thread at a time.
    """

    def __init__(self) -> None:
        """The session is not changed yet."""
        self._adaptive: str | None = None

    def inputs(
        self, session: SparkSession, frames: Mapping[K, DataFrame], volume: Volume
    ) -> dict[K, DataFrame]:
        """The inputs for the query that is run next, by name; sets the session up for it.

        Args:
            session: The query's.
            frames: The inputs.
            volume: Rows and bytes of all of them together.
        """
        return self._prepared(session, frames, volume)

    def over(
        self,
        session: SparkSession,
        plan: StepPlan,
        changes: Mapping[str, DataFrame],
        found: Found,
    ) -> DataFrame:
        """A plan over the changes of a step and what it needs beside them; see `inputs`."""
        return plan.over(
            session,
            self._prepared(session, {one: changes[one] for one in plan.changed}, found.volume),
            self._prepared(session, found.before, found.volume),
            self._prepared(session, found.frames, found.volume),
        )

    def _prepared(
        self, session: SparkSession, frames: Mapping[K, DataFrame], volume: Volume
    ) -> dict[K, DataFrame]:
        little = volume.is_at_most(_ROWS_MAX, _BYTES_MAX)
        if little and self._adaptive is None:
            self._adaptive = session.conf.get(_ADAPTIVE)
            session.conf.set(_ADAPTIVE, "false")
        elif not little and self._adaptive is not None:
            session.conf.set(_ADAPTIVE, self._adaptive)
            self._adaptive = None
        if not little:
            return dict(frames)
        return {name: frame.coalesce(1) for name, frame in frames.items()}
