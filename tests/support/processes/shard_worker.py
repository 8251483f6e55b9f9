"""A process that appends to a shard on disk until it is done or killed, and says what it did."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from multiprocessing.connection import Connection

import pyarrow as pa

from shardline.datasource.client import ShardClient
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.types.schema import ShardSchema

__all__ = ["SHARD", "Task", "rows_of", "schema", "work"]

SHARD = "orders"


@dataclass(frozen=True)
class Task:
    """What to append.

    Attributes:
        url: The location.
        settings: Of the client.
        writer: Name of a durable writer.
        first: Number of the first append.
        count: How many; None until killed.
    """

    url: str
    settings: ShardSettings
    writer: str
    first: int
    count: int | None = None


def schema() -> ShardSchema:
    """Columns `writer` and `number`."""
    fields = [pa.field("writer", pa.string()), pa.field("number", pa.int64())]
    return ShardSchema.from_arrow(pa.schema(fields))


def rows_of(writer: str, number: int) -> pa.Table:
    """What the append `number` of `writer` holds: as many rows as its last digit, and one."""
    copies = number % 10 + 1
    columns = [pa.array([writer] * copies), pa.array([number] * copies, pa.int64())]
    return pa.Table.from_arrays(columns, schema=schema().arrow)


def work(task: Task, told: Connection) -> None:
    """Append and send, for each append that is acknowledged, its number and interval."""
    client = ShardClient.open(task.url, settings=task.settings)
    writer = client.writer(SHARD, task.writer)
    told.send(None)
    numbers = itertools.count(task.first)
    for number in itertools.islice(numbers, task.count):
        done = writer.append_now(rows_of(task.writer, number), sequence=number)
        span = (done.lower, done.upper.time) if isinstance(done, Appended) else None
        told.send((number, span))
    told.close()
