"""A host for sinks, an input that they read, and a list of what they report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shardline.app.execution.host import Host, Incarnation, Running
from shardline.app.execution.live_errors import EMPTY_CATALOG, Catalog
from shardline.app.execution.observations import Failed, Health, Observation, Progress
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sink_query import run_sink
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "SCHEMA",
    "Input",
    "Reports",
    "diffs",
    "host_of",
    "life",
    "parquet",
    "parts",
    "read",
    "running",
]

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


class Reports:
    """Takes reports, and lets a test wait for one."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self.all: list[Observation] = []

    def __call__(self, observation: Observation) -> None:
        with self._news:
            self.all.append(observation)
            self._news.notify_all()

    def wait(self, wanted: Callable[[Observation], bool]) -> Observation:
        """The first report that is wanted; fails at once if the sink does."""

        def found() -> Observation | None:
            return next((o for o in self.all if wanted(o)), None)

        with self._news:
            done = self._news.wait_for(lambda: found() or self._failed(), 120)
            first = found()
            assert first is not None, (done, self.all)
            return first

    def reached(self, upper: int) -> None:
        """Wait until the target has everything before `upper`."""
        self.wait(
            lambda o: isinstance(o, Progress) and isinstance(o.write, int) and o.write >= upper
        )

    def failure(self) -> Failed:
        found = self.wait(lambda o: isinstance(o, Failed))
        assert isinstance(found, Failed)
        return found

    def stalled(self) -> Health:
        found = self.wait(lambda o: isinstance(o, Health) and o.status == "stalled")
        assert isinstance(found, Health)
        return found

    def _failed(self) -> bool:
        return any(isinstance(o, Failed) for o in self.all)


class Input:
    """A shard whose times a test chooses: `step(5, (1, "a", +1))` makes the upper 6."""

    def __init__(self, client: ShardClient, name: str = "in") -> None:
        self.client, self.name, self.schema = client, name, SCHEMA
        client.create(name, ShardSchema.from_arrow(SCHEMA))

    def gets(self, column: str) -> None:
        """Add a column of text at the end."""
        self.schema = self.schema.append(pa.field(column, pa.string()))
        self.client.evolve(self.name, ShardSchema.from_arrow(self.schema))

    def step(self, time: int, *updates: tuple[Any, ...]) -> int:
        """Append updates, each with its diff behind its values, at `time`; the upper afterwards."""
        columns = self.schema
        for name in ("_ts", "_diff"):
            columns = columns.append(pa.field(name, pa.int64()))
        rows = [
            dict(zip(columns.names, (*values, time, diff), strict=True))
            for *values, diff in updates
        ]
        upper = self.client.state(self.name).upper
        table = pa.Table.from_pylist(rows, columns) if rows else None
        writer = self.client.writer(self.name)
        writer.compare_and_append(table, upper, Frontier(time + 1))
        return time + 1


def host_of(spark: SparkSession, location: str, checkpoints: Path, **changes: object) -> Host:
    writes = threading.Event()
    writes.set()
    host = Host(
        spark=spark,
        client=ShardClient.open(location),
        storage={},
        report=Reports(),
        clock=SystemClock(),
        ids=SystemIds(),
        checkpoints=checkpoints,
        writes=writes,
        check_fence=lambda: None,
        interval_ms=50,
        pool="storage",
    )
    return replace(host, **changes)  # type: ignore[arg-type]  # the test knows the fields


def life(epoch: int = 1, as_of: int | None = None, dataflow: int = 1) -> Incarnation:
    return Incarnation("out", "u1", dataflow, epoch, (1, 3), as_of)


@contextmanager
def running(
    host: Host,
    sink: SinkDescription,
    incarnation: Incarnation | None = None,
    catalog: Catalog = EMPTY_CATALOG,
) -> Iterator[Reports]:
    """A sink that runs while the block does, and what it reports."""
    reports = Reports()
    run: Running = run_sink(replace(host, report=reports), incarnation or life(), sink, catalog)
    try:
        yield reports
    finally:
        run.stop()


def parts(client: ShardClient, name: str) -> list[Path]:
    """The files of a shard's parts at its newest state, the oldest first."""
    trace = client.state(name).trace
    found = [part for batch in trace.batches for part in batch.parts if part.inline is None]
    return [Path(client.location.url.removeprefix("file://")) / part.key for part in found]


def parquet(tmp_path: Path, **changes: Any) -> SinkDescription:
    """A sink of files below a folder."""
    given = {"name": "out", "on": "in", "format": "parquet"} | changes
    return SinkDescription(options={"path": str(tmp_path / "ziel 1")}, **given)


def read(spark: SparkSession, sink: SinkDescription) -> DataFrame:
    """What is in the files of such a sink."""
    return spark.read.parquet(sink.options["path"])


def diffs(spark: SparkSession, sink: SinkDescription) -> list[tuple[Any, ...]]:
    """Its changes, sorted."""
    return sorted(tuple(r) for r in read(spark, sink).select("k", "v", "_ts", "_diff").collect())
