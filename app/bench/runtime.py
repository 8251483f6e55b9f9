"""What a whole application costs: freshness of views, rest, start, and being watched.

    fresh       from a row's making until it is readable in a view, by the number of views and rate
    rest        CPU of an application with nothing to do
    many        how long fifty objects take to run, the first time and again
    watched     the same load with introspection and without, in turns

Each runs real applications over a location of their own. CPU is that of this process and all that
it has started: the driver, the JVM, planners and workers.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, Final

from pyspark.sql import SparkSession

from app.application import Application
from app.bench.processes import (
    below,
    compiler_seconds,
    cpu_seconds,
    is_java,
    own_seconds,
    processes,
)
from app.bench.rounds import Measured, quantile
from app.bench.runtime_load import STAMP, STAMPED, Load, resting, streaming
from app.bench.runtime_watch import Watch, freshness, stamps_of, unreadable
from app.config import RuntimeSettings
from app.project.project import Project
from datasource.client import ShardClient
from datasource.clock import Clock
from datasource.errors import Determinate

__all__ = ["Bench", "measure_fresh", "measure_many", "measure_rest", "measure_watched"]

_PATIENCE_MS: Final = 240_000.0
"""How long an application may take to run before the measurement is given up."""

_LATE_MS: Final = 20_000.0
"""How long after the window rows may still become readable; a row that has not counts as it is."""

_FRESH_MOST, _FRESH_VIEWS, _FRESH_RATE = 1500.0, 8, 1000
_OVERHEAD_MOST: Final = 3.0

_WATCHING: Final = "introspection"
"""So the names of all threads of introspection begin."""

_MANY: Final = 50

_numbers = count()


@dataclass(frozen=True, slots=True)
class Bench:
    """Where it is measured.

    Attributes:
        spark: The session of all applications.
        clock: The machine's.
        place: Folder for the locations.
        window_ms: How long a load is measured.
        warm_ms: How long it runs before that. The start is behind then; the JVM goes on to compile
            for some minutes more, which takes up to a third of what is measured.
    """

    spark: SparkSession
    clock: Clock
    place: Path
    window_ms: float
    warm_ms: float

    def folder(self) -> Path:
        """A new folder."""
        folder = self.place / f"runtime-{next(_numbers)}"
        folder.mkdir(parents=True)
        return folder

    @contextmanager
    def running(
        self, load: Load, folder: Path, **settings: Any
    ) -> Iterator[tuple[Watch, ShardClient, float]]:
        """An application with `load`, all of whose views have followed beyond its start.

        Args:
            settings: Of the runtime, where they are not what they are by default.

        Yields:
            What looks at the views, a client, and the seconds from `apply` until there.

        Raises:
            Determinate: The views do not follow.
        """
        given = RuntimeSettings(**settings)
        own, outside = (ShardClient.open(str(folder / "shards")) for _ in range(2))
        resolved = Project.parse({"load.sql": load.sql}).check(self.spark)
        with (
            Application(self.spark, own, given, data=folder / "data") as application,
            Watch(outside, self.clock, load.views) as watch,
        ):
            began_ms, began = self.clock.now_ms(), self.clock.elapsed_ms()
            application.apply(resolved)
            if not watch.until(began_ms, _PATIENCE_MS):
                raise Determinate(
                    f"after {_PATIENCE_MS / 1000:.0f} s the views are at {watch.least()} only",
                    code="NOT_RUNNING",
                    hint="fewer of them, or a machine with more cores",
                )
            yield watch, outside, (self.clock.elapsed_ms() - began) / 1000.0

    def wait(self, pause_ms: float) -> None:
        """Let time pass."""
        self.clock.wait(threading.Event(), pause_ms)


@dataclass(frozen=True, slots=True)
class _Window:
    """What a load did in a window: milliseconds of each row and view, CPU, rows, seconds.

    Attributes:
        unreadable: Of `took_ms` so many rows were not readable even in the end.
        compiling: So much of `cpu_seconds` the JVM has compiled.
        watching: So much of it introspection's own threads have used.
    """

    took_ms: Sequence[float]
    unreadable: int
    cpu_seconds: float
    compiling: float
    watching: float
    rows: int
    seconds: float

    @property
    def cores(self) -> float:
        return self.cpu_seconds / self.seconds

    @property
    def working(self) -> float:
        """CPU seconds without the compiler's: that is over one day."""
        return self.cpu_seconds - self.compiling


def _window(bench: Bench, load: Load, rate: int, **settings: Any) -> _Window:
    """Run a load until it is warm, and then for a window."""
    folder, clock = bench.folder(), bench.clock
    with bench.running(load, folder, **settings) as (watch, client, _):
        bench.wait(bench.warm_ms)
        first, began = clock.now_ms(), clock.elapsed_ms()
        before = _cpu()
        bench.wait(bench.window_ms)
        last, seconds = clock.now_ms(), (clock.elapsed_ms() - began) / 1000.0
        used, compiling, own = (now - then for now, then in zip(_cpu(), before, strict=True))
        stamps = stamps_of(client, STAMPED, STAMP, first, last)
        watch.until(max(stamps, default=last), _LATE_MS)
        ended_ms = clock.now_ms()
        looks = {name: watch.passed(name) for name in load.views}
    shutil.rmtree(folder, ignore_errors=True)
    took = [ms for name in load.views for ms in freshness(stamps, looks[name], ended_ms)]
    left = sum(unreadable(stamps, looks[name]) for name in load.views)
    return _Window(took, left, used, compiling, own, int(rate * seconds), seconds)


def _cpu() -> tuple[float, float, float]:
    """CPU seconds so far of this process, all below it and the JVM above it.

    And how many of them are the JVM's compilers', and introspection's.
    """
    table = processes()
    # spark-submit is a JVM that has started this process; without it, the JVM is below.
    root = os.getppid() if is_java(os.getppid()) else os.getpid()
    pids = below(root, table)
    return cpu_seconds(table, pids), compiler_seconds(pids), own_seconds(_WATCHING)


def measure_fresh(bench: Bench, views: Sequence[int], rates: Sequence[int]) -> list[Measured]:
    """Freshness of rows in `views` views at `rates` rows a second, and what it costs."""
    lines = []
    for rate in rates:
        for number in views:
            window = _window(bench, streaming(number, rate), rate)
            what = f"{number} {'view' if number == 1 else 'views'}, {rate:,} rows/s"
            aimed = number == _FRESH_VIEWS and rate == _FRESH_RATE
            most = _FRESH_MOST if aimed else None
            lines += [
                Measured(f"{what}: fresh, p50", quantile(window.took_ms, 0.5), "ms", most=most),
                Measured(f"{what}: fresh, p95", quantile(window.took_ms, 0.95), "ms"),
                Measured(
                    f"{what}: not readable {_LATE_MS / 1000:.0f} s after the window",
                    100.0 * window.unreadable / max(len(window.took_ms), 1),
                    "% of rows",
                    most=0,
                ),
                Measured(f"{what}: CPU", window.cores, "cores"),
            ]
    return lines


def measure_rest(bench: Bench, objects: Sequence[int]) -> list[Measured]:
    """Cores that applications without news use, by the number of objects."""
    lines = []
    for number in objects:
        folder = bench.folder()
        load = _resting(folder, number)
        with bench.running(load, folder):
            bench.wait(bench.warm_ms)
            before, began = _cpu()[0], bench.clock.elapsed_ms()
            bench.wait(bench.window_ms)
            cores = (_cpu()[0] - before) * 1000.0 / (bench.clock.elapsed_ms() - began)
        lines.append(Measured(f"{load.objects} objects at rest: CPU", cores, "cores"))
        shutil.rmtree(folder, ignore_errors=True)
    return lines


def _resting(folder: Path, objects: int) -> Load:
    """Of few objects two are sources, of fifty thirty are views."""
    others = max(2, objects // 2 - 5)
    return resting(folder, objects - others, others)


def measure_many(bench: Bench) -> list[Measured]:
    """Seconds until all of many objects follow, at the first start and at the next."""
    folder = bench.folder()
    load = _resting(folder, _MANY)
    lines = []
    for what in ("first start", "next start"):
        with bench.running(load, folder) as (_, _, seconds):
            lines.append(Measured(f"{load.objects} objects, {what}: all follow", seconds, "s"))
    shutil.rmtree(folder, ignore_errors=True)
    return lines


def measure_watched(bench: Bench, views: int, rate: int, rounds: int) -> list[Measured]:
    """CPU for each row, and freshness, with introspection and without, in turns.

    Whatever runs first is at a disadvantage: the JVM compiles for minutes. So the order is the
    other way round every second time, what the compiler itself takes is left out, and the two of a
    round are compared with each other. An even number of `rounds` is fair to both. Sources do not
    change their pace, by which a row costs more or less.
    """
    load = streaming(views, rate)
    pace = {"interval_max": f"{RuntimeSettings().interval_ms}ms"}
    windows: dict[bool, list[_Window]] = {True: [], False: []}
    for number in range(rounds):
        for introspection in (False, True) if number % 2 == 0 else (True, False):
            window = _window(bench, load, rate, introspection=introspection, **pace)
            windows[introspection].append(window)
    lines = []
    for on, found in windows.items():
        what = f"{views} views, {rate:,} rows/s, {'watched' if on else 'not watched'}"
        took = [ms for window in found for ms in window.took_ms]
        working = geometric_mean(window.working / window.rows for window in found)
        lines += [
            Measured(f"{what}: CPU of 1,000 rows, no compiler", working * 1e6, "ms"),
            Measured(f"{what}: fresh, p50", quantile(took, 0.5), "ms"),
        ]
    own = [100.0 * window.watching / window.working for window in windows[True]]
    lines.append(Measured("watching's own threads", fmean(own), "% of CPU"))
    ratios = [on.working / off.working for on, off in zip(*windows.values(), strict=True)]
    for number, ratio in enumerate(ratios, 1):
        more = 100.0 * (ratio - 1.0)
        lines.append(Measured(f"watching costs, round {number}", more, "% of CPU"))
    more = 100.0 * (geometric_mean(ratios) - 1.0)
    lines.append(Measured("watching costs", more, "% of CPU", most=_OVERHEAD_MOST))
    return lines
