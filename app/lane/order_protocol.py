"""The order's protocol is what the lane needs of a durable order: the seam for simulations.

`LaneLog` (`shardline.app.lane.log`) keeps the order in a shard; simulations keep it in memory and
script its failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from shardline.app.lane.commands import Record, Submission
from shardline.app.lane.state import LaneState

__all__ = ["DurableOrder", "Role", "Takeover"]

Role: TypeAlias = Literal["holder", "follower"]
"""The holder adds to the order; a follower reads it, and writes nothing."""

Takeover: TypeAlias = Literal["if-free", "by-force"]
"""If-free: a holder that lives is a reason not to take the lane. By-force: it is fenced."""


class DurableOrder(Protocol):
    """A durable order of commands, with at most one process that adds to it.

    Losing the role of the holder (`Fenced`, from any method) is final: another runtime owns the
    location, and nothing of this one may go on.
    """

    @property
    def role(self) -> Role:
        """Holder or follower; a follower becomes the holder by `take_over`."""
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
        """Fold what the holder has added since the last poll; for a follower.

        Raises:
            Determinate: The store did not answer.
            Indeterminate: The same.
        """
        ...

    def take_over(self, how: Takeover, epochs: Mapping[str, int]) -> None:
        """Become the holder: the former one cannot add anything any more.

        Args:
            how: "by-force" fences a holder that lives.
            epochs: Epochs that this runtime's objects have reached as a follower's.

        Raises:
            InvalidUsage: `LOCATION_HELD`: it lives, and `how` is not "by-force".
            Determinate: The lane was not taken.
            Indeterminate: It may have been taken; another call finds out.
        """
        ...

    def renew_lease(self) -> None:
        """Take another lease if the holder's has run out: others see by it that the holder lives.

        Raises:
            Fenced: Another runtime has taken over.
            Determinate: The store did not answer.
            Indeterminate: The same.
        """
        ...

    def check_fence(self) -> None:
        """Raise if another runtime has taken over, by one look at the store; from any thread.

        Does nothing for a follower.

        Raises:
            Fenced: Another runtime has taken over.
            Determinate: The store did not answer.
            Indeterminate: The same.
        """
        ...

    def close(self) -> None:
        """Give the holder's lease up: the next runtime can take the lane at once."""
        ...
