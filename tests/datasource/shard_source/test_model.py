"""A streaming query against a model, under everything that can happen to it and to the shard.

Random histories of appends, retractions, maintenance, lost leases, evolution, kills at every step,
restarts and replays. The model is a list of updates: after all of it the sink must hold each one
that is later than the snapshot at its own time, and the snapshot's sum at its time.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.readers import expire_leased
from shardline.datasource.types.schema import ShardSchema
from support.fakes.engine import STEPS, Checkpoint, Killed, Query, options_of
from support.models.shards import TINY, World, schema_of, updates
from support.profiles import examples

Update = tuple[int, str, int, int]
"""Of a row `(id, v)`: its time and its diff."""

EVOLVED = ShardSchema.from_arrow(schema_of().arrow.append(pa.field("w", pa.int64())))

_rows = st.tuples(st.integers(0, 12), st.sampled_from("ab"), st.integers(0, 3), st.integers(1, 2))

_events = st.one_of(
    st.tuples(st.just("append"), st.lists(_rows, max_size=25)),
    st.tuples(st.just("retract"), st.integers(0, 10)),
    st.tuples(st.just("run"), st.integers(1, 4)),
    st.tuples(st.just("kill"), st.sampled_from(STEPS)),
    st.tuples(st.just("replay"), st.none()),
    st.tuples(st.just("compact"), st.booleans()),
    st.tuples(st.just("collect"), st.none()),
    st.tuples(st.just("lose leases"), st.none()),
    st.tuples(st.just("evolve"), st.none()),
)

_limits = st.sampled_from(
    [{}, {"maxFilesPerTrigger": 1}, {"maxRowsPerTrigger": 5}, {"maxBytesPerTrigger": 2000}]
)


class History:
    """The shard, the query, and what the model knows."""

    def __init__(self, limit: dict[str, int], inline: int) -> None:
        self.world = World()
        self.settings = dataclasses.replace(TINY, inline_part_bytes=inline)
        self.options = options_of(**limit, columns="id,v")
        self.checkpoint = Checkpoint()
        self.known: list[Update] = []
        self.upper = 0
        self.query: Query | None = None
        self.dies: str | None = None
        self.client().create("in", schema_of())

    def client(self) -> ShardClient:
        """Another process."""
        return self.world.client(self.settings)

    def happen(self, name: str, value: Any) -> None:
        note(f"{name} {value}")
        getattr(self, name.replace(" ", "_"))(value)

    def append(self, rows: list[tuple[int, str, int, int]]) -> None:
        self._append([(i, v, self.upper + later, n) for i, v, later, n in rows])

    def retract(self, most: int) -> None:
        total: Counter[tuple[int, str]] = Counter()
        for i, v, _, diff in self.known:
            total[i, v] += diff
        gone = [row for row, count in sorted(total.items()) if count > 0][:most]
        self._append([(i, v, self.upper + n % 3, -1) for n, (i, v) in enumerate(gone)])

    def _append(self, changes: list[Update]) -> None:
        client, upper = self.client(), self.upper + 4
        table = updates(*changes) if changes else None
        if table is not None and len(client.state("in").schemas) > 1:
            table = table.append_column("w", pa.nulls(table.num_rows, pa.int64()))
        client.writer("in").compare_and_append(table, Frontier(self.upper), Frontier(upper))
        self.known += changes
        self.upper = upper

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if not self.step():
                return

    def kill(self, step: str) -> None:
        self.dies = step
        self.step()

    def step(self) -> bool:
        if self.query is None:
            self.query = Query(self.client(), self.checkpoint, self.options, kill=self._dies)
        try:
            return self.query.step()
        except Killed:
            self.query = None
            return True

    def _dies(self, step: str, _batch: int) -> bool:
        if step != self.dies:
            return False
        self.dies = None
        return True

    def replay(self, _: None) -> None:
        """The last commit was not durable: the last micro-batch runs again, in a new process."""
        self.query = None
        if self.checkpoint.commits and self.checkpoint.commits == len(self.checkpoint.offsets):
            self.checkpoint.commits -= 1

    def compact(self, force: bool) -> None:
        self.client().compact("in", force=force)

    def collect(self, _: None) -> None:
        self.client().collect_garbage("in")

    def lose_leases(self, _: None) -> None:
        client = self.client()
        for reader in client.state("in").leased:
            client.machine("in").apply(partial(expire_leased, reader=reader))

    def evolve(self, _: None) -> None:
        self.client().evolve("in", EVOLVED)

    def expected(self, as_of: int) -> Counter[Update]:
        """What the sink must hold: keyed by row and time, with the sum of diffs."""
        total: Counter[Any] = Counter()
        for i, v, time, diff in self.known:
            total[i, v, max(time, as_of)] += diff
        return Counter({row: count for row, count in total.items() if count})

    def found(self) -> Counter[Update]:
        total: Counter[Any] = Counter()
        for rows in self.checkpoint.sink.values():
            for i, v, time, diff in rows:
                total[i, v, time] += diff
        return Counter({row: count for row, count in total.items() if count})


@pytest.mark.slow
@given(st.lists(_events, max_size=30), _limits, st.sampled_from([0, 400]))
@examples(4)
def test_each_update_arrives_once_at_its_time(
    events: list[tuple[str, Any]], limit: dict[str, int], inline: int
) -> None:
    """Whatever happened on the way."""
    history = History(limit, inline)
    history.append([(0, "a", 0, 1)])
    for name, value in events:
        history.happen(name, value)
    history.dies = None
    for _ in range(300):
        if not history.step():
            break

    kept = history.checkpoint
    as_of = query_as_of(kept)
    assert history.found() == history.expected(as_of)
    history.world.close()


def query_as_of(checkpoint: Checkpoint) -> int:
    """Time of the snapshot that the query started from."""
    found: int = json.loads(checkpoint.offsets[0])["as_of"]
    return found
