"""The start holds keep inputs readable at an object's as_of until the object reads them itself.

Between the choice of an as_of and the first step of the dataflow, compaction could advance the
inputs' sinces beyond it; the object could not begin. (Materialize: the coordinator's read holds.)

Of a sink that is the hold by which it goes on for as long as it lives: it may be paused before its
first start, and nobody reports when it has begun. Only one without snapshot needs it so early; one
with contents begins at any time, and must not keep history while its target cannot be opened.

Invariants:
    A hold that is taken here ends: its controller gives it up, or the object's end does, or a sweep
    finds that it belongs to nobody: the one at the start of a runtime, or of a running one that has
    met an error of the store while it took holds or gave them up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from shardline.app.compute.holds import end_start_holds, start_hold_name
from shardline.app.controller.compute import Hold
from shardline.app.coordinator.as_of_selection import Readable, choose_as_of
from shardline.app.execution.ending_holds import TRIED_AGAIN
from shardline.app.protocol.objects import (
    Dataflow,
    SinkDescription,
    SourceDescription,
    ViewDescription,
    inputs_of,
)
from shardline.app.storage.sinks.input_hold import keep_changes
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.frontier import MINIMUM, Frontier
from shardline.installation import PROGRAM

__all__ = ["StartHolds"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _StartHold:
    """A hold that is swept later where it cannot be given up.

    Attributes:
        hold: The hold.
        on_failure: Called before the error is raised.
    """

    hold: Hold
    on_failure: Callable[[], None]

    def expire(self) -> bool:
        try:
            return self.hold.expire()
        except ShardError:
            self.on_failure()
            raise


class StartHolds:
    """Chooses as_ofs, and takes and sweeps start holds, in one location; for any thread.

    Losing a start hold before the object has holds of its own means that its inputs may not be
    readable at its as_of: the object cannot begin there. One that is never given up keeps history
    for ever; `sweep` is against that.
    """

    def __init__(self, client: ShardClient) -> None:
        """Make one; nothing is read yet."""
        self._client = client
        self._lock = threading.Lock()
        self._to_sweep: set[str] | None = None
        """Shards that may have a hold of nobody; None before the first sweep: all may."""

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

    def keep_changes(self, sink: SinkDescription) -> None:
        """Keep what a sink that is about to be created begins with, if it has no snapshot.

        Raises:
            ShardError: The store did not answer: it is to be tried again.
        """
        if not sink.snapshot:
            progress = SinkProgress.open(self._client, sink)
            keep_changes(self._client, sink, progress, self.sink_as_of(sink))

    def has_begun(self, reader: Dataflow | SinkDescription) -> bool:
        """True if each of an object's inputs has an upper above the least time."""
        return all(self._readable(name).upper != MINIMUM for name in inputs_of(reader))

    def hold(self, dataflow: Dataflow, as_of: int) -> list[Hold]:
        """Take holds on a dataflow's inputs, until it has its own; the caller gives them up.

        Raises:
            InvalidUsage: History at `as_of` is gone; no hold is left.
            ShardError: An error of the store: those that were taken stay, for the next attempt of
                an object, and until the next sweep of a subscription, whose name is never used
                again.
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
                hold = self._client.hold(one, name, since=as_of, purpose=purpose)
                taken.append(_StartHold(hold, partial(self._sweep_again, [one])))
            except InvalidUsage:
                # Nobody will ever begin there, and the caller has no handles to give up.
                for held in taken:
                    with suppress(ShardError):
                        held.expire()
                raise
            except ShardError:
                self._sweep_again(inputs_of(dataflow))
                raise
        return taken

    @property
    def has_left(self) -> bool:
        """True if a sweep is due: there may be holds that belong to nobody."""
        with self._lock:
            return self._to_sweep is None or bool(self._to_sweep)

    def _sweep_again(self, shards: Collection[str]) -> None:
        with self._lock:
            if self._to_sweep is not None:
                self._to_sweep.update(shards)

    def sweep(
        self,
        objects: Collection[str],
        is_ours: Callable[[str], bool],
        check_fence: Callable[[], None],
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """Give up the start holds of subscriptions that nobody will ever begin.

        Their runtime died before it recorded them, or the store did not answer when they were
        taken.

        Args:
            objects: Names in the lane: holds of these are given up when the object is dropped.
            is_ours: True for a subscription of this runtime's controllers.
            check_fence: As of `end_holds`.
            ending: True if the runtime ends: the rest is left to the next start.
        """

        def is_abandoned(one: str) -> bool:
            return one not in objects and not is_ours(one)

        every = self._client.shards() if self._to_sweep is None else ()
        with self._lock:
            # Before the sweep: what is left meanwhile may be on a shard that it has passed by then.
            left, self._to_sweep = sorted(self._to_sweep or every), set()
        while left and not ending():
            try:
                end_start_holds(self._client, left[:1], is_abandoned, check_fence)
            except TRIED_AGAIN:
                # All that is left: each would be waited for where the store does not answer.
                self._sweep_again(left)
                _log.info("not swept; tried again soon", exc_info=True)
                return
            except ShardError:
                context = {"shard": left[0]}
                _log.info(
                    "not swept; the next start does", exc_info=True, extra={"context": context}
                )
            left = left[1:]

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
