"""Shards to stream from, and what maintenance and failures do to them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.readers import expire_leased
from support.models.shards import TINY, schema_of, updates

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient

__all__ = ["BLOBS", "Row", "churn", "fill", "lose_leases"]

BLOBS = dataclasses.replace(TINY, inline_part_bytes=0)
"""Every part is a blob, and a few rows make a part."""

Row = tuple[Any, ...]


def fill(client: ShardClient, name: str = "in", batches: int = 6, each: int = 30) -> Counter[Row]:
    """A shard with `batches` batches of new rows; the second one retracts a row of the first.

    Batch n has its rows at time 10 * n + 5. Returns the contents.
    """
    client.create(name, schema_of())
    writer = client.writer(name)
    contents: Counter[Row] = Counter()
    for n in range(batches):
        ids = range(n * each, (n + 1) * each)
        time = 10 * n + 5
        added = [(i, f"row {i}", time, 1) for i in ids]
        gone = [(n * each - 1, f"row {n * each - 1}", time, -1)] if n == 1 else []
        writer.compare_and_append(updates(*added, *gone), Frontier(10 * n), Frontier(10 * n + 10))
        contents.update((i, f"row {i}") for i in ids)
        contents.subtract(row[:2] for row in gone)
    return +contents


def churn(client: ShardClient, name: str = "in") -> None:
    """What maintenance may do at any moment: rewrite every part, and delete what is not held."""
    client.compact(name, force=True)
    client.collect_garbage(name)


def lose_leases(client: ShardClient, name: str = "in") -> None:
    """Everybody was stopped for longer than any lease lasts."""
    for reader in client.state(name).leased:
        client.machine(name).apply(partial(expire_leased, reader=reader))
