"""A host, a model, and updates in a shard, for tests of peeks, subscriptions and indexes."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import Observation
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.frontier import Frontier
from shardline.datasource.settings import ShardSettings
from shardline.datasource.stores.memory import drop_store
from shardline.datasource.types.schema import ShardSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Inputs", "Place", "Row", "contents", "incarnation", "model_at", "updates_of"]

Row = tuple[Any, ...]

T = TypeVar("T")

_numbers = itertools.count()

_PATIENCE_S: Final = 120


class Inputs(dict[str, tuple[str, ...]]):
    """A catalog: transitive inputs by object, none for those that are not there."""

    def inputs_of(self, name: str) -> Collection[str]:
        return self.get(name, ())


def incarnation(name: str, as_of: int | None, epoch: int = 1) -> Incarnation:
    """The first life of an object."""
    return Incarnation(name, "u1", 1, epoch, (1, 1), as_of)


def updates_of(rows: list[tuple[Row, int, int]], schema: pa.Schema) -> pa.Table:
    """Updates `(row, time, diff)` under `schema`."""
    arrays = [pa.array([row[i] for row, _, _ in rows], f.type) for i, f in enumerate(schema)]
    table = pa.table(arrays, schema=schema)
    table = table.append_column("_ts", pa.array([time for _, time, _ in rows], pa.int64()))
    return table.append_column("_diff", pa.array([diff for _, _, diff in rows], pa.int64()))


def model_at(rows: list[tuple[Row, int, int]], as_of: int) -> Counter[Row]:
    """What is there at `as_of`, by adding up."""
    total: Counter[Row] = Counter()
    for row, time, diff in rows:
        if time <= as_of:
            total[row] += diff
    return Counter({row: count for row, count in total.items() if count})


class Place:
    """A location with a host over it whose reports are kept.

    In memory, unless a folder or a URL is given. Times are real: threads of a runtime wait for
    each other, and nothing is said about how long.
    """

    def __init__(self, url: str = "", spark: SparkSession | None = None) -> None:
        self._name = f"reads-{next(_numbers)}"
        self.url = url or f"memory://{self._name}"
        settings = ShardSettings(validate=True, wait_poll_ms=2)
        self.client = ShardClient.open(self.url, settings=settings)
        self.reports: queue.Queue[Observation] = queue.Queue()
        self.seen: list[Observation] = []
        self.host = Host(
            spark=spark,  # type: ignore[arg-type]  # nothing that is tested without it asks for it
            client=self.client,
            storage={},
            report=self.reports.put,
            clock=SystemClock(),
            ids=SystemIds(),
            checkpoints=Path("unused"),
            writes=threading.Event(),
            check_fence=lambda: None,
        )

    def close(self) -> None:
        drop_store(self._name)

    def put(
        self, name: str, rows: list[tuple[Row, int, int]], upper: int | None, schema: pa.Schema
    ) -> None:
        """Append updates up to `upper`; makes the shard."""
        self.client.create(name, ShardSchema.from_arrow(schema))
        writer = self.client.writer(name)
        writer.compare_and_append(updates_of(rows, schema), writer.upper(), Frontier(upper))

    def next(self, kind: type[T]) -> T:
        """The next report of a kind; others are kept in `seen`."""
        while True:
            found = self.reports.get(timeout=_PATIENCE_S)
            self.seen.append(found)
            if isinstance(found, kind):
                return found

    def rest(self) -> list[Observation]:
        """Reports that are there already."""
        found = []
        while not self.reports.empty():
            found.append(self.reports.get())
        return found


def contents(table: pa.Table) -> Counter[Row]:
    """A table as a multiset of rows."""
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
