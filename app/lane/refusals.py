"""Refusals are the errors by which producers hear that a command has no place in the order."""

from __future__ import annotations

from shardline.app.lane.commands import READ_ONLY, LaneCommand
from shardline.datasource.errors import Indeterminate, InvalidUsage, ShardError

__all__ = ["as_shard_error", "read_only_error", "stopped_error"]


def as_shard_error(error: Exception) -> ShardError:
    """The error that producers get: `error`, or `LANE_FAILED` if it is of no class of ours."""
    if isinstance(error, ShardError):
        return error
    return Indeterminate(f"the lane has failed: {error!r}", code="LANE_FAILED")


def stopped_error() -> InvalidUsage:
    """The refusal of what comes after the lane was stopped."""
    return InvalidUsage("the lane was stopped", code="LANE_STOPPED", hint="start the runtime anew")


def read_only_error(command: LaneCommand) -> InvalidUsage:
    """The refusal of a command that would change something, by a lane that follows another one."""
    return InvalidUsage(
        f"this runtime follows another one and cannot record {type(command).__name__}",
        code=READ_ONLY,
        hint="allow it to write first (AllowWrites), which stops the other one",
    )
