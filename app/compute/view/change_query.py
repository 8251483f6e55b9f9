"""Plans a view's query over the changes of its inputs, where its change can be computed from them.

A project's check has chosen the view's strategy (`app.sql.strategy`), over inputs of the same
columns. Since then the session's settings, Spark's version or an input may have changed. So the
query is analysed and judged again, in the session and over the columns that are used
(`change_plan`). Where there is any doubt the view is recomputed, which is slower and always right.

Invariants:
    A query that is doubted once is never taken over changes by this rendering.
    A plan is used only for changes with the columns that it was made for.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from shardline.app.compute.view.change_plan import ChangePlan, NotIncremental, StepPlan
from shardline.app.compute.view.look_up import FanOut, one_row
from shardline.app.execution.spark_errors import error_line
from shardline.app.protocol.objects import ViewDescription

__all__ = ["ChangeQuery"]

_log = logging.getLogger(__name__)


class ChangeQuery:
    """The query of one view over changes; analysed when it is first used."""

    def __init__(
        self, description: ViewDescription, schema: StructType, fan_out: FanOut = one_row
    ) -> None:
        """Nothing is analysed yet; see `ChangePlan` for `fan_out`."""
        self._description = description
        self._schema = schema
        self._fan_out = fan_out
        self._plan: ChangePlan | None = None
        self._doubted = False
        self._refused: set[str] = set()
        self.refused = ""
        """Why the view was recomputed last; "" if it never was."""

    def plan(self, session: SparkSession, changes: Mapping[str, StructType]) -> ChangePlan | None:
        """The plans over changes; None if the view must be recomputed.

        Args:
            session: The one that the view runs in.
            changes: Columns of the changes of all inputs.
        """
        if self._plan is None or not self._plan.fits(changes):
            self._plan = self._make(session, changes)
        return self._plan

    def step(self, changed: Collection[str]) -> StepPlan | None:
        """The plan of a step, once there is a `plan`; None if the view must be recomputed.

        Args:
            changed: Inputs and states in which there may be a row.
        """
        assert self._plan is not None, self._description.name
        try:
            return self._plan.step(changed)
        except NotIncremental as refused:
            self._log_once(str(refused))
        except Exception as error:  # noqa: BLE001 - whatever it is, there is the other way
            self._doubt(error_line(error))
        return None

    def _make(self, session: SparkSession, changes: Mapping[str, StructType]) -> ChangePlan | None:
        if self._doubted:
            return None  # `refused` says why, since then
        try:
            plan = ChangePlan(session, self._description.query, changes, self._fan_out)
        except NotIncremental as refused:
            reason = str(refused)
        except Exception as error:  # noqa: BLE001 - as above
            reason = error_line(error)
        else:
            if _columns(plan.columns) == _columns(self._schema):
                return plan
            reason = f"its columns are {', '.join(plan.columns.names)}"
        self._doubt(reason)
        return None

    def _doubt(self, reason: str) -> None:
        _log.warning(
            "a view is recomputed: its query cannot be taken over changes",
            extra={"context": {"view": self._description.name, "reason": reason}},
        )
        self._doubted, self._plan, self.refused = True, None, reason

    def _log_once(self, reason: str) -> None:
        """Say that a step is recomputed by its nature, once for each reason."""
        self.refused = reason
        if reason not in self._refused:
            self._refused.add(reason)
            _log.info(
                "a view is recomputed for this change of its inputs",
                extra={"context": {"view": self._description.name, "reason": reason}},
            )


def _columns(schema: StructType) -> list[tuple[str, str]]:
    # By their text, which leaves out if values inside may be null: the stored columns lack it, too.
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
