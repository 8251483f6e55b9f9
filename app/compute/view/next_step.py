"""The next step of a view: pure decisions, from the output's frontier and the times of changes.

    Done         the output has reached the end
    Quiet        nothing changes in [lower, upper): the upper moves, and no query is run
    Linear       the query over the changes of [lower, upper)
    Recompute    the query at `at`, less what the output holds, as [lower, upper)

What a caller relies on: taking each step and asking again reaches the end, and the contents at each
time from `floor` on are then those of the query at that time.

Invariants:
    A step starts at the output's upper: it is refused if somebody else was faster.
    An output that this definition did not write last is never extended: it is recomputed first.
    No time at which an input changes lies inside of a step, but for a linear one and at `at`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shardline.app.protocol.objects import Strategy

__all__ = ["Done", "Linear", "Output", "Quiet", "Recompute", "Step", "next_step"]


@dataclass(frozen=True, slots=True)
class Output:
    """What is known of a view's output.

    Attributes:
        upper: Of its shard; None once it is finished.
        ours: Whether this very definition, over these very inputs, appended last.
        failing: Whether the query fails at the last time before the upper.
    """

    upper: int | None
    ours: bool
    failing: bool


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do before the end."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing changes from `lower` on and before `upper`."""

    lower: int
    upper: int | None


@dataclass(frozen=True, slots=True)
class Linear:
    """The output changes as the query over the changes in `[lower, upper)` says."""

    lower: int
    upper: int | None


@dataclass(frozen=True, slots=True)
class Recompute:
    """The output becomes the query's result at `at`, and stays that until `upper`.

    Before `at`, from `lower` on, it stays what it was.
    """

    at: int
    lower: int
    upper: int | None


Step: TypeAlias = Done | Quiet | Linear | Recompute


def next_step(
    output: Output, times: Sequence[int], *, floor: int, end: int | None, strategy: Strategy
) -> Step:
    """The next step towards `end`.

    Args:
        output: As it is now.
        times: When some input changes, ascending, each once; all of those from the later of the
            output's upper and `floor` on and before `end`. Of them a linear view needs to know only
            whether there are any.
        floor: Inputs are readable, and the output is to be right, from this time on.
        end: All inputs are settled before it; None: for ever.
        strategy: How the view is kept.
    """
    upper = output.upper
    if upper is None or (end is not None and end <= max(upper, floor)):
        return Done()
    if not output.ours or upper < floor:
        at = max(upper, floor)
        return Recompute(at, upper, _after(times, at, end))
    first = bisect_left(times, upper)
    if first == len(times):
        return Quiet(upper, end)
    if strategy == "linear" and not output.failing:
        return Linear(upper, end)
    return Recompute(times[first], upper, _after(times, times[first], end))


def _after(times: Sequence[int], time: int, end: int | None) -> int | None:
    """The first change after `time`, or the end."""
    later = bisect_right(times, time)
    return times[later] if later < len(times) else end
