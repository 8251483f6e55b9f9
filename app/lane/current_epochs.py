"""The current epochs decide which incarnation's reports are passed on to a controller.

Between the command for another definition and the moment when the lane has started it, what ran
before still reports. Those reports are about another object of the same name; passed on, they would
show a new view with the frontier of the old one.

Invariants:
    Reports count from the moment on when the lane starts an incarnation with the expected
    description, and only those of that incarnation or of a later one with the same description.
    An incarnation that was forgotten never counts again, whatever is expected after it.
    What the lane has dropped counts no more; the next object of that name counts from its start on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardline.app.lane.process_state import PhaseChange
from shardline.app.protocol.objects import Description

__all__ = ["CurrentEpochs"]


@dataclass(slots=True)
class CurrentEpochs:
    """Expected objects, and the epoch of each that has begun."""

    _expected: dict[str, Description] = field(default_factory=dict)
    _epochs: dict[str, int] = field(default_factory=dict)
    _floors: dict[str, int] = field(default_factory=dict)

    def expect(self, description: Description) -> None:
        """Expect an object: its reports count once an incarnation of this description begins."""
        if self._expected.get(description.name) != description:
            self._end(description.name)
            self._expected[description.name] = description

    def forget(self, name: str) -> None:
        """Let no report about the object count any more."""
        self._expected.pop(name, None)
        self._end(name)

    def on_phase(self, change: PhaseChange) -> bool:
        """Take a phase of the lane; True if it is of an expected object's present incarnation."""
        if change.phase == "dropped":
            # Nothing of it is left, and the next object of the name counts epochs from 1: with the
            # floor its reports would never count, nor with the epoch of the former one, which may
            # be expected still: a follower names what the holder drops and makes again.
            self._floors.pop(change.id, None)
            self._epochs.pop(change.id, None)
            return False
        expected = self._expected.get(change.id)
        if expected is None or change.incarnation is None or change.description != expected:
            return False
        epoch = change.incarnation.epoch
        if epoch < max(self._epochs.get(change.id, 0), self._floors.get(change.id, 0)):
            return False
        self._epochs[change.id] = epoch
        return True

    def admits(self, name: str, epoch: int) -> bool:
        """True if a report of this epoch counts."""
        return self._epochs.get(name) == epoch

    def epoch(self, name: str) -> int | None:
        """The present epoch of an object; None if none has begun."""
        return self._epochs.get(name)

    def _end(self, name: str) -> None:
        epoch = self._epochs.pop(name, None)
        if epoch is not None:
            # A late phase of the incarnation must not bring it back, should the same description be
            # expected again.
            self._floors[name] = epoch + 1
