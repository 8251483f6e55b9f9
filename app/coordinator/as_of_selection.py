"""The as_of selection chooses where a dataflow begins: the first time its output must be right at.

Too early, and the inputs cannot be read there any more; too late, and the output would skip times
that its readers have been promised. The rules are those of Materialize's `as_of_selection`, for one
dataflow with all of its inputs in shards:

    hard    at or after the since of every input: before it, contents cannot be read
    hard    right before the output's upper, if it has one: nothing of it is skipped or repeated
    soft    before the upper of every input, so that it can be computed at once

Where the two hard rules contradict each other (the inputs' history at the output's upper is gone)
the first one wins: the output is corrected at the new `as_of`, and cannot be read between the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardline.datasource.frontier import TIME_MIN, Frontier

__all__ = ["Readable", "choose_as_of"]


@dataclass(frozen=True, slots=True)
class Readable:
    """The times at which a shard can be read.

    Attributes:
        since: The shard's since.
        upper: The shard's upper; the least time if there is no such shard yet.
    """

    since: Frontier
    upper: Frontier


def choose_as_of(inputs: Iterable[Readable], output: Readable | None) -> int | None:
    """Choose the `as_of` of a dataflow; None if an input can never be read again.

    Args:
        inputs: All of its inputs; none for a query of constants.
        output: The shard that it writes; None if it writes none, or there is none yet.
    """
    given = list(inputs)
    least = TIME_MIN
    for one in given:
        if one.since.time is None:
            return None
        least = max(least, one.since.time)
    # `upper - 1` is the last time that the output holds: from it the first step computes the change
    # to the next one. The soft rule is not asked: an input that is behind is waited for.
    if output is not None and output.upper.time is not None and output.upper.time > TIME_MIN:
        return max(least, output.upper.time - 1)
    # Inputs that have ended (empty upper) bound nothing.
    times = [one.upper.time for one in given if one.upper.time is not None]
    return max(least, min(times, default=TIME_MIN + 1) - 1)
