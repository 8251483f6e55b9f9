"""The demo shows its progress: files that have arrived, flights in the shard, object statuses.

    read_progress(...) -> DemoProgress    all of it at one moment
    ProgressDisplay                       a thread that shows it, again and again
    FailureWatch                          finds an object that fails and does not recover

The statuses are those of `./spark-submit.sh status`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shardline.app.cli.status import ObjectStatus, SystemStatus, fetch_status, status_table
from shardline.app.cli.tables import age
from shardline.app.demo.data import FLIGHTS
from shardline.app.demo.feed import Feed
from shardline.app.protocol.object_state import FAILED_VERDICTS
from shardline.app.server.discovery import ApplicationAddress
from shardline.app.storage.errors import live_count
from shardline.datasource.background import BackgroundThread
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.errors import ShardError
from shardline.datasource.state import last_update

__all__ = [
    "DemoProgress",
    "FailureWatch",
    "Objects",
    "ProgressDisplay",
    "last_arrival_ms",
    "read_progress",
    "settled_time",
]

_log = logging.getLogger(__name__)

Objects: TypeAlias = tuple[ObjectStatus, ...]
"""The status of each object."""

_BAR_WIDTH: Final = 40

_PATIENCE_MS: Final = 60_000.0
"""How long an object may be in need of attention before the job gives up: transient failures heal
by themselves within a few restarts."""


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """The progress at one moment.

    Attributes:
        at_ms: When, by a clock that never goes back.
        days: Number of days that have arrived, of `days_total`.
        rows: Number of flights in the shard, of `rows_total`.
        objects_total: Number of objects of the project.
        seen: The status of all objects.
    """

    at_ms: float
    days: int
    days_total: int
    rows: int
    rows_total: int
    objects_total: int
    seen: SystemStatus

    @property
    def objects(self) -> Objects:
        """The status of each object."""
        return self.seen.objects


def read_progress(
    client: ShardClient, where: ApplicationAddress, feed: Feed, objects_total: int, clock: Clock
) -> DemoProgress:
    """Read the present progress.

    Args:
        client: Of the location.
        where: The application.
        feed: Lands the days.
        objects_total: Number of objects of the project.
        clock: Of the process.

    Raises:
        ShardError: The location or the application does not answer.
    """
    rows = live_count(client.state(FLIGHTS)) if client.exists(FLIGHTS) else 0
    seen = fetch_status(where, clock.now_ms())
    days = feed.landed_days, len(feed.days)
    return DemoProgress(clock.elapsed_ms(), *days, rows, feed.rows, objects_total, seen)


def last_arrival_ms(client: ShardClient, feed: Feed, tables: Iterable[str]) -> int | None:
    """Time of the last row of any of `tables`; None until all landed flights are in the shard."""
    if live_count(client.state(FLIGHTS)) != feed.landed_rows:
        return None
    return max(last_update(client.state(table)) or 0 for table in tables)


def settled_time(objects: Objects, time: int) -> int | None:
    """The last time that every object has settled, if it is `time` or later; else None.

    Not `time` itself: that may be so long ago that a shard cannot be read at it any more.
    """
    uppers = [one.write_frontier for one in objects if not one.finished]
    settled = min((0 if upper is None else upper) - 1 for upper in uppers)
    return settled if settled >= time else None


class ProgressDisplay:
    """A thread that shows the progress: a table that changes, or plain lines.

    Use it as a context manager. A read can fail while a store does not answer: the last progress is
    shown again, and the statuses of the objects say what is wrong.
    """

    def __init__(
        self,
        console: Console,
        clock: Clock,
        standing: Callable[[], DemoProgress],
        interval_ms: float,
    ) -> None:
        """Prepare to show the progress.

        Args:
            console: Takes the output.
            clock: Of the process.
            standing: Reads the progress.
            interval_ms: Time between two reads.
        """
        self._console = console
        self._clock = clock
        self._standing = standing
        self._interval_ms = interval_ms
        self._thread = BackgroundThread("progress", self._run)
        self._stop = self._thread.stopping
        self._before: DemoProgress | None = None
        self._now: DemoProgress | None = None
        self._started_ms = clock.elapsed_ms()

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, after showing the last progress."""
        self._thread.stop()

    def _run(self) -> None:
        if not self._console.is_terminal:
            while self._look():
                self._console.print(self.line(), soft_wrap=True)
            return
        with Live(console=self._console, auto_refresh=False) as live:
            while self._look():
                live.update(self.view(), refresh=True)

    def _look(self) -> bool:
        """Wait for the interval, then read the progress; False once stopped."""
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
        """The newest progress in one line, with the objects that are not up to date."""
        now = self._now
        assert now is not None
        flights = f"{FLIGHTS} {now.rows:,} rows"
        if self._before is not None and now.rows > self._before.rows:
            flights += f" ({self._rate(self._before, now):,}/s)"
        parts = [f"{self._elapsed_s(now):4} s  day {now.days}/{now.days_total}", flights]
        good = [one for one in now.objects if one.tone in ("good", "idle")]
        parts.append(f"{len(good)} of {now.objects_total} objects fresh")
        parts += [f"{o.name} {o.verdict}" for o in now.objects if o not in good]
        return " | ".join(parts)

    def view(self) -> RenderableType:
        """The newest progress as a bar with an end, above the table of objects."""
        now = self._now
        assert now is not None
        before = None if self._before is None else self._before.seen
        good = sum(one.tone in ("good", "idle") for one in now.objects)
        bars = Table.grid(padding=(0, 2))
        for what, done, whole in (
            ("days arrived", now.days, now.days_total),
            ("flights in", now.rows, now.rows_total),
            ("objects fresh", good, now.objects_total),
        ):
            bar = ProgressBar(total=max(whole, 1), completed=done, width=_BAR_WIDTH)
            bars.add_row(what, bar, f"{done:,} of {whole:,}")
        above = Group(Text(f"after {age(self._elapsed_s(now) * 1000)}"), bars, Text())
        width, height = self._console.size
        return status_table(now.seen, width=width, height=height, before=before, above=above)

    def _elapsed_s(self, now: DemoProgress) -> int:
        return int((now.at_ms - self._started_ms) / 1000)

    @staticmethod
    def _rate(before: DemoProgress, now: DemoProgress) -> int:
        return int((now.rows - before.rows) * 1000 / max(now.at_ms - before.at_ms, 1.0))


class FailureWatch:
    """Notices an object that needs attention and does not recover."""

    def __init__(self, clock: Clock) -> None:
        """Begin without any failed object."""
        self._clock = clock
        self._since: dict[str, float] = {}

    def check(self, objects: Objects) -> ObjectStatus | None:
        """The object that has been in need of a person for too long; None if none has."""
        now_ms = self._clock.elapsed_ms()
        bad = {one.name: one for one in objects if one.verdict in FAILED_VERDICTS}
        self._since = {name: self._since.get(name, now_ms) for name in bad}
        for name, since_ms in self._since.items():
            if now_ms - since_ms > _PATIENCE_MS:
                return bad[name]
        return None
