"""Where a dataflow begins: the first time at which its output is to be right.

The rules are those of Materialize's `as_of_selection`, for one dataflow with all of its inputs in
shards:

    hard    at or after the since of every input, or its contents cannot be read there
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
    """Between which times a shard can be read.

    Attributes:
        since: Its since.
        upper: Its upper; the least time if there is no such shard yet.
    """

    since: Frontier
    upper: Frontier


def choose_as_of(inputs: Iterable[Readable], output: Readable | None) -> int | None:
    """The `as_of` of a dataflow; None if an input can never be read again.

    Args:
        inputs: All of its inputs; none for a query of constants.
        output: The shard that it writes; None if it writes none, or none is there yet.
    """
    given = list(inputs)
    least = TIME_MIN
    for one in given:
        if one.since.time is None:
            return None
        least = max(least, one.since.time)
    if output is not None and output.upper.time is not None and output.upper.time > TIME_MIN:
        return max(least, output.upper.time - 1)
    times = [one.upper.time for one in given if one.upper.time is not None]
    return max(least, min(times, default=TIME_MIN + 1) - 1)
