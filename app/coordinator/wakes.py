"""Wakes the coordinator when something has happened that it may be waiting for.

An object is created once its inputs have begun, and a drop is done once the lane has forgotten the
object. Both are seen in the runtime first, which reports them here; without that the coordinator
would have to look at shards and at the lane several times a second, for as long as it runs.

Invariants:
    A signal is cleared before the look that it is for, so what happens during a look causes
    another. Progress of an object that nobody waits for wakes nobody: sources report several times
    a second.
"""

from __future__ import annotations

import threading

from typing_extensions import override

from shardline.app.runtime.runtime import RuntimeWatcher

__all__ = ["Wakes"]


class Wakes(RuntimeWatcher):
    """The signals of one coordinator; set in any thread, never blocking.

    Attributes:
        creation: An object may have become possible to create, or the coordinator ends.
        lane: The lane's state has changed, or the coordinator ends.
        repairs: The same, for who carries out repairs.
    """

    def __init__(self) -> None:
        """Nothing has happened."""
        self.creation = threading.Event()
        self.lane = threading.Event()
        self.repairs = threading.Event()
        self._awaited: frozenset[str] = frozenset()

    def await_inputs(self, names: frozenset[str]) -> None:
        """Have the first progress of each of these inputs wake who creates objects.

        To be called before the look at them: an input that begins between the look and this call
        would wake nobody.
        """
        self._awaited = names

    @override
    def on_progress(self, name: str) -> None:
        if name in self._awaited:
            self.creation.set()

    @override
    def on_lane(self) -> None:
        self.lane.set()
        self.creation.set()
        self.repairs.set()

    def end(self) -> None:
        """Wake everybody who waits: the coordinator ends."""
        self.creation.set()
        self.lane.set()
