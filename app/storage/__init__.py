"""Storage runs sources and sinks: data into shards, and out of them, exactly once where it can be.

Owns one streaming query for each source (`ingestion`) and each sink (`sink_query`), the durable
binding of a source's offsets to times (`reclock`), rows that cannot be decoded (`errors`), load
generators (`generators`), and what a controller is told of all this (`worker`, `status_machine`,
`statistics`). It is Materialize's storage worker, with Spark's streaming queries as its dataflows.

May use: `execution`, `lane`, `protocol`; `datasource`, but not its stores, parts, rows and filters.

Start reading at `reclock` (bindings), then `commit` (the order of the three appends, and what a
crash between them leaves), then `ingestion`. Sinks: `sink_query`, then `sinks.target`.

Never: makes rows visible before the offsets that they came from are bound to a time; writes before
the fence was asked; believes a checkpoint that the shards contradict.
"""
