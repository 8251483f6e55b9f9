"""A source that runs in a test: started, watched, stopped, and what is then in its shards."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import Failed, Observation
from shardline.app.protocol.objects import SourceDescription, errors_shard, progress_shard
from shardline.app.storage.ingestion import Ingestion, run_ingestion
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Runtime", "Source", "bindings", "changes", "contents", "drop", "running"]

TIMEOUT_S = 60
"""For one thing to happen, on two cores that are busy with other tests."""


@dataclass
class Runtime:
    """What sources share; and all that they have told."""

    spark: SparkSession
    location: str
    checkpoints: Path
    interval_ms: int = 200
    told: list[Observation] = field(default_factory=list)
    writes: threading.Event = field(default_factory=threading.Event)
    fence: Callable[[], None] = lambda: None
    epoch: int = 0
    former_sources: tuple[SourceDescription, ...] = ()

    def __post_init__(self) -> None:
        self.client = ShardClient.open(self.location)
        self.writes.set()

    @property
    def host(self) -> Host:
        return Host(
            spark=self.spark,
            client=self.client,
            storage={},
            report=self.told.append,
            clock=SystemClock(),
            ids=SystemIds(),
            checkpoints=self.checkpoints,
            writes=self.writes,
            check_fence=self._check_fence,
            interval_ms=self.interval_ms,
            pool="storage",
        )

    def _check_fence(self) -> None:
        self.fence()

    def incarnation(self, name: str) -> Incarnation:
        self.epoch += 1
        former = self.former_sources
        return Incarnation(name, f"u-{name}", 1, self.epoch, (0, 4), former_sources=former)


@dataclass
class Source:
    """A source that runs."""

    runtime: Runtime
    description: SourceDescription
    ingestion: Ingestion

    @property
    def name(self) -> str:
        return self.description.name

    def wait_for(self, what: str, happened: Callable[[], bool]) -> None:
        """Wait for something; a source that fails before it fails the test."""

        def seen() -> bool:
            if happened():
                return True
            assert not self.failures(), self.failures()
            return False

        wait_until(what, seen, TIMEOUT_S)

    def wait_for_rows(self, *rows: tuple[Any, ...]) -> None:
        """Wait until the contents are exactly these."""
        wanted = Counter(rows)
        self.wait_for(f"{wanted}", lambda: contents(self.runtime.client, self.name) == wanted)

    def wait_for_bindings(self, number: int) -> None:
        """Wait until micro-batch `number` is bound, and its rows are there."""
        self.wait_for("bindings", lambda: any(b >= number for b, _ in self.bindings()))

    def bindings(self) -> dict[tuple[int, int], str]:
        """Every binding that ever was: number and time, with its offset."""
        return bindings(self.runtime.client, self.name)

    @property
    def errors(self) -> Counter[tuple[Any, ...]]:
        """Error, raw text and key of each bad row; not its file, whose folder is the test's."""
        found: Counter[tuple[Any, ...]] = Counter()
        for (*row, _file), count in contents(self.runtime.client, errors_shard(self.name)).items():
            found[tuple(row)] += count
        return found

    def failures(self) -> list[Failed]:
        """What has ended this incarnation, and not one before it."""
        epoch = self.ingestion.epoch
        return [o for o in self.runtime.told if isinstance(o, Failed) and o.epoch == epoch]

    def told(self, kind: type) -> list[Any]:
        return [o for o in self.runtime.told if isinstance(o, kind)]


def drop(inbox: Path, name: str, *lines: str) -> None:
    """Put a whole file where a source looks for files."""
    hidden = inbox / f".{name}"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.rename(inbox / name)


def contents(client: ShardClient, name: str) -> Counter[tuple[Any, ...]]:
    """The rows of a shard, at its newest time; none if it has no time or is not there."""
    if not client.exists(name) or client.state(name).upper.time == 0:
        return Counter()
    with client.reader(name) as reader:
        return Counter(tuple(row.values()) for row in reader.snapshot().to_pylist())


def changes(client: ShardClient, name: str) -> list[dict[str, Any]]:
    """All updates of a shard, in the order of time."""
    upper = client.state(name).upper.time
    assert upper is not None
    if upper == 0:
        return []
    found: list[dict[str, Any]] = []
    with client.reader(name) as reader:
        found += [{**row, "_ts": 0, "_diff": 1} for row in reader.snapshot(0).to_pylist()]
        for step in reader.listen(0, timeout_ms=0):
            found += step.updates.to_pylist()
            if step.upper.time is not None and step.upper.time >= upper:
                break
    return sorted(found, key=lambda row: row["_ts"])


def bindings(client: ShardClient, source: str) -> dict[tuple[int, int], str]:
    name = progress_shard(source)
    if not client.exists(name):
        return {}
    return {
        (row["micro_batch"], row["time"]): row["offset"]
        for row in changes(client, name)
        if row["_diff"] > 0 and row["file"] is None
    }


@contextmanager
def running(runtime: Runtime, description: SourceDescription) -> Iterator[Source]:
    """Run a source in a block."""
    ingestion = run_ingestion(runtime.host, runtime.incarnation(description.name), description)
    try:
        yield Source(runtime, description, ingestion)
    finally:
        ingestion.stop()
