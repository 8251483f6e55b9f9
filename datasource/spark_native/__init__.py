"""Native fetch and native write: the same plan and the same commit, with Spark's own Parquet codec.

    partitions of a plan ---> frames.py ---> a DataFrame of Spark's Parquet reader
    a DataFrame ------------> saving.py ---> parts by Spark's Parquet writer, then one append

What is decided elsewhere stays there: which parts a read needs is the batch reader's or the
stream's plan, made of the very partitions that `format("shard")` would send to its tasks
(`shardline.datasource.shard_source`), and a write ends in the same append. Only who decodes and
encodes the rows differs. What Spark cannot read itself goes through those partitions' own Arrow
fetch, part by
part, so that every read works and means the same.

Reading order: types (what Spark reads as we wrote it), scan (parts to a relation), consolidate,
shaping, arrow (everything else), frames (puts these together), keep (leases), reading, then
microbatch; footers and saving for the other direction, small for results that need no file of
Spark's, and interval, which chooses. `jvm` is the only module that knows classes inside of Spark.
"""
