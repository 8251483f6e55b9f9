"""Shards are durable, definite, time-varying tables on object storage; Spark reads and writes them.

Owns shards, from the bytes in a store to Spark's frames. The modules directly in this package are
for users of shards, and are listed first; behind the rooms stand modules that are here only because
every room needs them. Start at `frontier` and `shard.description`, the two ideas that everything
rests on, then `client`. Each room has a page of its own (its `__init__`).

    frontier                     up to which time a collection is settled
    client                       opens all of the following
    write, read                  updates in; contents and changes out
    lease, since_hold            capabilities that keep history and blobs
    difference, overwrite, upsert    replace contents, or rows by key, as one append
    drop_shard                   ends a shard: a tombstone stays of its log
    followers                    shards that go by the upper of another one
    maintainer                   rounds of maintenance, on demand or by a thread
    format                       `format("shard")` for Spark
    offsets                      how far a stream of it has come, as its checkpoint says
    settings                     the settings of a client
    errors                       sorted by what the caller must do next

    schema, state                the public faces of types/ and shard/
    updates, conditions          of rows/ and filters/
    report, upkeep               of inspect/ and maintenance/
    frames, sink                 of spark_native/ and shard_sink/

    shard/                       the state of a shard, how it changes, and the loop that makes a
                                 change durable
    types/, rows/, filters/      columns, updates in Arrow, conditions on rows
    stores/                      Blob and Consensus, the two seams, on any object store
    parts/                       the files that hold rows
    transactions/                several shards at once, all or nothing
    maintenance/                 fewer and larger batches, garbage
    inspect/                     reports, usage, a check of everything
    shard_source/, shard_sink/   the two halves of `format("shard")`
    spark_native/                `snapshot`, `changes`, `micro_batch`, `interval_of`, `save`,
                                 `compare_and_append`, `transaction`: rows by Spark itself
    spark_compaction/            large merges as Spark jobs

    shared_client                the clients that a process keeps, by location
    append_attempts              repeats an append until its outcome is known; for write
    clock, ids                   the only source of time and of randomness
    waiting                      looks or tries again until it succeeds or its budget is spent
    arguments                    kinds of arguments of Python's callers, and options made of them
    option_parser                values of options, from text; says which value it wanted
    java_names                   finds classes of the JVM by name, once each
    background                   makes the threads of all rooms, and ends them
    scratch_folder               folders that go with their process, also if it is killed
    shared_threads               a few threads for many objects that are due now and then

May use: pyspark only in `format`, `shard_source`, `shard_sink`, `spark_native` and
`spark_compaction`; nothing of `shardline.app`. Who builds on shards uses this package through the
modules beside the rooms, never through a room (the linter holds `app` to that): what stands behind
a face may be divided or moved without asking. A face only names things; code stands in its room.

Never: imports from a room above (the linter holds that). This module imports next to nothing, so
that each part can be used without paying for the others: its exports are loaded at their first use.
`register(spark)` makes `format("shard")` known to a session that did not find it by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from shardline.datasource.errors import InvalidUsage
from shardline.spark_python import use_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.datasource.spark_native.micro_batch import micro_batch
    from shardline.datasource.spark_native.plan_rule import plan_reads_natively
    from shardline.datasource.spark_native.read import changes, snapshot
    from shardline.datasource.spark_native.save import save
    from shardline.datasource.spark_native.time_interval import compare_and_append, interval_of
    from shardline.datasource.spark_native.transaction import transaction

if __name__ != "shardline.datasource":
    # A second name would make a second copy of every class, which no `except` and no `isinstance`
    # of the first would know.
    raise ImportError(f"'{__name__}' is part of Shardline: import it as 'shardline.datasource'")

__all__ = [
    "changes",
    "compare_and_append",
    "interval_of",
    "micro_batch",
    "plan_reads_natively",
    "register",
    "save",
    "snapshot",
    "transaction",
]

_EXPORTS: Final = {
    "changes": "shardline.datasource.spark_native.read",
    "compare_and_append": "shardline.datasource.spark_native.time_interval",
    "interval_of": "shardline.datasource.spark_native.time_interval",
    "micro_batch": "shardline.datasource.spark_native.micro_batch",
    "plan_reads_natively": "shardline.datasource.spark_native.plan_rule",
    "save": "shardline.datasource.spark_native.save",
    "snapshot": "shardline.datasource.spark_native.read",
    "transaction": "shardline.datasource.spark_native.transaction",
}


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'datasource' has no attribute '{name}'")


def register(spark: SparkSession) -> None:
    """Make `format("shard")` known to `spark`; for sessions that did not find it by themselves.

    On one machine, the data source then runs in this Python, even if the session was started for
    another one that has no Shardline.

    Raises:
        InvalidUsage: The session's Python has no Shardline, and its executors are other machines.
    """
    # Imported here because the package itself must not need pyspark.
    from shardline.datasource.format import ShardDataSource  # noqa: PLC0415

    # A session of Spark Connect has no context: its server chooses.
    context = getattr(spark, "_sc", None)
    other = None if context is None else use_this_python(context)
    if other is not None:
        raise InvalidUsage(
            f"the session's Python is '{other}', which has no shardline",
            code="PYTHON_WITHOUT_SHARDLINE",
            hint="set PYSPARK_PYTHON before the session starts, to a Python that has it everywhere",
        )
    spark.dataSource.register(ShardDataSource)
