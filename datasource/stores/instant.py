"""An instant is a moment by both clocks of a process: it tells how old an observation may be.

    seen = now(clock)                    before the request
    if age_ms(clock, seen) < bound: …    what was seen then is true still

What a process has observed of a log may be relied on for a while, so its age must never be taken
for less than it is. One clock does not do. The wall clock may be set back. The elapsed time never
goes back and counts a suspended machine, but not one that its hypervisor has paused, or that goes
on from a snapshot: to such a machine only a wall clock that was set right since tells of the hours
between. So both are asked, and the one by which more time has passed counts.

What remains: a machine that was paused and whose wall clock has not been set right yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from shardline.datasource.clock import Clock

__all__ = ["NEVER", "Instant", "age_ms", "now"]


class Instant(NamedTuple):
    """A moment by both clocks, in ms. Ordered by the one that never goes back."""

    elapsed_ms: float
    wall_ms: float


NEVER: Final = Instant(float("-inf"), float("-inf"))
"""Before any other instant, and infinitely long ago."""


def now(clock: Clock) -> Instant:
    """This moment."""
    return Instant(clock.elapsed_ms(), clock.now_ms())


def age_ms(clock: Clock, at: Instant) -> float:
    """Milliseconds since `at`, by the clock by which more have passed; never negative."""
    return max(clock.elapsed_ms() - at.elapsed_ms, clock.now_ms() - at.wall_ms)
