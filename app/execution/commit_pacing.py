"""How often sources commit: as often as views can follow.

    pace = Pace(clock, interval_ms=1000, most_ms=10_000)
    pace.behind("delays", 4200)       a view: how far it is behind what its inputs have
    pace.rest_ms()                    a source, after a commit: how long it takes no news now

A view that is run anew at each time at which an input changes can fall behind for ever: with more
views than cores a step takes longer than the time it is for, and every view waits for longer and
longer. Nothing may be left out, since a view is right at every time. But how many times there are
is for the sources to say. So when a view that had caught up falls behind, all sources commit half
as often, with twice as much at once. When all follow easily they come back, as far as the time that
steps take allows: a step takes about as long whatever is in it, so how busy steps would be at a
shorter distance is known beforehand.

While nothing changes uppers still move at every interval: idle views cost no Spark job.

Invariants:
    Between two commits of a source there are never more than `most_ms` because of this.
    A view that stands still slows nobody down: only one that has moved since it was last slow.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shardline.app.execution.step_scheduler import TURNS
from shardline.datasource.clock import Clock

__all__ = ["Pace"]

_log = logging.getLogger(__name__)

_SLOW: Final = 2.0
"""A view is slow when it is behind by more than so many intervals, and one more."""

_SETTLE: Final = 3.0
"""How many intervals a change of the pace needs before its effect is judged."""

_DRAINS: Final = 0.9
"""A view that is behind by less than this share of what it was is catching up."""

_RUNGS: Final = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
"""Distances to choose from, in intervals."""

_FITS: Final = 0.85
"""Sources come back to a distance at which steps would take less than this share of all turns: what
else there is to do makes them take longer."""

_PATIENCE_MS: Final = 10_000.0
_PATIENCE_MOST_MS: Final = 120_000.0
"""How long everybody must have followed easily before sources commit more often: longer after each
attempt that failed."""

_STANDS_MS: Final = 30_000.0
"""A view whose distance has only grown for so long does not follow at all: it is blocked or fails,
and slower sources would not help it."""


@dataclass(slots=True)
class _Seen:
    """A view as it was last seen: how far behind, and when that has last not grown."""

    behind_ms: int
    moved_ms: float


class Pace:
    """The pace of all sources of one runtime. May be shared between threads."""

    def __init__(
        self,
        clock: Clock,
        interval_ms: int,
        most_ms: int,
        busy_ms: Callable[[float], float] = TURNS.busy_ms,
    ) -> None:
        """Begin at full speed.

        Args:
            clock: Of the driver.
            interval_ms: The least distance of commits.
            most_ms: The greatest: with `interval_ms` itself the pace never changes.
            busy_ms: For how long, until a time of the clock, steps have kept all cores busy.
        """
        self._clock = clock
        self._base_ms = interval_ms
        rungs = (int(rung * interval_ms) for rung in _RUNGS)
        self._rungs = [*(rung for rung in rungs if rung < most_ms), max(most_ms, interval_ms)]
        self._interval_ms = interval_ms
        self._busy_ms = busy_ms
        self._views: dict[str, _Seen] = {}
        self._judged_ms = self._calm_ms = clock.elapsed_ms()
        self._calm_busy_ms = busy_ms(self._calm_ms)
        self._worst_ms = 0
        self._tried = False
        self._patience_ms = _PATIENCE_MS
        self._lock = threading.Lock()

    @property
    def interval_ms(self) -> int:
        """The present distance of commits."""
        return self._interval_ms

    def behind(self, view: str, ms: int) -> None:
        """Note how far a view that has caught up once is behind its inputs."""
        with self._lock:
            now_ms = self._clock.elapsed_ms()
            before = self._views.get(view)
            moved = before is None or ms <= before.behind_ms
            moved_ms = now_ms if before is None or moved else before.moved_ms
            self._views[view] = _Seen(ms, moved_ms)
            self._judge(now_ms)

    def forget(self, view: str) -> None:
        """The view has stopped; harmless if it is not known."""
        with self._lock:
            self._views.pop(view, None)

    def rest_ms(self) -> float:
        """How long a source that has just committed takes no news, in milliseconds.

        Sources rest until the same moments, multiples of the interval, at which Spark starts
        micro-batches without a rest, too: what they commit soon after has one time, and a view of
        several takes one step for all. Nobody that commits before the next one is up twice.
        """
        interval_ms = self._interval_ms
        if interval_ms == self._base_ms:
            return 0.0
        return float(interval_ms - self._clock.now_ms() % interval_ms)

    def _judge(self, now_ms: float) -> None:
        follow = [v for v in self._views.values() if now_ms - v.moved_ms < _STANDS_MS]
        worst_ms = max((view.behind_ms for view in follow), default=0)
        # Times are whole intervals: two commits of one distance can be one more apart.
        if worst_ms > self._interval_ms + self._base_ms:
            self._calm_from(now_ms)
        if now_ms - self._judged_ms < _SETTLE * self._interval_ms:
            return
        slow = worst_ms > _SLOW * self._interval_ms + self._base_ms
        # What was left over from a faster pace is being made up: that is the effect hoped for.
        drains = worst_ms < _DRAINS * self._worst_ms
        self._judged_ms, self._worst_ms = now_ms, worst_ms
        if slow and not drains and self._interval_ms < self._rungs[-1]:
            if self._tried:
                self._patience_ms = min(self._patience_ms * 2, _PATIENCE_MOST_MS)
            self._change(self._slower(), tried=False)
        elif now_ms - self._calm_ms >= self._patience_ms:
            self._change(self._faster(now_ms), tried=True)
            self._calm_from(now_ms)

    def _calm_from(self, now_ms: float) -> None:
        self._calm_ms, self._calm_busy_ms = now_ms, self._busy_ms(now_ms)

    def _slower(self) -> int:
        """The distance at which there are half as many times, or the greatest."""
        return next((r for r in self._rungs if r >= 2 * self._interval_ms), self._rungs[-1])

    def _faster(self, now_ms: float) -> int:
        """The least distance that steps have time for, if they go on as since all were calm."""
        share = (self._busy_ms(now_ms) - self._calm_busy_ms) / (now_ms - self._calm_ms)
        needed_ms = share * self._interval_ms / _FITS
        fitting = (rung for rung in self._rungs if rung >= needed_ms)
        return min(next(fitting, self._interval_ms), self._interval_ms)

    def _change(self, interval_ms: int, *, tried: bool) -> None:
        if interval_ms == self._interval_ms:
            return
        _log.info(
            "sources commit at another pace",
            extra={"context": {"interval_ms": interval_ms, "before_ms": self._interval_ms}},
        )
        self._interval_ms, self._tried = interval_ms, tried
