"""The shard as a Spark sink: tasks stage parts, the driver appends them at once.

    executor   `write(rows)`            unwraps the envelope, stages sorted parts, describes them
    driver     `commit(messages)`       one append, stamped `max(upper, now)`: of the parts, or of
                                        what they change (upsert, overwrite)
    driver     `abort(messages)`        gives the attempt up for good, then deletes its parts

`frame` says what a frame's columns are for, `envelope` makes of its rows what is staged, `target`
finds or makes the shard, `append` and `sink` commit.

Exactly once: a streaming commit is identified by (query id, batchId), a batch write by
(`txnAppId`, `txnVersion`) if they are given, and the shard remembers the last number of each for
ever. Replays, retried tasks, speculation and a second driver of the same query all end in
`AlreadyCommitted`, and what they staged is deleted.
"""
