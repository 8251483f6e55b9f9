"""The presence says who holds the location and who controls the runtime, as introspection shows it.

    describe_runtime(lane, role, sessions, now_ms)    a `RuntimeSeen`, looked at once a second

It is looked at and not reported by those that change it: a look that is lost is made up for by the
next one, and nobody is slowed down who takes the location, connects or sends a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardline.app.introspection.events import ControllerSeen, RuntimeSeen
from shardline.app.lane.holder import name_process
from shardline.app.lane.lane import Lane
from shardline.app.lane.order_protocol import Role
from shardline.app.transport.session import Session

__all__ = ["describe_runtime"]


def describe_runtime(
    lane: Lane, role: Role, sessions: Mapping[str, Session[Any, Any] | None], now_ms: int
) -> RuntimeSeen:
    """Describe a runtime at this moment.

    Args:
        lane: Its lane.
        role: As the lane's order has it.
        sessions: Those of its controllers, by protocol; None for one that is not connected.
        now_ms: The present time.
    """
    state = lane.state
    holder, project = state.holder, state.project
    return RuntimeSeen(
        at_ms=now_ms,
        project="" if project is None else project.name or project.folder,
        holder="" if holder is None else name_process(holder),
        held_since_ms=None if holder is None else holder.since_ms,
        epoch=state.epoch,
        read_only=role == "follower",
        queue=lane.queued,
        controllers=tuple(
            ControllerSeen(f"{protocol} {session.nonce}", session.is_reconciled)
            for protocol, session in sessions.items()
            if session is not None
        ),
    )
