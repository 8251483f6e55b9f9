"""Reports about shards and about reads, for callers that show them to a person.

The public face of the room `inspect`, and of the counts that native reads keep. A report is a value
without handles: to make one takes no hold, and to keep one keeps nothing else alive.

    report_shard, ShardReport    a shard: its times, sizes, holders and what stands in its way
    LocationReport, HolderReport    the shards of a location; one holder of a shard
    find_dropped_parts           parts that only older states need (`DroppedPart`)
    find_lost_parts              parts that the store does not have
    schema_columns               the columns of a schema, as text
    READ_COUNTS, ReadCounts      plain reads of this process, by the path that was planned
"""

from shardline.datasource.inspect.inspection import find_dropped_parts, find_lost_parts
from shardline.datasource.inspect.report import (
    DroppedPart,
    HolderReport,
    LocationReport,
    ShardReport,
    report_shard,
    schema_columns,
)
from shardline.datasource.spark_native.read_counts import READ_COUNTS, ReadCounts

__all__ = [
    "READ_COUNTS",
    "DroppedPart",
    "HolderReport",
    "LocationReport",
    "ReadCounts",
    "ShardReport",
    "find_dropped_parts",
    "find_lost_parts",
    "report_shard",
    "schema_columns",
]
