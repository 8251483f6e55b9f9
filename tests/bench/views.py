"""Measures a step of a view that follows changes, against one that runs its query anew.

Two views of one query, over the same inputs, take the same changes in turns; a step is all that a
micro-batch does with them, the commit included, but for Spark's planning of the micro-batch. Among
the new rows is one in each of ten shops that is dearer than all others, and goes with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import SparkSession

from bench.rounds import Measured, alternate
from shardline.app.compute.view.maintained_view import View
from shardline.app.project.project import Project
from shardline.app.protocol.objects import Strategy, ViewDescription
from shardline.datasource.clock import Clock
from shardline.datasource.spark_native.time_interval import Interval
from shardline.datasource.updates import stamp
from support.spark.views import Bench, Following, Input, no_fence

__all__ = ["WAYS", "Followed", "described", "first_contents", "measure_views"]

_START: Final = 10
_CUSTOMERS: Final = 10_000
_PRODUCTS: Final = 1_000
_SHOPS: Final = 10
_CHANGED: Final = 1_000
_DEAREST: Final = 1_000
_ORDERS: Final = pa.schema(
    [(name, pa.int64()) for name in ("id", "customer", "product", "shop", "price")]
)
_NAMED: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])

_QUERIES: Final = {
    "join of 3": (
        "SELECT o.id, c.name AS customer, p.name AS product, o.price FROM orders o "
        "JOIN customers c ON o.customer = c.id JOIN products p ON o.product = p.id"
    ),
    "left join": (
        "SELECT o.id, c.name AS customer, o.price FROM orders o "
        "LEFT JOIN customers c ON o.customer = c.id AND c.id % 2 = 0"
    ),
    "group by": (
        "SELECT customer, count(*) AS n, sum(price) AS total, avg(price) AS mean FROM orders "
        "GROUP BY customer HAVING count(*) > 1"
    ),
    "join, group by": (
        "SELECT c.name, p.name AS product, count(*) AS n, sum(o.price) AS total "
        "FROM orders o JOIN customers c ON o.customer = c.id JOIN products p ON o.product = p.id "
        "GROUP BY ALL"
    ),
    "first 10 of each shop": (
        "SELECT shop, id, price, place FROM (SELECT *, row_number() OVER (PARTITION BY shop "
        "ORDER BY price DESC, id) AS place FROM orders) WHERE place <= 10"
    ),
    "last of each customer, joined": (
        "SELECT c.name, o.price FROM (SELECT *, row_number() OVER (PARTITION BY customer ORDER BY "
        "id DESC) AS place FROM orders) o JOIN customers c ON o.customer = c.id WHERE o.place = 1"
    ),
    "sums of doubles, joined": (
        "SELECT c.name, t.total FROM (SELECT customer, sum(price / 2) AS total FROM orders "
        "GROUP BY customer) t JOIN customers c ON t.customer = c.id WHERE t.total > 100"
    ),
    "dearest of each shop": (
        "SELECT shop, count(*) AS n, max(price) AS dearest FROM orders GROUP BY shop"
    ),
}
WAYS: Final[Mapping[str, Strategy]] = {"anew": "recompute", "changes": "incremental"}


def measure_views(
    spark: SparkSession, clock: Clock, place: Path, orders: int, rounds: int
) -> list[Measured]:
    """Milliseconds of a step for 1,000 new rows among `orders`.

    The ratio says how often a step that follows changes fits into one that runs the query anew.
    """
    lines: list[Measured] = []
    for name, query in _QUERIES.items():
        world = _World(spark, place / name.replace(" ", "_"), orders)
        followed = [world.view(query, strategy) for strategy in WAYS.values()]
        steps: dict[str, Callable[[], object]] = {"news": world.add_news}
        steps |= {way: partial(world.step, view) for way, view in zip(WAYS, followed, strict=True)}
        alternate(clock, 1, steps)  # the first round compiles
        taken = alternate(clock, rounds, steps)
        what = f"view, {name}, {_CHANGED:,} of {orders:,} rows"
        times = {way: taken[way] * 1000.0 for way in WAYS}
        lines += [
            Measured(f"{what}: anew", times["anew"], "ms"),
            Measured(f"{what}: changes", times["changes"], "ms", times["anew"] / times["changes"]),
        ]
    return lines


@dataclass
class Followed:
    """A view, and how far its steps are."""

    name: str
    view: View
    upper: int

    def step(self, session: SparkSession, upper: int) -> None:
        """Bring it up to what its inputs are settled to."""
        self.view.advance(session, Interval(self.upper, upper))
        self.upper = upper


def described(
    bench: Bench, inputs: Iterable[Input], query: str, strategy: Strategy
) -> ViewDescription:
    """A view of a query over inputs, as a project describes it, but for the strategy."""
    project = Project()
    for found in inputs:
        columns = ", ".join(f"{f.name} {_SQL[f.type]}" for f in found.schema)
        project.source(found.name, "csv", options={"path": "later"}, schema=columns)
    name = f"by_{strategy}"
    kept = project.view(name, query).check(bench.spark).descriptions[name]
    assert isinstance(kept, ViewDescription)
    return replace(kept, strategy=strategy)


def first_contents(
    bench: Bench, session: SparkSession, description: ViewDescription, upper: int
) -> Followed:
    """A view that has its first contents, of the last time before `upper`."""
    incarnation = bench.incarnation(description.name, upper - 1)
    view = View(bench.host, incarnation, description, no_fence, Following())
    view.advance(session, Interval(upper - 1, upper, starts=True))
    return Followed(description.name, view, upper)


class _World:
    """Inputs, to which each step of a view adds rows that no step had before."""

    def __init__(self, spark: SparkSession, folder: Path, orders: int) -> None:
        self._bench = Bench(spark, str(folder / "lake"), folder / "checkpoints")
        self._session = spark.newSession()
        self._draw = np.random.default_rng(7)
        self._last = 0
        self._dearest: pa.Table | None = None
        self._orders = self._bench.input("orders", _ORDERS)
        self._named = {
            "customers": (self._bench.input("customers", _NAMED), _CUSTOMERS),
            "products": (self._bench.input("products", _NAMED), _PRODUCTS),
        }
        for name, (found, count) in self._named.items():
            rows = [((place, f"{name} {place}"), 1) for place in range(count)]
            found.push(_START, *rows)
        self._add(_START, orders)

    def view(self, query: str, strategy: Strategy) -> Followed:
        """A view that has its first contents."""
        inputs = (self._orders, *(one for one, _ in self._named.values()))
        description = described(self._bench, inputs, query, strategy)
        return first_contents(self._bench, self._session, description, _START + 1)

    def add_news(self) -> None:
        """New rows for the next step of each view."""
        time = self._orders.upper
        self._add(time, _CHANGED, self._dear(time))
        for found, _ in self._named.values():
            found.idle(time + 1)

    def step(self, followed: Followed) -> None:
        """Bring a view up to the news."""
        followed.step(self._session, self._orders.upper)

    def _dear(self, time: int) -> list[pa.Table]:
        """The dearest order of each shop; those of before go."""
        prices = np.full(_SHOPS, _DEAREST)
        gone = self._dearest
        self._dearest = self._made(_SHOPS, shop=np.arange(_SHOPS), price=prices)
        changes = [(self._dearest, 1), (gone, -1)]
        return [stamp(rows, time, diff) for rows, diff in changes if rows is not None]

    def _add(self, time: int, count: int, more: Sequence[pa.Table] = ()) -> None:
        news = stamp(self._made(count), time)
        self._orders.append_table(pa.concat_tables([news, *more]), time + 1)

    def _made(self, count: int, **given: np.ndarray[Any, Any]) -> pa.Table:
        """New orders; columns that are not given are drawn."""
        first, self._last = self._last, self._last + count
        columns = {
            "id": np.arange(first, self._last),
            "customer": self._draw.integers(0, _CUSTOMERS, count),
            "product": self._draw.integers(0, _PRODUCTS, count),
            "shop": self._draw.integers(0, _SHOPS, count),
            "price": self._draw.integers(1, _DEAREST, count),
        }
        return pa.table({**columns, **given})


_SQL: Final = {
    pa.int64(): "BIGINT",
    pa.string(): "STRING",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}
