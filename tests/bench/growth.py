"""Measures how the step of a view grows with what changes, and with what does not.

The view is a join and a GROUP BY over orders and their customers, a hundredth as many. In each
round some orders get another price: their rows go, and come again. Two views of the query take the
same changes in turns, one that follows them and one that runs its query anew and compares. Then the
names of some customers change, of whom each has a hundred orders: these are looked up by customer,
in rows that are arranged once. A step is all that a micro-batch does, the commit included, but for
Spark's planning of the micro-batch.

    share       a share of the orders changes, against the query run anew
    rows        1,000 orders change, among more and more of them
    memory      of the driver, for rows that are arranged: that of itself, and with mapped files

The rows of many orders are arranged in the background, while steps scan: it is waited for.
"""

from __future__ import annotations

import gc
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from bench.orders import Orders
from bench.rounds import Measured, alternate
from bench.views import Followed
from bench.world import World
from shardline.datasource.clock import Clock
from support.waiting import wait_until

__all__ = ["measure_growth"]

_SHARES: Final = ((0.0001, 50.0), (0.001, 30.0), (0.01, 5.0))
"""Shares of the orders that change in a step, and how often it is to fit into one run anew."""

_ANEW_MOST: Final = 10_000_000
"""Among more orders the query is not run anew: that takes a minute."""

_GROWS_AIM: Final = 1.3
"""A step's time among the most orders, over that among the fewest: at most."""

_MEMORY_AIM_MIB: Final = 1536.0
_CHANGED: Final = 1_000
_RENAMED: Final = 100

_ARRANGED_S: Final = 300.0
"""How long the orders may take to be arranged."""

_WARM: Final = 4
"""Steps of each kind before those that are measured: kept plans are proved in the second one."""


def measure_growth(
    spark: SparkSession, clock: Clock, place: Path, sizes: Sequence[int], rounds: int
) -> list[Measured]:
    """Milliseconds of steps, among each number of orders.

    Args:
        spark: The session.
        clock: Of the process.
        place: Where shards are made, and removed.
        sizes: Numbers of orders, ascending.
        rounds: Steps of each kind that are measured, after those that warm up.
    """
    lines: list[Measured] = []
    fewest: dict[str, float] = {}
    compared = max((size for size in sizes if size <= _ANEW_MOST), default=None)
    for size in sizes:
        folder = place / f"growth-{size}"
        before = _resident_mib()
        orders = Orders(size)
        world = World(spark, folder, orders.customers(), orders.orders())
        follows = world.view("incremental")
        found = {}
        changes: dict[str, Callable[[], object]] = {
            f"{_CHANGED:,} prices": partial(_change_prices, world, orders, _CHANGED),
            f"{_RENAMED} names": partial(_change_names, world, orders),
        }
        for what, change in changes.items():
            cases: dict[str, Callable[[], object]] = {
                "news": change,
                "changes": partial(world.step, follows),
            }
            if what.endswith("names"):
                lines += _arrange(world, orders, clock, partial(world.step, follows))
            alternate(clock, _WARM, cases)
            found[what] = alternate(clock, rounds, cases)["changes"] * 1000.0
        for what, taken in found.items():
            ratio = taken / fewest.setdefault(what, taken)
            name = f"growth, {size:,} rows, {what}: changes"
            # More is worse: the aim is a greatest value, in the table as a time.
            lines.append(Measured(name, taken, "ms", ratio, most=fewest[what] * _GROWS_AIM))
            _say(lines[-1])
        if size == compared:
            lines += _against_anew(world, orders, follows, clock, rounds)
        gc.collect()
        own, mapped = (now - then for now, then in zip(_resident_mib(), before, strict=True))
        lines += [
            Measured(f"growth, {size:,} rows: memory", own, "MiB", most=_MEMORY_AIM_MIB),
            Measured(f"growth, {size:,} rows: mapped files", mapped, "MiB"),
        ]
        shutil.rmtree(folder, ignore_errors=True)
    return lines


def _against_anew(
    world: World, orders: Orders, follows: Followed, clock: Clock, rounds: int
) -> list[Measured]:
    lines = []
    anew = world.view("recompute")
    for share, aim in _SHARES:
        count = int(orders.count * share)
        cases: dict[str, Callable[[], object]] = {
            "news": partial(_change_prices, world, orders, count),
            "anew": partial(world.step, anew),
            "changes": partial(world.step, follows),
        }
        alternate(clock, 1, cases)
        taken = alternate(clock, rounds, cases)
        what = f"growth, {orders.count:,} rows, {share:.2%} of prices"
        ratio = taken["anew"] / taken["changes"]
        lines += [
            Measured(f"{what}: anew", taken["anew"] * 1000.0, "ms"),
            Measured(f"{what}: changes", taken["changes"] * 1000.0, "ms", ratio, aim),
        ]
        for line in lines[-2:]:
            _say(line)
    return lines


def _change_prices(world: World, orders: Orders, count: int) -> None:
    world.replace("orders", *orders.change_prices(count))


def _change_names(world: World, orders: Orders) -> None:
    world.replace("customers", *orders.change_names(_RENAMED))


def _arrange(
    world: World, orders: Orders, clock: Clock, step: Callable[[], object]
) -> list[Measured]:
    """Let names change until the orders are arranged by customer; how long that takes."""
    wanted = ("orders", ("customer",))
    began = clock.elapsed_ms()
    _change_names(world, orders)
    step()
    stepped = clock.elapsed_ms() - began
    wait_until("orders are arranged", lambda: wanted in world.arranged(), _ARRANGED_S)
    taken = clock.elapsed_ms() - began
    name = f"growth, {orders.count:,} rows: arranged"
    lines = [Measured(name, taken, "ms"), Measured(f"{name}, the step", stepped, "ms")]
    for line in lines:
        _say(line)
    return lines


def _resident_mib() -> tuple[float, float]:
    """Memory of this process in MiB: its own, and that of files that are mapped."""
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssFile", "RssShmem"):
            found[name] = int(value.split()[0]) / 1024.0
    return found["RssAnon"], found["RssFile"] + found["RssShmem"]


def _say(line: Measured) -> None:
    ratio = "" if line.ratio is None else f" ({line.ratio:.2f})"
    print(f"{line.name}: {line.value:,.0f} {line.unit}{ratio}", file=sys.stderr)
