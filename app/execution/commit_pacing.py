"""Commit pacing lets sources commit only as often as views can follow: backpressure.

A view that is recomputed at each time at which an input changes can fall behind for ever: with more
views than cores a step takes longer than the interval it covers, and every view waits for longer
and longer. No time may be skipped, since a view is right at every time. But the sources decide how
many times there are. So when a view that had caught up falls behind, all sources commit half as
often, with twice as much at once. When all views follow easily, sources speed up again, as far as
the steps' durations allow: a step takes about as long whatever is in it, so the load at a shorter
interval can be computed beforehand.

    pace = CommitPacing(clock, interval_ms=1000, most_ms=10_000)
    pace.report_lag("delays", 4200)   by a view: how far its inputs are ahead of it
    pace.commit_pause_ms()            by a source after a commit: how long to wait for the next

While nothing changes uppers still move, and idle views cost no Spark job. Leaps of uppers that rest
(`rest_pace`) count for an interval at most: nobody was late who follows them at the next look.

Invariants:
    Pacing never puts more than `most_ms` between two commits of a source.
    A view that stands still slows no source down: only one that has moved since it was last slow.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shardline.app.execution.step_scheduler import STEP_SCHEDULER
from shardline.datasource.clock import Clock

__all__ = ["CommitPacing"]

_log = logging.getLogger(__name__)

_SLOW: Final = 2.0
"""A view is slow when it is behind by more than so many present intervals and one base interval."""

_SETTLE: Final = 3.0
"""Intervals that a change of the pace needs before its effect is judged."""

_DRAINS: Final = 0.9
"""A view that is behind by less than this share of what it was is catching up."""

_RUNGS: Final = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
"""Distances between commits to choose from, in intervals."""

_FITS: Final = 0.85
"""Sources speed up to a distance at which steps would take less than this share of all slots; the
rest is for other work, which makes steps slower."""

_PATIENCE_MS: Final = 10_000.0
_PATIENCE_MOST_MS: Final = 120_000.0
"""How long all views must have followed easily before sources commit more often: doubles with each
attempt that failed, from the first value to the second."""

_EASIER: Final = 0.7
"""Once steps need less than this share of what they needed when an attempt failed, it was another
situation: most often that of a JVM that had compiled nothing yet."""

_STANDS_MS: Final = 30_000.0
"""A view whose distance has only grown for so long does not follow at all: it is blocked or fails,
and slower sources would not help it."""


@dataclass(slots=True)
class _Seen:
    """The last report of a view: its distance, and when that distance has last not grown."""

    behind_ms: int
    moved_ms: float


class CommitPacing:
    """The pace of all sources of one runtime. May be shared between threads."""

    def __init__(
        self,
        clock: Clock,
        interval_ms: int,
        most_ms: int,
        busy_ms: Callable[[float], float] = STEP_SCHEDULER.busy_ms,
    ) -> None:
        """Begin at full speed.

        Args:
            clock: The driver's clock.
            interval_ms: The least distance of commits.
            most_ms: The greatest: with `interval_ms` itself the pace never changes.
            busy_ms: Returns how long steps have kept all cores busy, up to a time of the clock.
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
        self._tried_needed_ms = self._failed_needed_ms = 0.0
        self._patience_ms = _PATIENCE_MS
        self._lock = threading.Lock()

    @property
    def interval_ms(self) -> int:
        """The present distance of commits."""
        return self._interval_ms

    def report_lag(self, view: str, ms: int) -> None:
        """Report the distance of a hydrated view behind its inputs, and judge the pace by it."""
        with self._lock:
            now_ms = self._clock.elapsed_ms()
            before = self._views.get(view)
            moved = before is None or ms <= before.behind_ms
            moved_ms = now_ms if before is None or moved else before.moved_ms
            self._views[view] = _Seen(ms, moved_ms)
            self._judge(now_ms)

    def forget(self, view: str) -> None:
        """Forget a view that has stopped; harmless if it is not known."""
        with self._lock:
            self._views.pop(view, None)

    def commit_pause_ms(self) -> float:
        """Milliseconds that a source waits between a commit and its next data.

        All sources wait until the same moments, multiples of the interval, as Spark's trigger does:
        commits soon after such a moment have one time, and a view of several sources takes one step
        for all of them. A source that commits before the next moment does not wake up twice.
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
            self._restart_calm(now_ms)
        if now_ms - self._judged_ms < _SETTLE * self._interval_ms:
            return
        slow = worst_ms > _SLOW * self._interval_ms + self._base_ms
        # A backlog from the faster pace that shrinks is the effect hoped for: no reason to slow
        # down once more.
        drains = worst_ms < _DRAINS * self._worst_ms
        self._judged_ms, self._worst_ms = now_ms, worst_ms
        if slow and not drains and self._interval_ms < self._rungs[-1]:
            if self._tried:
                self._patience_ms = min(self._patience_ms * 2, _PATIENCE_MOST_MS)
                self._failed_needed_ms = self._tried_needed_ms
            self._change(self._slower(), tried=False)
        elif now_ms - self._calm_ms >= _PATIENCE_MS:
            needed_ms = self._needed_ms(now_ms)
            if needed_ms < _EASIER * self._failed_needed_ms:
                self._patience_ms = _PATIENCE_MS
            if now_ms - self._calm_ms >= self._patience_ms:
                self._tried_needed_ms = needed_ms
                self._change(self._faster(needed_ms), tried=True)
                self._restart_calm(now_ms)

    def _restart_calm(self, now_ms: float) -> None:
        self._calm_ms, self._calm_busy_ms = now_ms, self._busy_ms(now_ms)

    def _slower(self) -> int:
        """The distance at which there are half as many times, or the greatest."""
        return next((r for r in self._rungs if r >= 2 * self._interval_ms), self._rungs[-1])

    def _needed_ms(self, now_ms: float) -> float:
        """The distance that steps need, if they go on as since all were calm."""
        share = (self._busy_ms(now_ms) - self._calm_busy_ms) / (now_ms - self._calm_ms)
        return share * self._interval_ms / _FITS

    def _faster(self, needed_ms: float) -> int:
        """The least distance that steps have time for."""
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
