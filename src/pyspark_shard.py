"""Makes `format("shard")` known to every Spark session, once Shardline is installed.

Spark looks for top-level modules called `pyspark_*` and registers their `DefaultSource`.
"""

from shardline.datasource.format import ShardDataSource as DefaultSource

__all__ = ["DefaultSource"]
