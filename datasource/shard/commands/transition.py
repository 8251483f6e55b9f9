"""A transition is the result of a command: the next state, and the answer to its caller."""

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
    an answer about the state that it was given. The machine checks such an answer on a fresh state.

    Attributes:
        state: The next state; None if the command changes nothing.
        result: The answer to the command's caller.
    """

    state: ShardState | None
    result: R_co
