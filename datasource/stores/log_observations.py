"""Observations are what a process remembers of the log of one shard, from its own requests.

    observations._replace(head=record, head_at=asked_at, seen_ms=now)

A memory saves requests, and is never proof by itself: `log` says of each use why it is safe. They
are immutable, so threads need no lock; one that is lost in a race was forgotten, and is made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from shardline.datasource.stores.instant import NEVER, Instant

if TYPE_CHECKING:
    from shardline.datasource.stores.location import VersionedData

__all__ = ["UNKNOWN", "Observations"]


class Observations(NamedTuple):
    """Observations of one shard; times are `NEVER` before the first.

    Attributes:
        head: The newest record known to be committed; None if there was none.
        head_at: A time at which no floor was above `head`.
        floor: Records below it may be gone.
        floor_index: Number of the floor log's entry that publishes `floor`; 0 for none.
        floor_at: A time at which `floor` was the newest.
        floor_since_ms: When we first knew that it was published, by the elapsed ms: the grace is
            counted from then.
        cleaned: This process has deleted all records below it.
        missed: First seqno of the last scan that found nothing; 0 before the first.
        seen_ms: When `head` was last read, or written, by the elapsed ms.
    """

    head: VersionedData | None = None
    head_at: Instant = NEVER
    floor: int = 1
    floor_index: int = 0
    floor_at: Instant = NEVER
    floor_since_ms: float = NEVER.elapsed_ms
    cleaned: int = 1
    missed: int = 0
    seen_ms: float = NEVER.elapsed_ms

    @property
    def head_seqno(self) -> int:
        """Seqno of `head`; 0 if there was none."""
        return 0 if self.head is None else self.head.seqno


UNKNOWN: Final = Observations()
"""Those of a shard that nothing was asked of yet."""
