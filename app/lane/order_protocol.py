"""What the lane needs of a durable order, whoever keeps it: the seam for simulations.

`LaneLog` (`shardline.app.lane.log`) keeps it in a shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from shardline.app.lane.commands import Record, Submission
from shardline.app.lane.state import LaneState

__all__ = ["Journal", "Role", "Takeover"]

Role: TypeAlias = Literal["holder", "follower"]
"""Whether this runtime makes the order, or only follows it, without writing anything."""

Takeover: TypeAlias = Literal["if-free", "by-force"]
"""Whether a holder that lives is a reason not to take the lane."""


class Journal(Protocol):
    """A durable order of commands, with at most one process that adds to it."""

    @property
    def role(self) -> Role:
        """What this runtime is to the order."""
        ...

    @property
    def state(self) -> LaneState:
        """The fold of all records that are known here."""
        ...

    def records(self, start: int = 0) -> list[Record]:
        """The records from position `start` on that are still kept."""
        ...

    def append(self, submissions: Sequence[Submission]) -> None:
        """Put commands in order, all or none, and fold them; those that repeat are left out.

        Raises:
            Fenced: Another runtime has taken over.
            Determinate: None of them is in the order.
            Indeterminate: They may be; the next call settles it first.
        """
        ...

    def position(self, producer: str, sequence: int) -> int | None:
        """Index of a record that is still kept; None if it is not, or was never made."""
        ...

    def poll(self) -> None:
        """Fold what the holder has added since the last look; for a follower.

        Raises:
            Determinate: The store did not answer.
            Indeterminate: The same.
        """
        ...

    def take_over(self, how: Takeover, epochs: Mapping[str, int]) -> None:
        """Become the holder: whoever was cannot add anything any more.

        Args:
            how: Whether a holder that lives is fenced.
            epochs: Those that this runtime's objects have reached as a follower's.

        Raises:
            InvalidUsage: `LOCATION_HELD`: it lives, and `how` is not "by-force".
            Determinate: The lane was not taken.
            Indeterminate: Nobody can tell whether it was.
        """
        ...

    def keep(self) -> None:
        """See to it that others can tell that the holder lives.

        Raises:
            Fenced: Another runtime has taken over.
            Determinate: The store did not answer.
            Indeterminate: The same.
        """
        ...

    def check_fence(self) -> None:
        """Make sure that nobody has taken over, by one look at the store.

        Raises:
            Fenced: Somebody has.
            Determinate: The store did not answer.
            Indeterminate: The same.
        """
        ...

    def close(self) -> None:
        """Let go of the lane: the next runtime can take it at once."""
        ...
