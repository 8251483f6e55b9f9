"""Keeps the view in this project: orders, states and results are durable after each round.

    python -m bench.engine_jobs.shardline_job FOLDER WARM CONTENTS

A round is the append of the changes to their shard, and the step of the view; each is also told for
itself. So is what durability and Spark cost in both: the time of the requests to the store, and
that of the calls to the JVM. What is left is this process's own work.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from bench.engine_jobs.measured_view import (
    elapsed_ms,
    measure,
    read_changes,
    read_rows,
    report,
    resident_mib,
)
from bench.processes import belonging, processes
from bench.views import Followed
from bench.world import World
from shardline.app.spark_session import open_session

_PIECE = 1_000_000
"""Rows of an append of the first contents."""


class _Kept:
    """The world and its view, and the parts of each round in milliseconds."""

    def __init__(self, folder: Path) -> None:
        self.spark = open_session("shardline engines", {"spark.ui.showConsoleProgress": "false"})
        self.appends: list[float] = []
        self.steps: list[float] = []
        self.requests: list[float] = []
        self.calls: list[float] = []
        self._jvm = _TimedCalls(self.spark)
        self._shards = folder / "shards"
        self._customers = read_rows(folder, "customers")
        orders = read_rows(folder, "orders").combine_chunks().to_batches(max_chunksize=_PIECE)
        self._orders = [pa.Table.from_batches([piece]) for piece in orders]
        self._made: tuple[World, Followed] | None = None

    @property
    def made(self) -> tuple[World, Followed]:
        assert self._made is not None
        return self._made

    def begin(self) -> None:
        world = World(self.spark, self._shards, self._customers, self._orders)
        self._made = world, world.view("incremental")
        self._orders.clear()

    def advance(self, before: pa.Table, after: pa.Table) -> None:
        world, view = self.made
        requested, called, began = _requested_ms(world), self._jvm.ms, elapsed_ms()
        world.replace("orders", before, after)
        appended = elapsed_ms()
        world.step(view)
        self.appends.append(appended - began)
        self.steps.append(elapsed_ms() - appended)
        self.requests.append(_requested_ms(world) - requested)
        self.calls.append(self._jvm.ms - called)


class _TimedCalls:
    """Times the calls of this process to the JVM.

    Attributes:
        ms: Of all calls so far; those at the same time count each.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.ms = 0.0
        gateway: Any = spark.sparkContext._gateway
        client = gateway._gateway_client
        self._send = client.send_command
        client.send_command = self._timed

    def _timed(self, *given: Any, **named: Any) -> Any:
        began = elapsed_ms()
        try:
            return self._send(*given, **named)
        finally:
            self.ms += elapsed_ms() - began


def main(folder: Path, warm: int, contents: Path) -> None:
    """Measure, and report."""
    kept = _Kept(folder)
    rounds = [partial(kept.advance, *_sides(changes)) for changes in read_changes(folder)]
    measured = measure(kept.begin, rounds, warm)
    measured["parts"] = {
        "the append of the changes": kept.appends[warm:],
        "the step of the view": kept.steps[warm:],
        "requests to the store, in both": kept.requests[warm:],
        "calls to the JVM, in both": kept.calls[warm:],
    }
    memory = sum(resident_mib(pid) for pid in belonging(os.getpid(), processes()))
    world, view = kept.made
    table = world.contents(view).select(["region", "name", "n", "total"])
    report(measured, memory, zip(*table.to_pydict().values(), strict=True), contents)
    kept.spark.stop()


def _sides(changes: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows that go, and those that come."""
    rows = changes.select(["id", "customer", "price"])
    before, after = (rows.filter(pc.equal(changes["diff"], diff)) for diff in (-1, 1))
    return before, after


def _requested_ms(world: World) -> float:
    """Milliseconds of all requests to the store so far; those at the same time count each."""
    return sum(each.elapsed_ms for each in world.requests().operations)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
