"""Records operator commands, those of a person, in the lane's order.

    position = record_command(lane, PauseDataflow("delays"), timeout_ms)

Invariants:
    A position is returned only of a command that is durable in the order. An unknown outcome is an
    error of its own (`Indeterminate`); to ask again does no harm.
"""

from __future__ import annotations

from concurrent.futures import TimeoutError as NotDone
from typing import Final, TypeAlias

from shardline.app.lane.commands import (
    PauseDataflow,
    RepairErrors,
    RestartDataflow,
    ResumeDataflow,
)
from shardline.app.lane.lane import Lane
from shardline.datasource.errors import Indeterminate

__all__ = ["OPERATOR", "OperatorCommand", "record_command"]

OPERATOR: Final = "operator"
"""Name under which the order has what a person has asked for."""

OperatorCommand: TypeAlias = PauseDataflow | ResumeDataflow | RestartDataflow | RepairErrors


def record_command(lane: Lane, command: OperatorCommand, timeout_ms: float) -> int:
    """Record a command, and return its position.

    Raises:
        Indeterminate: `NOT_RECORDED`: the store did not answer in time; it may have its place, or
            get it later.
        Determinate: `LANE_FULL`: too many commands wait already.
        ShardError: Another runtime has taken over.
    """
    try:
        return lane.offer(OPERATOR, command, wait=False).result(timeout_ms / 1000)
    except NotDone:
        raise Indeterminate(
            f"the order has not taken in time what was asked of '{command.id}'",
            code="NOT_RECORDED",
            hint="it will when the store answers: look at `status`, or ask again",
        ) from None
