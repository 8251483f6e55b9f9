"""What a command makes of a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from shardline.datasource.shard.state import ShardState

__all__ = ["Transition"]

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Transition(Generic[R_co]):
    """The next state, or None to leave it; and the command's answer.

    Without a next state nothing is committed: the command found nothing to do, and its result is
    an answer about the state that it was given.
    """

    state: ShardState | None
    result: R_co
