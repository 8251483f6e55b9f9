"""A shard of many small batches, and what can be seen of it; for tests of merges."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shardline.datasource.parts.stage import Staged
from shardline.datasource.shard.batch import Run
from shardline.datasource.shard.trace import due_merges
from support.models.shards import rows, schema_of, table

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient
    from shardline.datasource.shard.trace import Trace
    from support.models.shards import World

__all__ = ["SHARD", "append_unordered", "contents", "expected", "filled", "next_merge", "sizes"]

SHARD = "orders"


def filled(client: ShardClient, appends: int, name: str = SHARD) -> ShardClient:
    """So many batches of two rows each, one after the other; returns the client."""
    client.create(name, schema_of(), key=("id",))
    writer = client.writer(name)
    for number in range(appends):
        writer.append_now(table((number, "x"), (number, "y")))
    return client


def append_unordered(
    world: World, client: ShardClient, some: pa.Table, *, row_group_rows: int = 1 << 20
) -> None:
    """Append `some` as one part whose rows are backwards, in a run that promises no order."""
    [run] = client.writer(SHARD).stager().stage([some]).runs
    [one] = run.parts
    stored = pq.read_table(pa.BufferReader(world.objects().get(one.key)))
    sink = pa.BufferOutputStream()
    backwards = stored.take(list(range(stored.num_rows))[::-1])
    pq.write_table(backwards, sink, row_group_size=row_group_rows, write_page_checksum=True)
    data = sink.getvalue().to_pybytes()
    world.objects().put(one.key, data)
    changed = msgspec.structs.replace(one, size_bytes=len(data), crc32=None, footer=None)
    staged = Staged((Run((changed,), "none"),), client.clock.now_ms(), one.rows, len(data))
    client.writer(SHARD).commit(staged)


def expected(appends: int) -> Counter[tuple[Any, ...]]:
    """The contents that `filled` makes."""
    return Counter((number, v) for number in range(appends) for v in "xy")


def contents(client: ShardClient, name: str = SHARD) -> Counter[tuple[Any, ...]]:
    """The newest contents."""
    with client.reader(name) as reader:
        return rows(reader.snapshot())


def sizes(client: ShardClient, name: str = SHARD) -> list[int]:
    """Updates of each batch, in order of time."""
    return [batch.rows for batch in client.state(name).trace.batches]


def next_merge(trace: Trace, factor: int) -> tuple[int, int] | None:
    """Which batches `[start, end)` are to be merged next; None when the trace is in shape."""
    due = next(due_merges(trace, factor), None)
    return None if due is None else (due.start, due.end)
