"""Whose reports count: the one life of each object that a controller is to hear of.

Between the moment when a controller asks for another definition and the one when the lane has
started it, what ran before still reports. That is about another object of the same name, and must
not be told as if it were about this one.

Invariants:
    Reports count from the moment on when the lane starts a life with the description that is
    expected, and only those of that life or of a later one with the same description.
    A life that was forgotten never counts again, whatever is expected after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardline.app.lane.process_state import PhaseChange
from shardline.app.protocol.objects import Description

__all__ = ["Lives"]


@dataclass(slots=True)
class Lives:
    """Expected objects, and the life of each that has begun."""

    _expected: dict[str, Description] = field(default_factory=dict)
    _epochs: dict[str, int] = field(default_factory=dict)
    _floors: dict[str, int] = field(default_factory=dict)

    def expect(self, description: Description) -> None:
        """Reports about this object count once a life with this very description begins."""
        if self._expected.get(description.name) != description:
            self._end(description.name)
            self._expected[description.name] = description

    def forget(self, name: str) -> None:
        """Nothing about the object counts any more."""
        self._expected.pop(name, None)
        self._end(name)

    def on_phase(self, change: PhaseChange) -> bool:
        """Take in what the lane tells; whether it is about an expected object's present life."""
        if change.phase == "dropped":
            # Nothing of it is left, and what gets the name is numbered anew.
            self._floors.pop(change.id, None)
        expected = self._expected.get(change.id)
        if expected is None or change.incarnation is None or change.description != expected:
            return False
        epoch = change.incarnation.epoch
        if epoch < max(self._epochs.get(change.id, 0), self._floors.get(change.id, 0)):
            return False
        self._epochs[change.id] = epoch
        return True

    def admits(self, name: str, epoch: int) -> bool:
        """Whether a report of this life counts."""
        return self._epochs.get(name) == epoch

    def epoch(self, name: str) -> int | None:
        """The present life of an object; None if none has begun."""
        return self._epochs.get(name)

    def _end(self, name: str) -> None:
        epoch = self._epochs.pop(name, None)
        if epoch is not None:
            self._floors[name] = epoch + 1
