"""Appends staged parts to a shard, at the time of the commit or at the times that rows carry.

Rows that carry their times follow their user's clock. They must lie at or after the shard's upper,
and a micro-batch without rows leaves the upper alone: moving it to this machine's time would shut
the next rows out.
"""

from __future__ import annotations

from typing import Final

from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.parts.stage import Staged, UncommittedParts
from shardline.datasource.shard.commands.append import AlreadyCommitted, Appended, UpperMismatch
from shardline.datasource.write import WriteHandle

__all__ = ["append_staged", "give_attempt_up"]

_RACES_MAX: Final = 64
"""Attempts at appending nothing at the upper, each of which another append may overtake."""


def append_staged(
    handle: WriteHandle, staged: Staged, *, timed: bool, sequence: int, attempt: str
) -> Appended | AlreadyCommitted:
    """Append `staged` once under the writer's `sequence`.

    Args:
        handle: A writer of the shard.
        staged: Parts under the handle's schema.
        timed: True if rows carry their times.
        sequence: The writer's number of this append.
        attempt: Id of the attempt that staged them.

    Raises:
        InvalidUsage: Rows carry times before the shard's upper. The parts are deleted.
    """
    if timed and not staged.runs:
        return _append_nothing(handle, sequence)
    if timed:
        # Nobody else owns the parts yet: a native write has no abort that would delete them.
        with UncommittedParts(handle.machine.location.blob, staged.runs) as parts:
            _check_times(handle, staged, sequence)
            parts.hand_over(staged.runs)
    return handle.commit(staged, sequence=sequence, attempt=attempt)


def give_attempt_up(
    handle: WriteHandle, staged: Staged, *, sequence: int, attempt: str, was_asked: bool = True
) -> None:
    """Give an attempt up whose commit has failed or never came, and delete its parts.

    The shard decides: either the attempt is committed, or a record gives it up, and no commit of it
    that is still under way can land after that record. Only then are the parts deleted.

    Args:
        handle: The writer of the attempt.
        staged: What was staged for it.
        sequence: Its number.
        attempt: Its id.
        was_asked: False if certainly nobody has asked for its commit.
    """
    parts = UncommittedParts(handle.machine.location.blob, staged.runs)
    with parts.commit():
        given_up = handle.abandon(staged, sequence=sequence, attempt=attempt, was_asked=was_asked)
    if given_up:
        parts.note_refused()
        parts.delete()


def _append_nothing(handle: WriteHandle, sequence: int) -> Appended | AlreadyCommitted:
    """Record that a micro-batch without rows was committed, without moving the upper."""
    for _ in range(_RACES_MAX):
        upper = handle.upper()
        outcome = handle.compare_and_append(None, upper, upper, sequence=sequence)
        if not isinstance(outcome, UpperMismatch):
            return outcome
        if outcome.current.is_empty:
            return handle.commit(Staged((), 0, 0, 0), sequence=sequence)  # says that it is finished
    raise Determinate(
        f"shard '{handle.machine.name}' changed {_RACES_MAX} times while nothing was appended",
        code="CONTENTION",
        hint="try again",
    )


def _check_times(handle: WriteHandle, staged: Staged, sequence: int) -> None:
    """Refuse times before the upper, unless this very append was committed before."""
    state = handle.machine.state()
    entry = state.writers.get(handle.writer)
    # A replay finds its own rows before the upper: checked by times it would fail for ever. The
    # append itself decides between a replay and another write with the same number.
    if entry is not None and sequence <= entry.last:
        return
    times = [part.ts_min for run in staged.runs for part in run.parts if part.ts_min is not None]
    upper = state.upper.time
    if upper is not None and times and min(times) < upper:
        raise InvalidUsage(
            f"rows have times from {min(times)} on, and the upper of shard "
            f"'{handle.machine.name}' is {upper}",
            code="TIME_OUT_OF_RANGE",
            hint=f"_ts must be {upper} or later; without _ts rows take effect when they commit",
        )
