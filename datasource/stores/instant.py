"""An instant is a moment by three clocks: it tells how old an observation may be.

    seen = now(clock, store)                 before the request
    if age_ms(clock, store, seen) < bound: … what was seen then is true still

What a process has observed of a log may be relied on for a while, so its age must never be taken
for less than it is. No clock of its own does. The wall clock may be set back. The elapsed time
never goes back and counts a suspended machine, but not one that its hypervisor has paused, or that
goes on from a snapshot: to such a machine only a wall clock that was set right since tells of the
hours between. So a third is asked, the store's, as it was in the newest answer of the store
(`Objects.latest_ms`): the answer to the request that is in question is newer than the pause. The
one by which most time has passed counts.

What remains, with a store that does not tell its time: a machine that was paused and whose wall
clock has not been set right yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from shardline.datasource.clock import Clock
    from shardline.datasource.stores.objects import Objects

__all__ = ["NEVER", "Instant", "age_ms", "now"]


class Instant(NamedTuple):
    """A moment by the process's clocks and the store's, in ms.

    Ordered by the one that never goes back. The store's is 0 before its first answer.
    """

    elapsed_ms: float
    wall_ms: float
    store_ms: float


NEVER: Final = Instant(float("-inf"), float("-inf"), float("-inf"))
"""Before any other instant, and infinitely long ago."""


def now(clock: Clock, store: Objects) -> Instant:
    """This moment."""
    return Instant(clock.elapsed_ms(), clock.now_ms(), store.latest_ms())


def age_ms(clock: Clock, store: Objects, at: Instant) -> float:
    """Milliseconds since `at`, by the clock by which most have passed; never negative."""
    return max(
        clock.elapsed_ms() - at.elapsed_ms,
        clock.now_ms() - at.wall_ms,
        # What was asked before the first answer has no time of the store: it counts as old, which
        # costs a process one more request.
        store.latest_ms() - at.store_ms,
    )
