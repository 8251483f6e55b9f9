"""Shards: durable, definite, time-varying tables on object storage, and their edge to Spark.

Reading order:
    frontier, description        the two ideas everything rests on
    batch, trace, state          what is known of a shard: immutable values
    commands/                    how it may change: pure functions
    codec, machine               how a change becomes durable: the one compare-and-set loop
    stage, write                 updates in
    difference, overwrite, upsert  what turns the contents into others, as one append
    plan, fetch, contents, read  updates out
    where, predicate, prune, rowgroups  and which of them need not be read
    lease, critical              what readers hold back
    compact, merger, claim       fewer and larger batches, and who is at it
    gc, history                  what nobody holds; the states before
    sweep, usage                 what nothing refers to; what every byte is there for
    retention                    how far back a shard stays readable, whoever reads
    client                       opens all of these
    maintenance                  all that keeps shards small, as one round or a thread
    fsck/                        all that is there, compared with all that is said of it
    location, stores/            where it lives
    shard_source/, shard_sink/   `format("shard")`
    native/                      `snapshot`, `changes`, `micro_batch`, `interval_of`, `save`,
                                 `compare_and_append`: rows by Spark itself
    txn/, native/transaction     several shards at once, all or nothing

Only the last three import pyspark. This module imports nothing, so that each part can be used
without paying for the others: what it exports is loaded when it is asked for. `register(spark)`
does by hand what installing the package does by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from datasource.spark_native.micro_batch import micro_batch
    from datasource.spark_native.read import changes, snapshot
    from datasource.spark_native.save import save
    from datasource.spark_native.time_interval import compare_and_append, interval_of
    from datasource.spark_native.transaction import transaction

__all__ = [
    "changes",
    "compare_and_append",
    "interval_of",
    "micro_batch",
    "register",
    "save",
    "snapshot",
    "transaction",
]

_HOMES: Final = {
    "changes": "datasource.spark_native.read",
    "compare_and_append": "datasource.spark_native.time_interval",
    "interval_of": "datasource.spark_native.time_interval",
    "micro_batch": "datasource.spark_native.micro_batch",
    "save": "datasource.spark_native.save",
    "snapshot": "datasource.spark_native.read",
    "transaction": "datasource.spark_native.transaction",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'datasource' has no attribute '{name}'")


def register(spark: SparkSession) -> None:
    """Make `format("shard")` known to `spark`; for sessions that did not find it by themselves."""
    # Imported here because the package itself must not need pyspark.
    from datasource.format import ShardDataSource  # noqa: PLC0415

    spark.dataSource.register(ShardDataSource)
