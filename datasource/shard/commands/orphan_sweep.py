"""Sweep commands make it safe to delete blobs that no state refers to (the orphan sweep).

Crashed writers leave blobs behind that no record names; nothing but a sweep finds them. But a blob
that no state refers to may also be waiting for its commit. Every transition by which a blob comes
into the state (an append, a merge, a rollup) is refused when the blob was begun more than
`STAGE_LIFE_MS` ago, by the clock of the committing process. So the sweep may delete blobs that are
older than that, if it makes sure that such a commit is not under way already:

    1. it notes the time, then lists the blobs;
    2. it writes a record (`write_barrier`);
    3. it deletes the blobs that are older than `SWEEP_AGE_MS` at 1, and in no state from 2 on.

A commit whose record comes before the fence is in the state of 2. One whose record comes after has
run on a state from 2 on, so it read its clock after 1. Without the fence it may have read its clock
before 1, and then have been suspended for hours in the middle of its request.

*Clocks.* Four take part: that of the process that staged the blob (when it was begun), of the one
that commits (how old that is), of the store (when the blob was written, which is after it was
begun), and of the sweeper. A commit after 1 and a deletion exclude each other if
(stager - committer) + (sweeper - store) is less than the margin: with a margin of an hour, if no
two of the clocks differ by half an hour. S3 refuses requests of a client that differs from it by a
quarter.

Invariants:
    A blob that a sweep deletes can never be committed, however long its writer was suspended.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import STAGE_LIFE_MS, ShardState, is_tombstone

__all__ = ["SWEEP_AGE_MS", "SWEEP_MARGIN_MS", "note_swept", "sweep_due", "write_barrier"]

SWEEP_MARGIN_MS: Final = 3600 * 1000
"""How much longer than `STAGE_LIFE_MS` a sweep spares blobs that nothing refers to: twice as much
as two clocks may differ. No setting, for the same reason as `STAGE_LIFE_MS`."""

SWEEP_AGE_MS: Final = STAGE_LIFE_MS + SWEEP_MARGIN_MS
"""A blob that nothing refers to may be deleted when it is older than this."""


def write_barrier(state: ShardState, now_ms: int) -> Transition[bool]:
    """Write a record that changes nothing; every commit after it has read its clock after it."""
    del now_ms
    if is_tombstone(state):
        # No blob can come into it any more, and its log is to stay one record.
        return Transition(None, result=False)
    # A copy: the machine writes a record for any state but the one that it passed in.
    return Transition(msgspec.structs.replace(state), result=True)


def note_swept(state: ShardState, now_ms: int) -> Transition[bool]:
    """Note that a sweep has ended; False if the shard was dropped and need not be swept again."""
    if is_tombstone(state) and not _is_settled(state, now_ms):
        return Transition(None, result=False)
    # Walltime moves forward even when clocks do not, so that the two can be compared.
    swept_ms = max(now_ms, state.walltime_ms + 1)
    return Transition(msgspec.structs.replace(state, swept_ms=swept_ms), result=True)


def sweep_due(state: ShardState, now_ms: int, every_ms: int) -> bool:
    """True if the last sweep of the shard is at least `every_ms` ago.

    A shard that was dropped is swept once, when everything that was staged for it is old.
    """
    if is_tombstone(state):
        return state.swept_ms < state.walltime_ms and _is_settled(state, now_ms)
    return now_ms - max(state.swept_ms, state.created_ms) >= every_ms


def _is_settled(state: ShardState, now_ms: int) -> bool:
    return now_ms - state.walltime_ms > SWEEP_AGE_MS
