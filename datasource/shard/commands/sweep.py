"""The sweep, as the state knows it: what makes it safe to delete what nothing refers to.

A blob that no state refers to may be waiting for its commit. Every transition by which a blob comes
into the state (an append, a merge, a rollup) is refused when the blob was begun more than
`STAGE_LIFE_MS` ago, by the clock of whoever commits. So the sweep may take what is older than that,
if it makes sure that such a commit is not under way already:

    1. it notes the time, then lists the blobs;
    2. it writes a record (`fence`);
    3. it deletes what is older than `SWEEP_AGE_MS` at 1, and is in no state from 2 on.

A commit whose record comes before the fence is in the state of 2. One whose record comes after has
run on a state from 2 on, so it read its clock after 1. Without the fence it may have read it before
and have been asleep for hours in the middle of its request.

*Clocks.* Four take part: of the process that staged the blob (it says when it began), of the one
that commits (it says how old that is), of the store (it says when the blob was written, which is
after it was begun), and of the sweeper. A commit after 1 and a deletion exclude each other if
(stager - committer) + (sweeper - store) is less than the margin: with a margin of an hour, if no
two of the clocks differ by half an hour. S3 refuses requests of a client that differs from it by a
quarter.

Invariants:
    What a sweep deletes can never be committed, by anybody, however long it has been asleep.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import STAGE_LIFE_MS, ShardState, is_tombstone

__all__ = ["SWEEP_AGE_MS", "SWEEP_MARGIN_MS", "fence", "note_swept", "sweep_due"]

SWEEP_MARGIN_MS: Final = 3600 * 1000
"""How much longer than `STAGE_LIFE_MS` a sweep leaves alone what nothing refers to: twice as much
as two clocks may differ. As that, it is no setting."""

SWEEP_AGE_MS: Final = STAGE_LIFE_MS + SWEEP_MARGIN_MS
"""What nothing refers to may be deleted when it is older than this."""


def fence(state: ShardState, now_ms: int) -> Transition[bool]:
    """A record that changes nothing: whoever commits after it has read the clock after it."""
    del now_ms
    if is_tombstone(state):
        # Nothing can come into it any more, and its log is to stay one record.
        return Transition(None, result=False)
    return Transition(msgspec.structs.replace(state), result=True)


def note_swept(state: ShardState, now_ms: int) -> Transition[bool]:
    """Note that a sweep has ended; False if the shard was dropped and need not be swept again."""
    if is_tombstone(state) and not _is_settled(state, now_ms):
        return Transition(None, result=False)
    # Walltime moves forward even when clocks do not, so that the two can be compared.
    swept_ms = max(now_ms, state.walltime_ms + 1)
    return Transition(msgspec.structs.replace(state, swept_ms=swept_ms), result=True)


def sweep_due(state: ShardState, now_ms: int, every_ms: int) -> bool:
    """Whether the last sweep of the shard is `every_ms` ago.

    A shard that was dropped is swept once, when everything that was staged for it is old.
    """
    if is_tombstone(state):
        return state.swept_ms < state.walltime_ms and _is_settled(state, now_ms)
    return now_ms - max(state.swept_ms, state.created_ms) >= every_ms


def _is_settled(state: ShardState, now_ms: int) -> bool:
    return now_ms - state.walltime_ms > SWEEP_AGE_MS
