"""Measure: throughput, latency and cost against Spark's own; appends; planning.

    ./spark-submit.sh bench [GROUP …] [--only GROUP,…] [--scale 0.5] [--location URL]

Groups, each of which can be named alone:

    write       rows into a shard, by Arrow and natively, against Spark's Parquet sink
    read        batch reads: all columns, 2 of 16, a filter for half; against Spark's Parquet
    stream      the same as streams of several micro-batches, against Spark's file source
    floor       a micro-batch of one row, against Spark's rate-micro-batch
    visible     from the commit of one query until the next one has the row
    waiting     CPU time of a query without news
    queries     1, 4 and 16 queries at a trigger of 1 s
    planning    shards of 100, 10,000 and 100,000 parts; without Spark
    append      appends of one row, against the bare loop of the same store
    contend     the same by several processes
    open        opening a shard after many appends
    views       a step of a view that follows changes, against its query run anew
    maintain    what 10,000 appends of 100 rows leave: batches, rewritten bytes, reads

    tpch        the 22 queries of TPC-H as views under its refresh stream, against running them anew
    nexmark     the queries of Nexmark as views: events a second, beside Spark's own streaming
    growth      a join and GROUP BY over 1 and 10 million rows: a step, by what changes in them
    fresh       whole applications: from a row's making until it is readable in a view
    rest        CPU of an application with nothing to do
    many        how long fifty objects take to run, the first time and again
    watched     one application with introspection and without, in turns
    pages       CPU of an application for one open page and for twenty
    demo        CPU of the demo while it streams, with one open page and without, in turns

`source` is the first eight, all that `format("shard")` does. `runtime` is the last six. These,
`tpch`, `nexmark` and `growth` run for minutes each, and only when they are named. Prints a table
with the machine, the command and the date. Ratios are of one run, taken in turns.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from bench.appends import measure_appends, measure_contention, measure_opening
from bench.copies import Copies, lineitem, make_copies
from bench.demo import measure_demo
from bench.growth import measure_growth
from bench.latency import measure_floor, measure_visible
from bench.maintain import measure_maintenance
from bench.nexmark import chosen_queries, measure_nexmark
from bench.pages import measure_pages
from bench.planning import measure_planning
from bench.rounds import Measured
from bench.runtime import (
    Bench,
    measure_fresh,
    measure_many,
    measure_rest,
    measure_watched,
)
from bench.standing import measure_queries, measure_waiting
from bench.throughput import measure_read, measure_stream, measure_write
from bench.tpch import generated_tables, measure_tpch
from bench.views import measure_views
from bench.working_folder import working_folder
from shardline.app.cli.storage_options import add_option_argument, storage_options
from shardline.app.cli.tables import plain_table, utc
from shardline.app.spark_session import open_session
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import ShardError, unknown_name

__all__ = ["chosen", "main"]

_SOURCE = ("write", "read", "stream", "floor", "visible", "waiting", "queries", "planning")
_DEFAULT = (*_SOURCE, "append", "contend", "open", "views", "maintain")
_RUNTIME = ("fresh", "rest", "many", "watched", "pages", "demo")
_GROUPS = (*_DEFAULT, "tpch", "nexmark", "growth", *_RUNTIME)

_ORDERS = 2_000_000
"""Rows of a view's greatest input at scale 1."""

_WATCHED_VIEWS, _WATCHED_RATE = 2, 1000
"""Few enough that the sources keep one pace, watched or not: else CPU could not be compared."""

_WHOLE = frozenset({"rows/s", "appends/s", "events/s"})
"""Units whose values need no decimals."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default); the exit status."""
    given = _parser().parse_args(arguments)
    console = Console(highlight=False)
    try:
        groups = chosen([*given.groups, *(given.only or "").split(",")])
        with working_folder(given.folder) as folder:
            measured = _measure(given, groups, folder)
    except ShardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console.print(f"{utc(SystemClock().now_ms())} UTC, {_machine()}")
    console.print(f"./spark-submit.sh bench {shlex.join(sys.argv[1:])}\n")
    console.print(_table(measured))
    return 0


class _Run:
    """What groups share: the session, the data, a folder that is removed afterwards."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self._given = given
        self.clock = SystemClock()
        self.rounds: int = given.rounds
        self._folder = folder
        self.place = self._folder / "run"
        self.url = given.location or str(self.place / "appends")
        self.options = storage_options(given.option)

    @cached_property
    def spark(self) -> SparkSession:
        """The session, started when the first group needs it."""
        spark = open_session("shardline bench", {"spark.ui.showConsoleProgress": "false"})
        # A query that is stopped says ERROR; one that fails says so here, too.
        spark.sparkContext.setLogLevel("FATAL")
        return spark

    @cached_property
    def data(self) -> Path:
        """Where lineitem is."""
        return lineitem(self._folder, self._given.scale)

    @cached_property
    def tables(self) -> Path:
        """Where all tables of TPC-H are."""
        return generated_tables(self._folder, self._given.scale)

    @cached_property
    def copies(self) -> Copies:
        """It as Parquet and as a shard."""
        return make_copies(self.spark, self.data, self.place)

    def begin(self) -> None:
        """Make the folder anew."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)

    def end(self) -> None:
        """Stop the session and remove the folder."""
        if "spark" in self.__dict__:
            self.spark.stop()
        shutil.rmtree(self.place, ignore_errors=True)

    def group(self, name: str) -> list[Measured]:
        """What one group measures."""
        given, clock, place, rounds = self._given, self.clock, self.place, self.rounds
        measure: dict[str, Callable[[], list[Measured]]] = {
            "write": lambda: measure_write(self.spark, clock, self.data, place, rounds),
            "read": lambda: measure_read(self.spark, clock, self.copies, rounds),
            "stream": lambda: measure_stream(self.spark, self.copies, place, rounds),
            "floor": lambda: measure_floor(self.spark, clock, place, rounds),
            "visible": lambda: measure_visible(self.spark, clock, place),
            "waiting": lambda: measure_waiting(self.spark, clock, place, given.waiting * 1000.0),
            "queries": lambda: measure_queries(self.spark, clock, place),
            "planning": lambda: measure_planning(str(place / "planned")),
            "append": lambda: measure_appends(clock, self.url, self.options, given.appends, rounds),
            "contend": lambda: measure_contention(
                clock, self.url, self.options, 8, max(given.appends // 8, 1)
            ),
            "open": lambda: measure_opening(clock, self.url, self.options, given.opened),
            "views": lambda: measure_views(
                self.spark, clock, place, int(given.scale * _ORDERS), rounds
            ),
            "maintain": lambda: measure_maintenance(
                clock, self.url, self.options, given.opened, rounds
            ),
            "tpch": lambda: measure_tpch(self.spark, clock, self.tables, place, rounds),
            "nexmark": lambda: measure_nexmark(
                self.spark, clock, place, given.events, chosen_queries(given.queries)
            ),
            "growth": lambda: measure_growth(self.spark, clock, place, given.sizes, rounds),
            "fresh": lambda: measure_fresh(self._runtime, given.views, given.rates),
            "rest": lambda: measure_rest(self._runtime, given.objects),
            "many": lambda: measure_many(self._runtime),
            "watched": lambda: measure_watched(
                self._runtime, _WATCHED_VIEWS, _WATCHED_RATE, rounds
            ),
            "pages": lambda: measure_pages(self._runtime, rounds),
            "demo": lambda: measure_demo(self._runtime, rounds),
        }
        return measure[name]()

    @property
    def _runtime(self) -> Bench:
        given = self._given
        return Bench(self.spark, self.clock, self.place, given.window * 1000.0, given.warm * 1000.0)


def _measure(given: argparse.Namespace, groups: Sequence[str], folder: Path) -> list[Measured]:
    run = _Run(given, folder)
    run.begin()
    try:
        return [line for name in groups for line in run.group(name)]
    finally:
        run.end()


def _table(measured: Sequence[Measured]) -> object:
    table = plain_table("what", "value", "unit", "ratio", "aim", right=("value", "ratio", "aim"))
    for line in measured:
        table.add_row(
            line.name,
            _shown(line),
            line.unit,
            "" if line.ratio is None else f"{line.ratio:.2f}",
            _aim(line),
        )
    return table


def _shown(line: Measured) -> str:
    if line.unit in _WHOLE:
        return f"{line.value:,.0f}"
    return f"{line.value:,.1f}" if line.value >= 1 else f"{line.value:,.2f}"


def _aim(line: Measured) -> str:
    if line.aim is not None:
        return f"≥ {line.aim:.2f}"
    return "" if line.most is None else f"≤ {line.most:g} {line.unit}"


def _machine() -> str:
    """What ran it: cores, processor architecture, Python."""
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}"
    )


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The groups that `names` ask for, each once and in the order of the table.

    If none do: all but those of `runtime`.

    Raises:
        InvalidUsage: There is no such group.
    """
    wanted = set(_expanded(names))
    return tuple(name for name in _GROUPS if name in (wanted or _DEFAULT))


def _expanded(names: Sequence[str]) -> Iterator[str]:
    for name in (name.strip() for name in names):
        if name == "source":
            yield from _SOURCE
        elif name == "runtime":
            yield from _RUNTIME
        elif name in _GROUPS:
            yield name
        elif name:
            raise unknown_name("benchmark", name, ("source", "runtime", *_GROUPS))


def _counts(text: str) -> tuple[int, ...]:
    """Numbers separated by commas."""
    return tuple(int(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spark-submit.sh bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="what to measure")
    parser.add_argument("--only", help="the same, separated by commas")
    parser.add_argument("--scale", type=float, default=0.5, help="TPC-H scale factor")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each comparison")
    parser.add_argument("--appends", type=int, default=2000, help="appends per round")
    parser.add_argument("--opened", type=int, default=10_000, help="appends of open and maintain")
    parser.add_argument("--waiting", type=float, default=20.0, help="seconds that a query waits")
    parser.add_argument("--views", type=_counts, default=(1, 8, 32), help="of fresh: 1,8,32")
    parser.add_argument("--rates", type=_counts, default=(1000, 50_000), help="rows/s: 1000,50000")
    parser.add_argument("--objects", type=_counts, default=(10, 50), help="of rest: 10,50")
    parser.add_argument("--events", type=int, default=1_000_000, help="of nexmark")
    parser.add_argument(
        "--queries", type=_names, default=(), help="of nexmark: q0,q4; all without it"
    )
    parser.add_argument(
        "--sizes", type=_counts, default=(1_000_000, 10_000_000), help="rows of growth"
    )
    parser.add_argument("--window", type=float, default=20.0, help="seconds that a load is run")
    parser.add_argument("--warm", type=float, default=30.0, help="seconds that it runs before")
    parser.add_argument("--folder", default="data/bench", help="working folder")
    parser.add_argument("--location", help="where to append; default: in the working folder")
    add_option_argument(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
