"""Replacements are objects that come after others of their names, once nothing of those is left.

Another definition of an object is a matter of its controller, which has it take the place of the
former one. Two cases are not:

    a shard that is made anew      for a source, or a view that comes after a source: an ingestion
                                   that still runs would bind offsets of its own in the new shard
    an object of another kind      what the former one has left, holds and a sink's accounts, is
                                   removed with its drop, and by nothing else. Where the two are of
                                   different controllers, each would keep its own alive.

So the controllers are not asked for such an object at first, which drops the former one with all
that it has left.

Invariants:
    None is made while the lane has an object of its name, nor before all has its place in the order
    that was asked for earlier: a creation may still be on its way there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Final

from shardline.app.coordinator.operator_commands import OPERATOR
from shardline.app.lane.commands import DropDataflow
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import Description, shards_of, source_shards
from shardline.app.runtime.runtime import Runtime
from shardline.datasource.clock import Clock

__all__ = ["Replacements", "shards_to_renew"]

_PASS_MS: Final = 1000.0
"""How long one look waits for the runtime's loop, which takes milliseconds."""


class Replacements:
    """Those of one application that are not made yet. For one thread at a time."""

    def __init__(
        self, runtime: Runtime, clock: Clock, asked: Callable[[], Mapping[str, ObjectDescription]]
    ) -> None:
        """Begin without any.

        Args:
            runtime: Of the application.
            clock: Of the process.
            asked: Returns all that its controllers were asked for last.
        """
        self._runtime = runtime
        self._lane = runtime.lane
        self._clock = clock
        self._asked = asked
        self._passed = threading.Event()
        self._places: dict[str, Future[int]] = {}
        self._waiting: dict[str, ObjectDescription] = {}
        self._renewed: frozenset[str] = frozenset()

    def begin(self, objects: Mapping[str, ObjectDescription], renewed: Collection[str]) -> None:
        """Find those among `objects`; the controllers are to be asked for none of them.

        Args:
            objects: All that are to be, by name.
            renewed: Names of those whose shards are made anew.
        """
        self._renewed = frozenset(renewed)
        # What was asked for may have no place in the lane yet. Where a name has one, that says what
        # is there: another runtime may have changed it since our controllers were asked for it.
        there: dict[str, Description] = {**self._asked()}
        in_lane = {name: known.description for name, known in self._lane.state.objects.items()}
        there |= in_lane
        # Of a project that is applied again: nobody is asked for these, and what they come after
        # may still be on its way.
        still = {*self._renewed, *(self._waiting.keys() - in_lane.keys())}
        self._waiting = {
            name: one
            for name, one in objects.items()
            if name in still or type(there.get(name, one)) is not type(one)
        }
        self._places = {}
        if self._waiting:
            self._passed = self._runtime.pass_on()

    def done(self, name: str) -> None:
        """Forget one that is made, or that nobody wants any more; others stay."""
        self._waiting.pop(name, None)

    @property
    def waiting(self) -> Mapping[str, ObjectDescription]:
        """Those that are not made yet, by name."""
        return self._waiting

    def reasons(self) -> dict[str, str]:
        """By name, what each waits for."""
        shard = "its former shard is being dropped"
        other = "the object that had its name is being dropped"
        return {name: shard if self.is_renewed(name) else other for name in self._waiting}

    def is_renewed(self, name: str) -> bool:
        """True if the shards of this one are made anew."""
        return name in self._renewed

    def may_be_made(self) -> bool:
        """True if there are any, and the lane was given all that was asked for before them."""
        return bool(self._waiting) and self._clock.wait(self._passed, _PASS_MS)

    def is_free(self, name: str) -> bool:
        """True if nothing of this name runs, is to be removed, or is still to come.

        Raises:
            ShardError: Another runtime has taken over, or the lane takes nothing at the moment.
        """
        if name in self._lane.state.objects:
            return False
        if name not in self._places:
            # Without a place of its own behind a creation that waits for the store, one that the
            # lane does not have yet would count as gone; then it would run beside this one.
            drop = DropDataflow(name, if_unfollowed=True)
            self._places[name] = self._lane.offer(OPERATOR, drop, wait=False)
        if not self._places[name].done():
            return False
        if self._places[name].exception() is not None:
            self._places.pop(name).result()
        return name not in self._lane.state.objects


def shards_to_renew(name: str, known: Mapping[str, ObjectDescription]) -> tuple[str, ...]:
    """The shards that go with what is replaced: a source, or one that a view comes after.

    Args:
        name: Of the object.
        known: All objects that run, wait or are about to, by name.
    """
    others = [one for other, one in known.items() if other != name]
    # A view beside a view may have one of these names: it was free once the source was gone.
    taken = {shard for one in others for shard in shards_of(one)}
    return tuple(shard for shard in source_shards(name) if shard not in taken)
