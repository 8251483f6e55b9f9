"""Sweep commands make it safe to delete blobs that no state refers to (the orphan sweep).

Crashed writers leave blobs behind that no record names; nothing but a sweep finds them. But a blob
that no state refers to may also be waiting for its commit. So the sweep writes down what may not
come in any more, before it deletes anything:

    1. it lists the blobs that were written `SWEEP_AGE_MS` ago or earlier;
    2. it records that nothing may come in any more that was begun before the newest of them was
       written, and `SWEEP_MARGIN_MS` after that (`write_barrier`);
    3. it deletes what it has listed at 1 and is in no state from 2 on.

Every transition by which a blob comes into the state (an append, a merge, a rollup) asks
`begun_too_early` of the state that it is applied to. A commit whose record comes before the one of
2 is in the state of 2. One whose record comes after is refused, however long its process was
suspended in the middle of its request, and whatever its clocks say.

It is refused by its own clock, too, where what it brings is older than `STAGE_LIFE_MS`: older
versions of this code sweep without recording a time.

*Clocks.* Two take part: that of the process that staged the blob (when it was begun), and that of
the store (when it was written). A commit after 2 and a deletion exclude each other if the first is
ahead of the second by less than the margin, an hour. S3 refuses requests of a client that differs
from it by a quarter. That of the sweeper only says when it is time to delete: if it is ahead, parts
that wait for their commit are lost, and their commits are refused. If the store's was ahead as well
(a file system on the same machine), so is the barrier, and nobody can write until it has passed, or
a person takes it back.

Invariants:
    A blob that a sweep deletes can never be committed, however long its writer was suspended.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import STAGE_LIFE_MS, ShardState, is_tombstone

__all__ = [
    "CLOCKS_WRONG",
    "SWEEP_AGE_MS",
    "SWEEP_MARGIN_MS",
    "is_sweep_due",
    "note_swept",
    "write_barrier",
]

SWEEP_MARGIN_MS: Final = 3600 * 1000
"""A sweep spares blobs that nothing refers to for so much longer than `STAGE_LIFE_MS`. More than
the clock of a process may be ahead of the store's. Beside versions that go by the clock of whoever
commits, twice as much as any two clocks may differ. No setting, for the same reason as
`STAGE_LIFE_MS`."""

CLOCKS_WRONG: Final = "clocks were wrong: set them right and sweep the shard"
"""Hint of `STAGED_TOO_LONG`, where new parts are refused as well: see `write_barrier`."""

_CLOCKS_MS: Final = 24 * 3600 * 1000
"""A time that is further in the future is of a clock that was ahead. With less, two maintainers
whose clocks differ by a few hours would sweep in turns, all the time."""

SWEEP_AGE_MS: Final = STAGE_LIFE_MS + SWEEP_MARGIN_MS
"""A blob that nothing refers to may be deleted when it is older than this."""


def write_barrier(
    state: ShardState, now_ms: int, *, begun_before_ms: int, takes_back: bool = False
) -> Transition[bool]:
    """Record that nothing which was begun before `begun_before_ms` may come in any more.

    Args:
        begun_before_ms: The time, by the clock of the store.
        takes_back: True moves a barrier that lies in the future back to `now_ms`. It was recorded
            by a clock that was ahead, or this one is behind, and then what a sweep has deleted may
            come in again: which of the two, only a person knows.
    """
    if is_tombstone(state):
        # No blob can come into it any more, and its log is to stay one record.
        return Transition(None, result=False)
    # A copy also where it changes nothing: the machine then writes a record all the same, and a
    # commit that is under way has to look at the state again.
    known_ms = min(state.swept_before_ms, now_ms) if takes_back else state.swept_before_ms
    begun_before_ms = max(known_ms, begun_before_ms)
    return Transition(msgspec.structs.replace(state, swept_before_ms=begun_before_ms), result=True)


def note_swept(state: ShardState, now_ms: int) -> Transition[bool]:
    """Note that a sweep has ended; False if the shard was dropped and need not be swept again."""
    if is_tombstone(state) and not _is_settled(state, now_ms):
        return Transition(None, result=False)
    return Transition(msgspec.structs.replace(state, swept_ms=now_ms), result=True)


def is_sweep_due(state: ShardState, now_ms: int, every_ms: int) -> bool:
    """True if the last sweep of the shard is at least `every_ms` ago.

    A shard that was dropped is swept once, when everything that was staged for it is old.
    """
    if is_tombstone(state):
        return state.swept_ms < state.walltime_ms and _is_settled(state, now_ms)
    # Not by times of clocks that were ahead: nobody would sweep for as long as they were.
    times = (t for t in (state.swept_ms, state.created_ms) if t <= now_ms + _CLOCKS_MS)
    return now_ms - max(times, default=0) >= every_ms


def _is_settled(state: ShardState, now_ms: int) -> bool:
    return now_ms - state.walltime_ms > SWEEP_AGE_MS
