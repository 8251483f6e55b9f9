"""Spark's micro-batch engine, as far as a source can tell, without Spark.

A `Checkpoint` is what survives a crash: the offset log, the commit log, and a sink that keeps what
each micro-batch wrote last. A `Query` is one run: it calls the planner in the order that
`MicroBatchExecution` does, fetches every partition, and may be killed at any step.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from shardline.datasource.client import ShardClient
from shardline.datasource.offsets import START, parse_offset
from shardline.datasource.read import current_schema
from shardline.datasource.shard_source.descs import Limits
from shardline.datasource.shard_source.fetch_task import fetch_partition
from shardline.datasource.shard_source.options import SourceOptions, parse_source
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.shard_source.run import StreamRun

__all__ = ["STEPS", "Checkpoint", "Killed", "Query", "consolidated", "options_of"]

Rows = Counter[tuple[Any, ...]]

STEPS: Final = ("latest", "offset log", "commit", "plan", "fetch", "sink", "commit log")
"""Where a query can be killed: right after each of these."""


class Killed(BaseException):
    """The query's processes were killed."""


@dataclass
class Checkpoint:
    """What outlives a run.

    Attributes:
        offsets: The offset log: the end of each micro-batch as JSON text.
        commits: How many micro-batches are in the commit log.
        sink: What each micro-batch wrote; written again, it is replaced.
    """

    offsets: list[str] = field(default_factory=list)
    commits: int = 0
    sink: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)

    def rows(self) -> Rows:
        """All rows that were written, of all micro-batches."""
        return Counter(row for rows in self.sink.values() for row in rows)

    def frontier(self) -> int | None:
        """How far the last planned micro-batch goes."""
        found: int | None = json.loads(self.offsets[-1])["frontier"]
        return found


def options_of(**options: object) -> SourceOptions:
    """Options of a source of shard `in`, as Spark would hand them over."""
    given = {name: str(value) for name, value in options.items()}
    if "shards" not in given:
        given.setdefault("shard", "in")
    given.setdefault("readChangeFeed", "true")
    if given["readChangeFeed"] == "unset":
        del given["readChangeFeed"]
    return parse_source({"location": "memory://unused", "holdInterval": "0ms", **given})


class Query:
    """One run of a query over a client's shards."""

    def __init__(
        self,
        client: ShardClient,
        checkpoint: Checkpoint,
        options: SourceOptions | None = None,
        *,
        kill: Callable[[str, int], bool] = lambda _step, _batch: False,
        available_now: bool = False,
    ) -> None:
        """Start the run.

        Args:
            client: The processes' client; a new one is a new process.
            checkpoint: What is left of the runs before.
            options: Of the source.
            kill: Asked after each step of each micro-batch whether the query dies there.
            available_now: With the trigger of that name.
        """
        self.options = options or options_of()
        self.client = client
        self.checkpoint = checkpoint
        self._kill = kill
        schemas = [current_schema(client.state(name)) for name in self.options.inputs]
        self.run = StreamRun(self.options, client, RowShape.now(self.options, schemas))
        if available_now:
            self.run.fix_target()

    @property
    def limits(self) -> Limits:
        options = self.options
        return Limits(options.max_bytes, options.max_rows, options.max_files)

    def step(self) -> bool:
        """One trigger: replay what was planned and not committed, or else plan anew.

        Returns:
            Whether there was a micro-batch.
        """
        kept = self.checkpoint
        replay = len(kept.offsets) > kept.commits
        batch = kept.commits if replay else len(kept.offsets)
        start = json.loads(kept.offsets[batch - 1]) if batch else START.json()
        if not replay:
            end = self.run.latest(parse_offset(start), self.limits).json()
            if json.dumps(end) == json.dumps(start):
                return False
            self._after("latest", batch)
            kept.offsets.append(json.dumps(end))
            self._after("offset log", batch)
            if batch:
                self.run.commit(parse_offset(start))
                self._after("commit", batch)
        self._execute(batch, start, json.loads(kept.offsets[batch]))
        return True

    def drain(self, most: int = 1000) -> int:
        """Run until there is no news; the number of micro-batches."""
        for count in range(most):
            if not self.step():
                return count
        raise AssertionError(f"still running after {most} micro-batches")

    def _execute(self, batch: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        partitions = self.run.plan(parse_offset(start), parse_offset(end))
        self._after("plan", batch)
        rows: list[tuple[Any, ...]] = []
        for partition in partitions:
            for found in fetch_partition(self.client, partition):
                rows += zip(*(column.to_pylist() for column in found.columns), strict=True)
        self._after("fetch", batch)
        self.checkpoint.sink[batch] = rows
        self._after("sink", batch)
        self.checkpoint.commits = batch + 1
        self._after("commit log", batch)

    def _after(self, step: str, batch: int) -> None:
        if self._kill(step, batch):
            raise Killed(f"after {step} of micro-batch {batch}")


def consolidated(rows: Rows) -> Rows:
    """Updates `(…, time, diff)` as a collection: diffs of equal rows summed over all times."""
    total: Rows = Counter()
    for row, copies in rows.items():
        total[row[:-2]] += row[-1] * copies
    return Counter({row: count for row, count in total.items() if count})
