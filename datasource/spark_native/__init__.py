"""Reads and writes shards by Spark's own Parquet code, without Python on the data path.

    partitions of a plan ---> frames.py ---> a DataFrame of Spark's Parquet reader
    a DataFrame ------------> save.py -----> parts by Spark's Parquet writer, then one append

The Python workers between Spark and a shard are the most expensive part of a large read or write.
Only decoding and encoding differ here: a read is made of the very partitions that
`format("shard")` would send to its tasks (`shardline.datasource.shard_source`), and a write ends in
the same append. Parts that Spark cannot read go through those partitions' own Arrow fetch, part by
part, so that every read works and means the same.

Owns the frames of native reads, the parts that Spark's writer makes, and all that names classes
inside of Spark. Start at `types`, then `scan` and `frames`; for writes at `save`.

    types                  the types that Spark reads as we wrote them
    blob_paths             the URL of a location, as Spark reaches it
    local_parts            looks at parts on the local disk before Spark reads them
    relations              files as relations of Spark's Parquet reader
    skipped_files          leaves files without a row for a scan's filters out of it
    scan                   parts to such relations
    consolidate            each distinct row once, its copies in `_diff`, by Spark expressions
    touched_rows           consolidates only the rows that a retraction may concern
    closed_keys            needs no consolidation where retractions take back whole keys
    kept_broadcast         keeps what these two look rows up in, for later reads
    closed_rows            remembers by number which rows were taken back, for later reads
    kept_objects           what both keep, and for how long
    row_shape              rows of a shard to rows of a read
    arrow_fallback         parts that Spark cannot read
    frames                 one frame of all of these
    leases                 renews the leases of reads for as long as a frame can be run
    read, micro_batch      contents and changes of shards; the rows of a micro-batch

    save, footers          writes a frame as parts; describes these from their footers
    task_files             files of a write, and the list of those that its job has committed
    small_results          results of few rows, staged by the driver without a write job
    local_sync             syncs what Spark has written to a local disk
    transaction            frames into several shards at one time
    time_interval          appends a frame as the contents of an interval of times

    plan_rule              puts native frames in the place of plain reads of `format("shard")`
    write_rule             writes plain appends natively
    stream_write           writes micro-batches of streaming sinks natively, in the stream's plan
    rule_loader            loads these rules when a session first reads a shard, or appends to one
    load_plans             plans one load for the rule: its time and its frame
    driver_source          makes sources of `format("shard")` without a process of Spark's for it
    interrupts             lets Ctrl-C end a call of the rule between two calls to the JVM
    self_check             reads a small shard natively before anything else is
    passed_tests           remembers with which programs and settings that went well
    part_errors            errors of parts, in the words of Python workers
    read_counts            counts plain reads by their path, and why

    kept_job               a plan that Spark has planned once, run again over other rows
    row_files              files by which its rows go to the JVM and come back
    driver_stream          a source without rows, for queries that need only frontiers
    query_status           a streaming query's status in one call
    query_statistics       a streaming query's statistics on its page in Spark's UI

    classic_session        refuses sessions without a JVM in reach
    jvm, running_batch     classes inside of Spark; the micro-batch that calls `foreachBatch`
    catalyst_nodes         plans and expressions of Spark, in few calls
    plan_identity          a text by which two plans are known to be one
    catalog_entries        tables and temporary views of a session, without a command
    released_objects       lets the JVM go of objects, many by one call
    compiled_java          loads the Java classes of this package without a jar
    kept_files             keeps what was found out about this installation, for later processes

`ShardScanRule.java` and `ShardWriteRule.java` are the rules themselves, compiled when they are
installed; `NativeRelations.java` has the lists of files that Spark is given, `DriverStream.java` is
what Spark asks of a driver stream, `TaskFiles.java` what it asks of a write, `DriverSource.java` is
what it makes sources of, `KeptBroadcast.java` a node of its plans, `CatalystNodes.java` what is
asked about plans, `PlanIdentity.java` tells one by a text, and `CatalogEntries.java` makes entries
of the catalog.

May use: `shard_source` and `shard_sink`, whose plans and commits these are, `transactions`,
`client`, `parts`, and what these rest on.

Never: chooses parts or holds; chooses a time but in `load_plans`; returns rows that Arrow fetch
would not return. Of the Python modules only `jvm` and `running_batch` name classes inside of Spark,
and `part_errors` a function inside of PySpark.
"""
