"""Measures what one open page costs the demo while it streams, with the page and without, in turns.

The demo's project runs over its own files, whose days arrive at a pace that outlasts all windows. A
page is a connection that follows what the first screen follows (`pages`), from a process that is
not counted. CPU is that of the driver, of the JVM and of all that they have started; and, apart,
that of the driver's Python, which serves the page and is the only part that does.

What a streaming application takes differs from window to window by more than a page costs. So each
round has both, every other one in the opposite order, since the JVM still becomes quicker; and a
line is the median of its windows.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.pages import watching
from bench.processes import cpu_seconds, processes
from bench.rounds import Measured
from bench.runtime import PATIENCE_MS, Bench, application_pids
from bench.runtime_watch import Watch
from shardline.app.coordinator.application import Application
from shardline.app.demo.data import FLIGHTS, unpack
from shardline.app.demo.feed import Feed, split
from shardline.app.demo.flights import apply_project, load_project
from shardline.app.demo.place import Place
from shardline.app.protocol.objects import ViewDescription
from shardline.app.server.application_server import serve_application
from shardline.app.server.discovery import ApplicationAddress
from shardline.app.settings.config import RuntimeSettings
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate

__all__ = ["Share", "compare", "measure_demo", "turns"]

_DAYS: Final = 365

_MOST: Final = 2.0
"""Per cent of a core that one page may cost."""

_TURN_MS: Final = 3_000.0
"""Longest time that a page may take to open, between two windows."""


class Share(NamedTuple):
    """CPU of one window, in per cent of a core: of the whole application, and of its Python."""

    whole: float
    python: float


def measure_demo(bench: Bench, rounds: int) -> list[Measured]:
    """CPU of the demo with one open page against that without, in turns."""
    lasts_ms = bench.warm_ms + 2 * rounds * (bench.window_ms + _TURN_MS)
    # Half of the days may have arrived while the objects start.
    pace = _DAYS / 2 / (lasts_ms / 1000.0)
    shares: dict[int, list[Share]] = {0: [], 1: []}
    with bench.folder() as folder, _streaming(bench, folder, pace) as (feed, where):
        bench.wait(bench.warm_ms)
        for number in turns(rounds):
            with watching(where.url, where.token, number) as watchers:
                shares[number].append(_share(bench, watchers))
        assert not feed.finished, "the last windows were those of an application at rest"
    return compare(f"demo, {pace:.1f} days/s", shares)


def turns(rounds: int) -> Iterator[int]:
    """How many pages are open in each window: none and one, or one and none, in each round."""
    for number in range(rounds):
        yield from (0, 1) if number % 2 == 0 else (1, 0)


def compare(name: str, shares: Mapping[int, Sequence[Share]]) -> list[Measured]:
    """The lines of windows by the number of open pages: medians, and the ratio of both."""
    alone, watched = (
        Share(*(median(part) for part in zip(*shares[number], strict=True))) for number in (0, 1)
    )
    unit = "% of a core"
    more = max(watched.python - alone.python, 0.0)
    return [
        Measured(f"{name}, no page: all of it", alone.whole, unit),
        Measured(
            f"{name}, one open page: all of it", watched.whole, unit, watched.whole / alone.whole
        ),
        Measured(f"{name}, no page: the driver's Python", alone.python, unit),
        Measured(
            f"{name}, one open page: the driver's Python",
            watched.python,
            unit,
            watched.python / alone.python,
        ),
        Measured("one open page: more of the driver's Python", more, unit, most=_MOST),
    ]


@contextmanager
def _streaming(
    bench: Bench, folder: Path, pace: float
) -> Iterator[tuple[Feed, ApplicationAddress]]:
    """The demo, served, once all of its views follow; days arrive at `pace` a second.

    Raises:
        Determinate: The views do not follow.
    """
    data, location = folder / "data", str(folder / "shards")
    client, outside = (ShardClient.open(location) for _ in range(2))
    place = Place(data, client.location.id)
    unpack(place.source)
    place.make()
    resolved = load_project(place).check(bench.spark)
    views = [n for n, one in resolved.descriptions.items() if isinstance(one, ViewDescription)]
    days = split(place.source / f"{FLIGHTS}.csv", _DAYS)
    settings = RuntimeSettings()
    with (
        Application(bench.spark, client, settings, data=data) as application,
        serve_application(application, settings, data) as where,
        Feed(days, place, pace, bench.clock) as feed,
        Watch(outside, bench.clock, views) as watch,
    ):
        began_ms = bench.clock.now_ms()
        apply_project(application, place, resolved)
        if not watch.until(began_ms, PATIENCE_MS):
            raise Determinate(
                f"after {PATIENCE_MS / 1000:.0f} s the demo's views are at {watch.least()} only",
                code="NOT_RUNNING",
                hint="a machine with more cores",
            )
        watch.stop()
        feed.go_on()
        yield feed, where


def _share(bench: Bench, without: Collection[int]) -> Share:
    """CPU of one window; `without` are processes that are no part of the application."""
    before, began = processes(), bench.clock.elapsed_ms()
    bench.wait(bench.window_ms)
    after, seconds = processes(), (bench.clock.elapsed_ms() - began) / 1000.0
    sums = [
        100.0 * (cpu_seconds(after, pids) - cpu_seconds(before, pids)) / seconds
        for pids in (application_pids(after, without), {os.getpid()})
    ]
    return Share(*sums)
