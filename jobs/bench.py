"""Measure: throughput against Spark's own Parquet, appends against the bare log, opening.

    ./spark-submit.sh bench [--only write,read,append,contend,open] [--scale 1] [--location URL]

Prints a table with the machine, the command and the date. Ratios are of one run, taken in turns.
Needs the generator of TPC-H data: `./spark-submit.sh setup --tests` installs it.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from app.bench.appends import measure_appends, measure_contention, measure_opening
from app.bench.rounds import Measured
from app.bench.throughput import lineitem, measure_read, measure_write
from app.session import open_session
from app.storage_options import add_option_argument, storage_options
from app.tables import plain_table, utc
from datasource.clock import SystemClock
from datasource.errors import ShardError, unknown_name

__all__ = ["main"]

_PARTS = ("write", "read", "append", "contend", "open")
_AS_TIME = frozenset({"ms"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default); the exit status."""
    given = _parser().parse_args(arguments)
    console = Console(highlight=False)
    try:
        chosen = _chosen(given.only)
        measured = _measure(given, chosen)
    except ShardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console.print(f"{utc(SystemClock().now_ms())} UTC, {_machine()}")
    console.print(f"./spark-submit.sh bench {shlex.join(sys.argv[1:])}\n")
    console.print(_table(measured))
    return 0


def _measure(given: argparse.Namespace, chosen: tuple[str, ...]) -> list[Measured]:
    clock = SystemClock()
    folder = Path(given.folder).resolve()
    place = folder / "run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    url = given.location or str(place / "appends")
    options = storage_options(given.option)
    found: list[Measured] = []
    try:
        if {"write", "read"} & {*chosen}:
            spark = open_session("shardline bench")
            data = lineitem(folder, given.scale)
            written = measure_write(spark, clock, data, place, given.rounds)
            found += written if "write" in chosen else []
            found += measure_read(spark, clock, place, given.rounds) if "read" in chosen else []
            spark.stop()
        if "append" in chosen:
            found += measure_appends(clock, url, options, given.appends, given.rounds)
        if "contend" in chosen:
            found += measure_contention(clock, url, options, 8, max(given.appends // 8, 1))
        if "open" in chosen:
            found += measure_opening(clock, url, options, given.opened)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return found


def _table(measured: Sequence[Measured]) -> object:
    table = plain_table("what", "value", "unit", "ratio", "aim", right=("value", "ratio", "aim"))
    for line in measured:
        table.add_row(
            line.name,
            f"{line.value:,.1f}" if line.unit in _AS_TIME else f"{line.value:,.0f}",
            line.unit,
            "" if line.ratio is None else f"{line.ratio:.2f}",
            "" if line.aim is None else f"{line.aim:.2f}",
        )
    return table


def _machine() -> str:
    """What ran it: cores, processor architecture, Python."""
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}"
    )


def _chosen(only: str | None) -> tuple[str, ...]:
    if only is None:
        return _PARTS
    names = tuple(name.strip() for name in only.split(","))
    for name in names:
        if name not in _PARTS:
            raise unknown_name("benchmark", name, _PARTS)
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spark-submit.sh bench", description=__doc__)
    parser.add_argument("--only", help=f"some of {','.join(_PARTS)}; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H scale factor")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each comparison")
    parser.add_argument("--appends", type=int, default=2000, help="appends per round")
    parser.add_argument("--opened", type=int, default=10_000, help="appends before opening")
    parser.add_argument("--folder", default="data/bench", help="working folder")
    parser.add_argument("--location", help="where to append; default: in the working folder")
    add_option_argument(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
