"""A sink waits until its input has times that a query may show, and tells why it waits.

    wait.first_time(wanted, held)             where to begin: the first readable time
    wait.span(committed, upper, first_time)   the readable times that a micro-batch brings

Which times these are is known by `readable_times`, at once. But errors that may still come are
settled a moment later only, and those that are there may take until somebody has mended them.

Invariants:
    While it waits the sink is stalled, and its error is that of the input, told once.
    A hold moves only as far as the times that were looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shardline.app.execution.host import Host
from shardline.app.storage.sinks.readable_times import ReadableSpan, ReadableTimes
from shardline.app.storage.sinks.reports import SinkReports
from shardline.datasource.frontier import Frontier
from shardline.datasource.since_hold import SinceHandle

__all__ = ["ReadableWait"]

_LOOK_MS: Final = 100
"""Pause between two looks at errors that may still come."""

_ERRORS_MS: Final = 1_000
"""Pause between two looks at the errors that a sink waits for."""

_HOLD_MS: Final = 10_000
"""The hold of a sink that waits moves at most so often: each move is a record in a shard's log."""


@dataclass(frozen=True, slots=True)
class ReadableWait:
    """The waits of one incarnation of a sink.

    Attributes:
        host: What all objects share.
        times: The readable times of its input.
        reports: Of the incarnation.
        stopping: Set once the sink is being stopped.
        check: Raises then, or when the runtime is fenced.
    """

    host: Host
    times: ReadableTimes
    reports: SinkReports
    stopping: threading.Event
    check: Callable[[], None]

    def first_time(self, wanted: int, held: SinceHandle | None) -> int | None:
        """The first readable time from `wanted` on; None if the sink was stopped before.

        That is `wanted` itself, too, if the input has not come so far: nothing is known of it.

        Args:
            wanted: Where to begin, at the earliest.
            held: The hold on the input if it may move on to times that are looked at later: the
                target has nothing yet, and needs no changes from `wanted` on.
        """
        clock = self.host.clock
        reported, moved_ms = "", float("-inf")
        while True:
            # The input first, its errors after it: see `live_errors`.
            (state,) = self.host.client.readable(self.times.on)
            if not state.upper.is_beyond(wanted):
                return wanted
            span = self.times.span(wanted, state.upper)
            if span is not None and span.first is not None:
                return span.first
            error = self.times.unsettled(state.upper) if span is None else self.times.error(span)
            if error is not None and f"{error}" != reported:
                reported = f"{error}"
                self.reports.stalled(error)
            now_ms = clock.elapsed_ms()
            if span is not None and held is not None and now_ms - moved_ms >= _HOLD_MS:
                # All times before the upper have errors, but later ones may have none.
                wanted, moved_ms = max(wanted, (state.upper.time or 0) - 1), now_ms
                held.downgrade(Frontier(wanted))
                self.times.release(wanted)
            if clock.wait(self.stopping, _ERRORS_MS):
                return None

    def span(self, committed: Frontier | None, upper: Frontier, first_time: int) -> ReadableSpan:
        """The readable times from `committed` on and before `upper`; there is at least one.

        Args:
            committed: How far the target is; None if it has nothing yet.
            upper: The end, exclusive.
            first_time: Where to begin if it has nothing.

        Raises:
            InvalidUsage: There is none: the input has errors.
            Determinate: The sink is being stopped, or nothing is known of these times.
        """
        lower = first_time if committed is None else committed.time or 0
        if committed is None and upper.time is not None:
            lower = min(lower, upper.time - 1)
        reported = False
        while (span := self.times.span(lower, upper)) is None:
            error = None if reported else self.times.unsettled(upper)
            if error is not None:
                # Until the micro-batch is committed, which reports that it runs.
                reported = True
                self.reports.stalled(error)
            self.host.clock.wait(self.stopping, _LOOK_MS)
            self.check()
        # Contents have one time: they cannot be had at a later one.
        if span.first is None or (committed is None and span.first > lower):
            raise self.times.error(span)
        return span
