"""Chooses the way of a view's next step by what its last steps have taken.

To follow changes has a fixed cost, of a few jobs of Spark; to run the query anew costs what the
inputs' size says. For small inputs the second is the cheaper one, and needs no states. So a view
begins by running its query anew, and follows its changes once that has been predicted to be clearly
cheaper a few times in a row, or for a step of as many times, at each of which the query would run.
Where to run it anew takes very long, once is enough.

    costs.follows(times, rows, changed)   which way, for a step with changes at so many times
    costs.note_anew(ms, rows)             what a step has taken
    costs.note_follow(ms, changed)
    costs.note_given_up(ms, changed)      an attempt to follow, before the query was run anew
    costs.predictions                     what the next step would take, each way

What is not done is not measured. A view that once took long to follow much, right after its start
say, would be run anew for ever, at each of more and more times, and fall further behind. So what
following has cost is scaled to what has changed now, and counts for less the longer ago it was: it
is tried again, and judged by steps of that trial alone.

Invariants:
    The way is not changed by one step that took long: predictions must agree for several, or be of
        one that has several times, or that would take very long.
    To follow changes is not given up for good.
    Contents of a view do not depend on the choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["StepCosts"]

_CLEARLY: Final = 2.0
"""How much cheaper the other way must be; to change it costs about one step more."""

_IN_A_ROW: Final = 3
"""Predictions that must agree."""

_LONG_MS: Final = 10_000.0
"""Above it the query is not run anew only to see if it takes as long again: a trial costs less."""

_LITTLE: Final = 8_192
"""Rows over which a query is run anew by a kept plan: what that took before anything was compiled
says nothing of what it takes, and must not be all that is ever known of it."""

_FOLLOW_MS: Final = 100.0
"""A step that follows changes is taken to cost so much before there was one; measured. If it took
more, that is put down to its changed rows."""

_ROW_MS_MAX: Final = 0.1
"""More than a changed row costs, with joins, before anything is compiled; measured."""

_LIKE: Final = 4.0
"""Steps whose numbers of changed rows differ by no more than this factor tell of each other."""

_AGEING: Final = 0.97
"""Each step that runs the query anew makes those that followed changes count for this share of what
they did. What was ten times dearer is tried again after a hundred steps, for three."""

_KEPT: Final = 5


@dataclass(frozen=True, slots=True)
class _Followed:
    """What a step that followed changes has cost: milliseconds, of how many changed rows."""

    ms: float
    changed: int

    def predict(self, changed: int) -> float:
        """What such a step would cost with so many changed rows."""
        row_ms = (self.ms - min(self.ms, _FOLLOW_MS)) / self.changed
        if changed > self.changed:
            row_ms = min(row_ms, _ROW_MS_MAX)  # a slow step of one row was not slow by its row
        return self.ms + row_ms * (changed - self.changed)

    def distance(self, changed: int) -> float:
        """How far from a step of so many changed rows it is: a factor."""
        other = max(changed, 1)
        return max(self.changed / other, other / self.changed)

    def aged(self) -> _Followed:
        """The same, of a step that is longer ago."""
        return _Followed(self.ms * _AGEING, self.changed)


class StepCosts:
    """What the steps of one view cost. For one thread."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._follows_changes = False
        self._against = 0
        self._anew: tuple[float, int] | None = None
        self._follow: deque[_Followed] = deque(maxlen=_KEPT)
        self.predictions: Mapping[str, float | None] = {}
        """Milliseconds of the last step that was asked about, by the names of gauges; None for
        unknown."""

    def follows(self, times: int, rows: int, changed: int) -> bool:
        """True if a step should follow changes.

        Args:
            times: The number of times at which inputs change in it; the query is run for each.
            rows: Rows of all inputs.
            changed: Rows of the changes.
        """
        anew = self._predict_anew(max(times, 1), rows)
        follow = self._predict_follow(changed)
        self.predictions = {"predicted_ms_incremental": follow, "predicted_ms_recompute": anew}
        if anew is None:
            return self._follows_changes
        mine, other = (follow, anew) if self._follows_changes else (anew, follow)
        self._against = self._against + 1 if mine > _CLEARLY * other else 0
        if self._against and not self._follows_changes and times >= _IN_A_ROW:
            # Run anew at each of its times, it would be asked about as often, to the same answer.
            if rows <= _LITTLE:
                return True
            self._against = _IN_A_ROW
        is_long = mine > _LONG_MS and rows > _LITTLE
        if self._against and not self._follows_changes and is_long:
            self._against = _IN_A_ROW
        if self._against >= _IN_A_ROW:
            self._follows_changes, self._against = not self._follows_changes, 0
            if self._follows_changes:
                # They have counted for less each time, and would speak for the trial whatever it
                # costs.
                self._follow.clear()
        return self._follows_changes

    def note_anew(self, ms: float, rows: int) -> None:
        """A step has run the query anew, at one time.

        Args:
            ms: What it took.
            rows: Rows of all inputs.
        """
        self._anew = (ms, max(rows, 1))
        self._follow = deque((one.aged() for one in self._follow), maxlen=_KEPT)

    def note_follow(self, ms: float, changed: int) -> None:
        """A step has followed changes.

        Args:
            ms: What it took.
            changed: Rows of the changes.
        """
        self._follow.append(_Followed(ms, max(changed, 1)))

    def note_given_up(self, ms: float, changed: int) -> None:
        """A step was to follow changes and is run anew after all: dearer than to do so at once.

        Args:
            ms: What the attempt took.
            changed: Rows of the changes.
        """
        anew = self.predictions.get("predicted_ms_recompute") or 0.0
        self.note_follow(ms + 2 * _CLEARLY * anew, changed)

    def _predict_follow(self, changed: int) -> float:
        nearest = min((one.distance(changed) for one in self._follow), default=1.0)
        like = max(nearest, _LIKE)
        near = (one.predict(changed) for one in self._follow if one.distance(changed) <= like)
        # The least: one that also made states, or waited for its turn, tells nothing.
        return min(near, default=_FOLLOW_MS)

    def _predict_anew(self, times: int, rows: int) -> float | None:
        if self._anew is None:
            return None
        ms, then = self._anew
        return ms * times * max(rows / then, 1.0)
