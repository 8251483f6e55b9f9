"""Rollup attempts decide which commits write a rollup, and how soon a failed attempt is repeated.

A commit that is due to write a rollup does so before its caller goes on. Every handle of every
process sees the threshold pass, and where the store refuses rollups (a full disk, a key that may
only write the log, an outage of one prefix), each commit and heartbeat would wait for one more
attempt that fails. Without rollups a shard stays right; cold starts replay more records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardline.datasource.shard.state import ShardState, is_tombstone

__all__ = ["RollupAttempts"]

_RETRY_MS: Final = 5 * 60 * 1000
"""A process tries again after this long, on a shard that is written seldom: an outage is over then,
and an attempt that is slow takes a small part of it."""


@dataclass(slots=True)
class RollupAttempts:
    """The last attempt of this process, for one shard. Losing it costs one more attempt."""

    _seqno: int = 0
    _at_ms: float = float("-inf")

    def begin_if_due(self, state: ShardState, every: int, elapsed_ms: float) -> bool:
        """True if the commit that made `state` is to write a rollup now; notes the attempt.

        Args:
            state: The newest state.
            every: A whole state is due after so many records.
            elapsed_ms: Now, by the clock's elapsed time.
        """
        if is_tombstone(state):
            return False
        newest = state.rollup[0] if state.rollup else state.base
        due = state.seqno - newest
        # Only the commit whose seqno is a multiple writes one, or each process would. The one that
        # made it may have died: once three rollups are missing, every process tries.
        if due < every or (state.seqno % every and due < 3 * every):
            return False
        if state.seqno < self._seqno + every and elapsed_ms < self._at_ms + _RETRY_MS:
            return False
        # Before the attempt, not after its failure: other threads commit while it hangs.
        self._seqno, self._at_ms = state.seqno, elapsed_ms
        return True
