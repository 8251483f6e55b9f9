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

Start with `stream.py` (the order of Spark's calls), then `run.py` (what is decided in each). The
class behind `format("shard")` is `ShardDataSource` in `datasource/format.py`. Spark calls the hooks
of one query in several processes (it makes a reader in the planner, and another one only to pickle
it for the executors), so no constructor does I/O, and those processes share nothing but the shard
and the offset.

Plans with `client`, `read`, `lease`, `since_hold` and `parts`. Never writes rows, never passes a
part that it could not read, and never publishes an offset that no hold covers.
"""

from shardline.datasource.shard_source.worker_shutdown import silence_broken_pipes

# Here and not in `stream.py`: every process of Spark that touches shards imports this package,
# also one that only unpickles a partition.
silence_broken_pipes()
