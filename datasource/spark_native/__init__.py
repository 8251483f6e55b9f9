"""Reads and writes shards by Spark's own Parquet code, without Python on the data path.

    partitions of a plan ---> frames.py ---> a DataFrame of Spark's Parquet reader
    a DataFrame ------------> save.py -----> parts by Spark's Parquet writer, then one append

The Python workers between Spark and a shard are the most expensive part of a large read or write.
Only decoding and encoding differ here: a read is made of the very partitions that
`format("shard")` would send to its tasks (`shardline.datasource.shard_source`), and a write ends in
the same append. Parts that Spark cannot read go through those partitions' own Arrow fetch, part by
part, so that every read works and means the same.

Start with `types` (the types that Spark reads as we wrote them), `scan` (parts to a relation),
`consolidate`, `row_shape` and `arrow_fallback` (parts that Spark cannot read), then `frames`, which
puts these together, `leases`, `read` and `micro_batch`. For writes: `footers` and `save`,
`small_results` (no file of Spark's), `local_sync`, `transaction`, and `time_interval`, which
chooses among them.

`plan_rule` puts the same frames in the place of plain reads of `format("shard")`; the rule itself
is `ShardScanRule.java`, compiled when it is installed. `load_plans` plans what it asks for,
`self_check` reads a small shard by it before anything else is, and `part_errors` words the errors
of parts as Python workers do.

`driver_stream` is a source without rows, for queries that only have to know how far shards are;
`DriverStream.java` is what Spark asks of it.

`query_statistics` shows what is known of a streaming query on its page in Spark's UI.

Of the Python modules only `jvm` names classes inside of Spark (`java_names` finds them), and
`part_errors` a function inside of PySpark. Nothing here chooses parts or holds, only `load_plans` a
time, and nothing returns rows that Arrow fetch would not return.
"""
