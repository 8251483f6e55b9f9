"""A location with the shards of one source, and incarnations of it that come and go; no Spark."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardline.app.execution.host import Host
from shardline.app.storage.commit import StagedMicroBatch, Timeline
from shardline.app.storage.errors import ERRORS, open_errors, open_skipped
from shardline.app.storage.reclock import Origin, Remap
from shardline.app.storage.resume import PlannedMicroBatch
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Fenced
from shardline.datasource.spark_native.time_interval import StagedInterval
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import ManualClock, SeededIds

__all__ = ["ROWS", "World"]

_numbers = count()

ROWS = pa.schema([pa.field("number", pa.int64(), nullable=False)])
"""Columns of the source."""


class World:
    """A location, and incarnations of one source that come and go."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        place = f"memory://commits-{next(_numbers)}"
        self.client = ShardClient.open(place, clock=self.clock, ids=SeededIds())
        self.client.create("in", ShardSchema.from_arrow(ROWS))
        open_errors(self.client, "in")
        self.fenced = False

    def host(self) -> Host:
        """What an incarnation is given, without Spark."""
        anything: Any = None
        writes = threading.Event()
        writes.set()
        return Host(
            spark=anything,
            client=self.client,
            storage={},
            report=lambda _: None,
            clock=self.clock,
            ids=SeededIds(),
            checkpoints=Path("nowhere"),
            writes=writes,
            check_fence=self.check_fence,
            interval_ms=1000,
        )

    def timeline(self) -> Timeline:
        """The shards as one more incarnation writes them."""
        remap = Remap.open(self.client, "in", Origin("csv", 0))
        return Timeline(self.host(), remap, "in", "in_errors", open_skipped(self.client, "in"))

    def check_fence(self) -> None:
        if self.fenced:
            raise Fenced("another runtime has taken over")

    def staged(self, name: str, table: pa.Table) -> StagedInterval:
        handle = self.client.writer(name)
        parts = handle.stager().stage([table])
        return StagedInterval(
            self.client,
            name,
            handle.shard,
            handle.schema,
            handle.schema_id,
            handle.key,
            self.client.ids.token().hex(),
            parts,
        )

    def commit(self, timeline: Timeline, number: int) -> None:
        """Micro-batch `number` has one row, one that is left out, and every second one an error."""
        errors = None
        live = timeline.refresh_live_errors()
        if number % 2:
            row = {"error": "bad", "raw": str(number)}
            errors = self.staged("in_errors", pa.Table.from_pylist([row], ERRORS))
        rows = self.staged("in", pa.table({"number": [number]}, ROWS))
        noted = pa.Table.from_pylist([{"error": "bad", "raw": f"s{number}"}], ERRORS)
        timeline.commit(
            number,
            PlannedMicroBatch(f"o{number}", frozenset()),
            StagedMicroBatch(rows, errors, live, self.staged("in_skipped", noted)),
        )

    def uppers(self) -> list[int]:
        """Of rows, errors and bindings, as readers see them."""
        states = self.client.readable("in", "in_errors", "in_progress")
        return [state.upper.time or 0 for state in states]

    def contents(self, name: str, column: str) -> Counter[Any]:
        if self.client.state(name).upper.time == 0:
            return Counter()
        with self.client.reader(name) as reader:
            return Counter(reader.snapshot().column(column).to_pylist())
