"""A change log keeps the rows of a relation as of one moment, and the changes that led to them.

    log = ChangeLog.begin(at, rows)
    log = log.advance(at, rows)             rows as of a later moment
    log.changes_after(at)                   what whoever holds the rows as of `at` lacks

Relations are functions of the facts: nothing says what has changed in them but a comparison of two
readings. It is made here, once for all readers. A reader needs no queue: it says which moment it
holds, and is given what has come since, added up, however many moments that are. If the changes are
gone it is given all rows. So a slow reader costs as much memory as a fast one: none.

Rows are compared as encoded: that is how readers see them, and NaN is equal to itself.

Invariants:
    The rows as of `since`, with all changes added, are `rows`.
    Changes have at most twice as many bytes as the rows, and 64 KiB: whoever lacks more than that
        is served better by the rows themselves.
    A log never changes: readers of any thread see a whole one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

__all__ = ["Change", "ChangeLog", "Difference", "EncodedRows", "subtract_rows"]

EncodedRows: TypeAlias = Mapping[bytes, int]
"""How often each row occurs, by its encoding, in the order of the relation."""

_SPARE_BYTES: Final = 1 << 16
_TIMES_ROWS: Final = 2
_OVERHEAD_BYTES: Final = 64
"""Counted for each change beside its rows, so that their number is bounded as well."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows that come and rows that go; none is among both, and equal ones are repeated."""

    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)

    @property
    def size_bytes(self) -> int:
        """The bytes that it takes, roughly."""
        return _OVERHEAD_BYTES + sum(map(len, self.added)) + sum(map(len, self.removed))


@dataclass(frozen=True, slots=True)
class Change:
    """The difference from the moment before to the one at `at`, and how large it is."""

    at: int
    difference: Difference
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ChangeLog:
    """The rows of a relation, and the newest changes.

    Attributes:
        since: The changes of all later moments are held.
        as_of: The moment of `rows`.
        rows: All rows.
        changes: Those after `since`, in their order.
    """

    since: int
    as_of: int
    rows: EncodedRows
    changes: tuple[Change, ...] = ()

    @classmethod
    def begin(cls, at: int, rows: Iterable[bytes]) -> ChangeLog:
        """A log without changes."""
        return cls(at, at, Counter(rows))

    @property
    def changes_bytes(self) -> int:
        """The bytes of all changes that are held, roughly."""
        return sum(change.size_bytes for change in self.changes)

    def advance(self, at: int, rows: Iterable[bytes]) -> ChangeLog:
        """The log as of a later moment.

        Args:
            at: The moment, later than `as_of`.
            rows: All rows as of then.
        """
        assert at > self.as_of, (at, self.as_of)
        counted = Counter(rows)
        difference = subtract_rows(counted, self.rows)
        if not difference:
            return self.carry_to(at)
        change = Change(at, difference, difference.size_bytes)
        return _trim(replace(self, as_of=at, rows=counted, changes=(*self.changes, change)))

    def carry_to(self, at: int) -> ChangeLog:
        """The log as of a later moment, at which the rows are the same."""
        assert at > self.as_of, (at, self.as_of)
        return replace(self, as_of=at)

    def changes_after(self, at: int) -> Difference | None:
        """What whoever holds the rows as of `at` lacks; None if that is not known any more."""
        if not self.since <= at <= self.as_of:
            return None
        # From the end: nearly every reader lacks the last change only.
        later: list[Difference] = []
        for change in reversed(self.changes):
            if change.at <= at:
                break
            later.append(change.difference)
        return later[0] if len(later) == 1 else _add_up(reversed(later))

    def snapshot(self) -> list[bytes]:
        """All rows, equal ones repeated."""
        return list(Counter(self.rows).elements())


def subtract_rows(after: EncodedRows, before: EncodedRows) -> Difference:
    """The difference that makes `after` of `before`."""
    return Difference(_more(after, before), _more(before, after))


def _more(rows: EncodedRows, others: EncodedRows) -> tuple[bytes, ...]:
    return tuple(row for row, count in rows.items() for _ in range(count - others.get(row, 0)))


def _add_up(differences: Iterable[Difference]) -> Difference:
    net: Counter[bytes] = Counter()
    for difference in differences:
        net.update(difference.added)
        net.subtract(difference.removed)
    return Difference(tuple(net.elements()), tuple((-net).elements()))


def _trim(log: ChangeLog) -> ChangeLog:
    """The log without the oldest changes, as far as there are too many."""
    rows_bytes = sum(len(row) * count for row, count in log.rows.items())
    excess = log.changes_bytes - _SPARE_BYTES - _TIMES_ROWS * rows_bytes
    since, kept = log.since, log.changes
    while excess > 0:
        # Whoever holds the rows as of the change that goes needs only the later ones.
        since, excess, kept = kept[0].at, excess - kept[0].size_bytes, kept[1:]
    return replace(log, since=since, changes=kept)
