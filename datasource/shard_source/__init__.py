"""Reads shards into Spark: Materialize's `shard_source`, on Spark's Python data source interface.

    persist, on Timely                         here, on Spark
    -----------------------------------------  ------------------------------------------------
    `shard_source_descs` on the chosen worker  the planner process: `run.py`, `descs.py`
    output frontier, capability per time       the offset: `start` held, `end` reached; `offsets.py`
    `shard_source_fetch` on every worker       executors: `read(partition)`; `fetch_task.py`
    `completed_fetches` feedback edge          `commit(end)`
    lease manager, critical since              `holds.py`
    outstanding count per time                 the micro-batch's task set: all parts or no progress
    freeze on a fetch error                    the micro-batch fails, or waits: `freeze.py`
    `until`, `SnapshotMode`, backpressure      `options.py`
    two-phase shutdown                         nothing: leases expire, `stop()` is never needed

Owns reads of `format("shard")`: their options, offsets and partitions, and the history that a
query holds.

    options            meanings and defaults of the options, and which exclude each other
    row_shape          columns and types of a read's rows
    stream             the order of Spark's calls for a streaming query: start here
    run                answers each of these calls
    stream_inputs      the shards that a query reads, with what is held on each
    holds              keeps history and files readable for as long as a query needs them
    choose_end, descs  choose the end of the next micro-batch; the same as pure functions
    freeze             stops a stream before a part that it cannot read
    plan_range         plans the partitions of one range of a streaming query
    batch_reader       plans batch reads: contents at one time, or changes over an interval
    partition_planner  makes partitions of planned parts; leases of batch reads
    fetch_task         fetches a partition in an executor
    worker_errors      shows a refusal as its one sentence, without frames of our code
    worker_shutdown    ends Spark's Python processes without a stack trace

Start with `stream` (the order of Spark's calls), then `run` (what is decided in each). The class
behind `format("shard")` is `ShardDataSource` in `datasource/format.py`. Spark calls the hooks
of one query in several processes (it makes a reader in the planner, and another one only to pickle
it for the executors), so no constructor does I/O, and those processes share nothing but the shard
and the offset.

May use: `client`, `read`, `lease`, `since_hold`, `parts`, `shard`, and what these rest on.

Never: writes rows, passes a part that it could not read, or publishes an offset that no hold
covers.
"""

from shardline.datasource.shard_source.worker_shutdown import silence_broken_pipes

# Here and not in `stream.py`: every process of Spark that touches shards imports this package,
# also one that only unpickles a partition.
silence_broken_pipes()
