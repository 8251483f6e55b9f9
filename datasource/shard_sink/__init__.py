"""Writes Spark's frames into shards: tasks stage parts, the driver commits them all in one append.

    executor   `write(rows)`            unwraps the envelope, stages sorted parts, describes them
    driver     `commit(messages)`       one append, stamped `max(upper, now)`: of the parts, or of
                                        the difference that they make (upsert, overwrite)
    driver     `abort(messages)`        gives the attempt up for good, then deletes its parts

Start with `writers.py`, the hooks that Spark calls. `frame_columns` gives each column of a frame
its role, `target` finds or creates the shard, `envelope` turns rows into staged rows in the tasks,
`append` commits, `micro_batch_range` finds out which range of its sources a micro-batch covers.

Exactly once: a streaming commit is identified by (query id, batchId), a batch write by
(`txnAppId`, `txnVersion`) if they are given, and the shard remembers the last number of each for
ever. Replays, retried tasks, speculation and a second driver of the same query all end in
`AlreadyCommitted`, and what they staged is deleted.

Commits through `write`, `upsert` and `overwrite`. Never commits a subset of an attempt's parts, and
never deletes staged parts before no commit of them can land any more.
"""
