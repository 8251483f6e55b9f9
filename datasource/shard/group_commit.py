"""Group commit: commands of several threads that are committed by one record of a shard's log.

The thread that leads runs what is queued and writes the record; the others wait for its lock. It
may be interrupted between any two instructions, also inside of a handler, so what becomes of a
command is kept where the next leader finds it: an answer is set by one assignment, and a record
whose outcome is open is a `Flight`. `Machine` does the rest.

Invariants:
    A command is answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import ShardState
from shardline.datasource.stores.location import Committed, ExpectationMismatch

__all__ = ["Answer", "Command", "Flight", "Pending", "answer_all"]

R = TypeVar("R")

Command = Callable[[ShardState, int], Transition[R]]
"""`(state, now_ms) -> Transition`; pure, and run as often as it takes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a command: its result, or the error that its caller gets."""

    result: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class Pending:
    """A command on its way.

    Attributes:
        command: The command.
        answer: What became of it; None until that is known.
        withdrawn: Whether its caller has left without an answer.
    """

    command: Command[Any]
    answer: Answer | None = None
    withdrawn: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it is still to be run."""
        return self.answer is None and not self.withdrawn


@dataclass(slots=True)
class Flight:
    """A record on its way to the log.

    Attributes:
        group: The commands that it commits.
        answers: Theirs, once it is committed.
        state: What it makes.
        outcome: What the log has answered; None until then.
    """

    group: list[Pending]
    answers: list[Answer]
    state: ShardState
    outcome: Committed | ExpectationMismatch | None = None


def answer_all(group: Sequence[Pending], answers: Sequence[Answer]) -> None:
    """Answer each command of `group`; who has an answer keeps it."""
    for pending, answer in zip(group, answers, strict=True):
        if pending.answer is None:
            pending.answer = answer
