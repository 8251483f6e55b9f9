"""Remembers which transitions of a shard have dropped no part, so that none is read to find that.

Garbage collection looks for the parts that transitions dropped in the records of the log, and on an
object store each record is a request. But the process that collects mostly wrote these records
itself, or has read them already to follow others; and on a shard at rest, where each second an
append moves the upper, none of them drops anything.

Invariants:
    Of a transition that was neither followed nor searched nothing is claimed.
    A claim stays true, whatever follows.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from shardline.datasource.shard.codec import Record, apply_diff
from shardline.datasource.shard.references import dropped_with
from shardline.datasource.shard.state import ShardState

__all__ = ["DropsSeen"]


@dataclass(slots=True)
class DropsSeen:
    """The transitions of one shard that one process has seen; safe for threads.

    Attributes:
        _clean: Transitions after this seqno, up to `_seen`, have dropped no part.
        _seen: Seqno of the last transition that was seen. The first record drops nothing.
    """

    _clean: int = 0
    _seen: int = 1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def follow(self, before: ShardState | None, record: Record) -> None:
        """See the transition of `record`, if it is the next one after `before`.

        To see one again, or one that was passed since, changes nothing.
        """
        if before is None or record.seqno != before.seqno + 1:
            return
        may_drop = _may_drop(before, record)
        with self._lock:
            if record.seqno <= self._seen:
                return
            if may_drop:
                self._clean = record.seqno
            elif before.seqno != self._seen:
                self._clean = before.seqno  # those between were not seen
            self._seen = record.seqno

    def apply(self, before: ShardState, record: Record) -> ShardState:
        """Follow the transition of `record`; returns the state that it makes of `before`."""
        self.follow(before, record)
        return apply_diff(before, record)

    def note_searched(self, after: int, until: int) -> None:
        """Note that the records after one seqno, up to another, were read and drop no part."""
        with self._lock:
            if after > self._seen:
                self._clean, self._seen = after, until
            elif until >= self._clean:
                self._clean, self._seen = min(after, self._clean), max(until, self._seen)

    def none_between(self, after: int, until: int) -> bool:
        """True if certainly no transition after one seqno, up to another, has dropped a part."""
        with self._lock:
            return after >= until or (self._clean <= after and until <= self._seen)


def _may_drop(before: ShardState, record: Record) -> bool:
    """True if the transition of `record` drops a part, or if only a look at all parts can tell.

    By the batches that it replaces, and not by both states: each commit asks, and a shard may have
    ten thousand batches.
    """
    if record.diff is None:
        return True
    change = record.diff.batches
    if change is None:
        return False
    removed = before.trace.batches[change.start : change.start + change.removed]
    return bool(dropped_with(removed, change.added))
