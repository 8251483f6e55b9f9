"""Writes Spark's frames into shards: tasks stage parts, the driver commits them all in one append.

    `write(rows)`        executor   unwraps the envelope, stages sorted parts, describes them
    `commit(messages)`   driver     one append, stamped `max(upper, now)`: of the parts, or of
                                    the difference that they make (upsert, overwrite)
    `abort(messages)`    driver     gives the attempt up for good, then deletes its parts

Owns the way of a frame's rows into a shard, from its columns to the one append.

    writers            the hooks that Spark calls: start here
    frame_columns      gives each column of a frame its role
    target             finds the shard of a write, or creates it
    envelope           turns rows into staged rows, in the tasks
    append             commits the staged parts of a write
    micro_batch_range  finds out which range of its sources a micro-batch covers

Exactly once: a streaming commit is identified by (query id, batchId), a batch write by
(`txnAppId`, `txnVersion`) if they are given, and the shard remembers the last number of each for
ever. Replays, retried tasks, speculation and a second driver of the same query all end in
`AlreadyCommitted`, and what they staged is deleted.

May use: `write`, `upsert` and `overwrite`, through which it commits; `parts.stage`, `shard_source`
(options and offsets), `client`.

Never: commits a subset of an attempt's parts, or deletes staged parts before no commit of them can
land any more.
"""
