"""Steps of views with temporal filters end, and begin, where rows come or go by themselves.

The next step of a view is chosen from the times at which something changes (`next_step`). For most
views these are the times of their inputs' changes. Where now() decides if a row is there, more
times count, and are added here: found in the view's states where it follows changes, else by a look
at the inputs.

    due = DueSteps(query, states)
    due.times(…)                  the times from which the next step is chosen
    due.bounded(session, step, …) a step that is run anew, up to the next such time at most
    due.is_due(lower, upper)      whether a step is needed though no input changes; without Spark

Invariants:
    Of several times that are to come only the first counts: before the second, inputs may change.
    What is not known is due: a step that finds nothing to do costs a look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardline.app.compute.view.input_changes import InputChanges
from shardline.app.compute.view.next_step import OutputProgress, Recompute
from shardline.app.compute.view.query_at import QueryAt
from shardline.app.compute.view.view_states import ViewStates
from shardline.app.protocol.objects import Strategy
from shardline.datasource.state import ShardState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DueSteps"]


@dataclass(slots=True)
class DueSteps:
    """Of one rendering of a view. Used by one thread at a time."""

    query: QueryAt
    states: ViewStates
    _known: tuple[int, int | None] | None = None
    """The output's upper, and the first time from there on at which something is due, if known."""

    def times(
        self,
        session: SparkSession,
        output: OutputProgress,
        news: InputChanges,
        inputs: Sequence[ShardState],
        *,
        floor: int,
        end: int | None,
        strategy: Strategy,
    ) -> Sequence[int]:
        """Times at which the view changes, as `choose_next_step` takes them.

        Args:
            session: The one that the view runs in.
            output: The output.
            news: The changes of inputs from the output's upper on.
            inputs: States of the inputs.
            floor: The first time at which inputs are readable.
            end: Where the inputs are settled; None if they are finished.
            strategy: The way of the next step.
        """
        lower = output.upper
        if not self.query.is_temporal or lower is None or not output.ours or lower < floor:
            return news.known
        if strategy != "recompute" and not output.failing:
            # News of a micro-batch has times that an earlier step of it has passed, too.
            left = [time for time in news.known if time >= lower]
            return left or ((lower,) if self.is_due(lower, end) else ())
        if self._known is None or self._known[0] != lower:
            found = self.query.next_time(session, lower - 1, inputs)
            self._known = lower, found.at if found.is_known else lower
        due = self._known[1]
        if due is None or (end is not None and due >= end):
            return news.known
        return sorted({*news.known, due})

    def bounded(
        self, session: SparkSession, step: Recompute, inputs: Sequence[ShardState]
    ) -> Recompute:
        """A step that ends before anything is due after the time that it is of."""
        if not self.query.is_temporal:
            return step
        due = self.query.next_time(session, step.at, inputs)
        if due.at is not None and (step.upper is None or due.at < step.upper):
            step = replace(step, upper=due.at)
        if step.upper is not None:
            self._known = step.upper, due.at if due.is_known else step.upper
        return step

    def is_due(self, lower: int, upper: int | None) -> bool:
        """True if rows may come or go by themselves in `[lower, upper)`, where no input changes.

        Args:
            lower: The output's upper.
            upper: The end, exclusive; None for no end.
        """
        if self._known is None or self._known[0] != lower:
            return self.states.is_due(lower, upper)
        due = self._known[1]
        return due is not None and (upper is None or due < upper)

    def rested(self, lower: int, upper: int | None) -> None:
        """Nothing has changed in `[lower, upper)`."""
        if self._known is not None and self._known[0] == lower and upper is not None:
            self._known = upper, self._known[1]
