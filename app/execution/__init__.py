"""What each running object is given, whatever it is: a host, a way to report, its turn.

Owns the seam between bookkeeping and Spark (`host`), what running objects report (`observations`),
how streaming queries are started, paced and scheduled, and how errors of Spark become errors of
ours.

May use: `protocol`, `settings`, `datasource`. Start at `host`.

Never: knows of a particular kind of object. A source, a view or a sink uses this room; this room
uses none of them.

    host              how the lane makes an object run, and makes it stop
    observations      small values: what an object says of itself
    query_start       streaming queries are started a few at a time
    step_scheduler    steps of views: as many at once as there are cores, the shortest first
    commit_pacing     sources commit as often as views can follow
    checkpoint_log    what Spark has written into a query's checkpoint
    object_shards     shards of objects, made before anything reads them
    spark_errors      our own error inside of Spark's, or Spark's in one line
    batch_errors      an error of a micro-batch, short enough for Spark
"""
