"""Measures whole applications: freshness of views, rest, start, and being watched.

    fresh       from a row's making until it is readable in a view, by the number of views and rate
    rest        CPU of an application with nothing to do
    many        how long fifty objects take to run, the first time and again
    watched     one application while introspection watches it and while it does not, in turns

Each runs real applications over a location of their own. CPU is that of this process and all that
it has started: the driver, the JVM, planners and workers.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import log, sqrt
from pathlib import Path
from statistics import fmean, geometric_mean, stdev
from typing import Any, Final

from pyspark.sql import SparkSession

from bench.processes import (
    COMPILERS,
    SERVERS,
    Process,
    Threads,
    belonging,
    cpu_seconds,
    is_java,
    java_threads,
    own_threads,
    processes,
    used,
)
from bench.rounds import Measured, quantile
from bench.runtime_load import STAMP, STAMPED, Load, resting, streaming
from bench.runtime_watch import Watch, freshness, stamps_of, unreadable
from shardline.app.coordinator.application import Application
from shardline.app.project.project import Project
from shardline.app.settings.config import RuntimeSettings
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.errors import Determinate

__all__ = [
    "PATIENCE_MS",
    "Bench",
    "application_pids",
    "measure_fresh",
    "measure_many",
    "measure_rest",
    "measure_watched",
    "resting_load",
]

PATIENCE_MS: Final = 240_000.0
"""How long an application may take to run before the measurement is given up."""

_LATE_MS: Final = 20_000.0
"""How long after the window rows may still become readable; a row that has not counts as it is."""

_FRESH_MOST, _FRESH_VIEWS, _FRESH_RATE = 1500.0, 8, 1000
_OVERHEAD_MOST: Final = 3.0

_SETTLE_MS: Final = 3_000.0
"""What watches has begun, or has ended, and what it had begun is done."""

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

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A new folder, which is removed afterwards."""
        folder = self.place / f"runtime-{next(_numbers)}"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def running(self, load: Load, folder: Path, **settings: Any) -> Iterator[_Running]:
        """An application with `load`, all of whose views have followed beyond its start.

        Args:
            settings: Of the runtime, where they are not what they are by default.

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
            if not watch.until(began_ms, PATIENCE_MS):
                raise Determinate(
                    f"after {PATIENCE_MS / 1000:.0f} s the views are at {watch.least()} only",
                    code="NOT_RUNNING",
                    hint="fewer of them, or a machine with more cores",
                )
            seconds = (self.clock.elapsed_ms() - began) / 1000.0
            yield _Running(self, load, application, watch, outside, seconds)

    def wait(self, pause_ms: float) -> None:
        """Let time pass."""
        self.clock.wait(threading.Event(), pause_ms)


@dataclass(frozen=True, slots=True)
class _Running:
    """An application with a load.

    Attributes:
        watch: Looks at its views.
        client: One that is not the application's.
        seconds: From `apply` until all views had followed.
    """

    bench: Bench
    load: Load
    application: Application
    watch: Watch
    client: ShardClient
    seconds: float

    def window(self, rate: int) -> _Window:
        """Let it run for a window, in which each second `rate` rows are made."""
        clock = self.bench.clock
        first, began = clock.now_ms(), clock.elapsed_ms()
        used_since = _cpu()
        self.bench.wait(self.bench.window_ms)
        last, seconds = clock.now_ms(), (clock.elapsed_ms() - began) / 1000.0
        return _Window(first, last, used_since(), int(rate * seconds), seconds)

    def freshness(self, window: _Window) -> tuple[list[float], int]:
        """Milliseconds of each row of a window and view; how many never became readable."""
        stamps = stamps_of(self.client, STAMPED, STAMP, window.first_ms, window.last_ms)
        self.watch.until(max(stamps, default=window.last_ms), _LATE_MS)
        ended_ms = self.bench.clock.now_ms()
        looks = [self.watch.passed(name) for name in self.load.views]
        took = [ms for one in looks for ms in freshness(stamps, one, ended_ms)]
        return took, sum(unreadable(stamps, one) for one in looks)


@dataclass(frozen=True, slots=True)
class _Window:
    """A while of a load: when it was (ms since the epoch), CPU, rows, seconds."""

    first_ms: int
    last_ms: int
    cpu: _Cpu
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Cpu:
    """CPU seconds of this process, all below it and the JVM above it.

    Attributes:
        workers: Of `total`, those of processes that are neither the driver nor a JVM.
        compiling: Those of the JVM's compilers: what they take is over one day.
        watching: Those of introspection's own threads.
        serving: Those of the JVM's threads that Python calls, or that call listeners.
    """

    total: float
    workers: float
    compiling: float
    watching: float
    serving: float

    @property
    def working(self) -> float:
        """Without the compilers'."""
        return self.total - self.compiling


def application_pids(table: Mapping[int, Process], without: Collection[int] = ()) -> set[int]:
    """This process, all that it has started but for `without`, and the JVM above it."""
    # spark-submit is a JVM that has started this process; without it, the JVM is below.
    root = os.getppid() if is_java(os.getppid()) else os.getpid()
    return belonging(root, table, without)


def _cpu() -> Callable[[], _Cpu]:
    """What gives the CPU seconds used since now."""

    def look() -> tuple[float, float, list[Threads]]:
        table = processes()
        pids = application_pids(table)
        workers = [pid for pid in pids if pid != os.getpid() and not is_java(pid)]
        compilers, servers = (java_threads(pids, called) for called in (COMPILERS, SERVERS))
        groups = [compilers, own_threads(_WATCHING), servers]
        return cpu_seconds(table, pids), cpu_seconds(table, workers), groups

    total, workers, before = look()

    def since() -> _Cpu:
        total_now, workers_now, now = look()
        return _Cpu(total_now - total, workers_now - workers, *map(used, now, before))

    return since


def measure_fresh(bench: Bench, views: Sequence[int], rates: Sequence[int]) -> list[Measured]:
    """Freshness of rows in `views` views at `rates` rows a second, and what it costs."""
    lines = []
    for rate in rates:
        for number in views:
            load = streaming(number, rate)
            with bench.folder() as folder, bench.running(load, folder) as running:
                bench.wait(bench.warm_ms)
                window = running.window(rate)
                took, left = running.freshness(window)
            what = f"{number} {'view' if number == 1 else 'views'}, {rate:,} rows/s"
            aimed = number == _FRESH_VIEWS and rate == _FRESH_RATE
            most = _FRESH_MOST if aimed else None
            lines += [
                Measured(f"{what}: fresh, p50", quantile(took, 0.5), "ms", most=most),
                Measured(f"{what}: fresh, p95", quantile(took, 0.95), "ms"),
                Measured(
                    f"{what}: not readable {_LATE_MS / 1000:.0f} s after the window",
                    100.0 * left / max(len(took), 1),
                    "% of rows",
                    most=0,
                ),
                Measured(f"{what}: CPU", window.cpu.total / window.seconds, "cores"),
            ]
    return lines


def measure_rest(bench: Bench, objects: Sequence[int]) -> list[Measured]:
    """Cores that applications without news use, by the number of objects."""
    lines = []
    for number in objects:
        with bench.folder() as folder:
            load = resting_load(folder, number)
            with bench.running(load, folder) as running:
                # It looks at every view 40 times a second, which is no part of what rests.
                running.watch.stop()
                bench.wait(bench.warm_ms)
                used_since, began = _cpu(), bench.clock.elapsed_ms()
                bench.wait(bench.window_ms)
                cores = used_since().total * 1000.0 / (bench.clock.elapsed_ms() - began)
        lines.append(Measured(f"{load.objects} objects at rest: CPU", cores, "cores"))
    return lines


def resting_load(folder: Path, objects: int) -> Load:
    """A load with nothing to do: of few objects two are sources, of fifty thirty are views."""
    others = max(2, objects // 2 - 5)
    return resting(folder, objects - others, others)


def measure_many(bench: Bench) -> list[Measured]:
    """Seconds until all of many objects follow, at the first start and at the next."""
    lines = []
    with bench.folder() as folder:
        load = resting_load(folder, _MANY)
        for what in ("first start", "next start"):
            with bench.running(load, folder) as running:
                took = running.seconds
            lines.append(Measured(f"{load.objects} objects, {what}: all follow", took, "s"))
    return lines


def measure_watched(bench: Bench, views: int, rate: int, rounds: int) -> list[Measured]:
    """CPU for each row, and freshness, while introspection watches and while it does not, in turns.

    All of it is one application, whose sources do not change their pace: two applications that are
    equal differ by up to a quarter, by what the JVM has compiled and when micro-batches meet. The
    turns of every second round are the other way round, since what an application costs grows with
    what it has read; what the compiler takes is left out. An even number of `rounds` is fair to
    both.

    Windows still differ by more than the cost. So two more things are told: what the threads take
    that introspection uses, which differ little; and all CPU for each second of CPU of Python's
    workers. These read the sources, watched or not: they take more or less as the machine is slower
    or faster just then, and as one micro-batch more or less is in the window.
    """
    load = streaming(views, rate)
    pace = {"interval_max": f"{RuntimeSettings().interval_ms}ms"}
    windows: dict[bool, list[_Window]] = {True: [], False: []}
    took: dict[bool, list[float]] = {True: [], False: []}
    with bench.folder() as folder, bench.running(load, folder, **pace) as running:
        observing = running.application.feeds
        assert observing is not None, "introspection is on by default"
        bench.wait(bench.warm_ms)
        for number in range(rounds):
            for watched in (False, True) if number % 2 == 0 else (True, False):
                (observing.watch if watched else observing.pause)()
                bench.wait(_SETTLE_MS)
                window = running.window(rate)
                windows[watched].append(window)
                # Now: history is not kept until the last round.
                took[watched] += running.freshness(window)[0]
    lines = []
    for watched, found in windows.items():
        what = f"{views} views, {rate:,} rows/s, {'watched' if watched else 'not watched'}"
        working = geometric_mean(window.cpu.working / window.rows for window in found)
        lines += [
            Measured(f"{what}: CPU of 1,000 rows, no compiler", working * 1e6, "ms"),
            Measured(f"{what}: fresh, p50", quantile(took[watched], 0.5), "ms"),
        ]
    pairs = [(on.cpu, off.cpu) for on, off in zip(windows[True], windows[False], strict=True)]
    costs = {
        "threads that it uses": [
            (on.watching + on.serving - off.watching - off.serving) / off.working
            for on, off in pairs
        ],
        # Logarithms: a ratio's mean is too great by half of its variance.
        "all": [log(on.working / off.working) for on, off in pairs],
        "all, by that of workers": [
            log(on.working / on.workers * off.workers / off.working) for on, off in pairs
        ],
    }
    for what, shares in costs.items():
        mean = Measured(
            f"watching costs, {what}", 100.0 * fmean(shares), "% of CPU", most=_OVERHEAD_MOST
        )
        lines.append(mean)
        if rounds > 1:
            error = 200.0 * stdev(shares) / sqrt(rounds)
            lines.append(Measured("  two standard errors", error, "% of CPU"))
    return lines
