"""How far everything is: numbers taken from the shards and the checkpoints, not from the queries.

A query's position is the frontier in the last micro-batch that its checkpoint has recorded as done;
what is left is what the shard that it follows has at or after that. So the same numbers are there
while a query runs, while it is down, and before it has been started again.

    look(...) -> Standing        all of it at one moment
    Ticker                       a thread that looks and shows
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from app.demo.data import DELAYS, FLIGHTS, RANKING
from app.demo.feed import Feed
from app.demo.place import Place
from app.tables import age, plain_table, utc
from datasource.client import ShardClient
from datasource.clock import Clock
from datasource.errors import ShardError
from datasource.frontier import Frontier
from datasource.state import ShardState

__all__ = ["QueryStanding", "Standing", "Ticker", "committed_frontier", "look"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueryStanding:
    """How far one query is.

    Attributes:
        name: The query, and the shard that it keeps.
        done: Updates (of the first query: rows) that it has taken in, ever.
        left: Those that are there and that it has not.
        behind_ms: How long the oldest of them has been there; 0 without any.
        upper: Upper of the shard that it keeps.
    """

    name: str
    done: int
    left: int
    behind_ms: int
    upper: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """How far everything is at one moment.

    Attributes:
        at_ms: A clock for rates.
        days: Days that have arrived, of `days_total`.
        queries: In the order in which they follow each other.
    """

    at_ms: float
    days: int
    days_total: int
    queries: tuple[QueryStanding, ...]

    @property
    def finished(self) -> bool:
        """Whether everything has arrived and every query has taken it in."""
        return self.days == self.days_total and not any(query.left for query in self.queries)


def look(client: ShardClient, place: Place, feed: Feed, clock: Clock) -> Standing:
    """How far everything is now."""
    flights = client.state(FLIGHTS.name)
    delays = client.state(DELAYS.name)
    ranking = client.state(RANKING.name)
    arrived = sum(part.diff_sum for batch in flights.trace.batches for part in batch.parts)
    # Files are older than what became of them, so they say nothing about how far behind it is.
    first = QueryStanding(
        FLIGHTS.name, arrived, max(feed.landed_rows - arrived, 0), 0, flights.upper.time
    )
    return Standing(
        clock.elapsed_ms(),
        feed.landed_days,
        len(feed.days),
        (
            first,
            _following(DELAYS.name, flights, delays, place, clock),
            _following(RANKING.name, delays, ranking, place, clock),
        ),
    )


def _following(
    name: str, source: ShardState, target: ShardState, place: Place, clock: Clock
) -> QueryStanding:
    frontier = committed_frontier(place.checkpoint(name))
    done = left = 0
    oldest: int | None = None
    for batch in source.trace.batches:
        for part in batch.parts:
            bounds = part.time_bounds
            assert bounds is not None, part.key
            if frontier.is_beyond(bounds[1]):
                done += part.rows
            else:
                left += part.rows
                oldest = bounds[0] if oldest is None else min(oldest, bounds[0])
    behind_ms = 0 if oldest is None else max(clock.now_ms() - oldest, 0)
    return QueryStanding(name, done, left, behind_ms, target.upper.time)


def _clock_time(upper: int | None) -> str:
    """An upper as a time of day: within a run, that is what changes."""
    return utc(upper).partition(" ")[2] if upper else "none"


def committed_frontier(checkpoint: Path) -> Frontier:
    """The frontier of the last micro-batch that a query over a shard has finished.

    Spark writes `offsets/N` before micro-batch N and `commits/N` after it; the last line of the
    former is the source's offset.
    """
    done = [int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdigit()]
    if not done:
        return Frontier(0)
    lines = (checkpoint / "offsets" / str(max(done))).read_text(encoding="utf-8").splitlines()
    offset = json.loads(lines[-1])
    return Frontier(offset["frontier"]) if "frontier" in offset else Frontier(0)


class Ticker:
    """A thread that shows how far everything is: a table that changes, or plain lines.

    Use it as a context manager. Looking can fail while a store is away; it then shows what it
    knew, and the queries themselves say what is wrong.
    """

    _SPAN = 5
    """Rates are over so many looks."""

    def __init__(
        self, console: Console, clock: Clock, standing: Callable[[], Standing], interval_ms: float
    ) -> None:
        """Prepare to show `standing` every `interval_ms`."""
        self._console = console
        self._clock = clock
        self._standing = standing
        self._interval_ms = interval_ms
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._seen: deque[Standing] = deque(maxlen=self._SPAN + 1)
        self._started_ms = clock.elapsed_ms()

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop after a last look."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        if not self._console.is_terminal:
            while self._look():
                self._console.print(self.line(), soft_wrap=True)
            return
        with Live(console=self._console, auto_refresh=False) as live:
            while self._look():
                live.update(self.table(), refresh=True)

    def _look(self) -> bool:
        """Look once and wait; False when it is over."""
        if self._stop.is_set():
            return False
        if self._seen:
            self._clock.wait(self._stop, self._interval_ms)
        try:
            self._seen.append(self._standing())
        except (ShardError, OSError, ValueError):
            _log.warning("cannot look at the progress", exc_info=True)
        return bool(self._seen)

    def line(self) -> str:
        """The newest look in one line."""
        now = self._seen[-1]
        parts = [f"{self._elapsed_s():4} s  day {now.days}/{now.days_total}"]
        for position, query in enumerate(now.queries):
            done = f"{query.done:,} in"
            if rate := self._rate(position):
                done += f" ({rate:,}/s)"
            left = "up to date"
            if query.left:
                left = f"{query.left:,} left"
                if query.behind_ms:
                    left += f", {age(query.behind_ms)} behind"
            parts.append(f"{query.name} {done}, {left}, upper {_clock_time(query.upper)}")
        return " | ".join(parts)

    def table(self) -> Table:
        """The newest look as a table."""
        now = self._seen[-1]
        title = f"{self._elapsed_s()} s: day {now.days} of {now.days_total} has arrived"
        numbers = ("taken in", "per second", "left", "behind", "upper")
        table = plain_table("query", *numbers, right=numbers, title=title)
        for position, query in enumerate(now.queries):
            table.add_row(
                query.name,
                f"{query.done:,}",
                f"{self._rate(position):,}",
                f"{query.left:,}",
                age(query.behind_ms) if query.behind_ms else "",
                _clock_time(query.upper),
            )
        return table

    def _elapsed_s(self) -> int:
        return int((self._seen[-1].at_ms - self._started_ms) / 1000)

    def _rate(self, position: int) -> int:
        old, new = self._seen[0], self._seen[-1]
        rows = new.queries[position].done - old.queries[position].done
        return int(rows * 1000 / max(new.at_ms - old.at_ms, 1.0))
