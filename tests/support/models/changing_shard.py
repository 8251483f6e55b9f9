"""A shard whose rows come and go, with a model of it, and look-ups of its rows by key."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa

from shardline.app.compute.index.shard_lookups import ShardLookups
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.types.schema import ShardSchema

__all__ = ["ROWS", "Change", "Shard", "User", "expected", "found", "updates"]

ROWS = pa.schema([("k", pa.int64()), ("v", pa.string())])


class User:
    """Somebody whose steps look rows up."""


Change: TypeAlias = tuple[int, tuple[int, str], int]


def updates(changes: Sequence[Change]) -> pa.Table:
    """Changes (time, row, diff) as a table."""
    return pa.table(
        {
            "k": pa.array([row[0] for _, row, _ in changes], pa.int64()),
            "v": pa.array([row[1] for _, row, _ in changes], pa.string()),
            "_ts": pa.array([time for time, _, _ in changes], pa.int64()),
            "_diff": pa.array([diff for _, _, diff in changes], pa.int64()),
        }
    )


class Shard:
    """A shard of rows that come and go at random, and a model of it."""

    def __init__(self, client: ShardClient, name: str = "t") -> None:
        self.client = client
        self.name = name
        self.history: list[Change] = []
        self.upper = 0
        client.create(name, ShardSchema.from_arrow(ROWS))

    def append(self, *changes: Change, until: int) -> None:
        found = self.client.writer(self.name).compare_and_append(
            updates(changes) if changes else None, Frontier(self.upper), Frontier(until)
        )
        assert isinstance(found, Appended)
        self.history += changes
        self.upper = until

    def change(self, draw: random.Random, time: int) -> None:
        rows = [(time, (draw.randrange(8), draw.choice("abc")), 1) for _ in range(3)]
        there = list(self.at(time).elements())
        rows += [(time, row, -1) for row in draw.sample(there, min(2, len(there)))]
        self.append(*rows, until=time + 1)

    def at(self, time: int) -> Counter[tuple[int, str]]:
        rows: Counter[tuple[int, str]] = Counter()
        for when, row, diff in self.history:
            if when <= time:
                rows[row] += diff
        return +rows


def found(
    lookups: ShardLookups, shard: Shard, keys: list[int | None], as_of: int, user: object
) -> Counter[tuple[int, str]] | None:
    state = shard.client.state("t")
    table = pa.table({"k": pa.array(keys, pa.int64())})
    rows = lookups.rows(shard.client, state, ("k",), table, as_of=as_of, user=user)
    return (
        None if rows is None else Counter(zip(*(c.to_pylist() for c in rows.columns), strict=True))
    )


def expected(shard: Shard, keys: Sequence[int], as_of: int) -> Counter[tuple[int, str]]:
    return Counter({row: n for row, n in shard.at(as_of).items() if row[0] in keys})
