"""An interval names the times of a micro-batch: a sink counts in times, not in micro-batches.

Spark counts micro-batches, and begins anew with a new checkpoint: a target that remembers Spark's
number would take old rows for new ones, or leave new ones out. Times of the input mean the same for
ever. So a sink keeps its accounts in times, and reads nothing from the checkpoint but the time at
which a micro-batch ends.

Invariants:
    A checkpoint is used only if it begins no later than what has been committed: it may repeat
    times, which are then left out, and never skips any. And only if the input still has the times
    that it would repeat: it may be that of another machine, on which the sink has run before.
    A checkpoint that cannot be read counts as one that does not exist.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardline.app.execution.checkpoint_log import can_be_resumed, logged_numbers
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import TIME_MAX, Frontier
from shardline.datasource.offsets import ShardOffset, parse_offset

__all__ = ["LAST", "Interval", "end_of", "frontier_of", "may_continue", "number_of"]

LAST: Final = TIME_MAX + 1
"""The number of the empty frontier: greater than every time."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Times from `lower` on and before `upper`.

    Attributes:
        lower: The upper that is committed before it, inclusive; 0 for the first of a sink.
        upper: The upper that is committed with it, exclusive; empty if nothing comes after.
    """

    lower: int
    upper: Frontier

    @property
    def number(self) -> int:
        """Number of the interval: unique in its sink, and growing; the token of targets."""
        return number_of(self.upper)


def number_of(upper: Frontier) -> int:
    """The number of the interval with that upper."""
    return LAST if upper.time is None else upper.time


def frontier_of(number: int) -> Frontier:
    """The upper of the interval with that number."""
    return Frontier(None if number == LAST else number)


def end_of(checkpoint: Path, number: int) -> Frontier | None:
    """The frontier at which micro-batch `number` ends; None if nothing has been read up to it.

    Args:
        checkpoint: The query's folder.
        number: As Spark counts, from 0; a negative one is before all.

    Raises:
        OSError: The checkpoint has no such micro-batch.
        InvalidUsage: Its offset is not one of `format("shard")`.
    """
    if number < 0:
        return None
    lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    offset = parse_offset(json.loads(lines[-1]))
    if not isinstance(offset, ShardOffset):
        # Spark's first micro-batch may come before the stream knows where it begins.
        return None
    assert offset.cut is None, f"micro-batch {number} ends inside of a snapshot"
    return offset.frontier


def may_continue(checkpoint: Path, committed: Frontier | None, kept: Frontier) -> bool:
    """True if a query can go on from `checkpoint`, and leaves out nothing that its target lacks.

    Args:
        checkpoint: The query's folder; need not be there.
        committed: How far the target is; None if it has nothing.
        kept: The since of the sink's hold: changes after it can be read.
    """
    try:
        if not can_be_resumed(checkpoint):
            return False
        done = end_of(checkpoint, max(logged_numbers(checkpoint / "commits"), default=-1))
        if committed is None:
            # A target without anything begins with the snapshot, and so does what was planned.
            return done is None
        planned = max(logged_numbers(checkpoint / "offsets"), default=-1)
    except (OSError, ValueError, IndexError, AssertionError, InvalidUsage):
        return False
    if done is None:
        # No log has the start of a first micro-batch: one that was planned, and never committed,
        # may begin after what the target has.
        return planned < 0
    return kept < done <= committed
