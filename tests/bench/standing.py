"""Measures queries that stand ready: one that waits, and many that get a row a second.

The cost of a query is CPU time of the JVM and of all that it has started: the source's own process,
planners, workers on the executors. The driver's Python, which feeds the shards here, is left out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from bench.micro import discard, first_micro_batches, running, total_ms
from bench.processes import belonging, below, cpu_seconds, find, forks_of, processes
from bench.rounds import Measured, quantile
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.types.schema import ShardSchema

__all__ = ["measure_queries", "measure_waiting"]

_RUNNER = "python_streaming_source_runner"
"""In the command line of the process that plans one query's micro-batches."""

_WAITING_MOST = 2.0
_CORES_MOST, _LATENCY_MOST = 1.2, 350.0
_COUNTS = (1, 4, 16)
_WINDOW_MS = 12_000
_BASELINE_MS = 5_000

_ROW = pa.table({"id": pa.array([1], pa.int64()), "name": pa.array(["a"])})


def measure_waiting(
    spark: SparkSession, clock: Clock, place: Path, window_ms: float
) -> list[Measured]:
    """Per cent of a core of a query without news, in its planner process and in the JVM."""
    url = str(place / "shards")
    _shards(url, ["waiting"])
    lines = []
    jvm = _jvm_pid(spark)
    for name, trigger in (("", None), (", 1 s trigger", {"processingTime": "1 second"})):
        alone = _share(clock, {jvm}, _BASELINE_MS)
        with running(_stream(spark, url, "waiting"), discard, place, trigger) as query:
            first_micro_batches(query, clock, 0, 1)
            clock.wait(threading.Event(), 2_000)
            table = processes()
            # The first planner of a JVM plans by itself, later ones are forks of its server.
            runner = {*find(_RUNNER, below(jvm, table)), *forks_of({jvm}, table)}
            before, began = processes(), clock.elapsed_ms()
            clock.wait(threading.Event(), window_ms)
            after, seconds = processes(), (clock.elapsed_ms() - began) / 1000.0
            own = cpu_seconds(after, runner) - cpu_seconds(before, runner)
            whole = cpu_seconds(after, {jvm}) - cpu_seconds(before, {jvm})
        lines += [
            Measured(
                f"a waiting query{name}: its planner process",
                100.0 * own / seconds,
                "% of a core",
                most=_WAITING_MOST,
            ),
            Measured(
                f"a waiting query{name}: more of the JVM than without it",
                max(100.0 * whole / seconds - alone, 0.0),
                "% of a core",
            ),
        ]
    return lines


def measure_queries(spark: SparkSession, clock: Clock, place: Path) -> list[Measured]:
    """Cores and latency of 1, 4 and 16 queries, each with a shard and a row a second."""
    url = str(place / "shards")
    lines = []
    for count in _COUNTS:
        cores, taken = _together(spark, clock, place, url, count)
        each_ms = cores * _WINDOW_MS / max(len(taken), 1)
        last = count == _COUNTS[-1]
        what = f"{count} {'query' if count == 1 else 'queries'} at a 1 s trigger"
        lines += [
            Measured(f"{what}: CPU", cores, "cores", most=_CORES_MOST if last else None),
            Measured(f"{what}: CPU of a micro-batch", each_ms, "ms"),
            Measured(
                f"{what}: micro-batch, p50",
                quantile(taken, 0.5),
                "ms",
                most=_LATENCY_MOST if last else None,
            ),
            Measured(f"{what}: micro-batch, p95", quantile(taken, 0.95), "ms"),
        ]
    return lines


def _together(
    spark: SparkSession, clock: Clock, place: Path, url: str, count: int
) -> tuple[float, list[float]]:
    """CPU in cores, and milliseconds of each micro-batch, of `count` queries over a window."""
    names = [f"query-{count}-{number}" for number in range(count)]
    _shards(url, names)
    trigger = {"processingTime": "1 second"}
    jvm = _jvm_pid(spark)
    with ExitStack() as stack:
        queries = []
        for name in names:
            query = running(_stream(spark, url, name), discard, place, trigger)
            queries.append(stack.enter_context(query))
            # One after the other: Spark gives the source's process ten seconds to start.
            first_micro_batches(queries[-1], clock, 0, 1)
        stack.enter_context(_fed(clock, url, names))
        first = [first_micro_batches(query, clock, 0, 4)[-1]["batchId"] for query in queries]
        before, began = processes(), clock.elapsed_ms()
        clock.wait(threading.Event(), _WINDOW_MS)
        after, seconds = processes(), (clock.elapsed_ms() - began) / 1000.0
        taken = [
            ms for query, seen in zip(queries, first, strict=True) for ms in _since(query, seen)
        ]
    used = [
        cpu_seconds(table, belonging(jvm, table, without={os.getpid()}))
        for table in (before, after)
    ]
    return (used[1] - used[0]) / seconds, taken


def _since(query: StreamingQuery, seen: int) -> list[float]:
    return total_ms([one for one in query.recentProgress if one["batchId"] > seen])


@contextmanager
def _fed(clock: Clock, url: str, names: list[str]) -> Iterator[None]:
    """A row a second for each shard, half a second after the triggers, which start whole ones."""
    client = ShardClient.open(url)
    writers = [client.writer(name) for name in names]
    stopped = threading.Event()

    def feed() -> None:
        while not clock.wait(stopped, 1_000 - (clock.now_ms() + 500) % 1_000):
            for writer in writers:
                writer.append_now(_ROW)

    thread = threading.Thread(target=feed, name="feed", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _shards(url: str, names: list[str]) -> None:
    client = ShardClient.open(url)
    for name in names:
        client.create(name, ShardSchema.from_arrow(_ROW.schema))
        client.writer(name).append_now(_ROW)


def _stream(spark: SparkSession, url: str, name: str) -> DataFrame:
    return spark.readStream.format("shard").load(f"{url}/{name}")


def _jvm_pid(spark: SparkSession) -> int:
    jvm: Any = spark._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def _share(clock: Clock, pids: set[int], window_ms: float) -> float:
    """Per cent of a core that `pids` use over a window."""
    before, began = processes(), clock.elapsed_ms()
    clock.wait(threading.Event(), window_ms)
    used = cpu_seconds(processes(), pids) - cpu_seconds(before, pids)
    return 100_000.0 * used / (clock.elapsed_ms() - began)
