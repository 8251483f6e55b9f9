"""Keeps orders and their customers in shards, and views of them that take steps.

What is appended is durable when a call returns, as it is in an application. A step is all that a
micro-batch does, the commit included, but for Spark's planning of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.orders import CUSTOMERS, ORDERS, QUERY
from bench.views import Followed, described, first_contents
from shardline.app.compute.index.shard_lookups import arranged_keys
from shardline.app.protocol.objects import Strategy
from shardline.datasource.stores.location import StoreStatistics
from support.spark.views import Bench, Input

__all__ = ["World", "append_at"]


class World:
    """Orders and customers as shards, whose prices and names change.

    Args:
        spark: The session.
        folder: Where shards and checkpoints are made.
        customers: All of them.
        orders: Pieces, each of which is an append.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, customers: pa.Table, orders: Iterable[pa.Table]
    ) -> None:
        self._bench = Bench(spark, str(folder / "lake"), folder / "checkpoints")
        self._session = spark.newSession()
        self._inputs = {
            "customers": self._bench.input("customers", CUSTOMERS),
            "orders": self._bench.input("orders", ORDERS),
        }
        append_at(self._inputs["customers"], [(customers, 1)], 1)
        for piece in orders:
            append_at(self._inputs["orders"], [(piece, 1)], self._inputs["orders"].upper + 1)
        self._settle()

    def view(self, strategy: Strategy) -> Followed:
        """A view that has its first contents."""
        description = described(self._bench, self._inputs.values(), QUERY, strategy)
        upper = self._inputs["orders"].upper
        return first_contents(self._bench, self._session, description, upper)

    def step(self, followed: Followed) -> None:
        """Bring a view up to the news."""
        followed.step(self._session, self._inputs["orders"].upper)

    def contents(self, followed: Followed) -> pa.Table:
        """The rows of a view after its last step, read without Spark."""
        with self._bench.client.reader(followed.name, purpose="bench") as reader:
            return reader.snapshot(followed.upper - 1)

    def arranged(self) -> Collection[tuple[str, tuple[str, ...]]]:
        """The shards and keys of which rows can be looked up."""
        return arranged_keys(self._bench.host.client)

    def requests(self) -> StoreStatistics:
        """The requests to the store so far."""
        return self._bench.client.location.statistics()

    def replace(self, name: str, before: pa.Table, after: pa.Table) -> None:
        """Let rows of `orders` or `customers` go, and others come for them."""
        until = self._inputs[name].upper + 1
        append_at(self._inputs[name], [(before, -1), (after, 1)], until)
        self._settle()

    def _settle(self) -> None:
        """Let both inputs have the same upper."""
        upper = max(found.upper for found in self._inputs.values())
        for found in self._inputs.values():
            if found.upper < upper:
                found.idle(upper)


def append_at(found: Input, changes: Iterable[tuple[pa.Table, int]], until: int) -> None:
    """Append rows, with the diff of each table, at the last time before `until`; settled to it."""
    time = pa.scalar(until - 1, pa.int64())
    tables = []
    for rows, diff in changes:
        times = pa.repeat(time, rows.num_rows)
        diffs = pa.repeat(pa.scalar(diff, pa.int64()), rows.num_rows)
        tables.append(rows.append_column("_ts", times).append_column("_diff", diffs))
    found.append_table(pa.concat_tables(tables) if tables else None, until)
