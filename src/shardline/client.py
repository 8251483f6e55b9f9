"""Shards without Spark: open a location, then read, write, hold and look after its shards.

client = ShardClient.open("file:///data/shards")
client.create("orders", ShardSchema.from_arrow(table.schema), key=("id",))
client.writer("orders").append_now(table)
with client.reader("orders") as reader:
    reader.snapshot()
"""

from __future__ import annotations

from shardline.datasource.client import ShardClient
from shardline.datasource.types.schema import ShardSchema

__all__ = ["ShardClient", "ShardSchema"]
