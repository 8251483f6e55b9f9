"""Offline repairs show and take away bad rows of a location where no application runs.

    repairs = OfflineRepairs(client)
    repairs.show("delays")
    repairs.repair("flights", "skip", as_of, ["3f9c2a1b"])

What an application does by its lane (`shardline.app.coordinator.error_repairs`) is done here at
once: nobody is there to hold an order, and none is needed, as a repair takes its time from the
bindings of the source. An application that starts meanwhile does no harm, and is done none.

Invariants:
    A repair has a number, which it keeps until its outcome is known: an append whose answer is lost
    is not made twice.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardline.app.coordinator.desired_state import live_objects
from shardline.app.coordinator.error_repairs import SourceErrors, errors_of, source_names
from shardline.app.lane.log import LANE_SHARD, read_lane
from shardline.app.protocol.objects import Description, errors_shard
from shardline.app.storage.repair import Act, Repair, repair_errors
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Indeterminate, unknown_name

__all__ = ["OfflineRepairs"]

_WRITER: Final = "repair-offline"
"""Durable writer of these repairs: its numbers are its own, apart from positions in the lane."""

_ATTEMPTS: Final = 5
_PAUSE_MS: Final = 1000.0


@dataclass(frozen=True, slots=True)
class OfflineRepairs:
    """See the module.

    Attributes:
        client: Of the location.
    """

    client: ShardClient

    def show(self, name: str) -> list[SourceErrors]:
        """The bad rows of a source, or of all sources that an object is made of.

        Raises:
            InvalidUsage: There is no such object.
        """
        running = self._objects()
        if name not in running:
            raise unknown_name("object", name, running)
        return errors_of(self.client, source_names(name, running))

    def repair(self, name: str, act: Act, as_of: int, errors: Sequence[str]) -> int | None:
        """Take errors of a source away; see `repair_errors`.

        Raises:
            Indeterminate: It may have happened: look at the errors again.
        """
        number = self.client.writer(errors_shard(name), _WRITER).sequence + 1
        repair = Repair(act, as_of, tuple(errors))
        for attempt in range(_ATTEMPTS):
            try:
                return repair_errors(self.client, name, repair, writer=_WRITER, number=number)
            except Indeterminate:
                if attempt == _ATTEMPTS - 1:
                    raise
                self.client.clock.wait(threading.Event(), _PAUSE_MS)
        raise AssertionError("the last attempt returns or raises")

    def _objects(self) -> dict[str, Description]:
        if not self.client.exists(LANE_SHARD):
            return {}
        return dict(live_objects(read_lane(self.client)[0]))
