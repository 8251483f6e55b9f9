"""Offline repairs show and take away bad rows of a location where no application runs.

    repairs = OfflineRepairs(client)
    repairs.show("delays")
    repairs.repair("flights", "skip", as_of, ["3f9c2a1b"])

What an application does by its lane (`shardline.app.coordinator.error_repairs`) is done here at
once: nobody is there to hold an order, and none is needed, as a repair takes its time from the
bindings of the source. An application that starts meanwhile does no harm, and is done none.

Invariants:
    A repair has a durable writer of its own, which it keeps until its outcome is known: an append
    whose answer is lost is not made twice, and no other repair, be it one that was interrupted or
    one in another process, takes it for its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from shardline.app.coordinator.desired_state import live_objects
from shardline.app.coordinator.error_repairs import SourceErrors, errors_of, source_names
from shardline.app.lane.log import LANE_SHARD, read_lane
from shardline.app.protocol.objects import Description
from shardline.app.storage.repair import Act, Repair, repair_errors
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Indeterminate, ShardError, unknown_name
from shardline.datasource.waiting import RetryPolicy

__all__ = ["OfflineRepairs"]

_WRITERS: Final = "repair-offline-"
"""Their durable writers begin so; apart from the one of repairs in the lane's order."""

_NUMBER: Final = 1
"""Of the one append that such a writer makes to a shard."""

_RETRIES: Final = RetryPolicy(first_ms=1000, longest_ms=1000, attempts_max=5)


@dataclass(frozen=True, slots=True)
class OfflineRepairs:
    """See the module.

    Attributes:
        client: Of the location.
    """

    client: ShardClient

    def show(self, name: str, ids: Collection[str] = ()) -> list[SourceErrors]:
        """The bad rows of a source, or of all sources that an object is made of; see `bad_rows`.

        Raises:
            InvalidUsage: There is no such object.
        """
        running = self._objects()
        if name not in running:
            raise unknown_name("object", name, running)
        return errors_of(self.client, source_names(name, running), ids)

    def repair(self, name: str, act: Act, as_of: int, errors: Sequence[str]) -> int | None:
        """Take errors of a source away; see `repair_errors`.

        Raises:
            Indeterminate: It may have happened: look at the errors again.
        """
        # One that nobody else has: numbers of a shared writer cannot be reserved. With the same one
        # two repairs would take the notes of one for those of both, and a row be in no shard.
        writer = f"{_WRITERS}{self.client.ids.token().hex()}"
        repair = Repair(act, as_of, tuple(errors))
        budget = _RETRIES.begin(self.client.clock, self.client.ids)
        unknown: Indeterminate | None = None
        while True:
            try:
                return repair_errors(self.client, name, repair, writer=writer, number=_NUMBER)
            except Indeterminate as error:
                unknown = error
                if not budget.pause():
                    raise
            except ShardError as error:
                # This attempt certainly did nothing; of the one before it, nobody knows.
                if unknown is not None:
                    raise unknown from error
                raise

    def _objects(self) -> dict[str, Description]:
        if not self.client.exists(LANE_SHARD):
            return {}
        return dict(live_objects(read_lane(self.client)[0]))
