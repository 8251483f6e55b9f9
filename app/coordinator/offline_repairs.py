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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardline.app.coordinator.desired_state import live_objects
from shardline.app.coordinator.error_repairs import SourceErrors, errors_of, source_names
from shardline.app.lane.log import LANE_SHARD, read_lane
from shardline.app.protocol.objects import Description, errors_shard, skipped_shard
from shardline.app.storage.repair import Act, Repair, repair_errors
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Indeterminate, ShardError, unknown_name
from shardline.datasource.waiting import RetryPolicy

__all__ = ["OfflineRepairs"]

_WRITER: Final = "repair-offline"
"""Durable writer of these repairs: its numbers are its own, apart from positions in the lane."""

_RETRIES: Final = RetryPolicy(first_ms=1000, longest_ms=1000, attempts_max=5)


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
        number = self._next_number(name)
        repair = Repair(act, as_of, tuple(errors))
        budget = _RETRIES.begin(self.client.clock, self.client.ids)
        unknown: Indeterminate | None = None
        while True:
            try:
                return repair_errors(self.client, name, repair, writer=_WRITER, number=number)
            except Indeterminate as error:
                unknown = error
                if not budget.pause():
                    raise
            except ShardError as error:
                # This attempt certainly did nothing; of the one before it, nobody knows.
                if unknown is not None:
                    raise unknown from error
                raise

    def _next_number(self, name: str) -> int:
        """A number that neither shard of a repair has seen.

        One that was interrupted between the two is repeated by nobody: with its number another one
        would take the notes of that for its own, and its rows would be in no shard.
        """
        shards = (errors_shard(name), skipped_shard(name))
        there = [shard for shard in shards if self.client.exists(shard)]
        return 1 + max((self.client.writer(one, _WRITER).sequence for one in there), default=0)

    def _objects(self) -> dict[str, Description]:
        if not self.client.exists(LANE_SHARD):
            return {}
        return dict(live_objects(read_lane(self.client)[0]))
