"""Chooses a view's next step, from the output's frontier and the times of changes.

A view must be right at every time, but may run its query only where something changes. The choice
is a pure function, so that all its cases can be tested without Spark: a step that is too long makes
the contents wrong at times in its middle, and nothing would notice.

    Done            the output has reached the end
    Unchanged       nothing changes in [lower, upper): the upper moves, and no query is run
    FollowChanges   what follows from the changes of [lower, upper), each at its own time
    Recompute       the query at `at`, minus the output's contents, as [lower, upper)

A caller that takes each step and asks again reaches the end, and the contents at each time from
`floor` on are then those of the query at that time.

Invariants:
    A step starts at the output's upper: its append is refused if another writer was first.
    An output that this definition did not write last is never extended: it is recomputed first.
    No time at which an input changes lies inside of a step that recomputes, except `at`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shardline.app.protocol.objects import Strategy

__all__ = [
    "Done",
    "FollowChanges",
    "OutputProgress",
    "Recompute",
    "Step",
    "Unchanged",
    "choose_next_step",
]


@dataclass(frozen=True, slots=True)
class OutputProgress:
    """The progress of a view's output.

    Attributes:
        upper: Upper of its shard; None once it is finished.
        ours: True if this very definition, over these very inputs, appended last.
        failing: True if the query fails at the last time before the upper.
        error: The error, if the errors shard has it at that time; else "".
    """

    upper: int | None
    ours: bool
    failing: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do before the end."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The output stays as it is in `[lower, upper)`: no input changes there."""

    lower: int
    upper: int | None


@dataclass(frozen=True, slots=True)
class FollowChanges:
    """The output changes by what follows from the inputs' changes in `[lower, upper)`."""

    lower: int
    upper: int | None


@dataclass(frozen=True, slots=True)
class Recompute:
    """The output becomes the query's result at `at`, and stays that until `upper`.

    From `lower` until `at` it stays as it was.
    """

    at: int
    lower: int
    upper: int | None


Step: TypeAlias = Done | Unchanged | FollowChanges | Recompute


def choose_next_step(
    output: OutputProgress, times: Sequence[int], *, floor: int, end: int | None, strategy: Strategy
) -> Step:
    """The next step towards `end`.

    Args:
        output: The output as it is now.
        times: Times at which some input changes, ascending, each once: all of those from
            `max(output.upper, floor)` until before `end`. Unless the view is recomputed it suffices
            that there are some if anything changes.
        floor: The first time at which inputs are readable and the output must be right.
        end: All inputs are settled before it; None if they are finished.
        strategy: The view's.
    """
    upper = output.upper
    if upper is None or (end is not None and end <= max(upper, floor)):
        return Done()
    # Before any look at `times`. An output of another definition may rest over inputs that rest: a
    # quiet step would sign its old contents as ours, and they would never be corrected. And of
    # changes between `upper` and `floor` nothing is known: they are no longer readable.
    if not output.ours or upper < floor:
        at = max(upper, floor)
        return Recompute(at, upper, _after(times, at, end))
    # Left: the upper is exclusive, so a change at the upper itself is not in the output yet.
    first = bisect_left(times, upper)
    if first == len(times):
        return Unchanged(upper, end)
    # While the query fails the output stands still, and lacks every change since then. A step from
    # changes would add only those from the upper on; a recomputation adds what is missing.
    if strategy != "recompute" and not output.failing:
        return FollowChanges(upper, end)
    # One step for each time of a change, although only the last one's contents stay: readers may
    # ask for the times in between, and views above this one see each of them.
    return Recompute(times[first], upper, _after(times, times[first], end))


def _after(times: Sequence[int], time: int, end: int | None) -> int | None:
    """The first change after `time`, or the end."""
    # Right: the change at `time` is what the step itself computes.
    later = bisect_right(times, time)
    return times[later] if later < len(times) else end
