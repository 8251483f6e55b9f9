"""Measures latency: the floor of a micro-batch of one row, and from commit to visible.

The floor is compared with Spark's emptiest query, `rate-micro-batch` into `noop`, in the same run.
What is ours of it is timed without Spark: the planner's hooks and the fetch, on the same shard.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench.micro import (
    Sink,
    discard,
    discard_natively,
    first_micro_batches,
    running,
    total_ms,
)
from bench.rounds import Measured, quantile
from shardline import datasource
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.read import current_schema
from shardline.datasource.shard_source.fetch_task import read_partition
from shardline.datasource.shard_source.options import parse_source
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.shard_source.stream import ShardStreamReader
from shardline.datasource.types.schema import ShardSchema

__all__ = ["measure_floor", "measure_visible"]

_ROW = pa.table({"id": pa.array([1], pa.int64()), "name": pa.array(["a"])})

_WARM, _TAKEN = 30, 60
"""Micro-batches before those that count, and those; Spark keeps the progress of 100."""

_FLOOR_MOST = {"Arrow": 60.0, "native": 40.0}
_VISIBLE_MOST = 150.0

_STEPS = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")


def measure_floor(spark: SparkSession, clock: Clock, place: Path, rounds: int) -> list[Measured]:
    """Milliseconds of a micro-batch of one row; p50 and p95 of the best round."""
    url = str(place / "shards")
    _one_row_appends(url, "single", _WARM + _TAKEN + 20)
    cases: Mapping[str, Callable[[], list[Mapping[str, Any]]]] = {
        "Spark's rate-micro-batch": lambda: _floor(_rate(spark), discard, clock, place),
        "Arrow": lambda: _floor(_singles(spark, url), discard, clock, place),
        "native": lambda: _floor(_singles(spark, url), discard_natively, clock, place),
    }
    best: dict[str, list[Mapping[str, Any]]] = {}
    for _ in range(rounds):
        for name, case in cases.items():
            found = case()
            best[name] = min(best.get(name, found), found, key=_median_ms)
    lines = []
    for name, progress in best.items():
        taken = total_ms(progress)
        what = f"micro-batch of one row: {name}"
        lines += [
            Measured(f"{what}, p50", quantile(taken, 0.5), "ms", most=_FLOOR_MOST.get(name)),
            Measured(f"{what}, p95", quantile(taken, 0.95), "ms"),
        ]
        lines += [
            Measured(f"  {step}", quantile(_step_ms(progress, step), 0.5), "ms") for step in _STEPS
        ]
    arrow_ms = quantile(total_ms(best["Arrow"]), 0.5)
    return [*lines, *_ours(clock, url, arrow_ms)]


def _median_ms(progress: list[Mapping[str, Any]]) -> float:
    return quantile(total_ms(progress), 0.5)


def _step_ms(progress: list[Mapping[str, Any]], step: str) -> list[float]:
    return [float(one["durationMs"].get(step, 0)) for one in progress]


def _floor(frame: DataFrame, sink: Sink, clock: Clock, place: Path) -> list[Mapping[str, Any]]:
    with running(frame, sink, place) as query:
        return list(first_micro_batches(query, clock, _WARM, _TAKEN))


def _rate(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
    return reader.option("numPartitions", 1).load()


def _singles(spark: SparkSession, url: str) -> DataFrame:
    reader = spark.readStream.format("shard").options(**_SINGLES)
    return reader.load(f"{url}/single")


_SINGLES = {"startingTimestamp": "0", "maxRowsPerTrigger": "1"}


def _one_row_appends(url: str, shard: str, count: int) -> None:
    client = ShardClient.open(url)
    client.create(shard, ShardSchema.from_arrow(_ROW.schema))
    # Every query moves the shard's since with what it has read, and the next one starts over.
    client.hold(shard, "bench", since=0)
    writer = client.writer(shard)
    for _ in range(count):
        writer.append_now(_ROW)


def _ours(clock: Clock, url: str, whole_ms: float) -> list[Measured]:
    """The protocol of the same query played without Spark: milliseconds per micro-batch."""
    options = parse_source({"path": f"{url}/single", **_SINGLES})
    client = open_client(options)
    reader = ShardStreamReader(
        options, RowShape.now(options, [current_schema(client.state(options.shard))])
    )
    hooks: list[float] = []
    fetches: list[float] = []
    offset = reader.initialOffset()
    before = _store_calls(client)
    for _ in range(_WARM + _TAKEN):
        began = clock.elapsed_ms()
        end = reader.latestOffset(offset, ReadMaxRows(1))
        reader.reportLatestOffset()
        reader.commit(offset)
        partitions = reader.partitions(offset, end)
        sent = [pickle.dumps(partition) for partition in partitions]
        planned = clock.elapsed_ms()
        for data in sent:
            for _ in read_partition(pickle.loads(data)):  # noqa: S301 - our own
                pass
        hooks.append(planned - began)
        fetches.append(clock.elapsed_ms() - planned)
        offset = end
    calls, waited_ms = (now - then for now, then in zip(_store_calls(client), before, strict=True))
    reader.stop()
    count = len(hooks)
    ours = quantile(hooks[_WARM:], 0.5) + quantile(fetches[_WARM:], 0.5)
    return [
        Measured("  ours: planning (offset, partitions, commit), p50", quantile(hooks, 0.5), "ms"),
        Measured("  ours: fetch in the task, p50", quantile(fetches, 0.5), "ms"),
        Measured("  ours: waiting for the store, mean", waited_ms / count, "ms"),
        Measured("  ours: calls of the store, mean", calls / count, "calls"),
        Measured("  ours: share of an Arrow micro-batch", 100.0 * ours / whole_ms, "%"),
    ]


def _store_calls(client: ShardClient) -> tuple[float, float]:
    """Calls of the store so far, and milliseconds spent in them."""
    operations = client.location.statistics().operations
    return sum(one.calls for one in operations), sum(one.elapsed_ms for one in operations)


# --- from commit to visible --------------------------------------------------------------------

_SAMPLES, _UNCOUNTED = 40, 10
_PERIOD_MS = 350


def measure_visible(spark: SparkSession, clock: Clock, place: Path) -> list[Measured]:
    """Milliseconds from a commit by one query until another has the row on the driver."""
    lines = []
    for name, rows in (("Arrow", _arrow_rows), ("native", datasource.micro_batch)):
        taken = _visible(spark, clock, place, f"visible-{name}", rows)
        what = f"commit to visible in the next query: {name}"
        lines += [
            Measured(f"{what}, p50", quantile(taken, 0.5), "ms", most=_VISIBLE_MOST),
            Measured(f"{what}, p95", quantile(taken, 0.95), "ms"),
        ]
    return lines


def _arrow_rows(frame: DataFrame, _: int) -> DataFrame:
    return frame


def _visible(
    spark: SparkSession,
    clock: Clock,
    place: Path,
    shard: str,
    rows: Callable[[DataFrame, int], DataFrame],
) -> list[float]:
    path = str(place / "shards" / shard)
    taken: list[float] = []
    enough = threading.Event()

    def each(frame: DataFrame, number: int) -> None:
        times = [row[0] for row in rows(frame, number).select("_ts").collect()]
        now_ms = clock.now_ms()
        # A row is stamped with the time of its commit.
        taken.extend(float(now_ms - time) for time in times)
        if len(taken) >= _UNCOUNTED + _SAMPLES:
            enough.set()

    def into_shard(frame: DataFrame) -> DataStreamWriter:
        return frame.writeStream.format("shard").option("path", path)

    def seen(frame: DataFrame) -> DataStreamWriter:
        return frame.writeStream.foreachBatch(each)

    source = _rate(spark)
    empty = spark.createDataFrame([], source.schema)
    empty.write.format("shard").mode("append").save(path)
    changes = spark.readStream.format("shard").option("readChangeFeed", "true").load(path)
    every = {"processingTime": f"{_PERIOD_MS} milliseconds"}
    with running(changes, seen, place), running(source, into_shard, place, every):
        clock.wait(enough, 120_000)
    return taken[_UNCOUNTED:]
