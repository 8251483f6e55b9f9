"""How far everything is: the files that have arrived, and what the runtime says of its objects.

    look(...) -> Standing        all of it at one moment
    Ticker                       a thread that looks and shows
    Patience                     whether an object that failed has had time enough to recover

What is shown is what `./spark-submit.sh status` shows to anybody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.table import Table

from shardline.app.cli.status import ObjectStatus, fetch_status, status_table, verdict
from shardline.app.demo.data import FLIGHTS
from shardline.app.demo.feed import Feed
from shardline.app.storage.errors import live_count
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.errors import ShardError
from shardline.datasource.shard.state import last_update

__all__ = ["Objects", "Patience", "Standing", "Ticker", "all_have", "arrived_at", "look"]

_log = logging.getLogger(__name__)

Objects: TypeAlias = tuple[ObjectStatus, ...]
"""What the runtime says of each object."""

_PATIENCE_MS: Final = 60_000.0
"""How long an object may be in need of attention before the job gives up: transient failures heal
by themselves within a few restarts."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far everything is at one moment.

    Attributes:
        at_ms: A clock for rates.
        days: Days that have arrived, of `days_total`.
        rows: Flights that have been taken in.
        objects: What the runtime says of each object.
    """

    at_ms: float
    days: int
    days_total: int
    rows: int
    objects: Objects = ()


def look(client: ShardClient, url: str, token: str, feed: Feed, clock: Clock) -> Standing:
    """How far everything is now.

    Args:
        client: Of the location.
        url: Where the application answers.
        token: What it wants to see.
        feed: Lands the days.
        clock: For rates.
    """
    rows = live_count(client.state(FLIGHTS)) if client.exists(FLIGHTS) else 0
    objects = tuple(fetch_status(url, token))
    return Standing(clock.elapsed_ms(), feed.landed_days, len(feed.days), rows, objects)


def arrived_at(client: ShardClient, feed: Feed, tables: Iterable[str]) -> int | None:
    """When the last row of any of `tables` came in; None until all flights that arrived have."""
    if live_count(client.state(FLIGHTS)) != feed.landed_rows:
        return None
    return max(last_update(client.state(table)) or 0 for table in tables)


def all_have(objects: Objects, time: int) -> int | None:
    """The last time that every object has settled, if it is `time` or later; else None.

    Later than it need be: a time of long ago may be one that no shard can be read at any more.
    """
    uppers = [one.upper for one in objects if not one.finished]
    settled = min((0 if upper is None else upper) - 1 for upper in uppers)
    return settled if settled >= time else None


class Ticker:
    """A thread that shows how far everything is: a table that changes, or plain lines.

    Use it as a context manager. Looking can fail while a store is away; it then shows what it
    knew, and the objects themselves say what is wrong.
    """

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
        self._before: Standing | None = None
        self._now: Standing | None = None
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
        if self._now is not None:
            self._clock.wait(self._stop, self._interval_ms)
        try:
            self._before, self._now = self._now, self._standing()
        except (ShardError, OSError):
            _log.warning("cannot look at the progress", exc_info=True)
        return self._now is not None

    def line(self) -> str:
        """The newest look in one line: what has been taken in, and who is not up to date."""
        now = self._now
        assert now is not None
        flights = f"{FLIGHTS} {now.rows:,} rows"
        if self._before is not None and now.rows > self._before.rows:
            flights += f" ({self._rate(self._before, now):,}/s)"
        parts = [f"{self._elapsed_s(now):4} s  day {now.days}/{now.days_total}", flights]
        good = [one for one in now.objects if verdict(one).tone == "good"]
        parts.append(f"{len(good)} of {len(now.objects)} objects up to date")
        parts += [f"{o.name} {verdict(o).words}" for o in now.objects if o not in good]
        return " | ".join(parts)

    def table(self) -> Table:
        """The newest look as a table."""
        now = self._now
        assert now is not None
        before = self._before
        counts = {} if before is None else {FLIGHTS: float(before.rows)}
        passed_ms = 0.0 if before is None else now.at_ms - before.at_ms
        table = status_table(list(now.objects), counts, passed_ms)
        table.title = (
            f"{self._elapsed_s(now)} s: day {now.days} of {now.days_total} has arrived, "
            f"{now.rows:,} flights are in"
        )
        return table

    def _elapsed_s(self, now: Standing) -> int:
        return int((now.at_ms - self._started_ms) / 1000)

    @staticmethod
    def _rate(before: Standing, now: Standing) -> int:
        return int((now.rows - before.rows) * 1000 / max(now.at_ms - before.at_ms, 1.0))


class Patience:
    """Notices an object that needs attention and does not recover."""

    def __init__(self, clock: Clock) -> None:
        """Nothing is wrong yet."""
        self._clock = clock
        self._since: dict[str, float] = {}

    def check(self, objects: Objects) -> ObjectStatus | None:
        """The object that has been stalled, frozen or ceased for too long; None if none has."""
        now_ms = self._clock.elapsed_ms()
        bad = {one.name: one for one in objects if one.status in {"stalled", "frozen", "ceased"}}
        self._since = {name: self._since.get(name, now_ms) for name in bad}
        for name, since_ms in self._since.items():
            if now_ms - since_ms > _PATIENCE_MS:
                return bad[name]
        return None
