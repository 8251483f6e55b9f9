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

    worker          the books between a controller's connection and the lane: pure
    render          makes of a description something that runs: what the lane calls
    formats         formats of sources and sinks: spelling, options, packages
    ingestion       the streaming query of a source
    reading         opens a source as a stream, and decodes its micro-batches
    unfit_rows      finds rows that lack a value which the source needs
    kafka           start, deletes and order of Kafka's rows
    envelope        what a source's rows mean; a micro-batch becomes updates
    json_texts      texts of rows, and of keys, by which errors and messages are found again
    reclock         binds offsets to times
    source_holds    holds that keep readable what a source of shards has not read yet
    commit          the three appends of a micro-batch, in their order
    resume          makes Spark's checkpoint agree with the bindings
    source_look     finds out whether Spark has asked a source, and what waits there
    clock_ticks     moves uppers with the clock while no rows arrive
    errors          rows that cannot be decoded, in a shard of their own
    bad_rows        the option `onBadRow`: keep, skip or stop
    error_lines     finds the line of its file in which a bad row stands
    repair          takes errors of a source away, exactly once
    one_shot        reads something once, as a batch, into a shard
    sink_query      the streaming query of a sink
    sink_holds      holds that keep readable what a sink has not written yet
    sinks/          targets and intervals of sinks
    generators/     sources of made-up rows
    status_machine  the status of a source or sink, from the reports of its parts
    statistics      sums of numbers over micro-batches and incarnations
    reporting       reports what has changed of an ingestion's state and numbers
"""
