"""Reports what a view has done: how far its output is, what a step took, and the view's health.

Reports go to the runtime as observations, which must be few: a view takes a step several times a
second, and most steps change nothing that anybody looks at.

Invariants:
    A frontier is reported when it has moved, health when it has changed, hydration once.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardline.app.compute.view.next_step import OutputProgress
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import Health, Hydrated, Measured, Observation, Progress
from shardline.app.protocol.objects import Strategy, ViewDescription

__all__ = ["ViewReports"]


class ViewReports:
    """The reports of one rendering of a view.

    Attributes:
        output: The output as it was found last; None if it has to be looked at.
        hydrated: True once the output has caught up with the time that the view begins at.
        steps: How many steps Spark has taken.
    """

    def __init__(
        self, host: Host, incarnation: Incarnation, description: ViewDescription, as_of: int
    ) -> None:
        """Nothing has been reported; hydration is measured from now on."""
        self._host = host
        self._incarnation = incarnation
        self._inputs = description.inputs
        self._as_of = as_of
        self._begun_ms = host.clock.elapsed_ms()
        self._health: Health | None = None
        self.output: OutputProgress | None = None
        self.hydrated = False
        self.steps = 0

    def report_output(self, output: OutputProgress) -> None:
        """Remember how far the output is, and report it if that is news."""
        before, self.output = self.output, output
        upper = output.upper
        if upper is None or upper > self._as_of:
            self.report_hydrated()
        if before == output:
            return
        inputs: dict[str, int | None] = dict.fromkeys(self._inputs, upper)
        self._report(
            Progress(
                id=self._incarnation.id,
                epoch=self._incarnation.epoch,
                write=upper,
                read=upper,
                inputs=inputs,
            )
        )

    def report_hydrated(self) -> None:
        """Report, once, that the view has caught up."""
        if self.hydrated:
            return
        self.hydrated = True
        me, took_ms = self._incarnation, self._host.clock.elapsed_ms() - self._begun_ms
        self._report(Hydrated(id=me.id, epoch=me.epoch, took_ms=int(took_ms)))

    def report_step(
        self,
        strategy: Strategy,
        rows: int,
        error: str | None,
        now: Mapping[str, float | None] | None = None,
    ) -> None:
        """Report a step that Spark took, and the view's health if that has changed.

        Args:
            strategy: How the step was computed.
            rows: Updates of the output.
            error: Why the query has no rows at this time; None if it has.
            now: What else there is to say of the step: gauges.
        """
        self.steps += 1
        me = self._incarnation
        added = {"evaluations": 1.0, f"evaluations_{strategy}": 1.0, "updates_out": float(rows)}
        self._report(Measured(id=me.id, epoch=me.epoch, added=added, now=dict(now or {})))
        health = Health(
            id=me.id,
            epoch=me.epoch,
            namespace="compute",
            status="running" if error is None else "stalled",
            error=error or "",
            hint=""
            if error is None
            else "change the query, or correct the rows it fails at, or take them back",
        )
        if health != self._health:
            self._health = health
            self._report(health)

    def _report(self, observation: Observation) -> None:
        self._host.report(observation)
