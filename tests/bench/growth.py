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
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.rounds import Measured, alternate
from bench.views import Followed, described, first_contents
from shardline.app.compute.index.shard_lookups import arranged_keys
from shardline.app.protocol.objects import Strategy
from shardline.datasource.clock import Clock
from support.spark.views import Bench, Input
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
_ORDERS_EACH: Final = 100
"""Orders of a customer."""

_ARRANGED_S: Final = 300.0
"""How long the orders may take to be arranged."""

_PIECE: Final = 1_000_000
"""Rows of an append of the first contents."""

_WARM: Final = 4
"""Steps of each kind before those that are measured: kept plans are proved in the second one."""

_ORDERS: Final = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("price", pa.int64())])
_CUSTOMERS: Final = pa.schema([("id", pa.int64()), ("name", pa.string()), ("region", pa.int64())])

_QUERY: Final = (
    "SELECT c.name, c.region, count(*) AS n, sum(o.price) AS total "
    "FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.name, c.region"
)


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
    for orders in sizes:
        folder = place / f"growth-{orders}"
        before = _resident_mib()
        world = _World(spark, folder, orders)
        follows = world.view("incremental")
        found = {}
        changes: dict[str, Callable[[], object]] = {
            f"{_CHANGED:,} prices": partial(world.change_prices, _CHANGED),
            f"{_RENAMED} names": world.change_names,
        }
        for what, change in changes.items():
            cases: dict[str, Callable[[], object]] = {
                "news": change,
                "changes": partial(world.step, follows),
            }
            if change == world.change_names:
                lines += world.arrange(clock, partial(world.step, follows))
            alternate(clock, _WARM, cases)
            found[what] = alternate(clock, rounds, cases)["changes"] * 1000.0
        for what, taken in found.items():
            ratio = taken / fewest.setdefault(what, taken)
            name = f"growth, {orders:,} rows, {what}: changes"
            # More is worse: the aim is a greatest value, in the table as a time.
            lines.append(Measured(name, taken, "ms", ratio, most=fewest[what] * _GROWS_AIM))
            _say(lines[-1])
        if orders == compared:
            lines += _against_anew(world, follows, clock, rounds)
        gc.collect()
        own, mapped = (now - then for now, then in zip(_resident_mib(), before, strict=True))
        lines += [
            Measured(f"growth, {orders:,} rows: memory", own, "MiB", most=_MEMORY_AIM_MIB),
            Measured(f"growth, {orders:,} rows: mapped files", mapped, "MiB"),
        ]
        shutil.rmtree(folder, ignore_errors=True)
    return lines


def _against_anew(world: _World, follows: Followed, clock: Clock, rounds: int) -> list[Measured]:
    lines = []
    anew = world.view("recompute")
    for share, aim in _SHARES:
        count = int(world.orders * share)
        cases: dict[str, Callable[[], object]] = {
            "news": partial(world.change_prices, count),
            "anew": partial(world.step, anew),
            "changes": partial(world.step, follows),
        }
        alternate(clock, 1, cases)
        taken = alternate(clock, rounds, cases)
        what = f"growth, {world.orders:,} rows, {share:.2%} of prices"
        ratio = taken["anew"] / taken["changes"]
        lines += [
            Measured(f"{what}: anew", taken["anew"] * 1000.0, "ms"),
            Measured(f"{what}: changes", taken["changes"] * 1000.0, "ms", ratio, aim),
        ]
        for line in lines[-2:]:
            _say(line)
    return lines


class _World:
    """Orders and customers as shards, whose prices and names change."""

    def __init__(self, spark: SparkSession, folder: Path, orders: int) -> None:
        self.orders = orders
        self._bench = Bench(spark, str(folder / "lake"), folder / "checkpoints")
        self._session = spark.newSession()
        self._draw = np.random.default_rng(7)
        customers = orders // _ORDERS_EACH
        self._customer = self._draw.integers(0, customers, orders)
        self._price = self._draw.integers(1, 1000, orders)
        self._named = np.zeros(customers, np.int64)
        self._inputs = {
            "customers": self._bench.input("customers", _CUSTOMERS),
            "orders": self._bench.input("orders", _ORDERS),
        }
        everybody = np.arange(customers)
        self._append("customers", [(self._names(everybody), 1)], 1)
        for first in range(0, orders, _PIECE):
            rows = np.arange(first, min(first + _PIECE, orders))
            self._append("orders", [(self._rows(rows), 1)], self._inputs["orders"].upper + 1)
        self._settle()

    def view(self, strategy: Strategy) -> Followed:
        """A view that has its first contents."""
        description = described(self._bench, self._inputs.values(), _QUERY, strategy)
        upper = self._inputs["orders"].upper
        return first_contents(self._bench, self._session, description, upper)

    def step(self, followed: Followed) -> None:
        """Bring a view up to the news."""
        followed.step(self._session, self._inputs["orders"].upper)

    def arrange(self, clock: Clock, step: Callable[[], object]) -> list[Measured]:
        """Let names change until the orders are arranged by customer; how long that takes."""
        wanted = ("orders", ("customer",))
        began = clock.elapsed_ms()
        self.change_names()
        step()
        stepped = clock.elapsed_ms() - began
        wait_until("orders are arranged", lambda: wanted in self.arranged(), _ARRANGED_S)
        taken = clock.elapsed_ms() - began
        name = f"growth, {self.orders:,} rows: arranged"
        lines = [Measured(name, taken, "ms"), Measured(f"{name}, the step", stepped, "ms")]
        for line in lines:
            _say(line)
        return lines

    def arranged(self) -> Collection[tuple[str, tuple[str, ...]]]:
        """The shards and keys of which rows can be looked up."""
        return arranged_keys(self._bench.host.client)

    def change_prices(self, count: int) -> None:
        """So many orders get another price."""
        rows = self._draw.choice(self.orders, count, replace=False)
        before = self._rows(rows)
        self._price[rows] += 1
        self._append("orders", [(before, -1), (self._rows(rows), 1)], self._next())
        self._settle()

    def change_names(self) -> None:
        """Some customers get another name."""
        rows = self._draw.choice(len(self._named), _RENAMED, replace=False)
        before = self._names(rows)
        self._named[rows] += 1
        self._append("customers", [(before, -1), (self._names(rows), 1)], self._next())
        self._settle()

    def _next(self) -> int:
        return self._inputs["orders"].upper + 1

    def _settle(self) -> None:
        """Let both inputs have the same upper."""
        upper = max(found.upper for found in self._inputs.values())
        for found in self._inputs.values():
            if found.upper < upper:
                found.idle(upper)

    def _rows(self, rows: npt.NDArray[np.int64]) -> pa.Table:
        columns = {"id": rows, "customer": self._customer[rows], "price": self._price[rows]}
        return pa.table(columns, schema=_ORDERS)

    def _names(self, rows: npt.NDArray[np.int64]) -> pa.Table:
        names = [f"customer {row}, {self._named[row]}" for row in rows.tolist()]
        return pa.table({"id": rows, "name": names, "region": rows % 25}, schema=_CUSTOMERS)

    def _append(self, name: str, changes: Sequence[tuple[pa.Table, int]], until: int) -> None:
        found: Input = self._inputs[name]
        time = pa.scalar(until - 1, pa.int64())
        tables = []
        for rows, diff in changes:
            times = pa.repeat(time, rows.num_rows)
            diffs = pa.repeat(pa.scalar(diff, pa.int64()), rows.num_rows)
            tables.append(rows.append_column("_ts", times).append_column("_diff", diffs))
        found.append_table(pa.concat_tables(tables), until)


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
