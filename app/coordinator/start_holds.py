"""The start holds keep inputs readable at an object's as_of until the object reads them itself.

Between the choice of an as_of and the first step of the dataflow, compaction could advance the
inputs' sinces beyond it; the object could not begin. (Materialize: the coordinator's read holds.)

Invariants:
    A hold that is taken here ends: its controller gives it up, or the object's end does, or the
    next start of a runtime finds that it belongs to nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress

from shardline.app.compute.holds import end_start_holds, start_hold_name
from shardline.app.controller.compute import Hold
from shardline.app.coordinator.as_of_selection import Readable, choose_as_of
from shardline.app.protocol.objects import (
    Dataflow,
    SinkDescription,
    SourceDescription,
    ViewDescription,
    inputs_of,
)
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.frontier import MINIMUM, Frontier
from shardline.installation import PROGRAM

__all__ = ["StartHolds"]

_log = logging.getLogger(__name__)


class StartHolds:
    """Chooses as_ofs, and takes and sweeps start holds, in one location; for any thread.

    Losing a start hold before the object has holds of its own means that its inputs may not be
    readable at its as_of: the object cannot begin there. One that is never given up keeps history
    for ever; `sweep` is against that.
    """

    def __init__(self, client: ShardClient) -> None:
        """Make one; nothing is read yet."""
        self._client = client

    def as_of(self, dataflow: Dataflow) -> int:
        """Choose the first time at which a dataflow's output must be right.

        Raises:
            InvalidUsage: `HISTORY_GONE`: an input can never be read again.
        """
        output = dataflow.name if isinstance(dataflow, ViewDescription) else None
        inputs = [self._readable(name) for name in inputs_of(dataflow)]
        there = None if output is None else self._readable(output)
        chosen = choose_as_of(inputs, there)
        if chosen is None:
            raise InvalidUsage(
                f"an input of '{dataflow.name}' has no history left to begin at",
                code="HISTORY_GONE",
                hint=f"{PROGRAM} inspect shows its since",
            )
        return chosen

    def sink_as_of(self, sink: SinkDescription) -> int:
        """Choose the as_of of a sink that has not begun yet."""
        chosen = choose_as_of([self._readable(sink.on)], None)
        return 0 if chosen is None else chosen

    def has_begun(self, reader: Dataflow | SinkDescription) -> bool:
        """True if each of an object's inputs has an upper above the least time."""
        return all(self._readable(name).upper != MINIMUM for name in inputs_of(reader))

    def hold(self, dataflow: Dataflow, as_of: int) -> list[Hold]:
        """Take holds on a dataflow's inputs, until it has its own; the caller gives them up.

        Raises:
            InvalidUsage: History at `as_of` is gone; no hold is left.
            ShardError: An error of the store: those that were taken stay, for the next attempt.
        """
        purpose = f"the beginning of {dataflow.name}"
        # Under the object's own prefix: what ends the object's holds, after a crash too, ends
        # these.
        name = start_hold_name(dataflow.name)
        taken: list[Hold] = []
        for one in inputs_of(dataflow):
            if not self._client.exists(one):
                continue
            try:
                taken.append(self._client.hold(one, name, since=as_of, purpose=purpose))
            except InvalidUsage:
                # Nobody will ever begin there, and the caller has no handles to give up.
                for hold in taken:
                    with suppress(ShardError):
                        hold.expire()
                raise
        return taken

    def sweep(
        self,
        objects: Collection[str],
        is_ours: Callable[[str], bool],
        check_fence: Callable[[], None],
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """Give up the start holds of subscriptions whose runtime died before it recorded them.

        Args:
            objects: Names in the lane: holds of these are given up when the object is dropped.
            is_ours: True for a subscription of this runtime's controllers.
            check_fence: As of `end_holds`.
            ending: True if the runtime ends: the rest is left to the next start.
        """

        def is_abandoned(one: str) -> bool:
            return one not in objects and not is_ours(one)

        for shard in self._client.shards():
            if ending():
                return
            try:
                end_start_holds(self._client, [shard], is_abandoned, check_fence)
            except ShardError:
                context = {"shard": shard}
                _log.info(
                    "not swept; the next start does", exc_info=True, extra={"context": context}
                )

    def latest(self, running: Collection[object]) -> list[Frontier]:
        """Uppers of all sources among the descriptions of `running`."""
        names = [one.name for one in running if isinstance(one, SourceDescription)]
        there = [name for name in names if self._client.exists(name)]
        return [state.upper for state in self._client.readable(*there)] if there else []

    def _readable(self, name: str) -> Readable:
        if not self._client.exists(name):
            return Readable(MINIMUM, MINIMUM)
        state = self._client.readable(name)[0]
        return Readable(state.since, state.upper)
