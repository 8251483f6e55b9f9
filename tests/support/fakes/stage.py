"""A stage for the lane: runtimes over one order, in which nothing happens by chance."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from shardline.app.lane.commands import LaneCommand
from shardline.app.lane.settings import LaneSettings
from shardline.app.protocol.objects import SourceDescription, ViewDescription
from support.fakes.clock import ManualClock
from support.fakes.lane import Ledger, Order, Runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardline.app.lane.order_protocol import Role

__all__ = ["Stage", "source", "view"]


def view(name: str, query: str = "SELECT 1") -> ViewDescription:
    return ViewDescription(name=name, query=query, inputs=(), schema="a INT")


def source(name: str) -> SourceDescription:
    return SourceDescription(name=name, format="csv")


class Stage:
    """One runtime, or several, over one order, in which nothing happens by chance."""

    def __init__(self, **settings: int) -> None:
        self.clock = ManualClock()
        self.order = Order()
        self.ledger = Ledger()
        self.settings = LaneSettings(**settings)
        self.count = 0
        self.a = self.runtime()

    def runtime(self, role: Role = "holder") -> Runtime:
        self.count += 1
        return Runtime(
            self.order,
            self.ledger,
            self.clock,
            random.Random(1),
            f"r{self.count}",
            role=role,
            settings=self.settings,
        )

    def do(self, *commands: LaneCommand) -> None:
        """Record commands, in one round; nothing else happens."""
        tickets = [self.a.lane.offer("compute", command) for command in commands]
        self.a.lane.step()
        assert all(ticket.done() for ticket in tickets)

    def effects(self) -> None:
        """Let the effects that wait happen, and the lane hear of them."""
        while self.a.pool.run_one():
            self.a.lane.step()

    def phases(self, name: str) -> Sequence[str]:
        """The phases of an object since the last call."""
        told = [change.phase for change in self.a.phases if change.id == name]
        self.a.phases = [change for change in self.a.phases if change.id != name]
        return told
