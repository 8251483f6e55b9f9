"""The publisher computes the relations that somebody follows, once a second, for all of them.

    publisher = Publisher(relations, clock, ids)
    follower = Follower(notify)
    publisher.follow(follower, Selection("verdicts"))
    publisher.moment.log(Selection("verdicts"))      after each `notify`; None before the first
    publisher.remove_follower(follower)

All relations of a moment are read under one lock: a verdict does not contradict the lag beside it.
Reading, encoding and comparing are done once, however many follow, and of a history only after it
has changed; see `change_log` for how each of them gets what it lacks.

Invariants:
    Nothing is computed, and no thread runs, while nobody follows anything.
    Moments only grow, also if the clock is set back; `read_ms` is what the clock has said.
    A follower that is slow or gone delays nobody: it is notified, and never waited for.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from shardline.app.introspection.change_log import ChangeLog
from shardline.app.introspection.relation import Scalar
from shardline.app.introspection.store import Relations
from shardline.datasource.background import PeriodicThread
from shardline.datasource.clock import Clock, IdGenerator

__all__ = ["Follower", "Moment", "Publisher", "Selection"]

_PACE_MS: Final = 1000.0
_GAP_MS: Final = 100.0
"""Least time between two moments: somebody new is served at once, but not a thousand times."""

_LINGER_MS: Final = 300_000
"""How long a log is kept that nobody follows: a reader that has lost its connection resumes."""

_SELECTIONS_MAX: Final = 1_000
"""Different selections that are followed at a time, by all followers together; and so many more
whose logs are kept: a client that follows something else each second must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows of a relation that somebody follows.

    Attributes:
        relation: Its name.
        where: Columns and the values that they have in these rows; all rows if it is empty.
    """

    relation: str
    where: tuple[tuple[str, Scalar], ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """The followed relations as of one moment.

    Attributes:
        at: Greater than that of the moment before: its time, unless the clock was set back.
        read_ms: Its time in ms since the epoch.
        logs: By selection; also the newest of those that were followed a while ago.
        revisions: By relation that is followed and made of histories, theirs as it was read.
    """

    at: int = 0
    read_ms: int = 0
    logs: Mapping[Selection, ChangeLog] = field(default_factory=lambda: MappingProxyType({}))
    revisions: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def log(self, selection: Selection) -> ChangeLog | None:
        """The log of a selection; None if this moment has not computed it."""
        found = self.logs.get(selection)
        return found if found is not None and found.as_of == self.at else None

    def advance(self, relations: Relations, followed: Iterable[Selection]) -> Moment:
        """Read the relations of all `followed` selections, and compare them with this moment."""
        selections = set(followed)
        behind = {s.relation for s in selections if self.log(s) is None}
        reading = relations.read_together(
            {s.relation for s in selections},
            _objects_of(selections, relations),
            {name: held for name, held in self.revisions.items() if name not in behind},
        )
        at = max(reading.at_ms, self.at + 1)
        # Each row once, and only what is chosen: of a page of one object these are few.
        encoded: dict[str, dict[int, bytes]] = {name: {} for name in reading.rows}
        logs = self._resumable_logs(selections, at)
        for selection in selections:
            before = self.logs.get(selection)
            if selection.relation not in encoded:
                assert before is not None, selection
                logs[selection] = before.carry_to(at)
                continue
            columns = relations.declared[selection.relation].schema.names
            rows = reading.rows[selection.relation]
            chosen = _choose(rows, encoded[selection.relation], columns, selection)
            logs[selection] = (
                ChangeLog.begin(at, chosen) if before is None else before.advance(at, chosen)
            )
        revisions = MappingProxyType(dict(reading.revisions))
        return Moment(at, reading.at_ms, MappingProxyType(logs), revisions)

    def _resumable_logs(
        self, followed: Collection[Selection], at: int
    ) -> dict[Selection, ChangeLog]:
        """The newest logs of what is not followed any more, to which readers may come back."""
        left = [
            (selection, log)
            for selection, log in self.logs.items()
            if selection not in followed and at - log.as_of <= _LINGER_MS
        ]
        left.sort(key=lambda entry: entry[1].as_of)
        return dict(left[-_SELECTIONS_MAX:])


def _objects_of(selections: Iterable[Selection], relations: Relations) -> dict[str, set[str]]:
    """By relation, the objects that all selections of it together are about.

    A relation is left out if one of its selections is not about a single object.
    """
    found: dict[str, set[str]] = {}
    whole: set[str] = set()
    for selection in selections:
        name = dict(selection.where).get(relations.declared[selection.relation].object)
        if isinstance(name, str):
            found.setdefault(selection.relation, set()).add(name)
        else:
            whole.add(selection.relation)
    return {relation: names for relation, names in found.items() if relation not in whole}


def _choose(
    rows: list[list[object]], encoded: dict[int, bytes], columns: list[str], selection: Selection
) -> Iterator[bytes]:
    """The rows of a selection, encoded; those that are not in `encoded` yet are added to it."""
    places = [(columns.index(name), value) for name, value in selection.where]
    for number, values in enumerate(rows):
        if all(values[at] == value for at, value in places):
            if number not in encoded:
                encoded[number] = _encode(values)
            yield encoded[number]


def _encode(row: list[object]) -> bytes:
    return msgspec.json.encode(row, enc_hook=str)


@dataclass(eq=False, slots=True)
class Follower:
    """Follows selections of a publisher; one that does not leave keeps them computed for ever.

    Attributes:
        notify: Called after each moment, by any thread; must return at once and not raise.
        selections: How often it follows each; changed by the publisher only.
    """

    notify: Callable[[], object]
    selections: Counter[Selection] = field(default_factory=Counter)


class Publisher:
    """Computes what is followed.

    Attributes:
        run: Tells the moments of this process from those of others.
        relations: Where rows are read.
    """

    def __init__(
        self,
        relations: Relations,
        clock: Clock,
        ids: IdGenerator,
        *,
        pace_ms: float = _PACE_MS,
        gap_ms: float = _GAP_MS,
    ) -> None:
        """Compute nothing yet.

        Args:
            relations: Where rows are read.
            clock: Waits between moments.
            ids: Names this run.
            pace_ms: Time between two moments.
            gap_ms: Least time between two moments if somebody new follows.
        """
        self.run = ids.token().hex()[:16]
        self.relations = relations
        self._clock = clock
        self._pace_ms = pace_ms
        self._gap_ms = gap_ms
        self._moment = Moment()
        self._computed_ms = float("-inf")
        self._lock = threading.Lock()
        self._followers: set[Follower] = set()
        self._thread: PeriodicThread | None = None

    @property
    def moment(self) -> Moment:
        """The newest moment."""
        return self._moment

    @property
    def is_running(self) -> bool:
        """True while somebody follows something."""
        return self._thread is not None

    def has_room(self, selection: Selection) -> bool:
        """False if too many other selections are followed already."""
        with self._lock:
            followed = self._followed()
        return selection in followed or len(followed) < _SELECTIONS_MAX

    def follow(self, follower: Follower, selection: Selection) -> None:
        """Let a follower follow a selection, once more if it does already."""
        with self._lock:
            follower.selections[selection] += 1
            self._followers.add(follower)
            if self._thread is None:
                self._thread = PeriodicThread(
                    "introspection-publisher", self._step, self._clock, retry_ms=self._pace_ms
                )
                self._thread.start()
            self._thread.wake.set()
        # The present moment may have it, because of somebody else.
        follower.notify()

    def unfollow(self, follower: Follower, selection: Selection) -> None:
        """Let a follower follow a selection once less."""
        with self._lock:
            follower.selections -= Counter((selection,))

    def remove_follower(self, follower: Follower) -> None:
        """Let a follower follow nothing any more; may be repeated."""
        with self._lock:
            follower.selections = Counter()
            self._followers.discard(follower)
            if self._thread is not None:
                self._thread.wake.set()

    def _followed(self) -> set[Selection]:
        return {selection for follower in self._followers for selection in follower.selections}

    def _step(self) -> float | None:
        with self._lock:
            followers, followed = list(self._followers), self._followed()
            if not followed:
                # Decided under the lock: whoever follows from now on starts another thread.
                self._thread = None
                return None
        early_ms = self._computed_ms + self._gap_ms - self._clock.elapsed_ms()
        if early_ms > 0:
            return early_ms
        self._computed_ms = self._clock.elapsed_ms()
        self._moment = self._moment.advance(self.relations, followed)
        for follower in followers:
            follower.notify()
        return self._pace_ms
