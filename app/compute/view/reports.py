"""Reports what a view has done: how far its output is, what a step took, and the view's health.

Reports go to the runtime as observations, which must be few: a view takes a step several times a
second, and most steps change nothing that anybody looks at.

Invariants:
    A frontier is reported when it has moved, health when it has changed, hydration once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from shardline.app.compute.view.next_step import OutputProgress
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import (
    Doubted,
    Health,
    Hydrated,
    Measured,
    Observation,
    Progress,
    Stepped,
)
from shardline.app.execution.spark_errors import UNREADABLE_HINT
from shardline.app.protocol.objects import Strategy, ViewDescription

__all__ = ["Finding", "TakenStep", "ViewReports"]

Finding: TypeAlias = Literal["audit", "negative count", "foreign writer", "lost part"]
"""Why what a view keeps cannot be right."""

_FAILING_HINT: Final = "change the query, or correct the rows it fails at, or take them back"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TakenStep:
    """What a step came to.

    Attributes:
        way: How it was computed.
        lower: The output's upper before it.
        upper: The output's upper afterwards.
        updates_out: Updates of the output.
        took_ms: What it took.
        predictions: What each way was predicted to take, by the names of gauges.
        rows_looked_up: Rows that were found by key.
        rows_changed: Updates of its inputs, at most; None if they were not counted.
        reason: Why it was recomputed although the view can follow changes; "" if it was not.
    """

    way: Strategy
    lower: int
    upper: int | None
    updates_out: int
    took_ms: float
    predictions: Mapping[str, float | None]
    rows_looked_up: int = 0
    rows_changed: int | None = None
    reason: str = ""


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
        self._doubted: set[tuple[Finding, str]] = set()
        self.output: OutputProgress | None = None
        self.hydrated = False
        self.steps = 0

    def report_output(self, output: OutputProgress) -> None:
        """Remember how far the output is, and report it if that is news."""
        before = self.output
        self.note_output(output)
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

    def note_output(self, output: OutputProgress) -> None:
        """Remember how far the output is, and report its health if that is known by it.

        Where its inputs rest, a view that was started again takes no step that would tell.
        """
        self.output = output
        if output.failing:
            # With another definition's error this one may well work: its first step tells.
            if output.ours and output.error:
                self._report_health(output.error)
        elif self._health is not None:
            self._report_health("")

    def report_hydrated(self) -> None:
        """Report, once, that the view has caught up."""
        if self.hydrated:
            return
        self.hydrated = True
        me, took_ms = self._incarnation, self._host.clock.elapsed_ms() - self._begun_ms
        self._report(Hydrated(id=me.id, epoch=me.epoch, took_ms=int(took_ms)))

    def report_frozen(self, lost: str) -> None:
        """Report that an input has a part that cannot be read."""
        me = self._incarnation
        self._report(
            Health(
                id=me.id,
                epoch=me.epoch,
                namespace="compute",
                status="frozen",
                error=lost,
                hint=UNREADABLE_HINT,
            )
        )

    def report_step(self, step: TakenStep, error: str | None) -> None:
        """Report a step that Spark took, and the view's health if that has changed.

        Args:
            step: The step.
            error: Why the query has no rows at this time; None if it has.
        """
        self.steps += 1
        me = self._incarnation
        if step.way != "recompute":
            self._doubted.clear()
        added = {
            "evaluations": 1.0,
            f"evaluations_{step.way}": 1.0,
            "updates_out": float(step.updates_out),
        }
        now = {
            **step.predictions,
            "step_ms": step.took_ms,
            "rows_looked_up": float(step.rows_looked_up),
        }
        self._report(Measured(id=me.id, epoch=me.epoch, added=added, now=now))
        self._report(
            Stepped(
                id=me.id,
                epoch=me.epoch,
                at_ms=self._host.clock.now_ms(),
                lower=step.lower,
                upper=step.upper,
                way=step.way,
                reason=step.reason,
                rows_changed=step.rows_changed,
                rows_looked_up=step.rows_looked_up,
                updates_out=step.updates_out,
                took_ms=step.took_ms,
                **step.predictions,
            )
        )
        self._report_health(error or "")

    def report_self_check(self, *, is_done: bool) -> None:
        """Report that a step was checked, whatever came out; or that this could not be done."""
        me, name = self._incarnation, "self_checks" if is_done else "self_checks_unfinished"
        self._report(Measured(id=me.id, epoch=me.epoch, added={name: 1.0}))

    def report_doubt(self, finding: Finding, shard: str, detail: str = "") -> None:
        """Report that something that the view keeps cannot be right, and is made anew.

        Each is counted. It is noted once until the view has followed changes again: what is wrong
        with an input is found in each step.

        Args:
            finding: How it was found.
            shard: What is wrong: a state, or the view itself.
            detail: What was found.
        """
        me, detail = self._incarnation, detail[:500]
        self._report(Measured(id=me.id, epoch=me.epoch, added={"self_check_findings": 1.0}))
        if (finding, shard) in self._doubted:
            return
        self._doubted.add((finding, shard))
        _log.warning(
            "what a view keeps cannot be right: it is made anew, and the view recomputed",
            extra={
                "context": {"view": me.id, "finding": finding, "shard": shard, "detail": detail}
            },
        )
        at_ms = self._host.clock.now_ms()
        self._report(
            Doubted(
                id=me.id, epoch=me.epoch, at_ms=at_ms, finding=finding, shard=shard, detail=detail
            )
        )

    def _report_health(self, error: str) -> None:
        """Report whether the query works, if that has changed; "" is no error."""
        me = self._incarnation
        health = Health(
            id=me.id,
            epoch=me.epoch,
            namespace="compute",
            status="stalled" if error else "running",
            error=error,
            hint=_FAILING_HINT if error else "",
        )
        if health != self._health:
            self._health = health
            self._report(health)

    def _report(self, observation: Observation) -> None:
        self._host.report(observation)
