"""Reports say of one incarnation of a sink what it has done, and why it does not go on."""

from __future__ import annotations

import logging
from typing import Final

from shardline.app.execution import observations
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.spark_errors import (
    UNREADABLE_HINT,
    describe_failure,
    find_unreadable_part,
)
from shardline.app.protocol.object_state import Status
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sinks.interval import Interval
from shardline.app.storage.sinks.target import Written
from shardline.datasource.errors import ShardError
from shardline.datasource.frontier import EMPTY, Frontier

__all__ = ["SinkReports"]

_log = logging.getLogger(__name__)


class SinkReports:
    """The reports of one incarnation, which begins when this is made."""

    def __init__(self, host: Host, incarnation: Incarnation, sink: SinkDescription) -> None:
        self._report: Final = host.report
        self._clock: Final = host.clock
        self._name: Final = sink.name
        self._on: Final = sink.on
        self._epoch: Final = incarnation.epoch
        self._begun_ms: Final = host.clock.elapsed_ms()
        self._hydrated = False

    def started(self, query: str, run: str) -> None:
        """Its query runs."""
        self._report(observations.Started(id=self._name, epoch=self._epoch, query=query, run=run))

    def written(self, written: Written, interval: Interval) -> None:
        """The target has all of an interval."""
        sizes = {} if written.size_bytes is None else {"bytes": written.size_bytes}
        counts = {"messages": written.rows, **sizes}
        added = {
            f"{what}_{step}": float(count)
            for what, count in counts.items()
            for step in ("staged", "committed")
        }
        self._report(observations.Measured(id=self._name, epoch=self._epoch, added=added))
        self.running()
        self.hydrated()
        self.progress(interval.upper)
        if interval.upper.is_empty:
            self.ended()

    def running(self) -> None:
        """It does what it should."""
        self._health("running")

    def hydrated(self) -> None:
        """The target has the contents that the sink began with; reported once."""
        if not self._hydrated:
            self._hydrated = True
            took_ms = int(self._clock.elapsed_ms() - self._begun_ms)
            self._report(observations.Hydrated(id=self._name, epoch=self._epoch, took_ms=took_ms))

    def progress(self, upper: Frontier) -> None:
        """The target has everything before `upper`."""
        inputs = {self._on: upper.time}
        self._report(
            observations.Progress(id=self._name, epoch=self._epoch, write=upper.time, inputs=inputs)
        )

    def ended(self) -> None:
        """Nothing more comes."""
        self._report(observations.Ended(id=self._name, epoch=self._epoch))

    def finished(self) -> None:
        """The target had everything, up to the end, before this incarnation began."""
        self.progress(EMPTY)
        self.ended()

    def stalled(self, error: ShardError) -> None:
        """It waits, for a person or for its input, and does not fail."""
        message, hint = describe_failure(error)
        _log.error(
            "a sink writes nothing",
            exc_info=error,
            extra={"context": {"sink": self._name, "epoch": self._epoch}},
        )
        self._health("stalled", message, hint)

    def failed(self, error: BaseException, *, fenced: bool) -> None:
        """It ends by an error, and is to be started again."""
        message, hint = describe_failure(error)
        status: Status = "stalled"
        if (lost := find_unreadable_part(error)) is not None:
            status, message, hint = "frozen", lost, UNREADABLE_HINT
        _log.error(
            "a sink failed",
            exc_info=error,
            extra={"context": {"sink": self._name, "epoch": self._epoch}},
        )
        self._health(status, message, hint)
        self._report(
            observations.Failed(
                id=self._name, epoch=self._epoch, error=message, hint=hint, fenced=fenced
            )
        )

    def _health(self, status: Status, error: str = "", hint: str = "") -> None:
        self._report(
            observations.Health(
                id=self._name,
                epoch=self._epoch,
                namespace="sink",
                status=status,
                error=error,
                hint=hint,
            )
        )
