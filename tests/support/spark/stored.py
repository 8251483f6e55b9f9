"""Looks at, takes away and damages what a location stores, on whatever store it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from shardline.datasource.client import ShardClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["delete", "makers", "opened_by_spark", "parquet_files", "read", "replace"]


def parquet_files(location: str) -> set[str]:
    """Keys of all Parquet files below a location, whether a record knows them or not."""
    entries = ShardClient.open(location).location.blob.list("")
    return {entry.key for entry in entries if entry.key.endswith(".parquet")}


def makers(location: str, name: str = "out") -> list[str]:
    """Who made the parts of a shard: `native`, `workers`; `state` for what has no file."""
    client = ShardClient.open(location)
    found = []
    for batch in client.state(name).trace.batches:
        for part in batch.parts:
            if part.inline is not None:
                found.append("state")
            else:
                maker = pq.read_metadata(client.location.blob.open(part.key)).created_by
                found.append("native" if maker.startswith("parquet-mr") else "workers")
    return found


def read(location: str, key: str) -> bytes:
    """The bytes of an object that is there."""
    data = ShardClient.open(location).location.blob.get(key)
    assert data is not None, key
    return data


def delete(location: str, key: str) -> None:
    """Take away an object that is there."""
    assert ShardClient.open(location).location.blob.delete(key)


def replace(location: str, key: str, data: bytes) -> None:
    """Put other bytes in the place of an object, or bring back one that was taken away."""
    blob = ShardClient.open(location).location.blob
    blob.delete(key)
    blob.set(key, data)


@contextmanager
def opened_by_spark(spark: SparkSession, file: Path) -> Iterator[Any]:
    """A local file in the reader of Spark's Parquet library (`ParquetFileReader`)."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(str(file))
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    reader = jvm.org.apache.parquet.hadoop.ParquetFileReader.open(conf, path)
    try:
        yield reader
    finally:
        reader.close()
