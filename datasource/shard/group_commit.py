"""Group commit lets one record of a shard's log commit the commands of several threads.

A record costs a request to object storage, tens of milliseconds, whatever is in it. One thread at a
time holds the machine's commit lock, runs all queued commands and writes their record, while the
others wait for the lock. That thread may be interrupted (Ctrl-C) between any two instructions, also
inside of an exception handler. So the progress of a command is kept where the next thread finds it:
an answer is set by one assignment, and a record whose outcome is open is a `RecordInFlight`. The
values are here, the protocol is `Machine`'s.

Invariants:
    A command is answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shardline.datasource.shard.codec import Record
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import ShardState
from shardline.datasource.stores.location import Committed, ExpectationMismatch

__all__ = ["Answer", "Command", "Pending", "RecordInFlight", "answer_all", "run_all"]

R = TypeVar("R")

Command = Callable[[ShardState, int], Transition[R]]
"""`(state, now_ms) -> Transition`; pure, and run once for every attempt to commit it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a command: its result, or the error that its caller gets."""

    result: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class Pending:
    """A command in the queue.

    Attributes:
        command: The command.
        answer: Its outcome; None until that is known.
        withdrawn: True once its caller was interrupted before it got an answer; such a command is
            not run any more.
    """

    command: Command[Any]
    answer: Answer | None = None
    withdrawn: bool = False

    @property
    def is_open(self) -> bool:
        """True if the command is still to be run."""
        return self.answer is None and not self.withdrawn


@dataclass(slots=True)
class RecordInFlight:
    """A record that may have been sent to the log, and whose commands are not all answered.

    Attributes:
        group: The commands that it commits.
        answers: The answers to them, valid once the record is committed.
        state: The state that the record makes.
        record: The record.
        outcome: The log's answer; None while it is unknown, if the record was written.
    """

    group: list[Pending]
    answers: list[Answer]
    state: ShardState
    record: Record
    outcome: Committed | ExpectationMismatch | None = None


def answer_all(group: Sequence[Pending], answers: Sequence[Answer]) -> None:
    """Answer each command of `group` that has no answer yet; the others keep theirs."""
    for pending, answer in zip(group, answers, strict=True):
        if pending.answer is None:
            pending.answer = answer


def run_all(
    group: Sequence[Pending], old: ShardState, now_ms: int
) -> tuple[ShardState, list[Answer], bool]:
    """Run all commands on `old`, each on the state that the one before it has made.

    Returns:
        The last state (`old` itself if nothing changed); the answers, in order; and True if some
        command had nothing to do or raised.
    """
    new, idle = old, False
    answers: list[Answer] = []
    for pending in group:
        try:
            transition = pending.command(new, now_ms)
        except Exception as error:  # noqa: BLE001 - its own caller gets it, the others go on
            answers.append(Answer(error=error))
            # An error is an answer without effect, too: on a fresh state it may not be raised.
            idle = True
            continue
        idle = idle or transition.state is None
        new = transition.state or new
        answers.append(Answer(transition.result))
    return new, answers, idle
