"""A process knows the newest state of a shard, and which record of the log made that.

People empty a shard's folder, or put an older copy in its place, while processes remember what was
there. If others have written on since, the log has a record with the number that such a process
waits for, and it is of another history. Applied to the state of the history that is gone it would
make a state that the shard never had; commits would go on from that, and a rollup of it would make
it true for everybody. So each record says which one it follows, by that one's token, and a process
applies a record to what it knows only if that is the record that it knows.

Invariants:
    A record is applied to a known state only if it follows the record that made the state, as far
    as it says which one that is: records of code before state version 1.9 do not.
    A log is replayed as it is stored: what a process remembers is what is doubted, never the log.
    State, token and life change by one assignment. After an interrupt between two of them the next
    record would name one that is not before it, and every other process would refuse to follow.
    What was made from the state of one life of the log is never used in another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardline.datasource.shard.codec import Record
from shardline.datasource.shard.state import ShardState

__all__ = ["Known"]


@dataclass(frozen=True, slots=True)
class Known:
    """What one process knows of a shard.

    Attributes:
        state: The newest state; None before any was read.
        token: The token of the record that made it; empty if that is not known.
        life: How often the log was found to be replaced.
    """

    state: ShardState | None = None
    token: str = ""
    life: int = 0

    def is_followed_by(self, record: Record) -> bool:
        """False if `record`, the next one by its number, follows another than the known one."""
        return not (record.after and self.token) or record.after == self.token

    def moved_to(self, state: ShardState, token: str) -> Known:
        """What is known after a look at a newer state, or after a commit, of the same log."""
        return Known(state, token, self.life)

    def forgotten(self) -> Known:
        """What is known once the log was found to be another one."""
        return Known(life=self.life + 1)
