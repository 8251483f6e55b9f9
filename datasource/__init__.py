"""Shards: durable, definite, time-varying tables on object storage, and their edge to Spark.

Reading order:
    frontier, description        the two ideas everything rests on
    batch, trace, state          what is known of a shard: immutable values
    commands/                    how it may change: pure functions
    codec, machine               how a change becomes durable: the one compare-and-set loop
    stage, write, overwrite      updates in
    plan, fetch, contents, read  updates out
    lease, critical              what readers hold back
    client                       opens all of these
    location, stores/            where it lives
    shard_source/, shard_sink/   `format("shard")`; only these import pyspark

This module imports nothing, so that each part can be used without paying for the others.
`register(spark)` does by hand what installing the package does by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("shard")` known to `spark`; for sessions that did not find it by themselves."""
    # Imported here because the package itself must not need pyspark.
    from datasource.shard_source.source import ShardDataSource  # noqa: PLC0415

    spark.dataSource.register(ShardDataSource)
