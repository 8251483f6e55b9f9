"""Views under test: a host, inputs whose updates a model knows, and contents at each time."""

from __future__ import annotations

import math
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from typing_extensions import override

from shardline.app.compute.view.step_costs import StepCosts
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import Observation
from shardline.app.protocol.objects import ViewDescription
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.types.schema import ShardSchema
from support.strategies.rows import plain_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = [
    "DEAR",
    "ORDERS",
    "TOTALS",
    "Bench",
    "Following",
    "Input",
    "Row",
    "comparable",
    "contents",
    "no_fence",
    "view",
]

Row = tuple[Any, ...]
T = TypeVar("T")


class Following(StepCosts):
    """Changes are followed wherever that is right, however small the inputs are."""

    @override
    def follows(self, times: int, rows: int, changed: int) -> bool:
        return True


def no_fence() -> None:
    """Nobody else has taken over."""


@dataclass
class Input:
    """A shard and, apart from it, what it holds at each time."""

    client: ShardClient
    name: str
    schema: pa.Schema
    upper: int = 0
    history: list[tuple[int, Row, int]] = field(default_factory=list)

    def make(self) -> Input:
        self.client.create(self.name, ShardSchema.from_arrow(self.schema))
        return self

    def push(self, time: int, *changes: tuple[Row, int], until: int | None = None) -> None:
        """Append changes at `time`, settled up to right after it or to `until`."""
        self.append(
            [(time, row, diff) for row, diff in changes], time + 1 if until is None else until
        )

    def append(self, changes: list[tuple[int, Row, int]], until: int) -> None:
        """Append changes at several times as one part."""
        rows = [row for _, row, _ in changes]
        arrays = {
            f.name: pa.array([row[place] for row in rows], f.type)
            for place, f in enumerate(self.schema)
        }
        arrays["_ts"] = pa.array([time for time, _, _ in changes], pa.int64())
        arrays["_diff"] = pa.array([diff for _, _, diff in changes], pa.int64())
        self.append_table(pa.table(arrays) if changes else None, until)
        self.history += changes

    def append_table(self, table: pa.Table | None, until: int) -> None:
        """Append updates as they are; the history knows nothing of them."""
        handle = self.client.writer(self.name)
        found = handle.compare_and_append(table, Frontier(self.upper), Frontier(until))
        assert isinstance(found, Appended), found
        self.upper = until

    def idle(self, until: int) -> None:
        """Settle time without changes."""
        self.append([], until)

    def at(self, time: int) -> list[Row]:
        """The rows at `time`."""
        rows: Counter[Row] = Counter()
        for when, row, diff in self.history:
            if when <= time:
                rows[row] += diff
        assert all(count >= 0 for count in rows.values()), rows
        return list(rows.elements())


class Bench:
    """A host at a location on local disk, and what was reported to it."""

    def __init__(self, spark: SparkSession, location: str, folder: Path, **chosen: Any) -> None:
        self.spark = spark
        self.client = ShardClient.open(location)
        self.seen: list[Observation] = []
        self.writes = threading.Event()
        self.writes.set()
        self.epoch = 0
        self.host = Host(
            spark=spark,
            client=self.client,
            storage={},
            report=self.seen.append,
            clock=SystemClock(),
            ids=SystemIds(),
            checkpoints=folder,
            writes=self.writes,
            check_fence=chosen.pop("check_fence", no_fence),
            interval_ms=chosen.pop("interval_ms", 100),
        )

    def input(self, name: str, schema: pa.Schema) -> Input:
        return Input(self.client, name, schema).make()

    def incarnation(self, name: str, as_of: int, dataflow: int = 1) -> Incarnation:
        self.epoch += 1
        return Incarnation(
            id=name,
            global_id=f"u-{name}",
            dataflow=dataflow,
            epoch=self.epoch,
            operators=(1, 1),
            as_of=as_of,
        )

    def upper(self, name: str) -> int | None:
        return self.client.state(name).upper.time if self.client.exists(name) else 0

    def told(self, kind: type[T]) -> list[T]:
        """What was reported of one kind, in order."""
        return [seen for seen in self.seen if isinstance(seen, kind)]


def view(name: str, query: str, schema: str, *inputs: str, **chosen: Any) -> ViewDescription:
    return ViewDescription(
        name=name, query=query, schema=schema, inputs=tuple(sorted(inputs)), **chosen
    )


def contents(client: ShardClient, name: str, time: int) -> Counter[Row]:
    """The rows of a shard at `time`, read without Spark, as `comparable` values."""
    with client.reader(name, purpose="test") as reader:
        table = reader.snapshot(time)
    return Counter(comparable(row) for row in plain_rows(table))


def comparable(value: Any) -> Any:
    """A value that is equal to another exactly when all engines mean the same by them."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, dict):
        return tuple(comparable(item) for item in value.values())
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    return value


ORDERS = pa.schema([("id", pa.int64()), ("who", pa.string()), ("price", pa.int32())])

TOTALS = view(
    "totals",
    "SELECT who, sum(price) AS total FROM orders GROUP BY who",
    "who STRING, total BIGINT",
    "orders",
)
DEAR = view(
    "dear",
    "SELECT id, who FROM orders WHERE price >= 10",
    "id BIGINT, who STRING",
    "orders",
    strategy="linear",
)
