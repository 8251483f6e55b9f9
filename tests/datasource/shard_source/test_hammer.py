"""Readers while a writer appends and maintenance rewrites and deletes all that it may, for real.

Threads over a store on disk, each with a client of its own as a process has, on the real clock.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate
from shardline.datasource.frontier import Frontier
from shardline.datasource.maintenance.compact import MERGED_ELSEWHERE
from support.fakes.engine import Checkpoint, Query, options_of
from support.models.shards import TINY, schema_of, updates

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

APPENDS = 60

SETTINGS = dataclasses.replace(TINY, validate=False)

Row = tuple[int, str]


class Shard:
    """A shard on disk, and what it holds at each time."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.at: dict[int, Counter[Row]] = {}
        self.done = threading.Event()
        self.failures: list[BaseException] = []
        self.collected = 0
        self.client().create("in", schema_of())

    def client(self) -> ShardClient:
        return ShardClient.open(self.path, settings=SETTINGS)

    def write(self) -> None:
        """Add rows and take others away, one time after the other."""
        chance, writer = random.Random(3), self.client().writer("in")
        held: Counter[Row] = Counter()
        for time in range(APPENDS):
            added = [(chance.randrange(40), f"at {time}") for _ in range(chance.randrange(12))]
            some = list(held.elements())
            gone = chance.sample(some, min(len(some), chance.randrange(4)))
            held.update(added)
            held.subtract(gone)
            # Known before it can be read.
            held = +held
            self.at[time] = Counter(held)
            changes = [(*row, time, 1) for row in added] + [(*row, time, -1) for row in gone]
            table = updates(*changes) if changes else None
            writer.compare_and_append(table, Frontier(time), Frontier(time + 1))

    def maintain(self) -> None:
        client = self.client()
        while not self.done.is_set():
            # Appends merge their batches themselves, and may win all the time on a busy machine.
            try:
                client.compact("in", force=True)
            except Determinate as lost:
                if lost.code != MERGED_ELSEWHERE:
                    raise
            self.collected += client.collect_garbage("in")

    def stream(self, checkpoint: Checkpoint, **options: object) -> None:
        """Run the query again and again, three micro-batches at a time, until all is read."""
        while not checkpoint.offsets or checkpoint.frontier() != APPENDS:
            query = Query(self.client(), checkpoint, options_of(**options))
            for _ in range(3):
                query.step()
            query.run.release()

    def snapshots(self) -> None:
        """Contents at the latest time, over and over."""
        while not self.done.is_set():
            with self.client().reader("in") as reader:
                state = self.client().state("in")
                if state.upper == Frontier(0):
                    continue
                assert state.upper.time is not None
                as_of = state.upper.time - 1
                table = reader.snapshot(as_of)
                found = Counter(zip(*(c.to_pylist() for c in table.columns), strict=True))
                assert found == self.at[as_of], as_of

    def guarded(self, work: Callable[..., None], *args: Any, **options: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*args, **options)
            except BaseException as error:  # noqa: BLE001  # the test reports it
                self.failures.append(error)
                self.done.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


@pytest.mark.slow
def test_readers_lose_nothing_under_maintenance(tmp_path: Path) -> None:
    """Two streams, one of them in small pieces, and snapshots in a loop: all exact."""
    shard = Shard(tmp_path / "lake")
    whole, pieces = Checkpoint(), Checkpoint()
    background = [shard.guarded(shard.maintain), shard.guarded(shard.snapshots)]
    writer = shard.guarded(shard.write)
    streams = [
        shard.guarded(shard.stream, whole),
        shard.guarded(shard.stream, pieces, maxFilesPerTrigger=1),
    ]
    for thread in (writer, *streams):
        while thread.is_alive() and not shard.failures:
            thread.join(1)
    shard.done.set()
    for thread in background:
        thread.join(60)

    assert not shard.failures
    assert shard.collected > 0
    for checkpoint in (whole, pieces):
        total: Counter[Row] = Counter()
        for i, v, _, diff in (row for rows in checkpoint.sink.values() for row in rows):
            total[i, v] += diff
        assert Counter({row: n for row, n in total.items() if n}) == shard.at[APPENDS - 1]
