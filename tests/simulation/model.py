"""Models a shard: the appends that were committed, as a list, in plain Python.

Actors say what they are about to append before they ask for it (`intend`). The observer, who reads
each record of the log as it is created, says which of these appends a record commits, and where in
time (`commit`). From then on the rows are in the list, whatever became of the answer. What actors
are told (`acknowledge`, `refuse`) is compared with that.

Nothing here reads a part, a batch, or since: it is what all of those must add up to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from simulation.scheduler import Violation

__all__ = ["Attempt", "Model", "Row", "Update"]

Row: TypeAlias = tuple[int | None, str | None]
"""`(id, v)`."""

Update: TypeAlias = tuple[Row, int, int]
"""A row, its time, and its diff."""

Kind: TypeAlias = Literal["now", "interval", "identical", "overwrite", "upsert"]


@dataclass(slots=True)
class Attempt:
    """One way in which an append was asked for.

    Attributes:
        kind: `now`: rows at the commit's own time; `interval`: updates that fill `[lower, upper)`;
            `identical`: the same, trimmed to what is not there yet; `overwrite`, `upsert`: rows.
        rows: With their diffs; of an interval, updates with their times.
        lower: None where the commit chooses.
        upper: None where the commit chooses, or for the empty frontier.
        refused: Its caller was told that it certainly did not happen.
    """

    kind: Kind
    rows: Sequence[tuple[Row, int]] = ()
    updates: Sequence[Update] = ()
    lower: int | None = None
    upper: int | None = None
    refused: bool = False

    def fits(self, lower: int, upper: int | None) -> bool:
        """Whether this attempt can have been committed as `[lower, upper)`."""
        if self.kind == "interval":
            return (self.lower, self.upper) == (lower, upper)
        if self.kind == "identical":
            return self.lower is not None and self.lower <= lower and self.upper == upper
        return upper is not None


@dataclass(slots=True)
class Model:
    """One shard, from its making to its end."""

    shard: str
    updates: list[Update] = field(default_factory=list)
    upper: int | None = 0
    asked: dict[tuple[str, int], list[Attempt]] = field(default_factory=dict)
    done: dict[tuple[str, int], tuple[int, int | None]] = field(default_factory=dict)

    def intend(self, writer: str, sequence: int, attempt: Attempt) -> Attempt:
        """Note what an actor is about to ask for."""
        self.asked.setdefault((writer, sequence), []).append(attempt)
        return attempt

    def commit(self, writer: str, sequence: int, lower: int, upper: int | None) -> None:
        """A record of the log commits this append as `[lower, upper)`."""
        name = f"append {sequence} of '{writer}'"
        if (writer, sequence) in self.done:
            raise Violation("exactly once", f"{name} was committed twice")
        found = [a for a in self.asked.get((writer, sequence), []) if a.fits(lower, upper)]
        if not found:
            raise Violation("exactly once", f"nobody asked for {name} as [{lower}, {upper})")
        wanted = [attempt for attempt in found if not attempt.refused]
        if not wanted:
            raise Violation("exactly once", f"{name} was refused, and was committed")
        self.done[writer, sequence] = (lower, upper)
        self.updates += self._effect(wanted[-1], lower, upper)
        self.upper = upper

    def _effect(self, attempt: Attempt, lower: int, upper: int | None) -> list[Update]:
        if attempt.kind in {"interval", "identical"}:
            return [update for update in attempt.updates if update[1] >= lower]
        assert upper is not None
        time = upper - 1
        rows = Counter[Row]()
        for row, diff in attempt.rows:
            rows[row] += diff
        if attempt.kind != "now":
            there = self.contents(time)
            keys = {row[0] for row in rows}
            for row, count in there.items():
                if attempt.kind == "overwrite" or row[0] in keys:
                    rows[row] -= count
        return [(row, time, diff) for row, diff in rows.items() if diff]

    def acknowledge(self, writer: str, sequence: int, lower: int | None, upper: int | None) -> None:
        """An actor was told that its append is in `[lower, upper)`."""
        found = self.done.get((writer, sequence))
        if found is None or (lower is not None and found != (lower, upper)):
            raise Violation(
                "acknowledged",
                f"append {sequence} of '{writer}' was acknowledged as [{lower}, {upper}), "
                f"and the log has {found}",
            )

    def refuse(self, writer: str, sequence: int, attempt: Attempt) -> None:
        """An actor was told that its append did not happen."""
        attempt.refused = True
        found = self.done.get((writer, sequence))
        mine = found is not None and attempt.fits(*found)
        if mine and sum(a.fits(*found) for a in self.asked[writer, sequence]) == 1:  # type: ignore[misc]
            raise Violation("refused", f"append {sequence} of '{writer}' is in the log at {found}")

    def contents(self, as_of: int) -> Counter[Row]:
        """The rows at `as_of`."""
        total = Counter[Row]()
        for row, time, diff in self.updates:
            if time <= as_of:
                total[row] += diff
        return Counter({row: count for row, count in total.items() if count})

    def changes(self, lower: int, upper: int | None, since: int = 0) -> Counter[tuple[Row, int]]:
        """Updates with times in `[lower, upper)`, summed by row and time, advanced to `since`."""
        total = Counter[tuple[Row, int]]()
        for row, time, diff in self.updates:
            if lower <= time and (upper is None or time < upper):
                total[row, max(time, since)] += diff
        return Counter({key: count for key, count in total.items() if count})
