"""The feed lands one CSV file of flights per day in a folder that Spark watches.

A file appears whole or not at all: it is written elsewhere on the same file system, synced, and
moved. It is named by its day, and its content is the package's own lines, byte for byte (no field
of them contains a line break). So landing a day again, after a crash at any point, changes nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from shardline.app.demo.place import Place
from shardline.datasource.background import BackgroundThread
from shardline.datasource.clock import Clock

__all__ = ["Day", "Feed", "land", "landed", "split"]

_log = logging.getLogger(__name__)

_FIRST_PAUSE_MS: Final = 1000.0
"""Between two days that arrive while the objects start."""


@dataclass(frozen=True, slots=True)
class Day:
    """The flights of one day.

    Attributes:
        name: `2013-01-05`.
        content: A CSV file with a header.
        rows: Lines without the header.
    """

    name: str
    content: bytes
    rows: int


def split(file: Path, days: int) -> tuple[Day, ...]:
    """Split the flights in `file` by day; returns the first `days` of them, in order."""
    header, *lines = file.read_bytes().splitlines(keepends=True)
    by_day: dict[tuple[int, ...], list[bytes]] = {}
    for line in lines:
        year, month, day, _ = line.split(b",", 3)
        by_day.setdefault((int(year), int(month), int(day)), []).append(line)
    return tuple(
        Day("{:04}-{:02}-{:02}".format(*date), header + b"".join(by_day[date]), len(by_day[date]))
        for date in sorted(by_day)[:days]
    )


def landed(place: Place) -> list[str]:
    """Names of the days that have arrived, in order."""
    return sorted(path.stem for path in place.landing.glob("*.csv"))


def land(day: Day, place: Place) -> bool:
    """Land a day; False if it has landed before."""
    target, staged = place.landing / f"{day.name}.csv", place.staging / f"{day.name}.csv"
    if target.exists():
        return False
    with staged.open("wb") as file:
        file.write(day.content)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(target)
    return True


class Feed:
    """A thread that lands days, a few at first and then at a steady pace.

    The first ones arrive while Spark and the objects start, one a second and at most half of them:
    something moves right away, and there is something to follow once the views are up. `go_on` sets
    the pace. Use it as a context manager: it lands from the begin of the block to its end.

    Attributes:
        days: All days, in order.
        had_to_land: True if one of them had not landed yet when the feed was made.
        landed_days: Number of days that have landed.
        landed_rows: Number of their flights.
    """

    def __init__(
        self, days: Sequence[Day], place: Place, days_per_second: float, clock: Clock
    ) -> None:
        """Prepare to land those of `days` that have not landed yet.

        Args:
            days: All days, in order.
            place: Has the folders.
            days_per_second: The pace, > 0.
            clock: Of the process.
        """
        self._place = place
        self._pause_ms = 1000.0 / days_per_second
        self._clock = clock
        self._thread = BackgroundThread("feed", self._run)
        self._going_on = self._thread.wake
        there = set(landed(place))
        self.days = tuple(days)
        self._todo = [day for day in days if day.name not in there]
        self.had_to_land = bool(self._todo)
        self.landed_days = len(self.days) - len(self._todo)
        self.landed_rows = sum(day.rows for day in self.days if day.name in there)

    @property
    def finished(self) -> bool:
        """True if every day has arrived."""
        return self.landed_days == len(self.days)

    @property
    def rows(self) -> int:
        """Number of flights of all days."""
        return sum(day.rows for day in self.days)

    def __enter__(self) -> Self:
        """Start landing the first days."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop landing, and wait for the file under way."""
        self._thread.stop()

    def go_on(self) -> None:
        """Land the others, at the pace; idempotent."""
        self._going_on.set()

    def wait(self, timeout_ms: float) -> bool:
        """Wait until every day has arrived; False after `timeout_ms`, or when landing failed.

        Raises:
            Exception: As it was raised by the thread, such as an `OSError`.
        """
        self._thread.join(timeout_ms)
        if self._thread.error is not None:
            raise self._thread.error
        return self.finished

    def _run(self) -> None:
        for number, day in enumerate(self._todo):
            if 2 * number >= len(self._todo):
                # Also set by the end of the thread, so this wait has one.
                self._going_on.wait()
            if self._thread.stopping.is_set():
                return
            land(day, self._place)
            self.landed_rows += day.rows
            self.landed_days += 1
            _log.debug("landed", extra={"context": {"day": day.name, "rows": day.rows}})
            self._pause()

    def _pause(self) -> None:
        if self._going_on.is_set():
            self._clock.wait(self._thread.stopping, self._pause_ms)
        else:
            self._clock.wait(self._going_on, max(self._pause_ms, _FIRST_PAUSE_MS))
