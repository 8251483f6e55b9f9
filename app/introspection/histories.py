"""A history keeps the rows of what has changed, and can say what was there at an earlier moment.

    history.add(at_ms, row)
    history.until(at_ms)          the same history, as it was then
    existing(facts.statuses, …)   the objects that there were

A row of a *lasting* history (a status, a verdict, a definition) holds until the next one of the
same object. So a row that is older than the retention is kept while it is the newest one of its
object from before that: without it nobody could say what holds since. This is how a shard is
compacted: what was before the since is merged into it, and from there on every moment can be read.

Invariants:
    From `horizon_ms` on the history is complete: what it says of an earlier moment does not depend
        on how long ago that was.
    Rows of one object are at different times, so that their order survives being stored.
"""

from __future__ import annotations

from bisect import bisect_left, insort_right
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

__all__ = ["SUBSCRIPTION", "Entry", "History", "existing", "gaps", "newest", "note_standstill"]

Entry: TypeAlias = tuple[int, tuple[object, ...]]
"""When a row was made, in ms since the epoch, and its values."""

SUBSCRIPTION: Final = "subscribe"
"""The kind of objects that are in no history: hundreds come and go with their clients in an hour,
and would push out what has happened to all others. Histories of earlier versions have them."""

_SPARE: Final = 1.1
"""How much longer than allowed a history may become before its oldest rows are removed."""

_GAP_MS: Final = 120_000
"""Shortest time without an application that counts: a crash loses up to a minute of history, and an
application that takes over begins while the one before it still runs."""


class History:
    """The rows of a history, newest last; only added to, and removed by age or number.

    Attributes:
        name: Of the relation.
        retain_ms: How long a row is kept.
        rows_max: How many rows are kept.
        lasting: True if a row holds until the next one with the same first value.
        rows: All rows.
        horizon_ms: From when on all rows are here; None if none was removed yet.
        revision: Grows whenever rows change.
    """

    def __init__(self, name: str, retain_ms: int, rows_max: int, *, lasting: bool = False) -> None:
        self.name = name
        self.retain_ms = retain_ms
        self.rows_max = rows_max
        self.lasting = lasting
        self.rows: list[Entry] = []
        self.horizon_ms: int | None = None
        self.revision = 0

    @property
    def is_too_long(self) -> bool:
        """True if rows should be removed before it is time."""
        return len(self.rows) > self.rows_max * _SPARE

    def add(self, at_ms: int, row: tuple[object, ...]) -> None:
        """Add a row; it takes its place in the order of time."""
        insort_right(self.rows, (at_ms, row), key=_time_of)
        self.revision += 1

    def merge(self, found: Iterable[Entry]) -> None:
        """Add rows of earlier runs, in order of time; those that are there stay once."""
        self.rows = sorted(dict.fromkeys([*found, *self.rows]), key=_time_of)
        if len(self.rows) >= self.rows_max:
            # An earlier run may have removed those before, and has stored as many as are kept.
            self.horizon_ms = max(self.rows[-self.rows_max][0], self.horizon_ms or 0)
        self.revision += 1

    def clear(self) -> None:
        """Remove all rows, as if none had been added."""
        self.rows = []
        self.horizon_ms = None
        self.revision += 1

    def drop_repeated(self, repeats: Callable[[tuple[object, ...]], bool]) -> None:
        """Remove each row that says again what the row before it of the same object says.

        Args:
            repeats: False for rows that are never removed.
        """
        last: dict[object, tuple[object, ...]] = {}
        kept: list[Entry] = []
        for at_ms, row in self.rows:
            if last.get(row[0]) != row or not repeats(row):
                kept.append((at_ms, row))
            last[row[0]] = row
        self.rows = kept
        self.revision += 1

    def until(self, at_ms: int) -> History:
        """The history as it was at a moment; a copy, which may be read without the lock."""
        return self._with([entry for entry in self.rows if entry[0] <= at_ms])

    def about(self, names: Collection[str]) -> History:
        """The rows whose first value is one of these; a copy, as above."""
        # Without names there is nothing to look for: a history may have a hundred thousand rows.
        return self._with([one for one in self.rows if one[1][0] in names] if names else [])

    def prune(self, now_ms: int, exists: Callable[[int], Collection[object]]) -> None:
        """Remove rows that are older than `retain_ms`, and the oldest if there are too many.

        Args:
            now_ms: Now.
            exists: Returns the first values of rows that held at a moment; of a lasting history the
                newest row of each of them is kept.
        """
        horizon = now_ms - self.retain_ms
        if len(self.rows) > self.rows_max:
            horizon = max(horizon, self.rows[-self.rows_max][0])
        first = bisect_left(self.rows, horizon, key=_time_of)
        if not first:
            return
        old: list[Entry] = []
        if self.lasting:
            there = exists(horizon)
            last = {row[0]: (at_ms, row) for at_ms, row in self.rows[:first]}
            old = [entry for name, entry in last.items() if name in there]
            old.sort(key=_time_of)
        self.horizon_ms = max(horizon, self.horizon_ms or horizon)
        if len(old) < first:
            self.rows = [*old, *self.rows[first:]]
            self.revision += 1

    def _with(self, rows: list[Entry]) -> History:
        found = History(self.name, self.retain_ms, self.rows_max, lasting=self.lasting)
        found.rows = rows
        found.horizon_ms = self.horizon_ms
        return found

    def since_ms(self, now_ms: int, began_ms: int | None) -> int | None:
        """From when on it is known what was; None if nothing is.

        Args:
            now_ms: Now.
            began_ms: When the first application began to keep histories, as far as that is known.
        """
        if self.horizon_ms is not None:
            return self.horizon_ms
        firsts = [at_ms for at_ms, _ in self.rows[:1]]
        if began_ms is not None:
            firsts.append(began_ms)
        return max(min(firsts), now_ms - self.retain_ms) if firsts else None


def newest(rows: Iterable[Entry]) -> dict[str, Entry]:
    """The newest row of each object, in the order in which the objects have come."""
    return {str(row[0]): (at_ms, row) for at_ms, row in rows}


def existing(statuses: History, definitions: History, runs: History, at_ms: int) -> set[str]:
    """Names of the objects that there were at a moment, created or waiting for that.

    Subscriptions are not among them. That an earlier version's are gone is not noted any more.

    Both histories say when an object was dropped. If the application was killed right after that,
    neither does: then the next start does, by the objects that it has found.

    Args:
        statuses: Rows `(name, kind, status, …)`.
        definitions: Rows `(name, kind, state, …)`.
        runs: Rows `("start", names)`, and others that do not count here.
        at_ms: The moment.
    """
    status = newest(entry for entry in statuses.rows if entry[0] <= at_ms)
    defined = newest(entry for entry in definitions.rows if entry[0] <= at_ms)
    names = {
        name
        for one in (status, defined)
        for name, (_, (_, kind, state, *_)) in one.items()
        if state != "dropped" and kind != SUBSCRIPTION
    }
    start = max((e for e in runs.rows if e[0] <= at_ms and e[1][0] == "start"), default=None)
    if start is None:
        return names
    began_ms, (_, found) = start
    assert isinstance(found, tuple), found
    return {
        name
        for name in names
        if name in found
        or any(name in one and one[name][0] >= began_ms for one in (status, defined))
    }


def gaps(runs: History) -> list[tuple[int, int]]:
    """The times in which no application ran: from when it was last heard of until one went on.

    Args:
        runs: Rows `("start", names)`, `("end", ())` and `("resumed", ())`.
    """
    found: list[tuple[int, int]] = []
    ended_ms: int | None = None
    for at_ms, row in runs.rows:
        if row[0] == "end":
            ended_ms = at_ms
        elif ended_ms is not None:
            if at_ms - ended_ms >= _GAP_MS:
                found.append((ended_ms, at_ms))
            ended_ms = None
    return found


def note_standstill(runs: History, noted_ms: int, now_ms: int) -> None:
    """Note that the process itself stood still, if it did: a laptop that slept, a paused machine.

    Args:
        runs: As above.
        noted_ms: When all that there was has been noted for the last time.
        now_ms: Now.
    """
    if now_ms - noted_ms >= _GAP_MS:
        runs.add(noted_ms, ("end", ()))
        runs.add(now_ms, ("resumed", ()))


def _time_of(entry: Entry) -> int:
    return entry[0]
