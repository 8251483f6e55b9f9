"""The shard as a Spark source: Materialize's `shard_source`, on the Python data source interface.

    persist, on Timely                         here, on Spark
    -----------------------------------------  ------------------------------------------------
    `shard_source_descs` on the chosen worker  the planner process: `stream.py`, `descs.py`
    output frontier, capability per time       the offset: `start` held, `end` reached; `offsets.py`
    `shard_source_fetch` on every worker       executors: `read(partition)`; `partition.py`
    `completed_fetches` feedback edge          `commit(end)`
    lease manager, critical since              `holds.py`
    outstanding count per time                 the micro-batch's task set: all parts or no progress
    freeze on a fetch error                    the error fails the micro-batch; the offset stays
    `until`, `SnapshotMode`, backpressure      `options.py`
    two-phase shutdown                         nothing: leases expire, `stop()` is never needed

`format("shard")` is `ShardDataSource` in `source.py`. Hooks of one query run in several processes
(Spark makes a reader in the planner, and another one only to pickle it for the executors), so no
constructor does I/O and nothing is shared but the shard and the offset.
"""

from shardline.datasource.shard_source.worker_shutdown import end_quietly

# Here, because whatever a process of Spark's does with shards, it imports this package first.
end_quietly()
