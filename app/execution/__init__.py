"""Execution provides what every running object needs: a host, a way to report, a schedule.

Owns the seam between bookkeeping and Spark (`host`), the reports of running objects
(`observations`), the start, pace and schedule of streaming queries, and the translation of Spark's
errors into ours.

May use: `protocol`, `settings`, `datasource`. Start at `host`.

Never: knows of a particular kind of object. A source, a view or a sink uses this room; this room
uses none of them.

    host              the seam between the lane and whatever runs
    observations      small values that running objects report
    query_start       starts streaming queries a few at a time
    step_scheduler    lets as many view steps run at once as there are cores, the shortest first
    commit_pacing     slows sources down to what views can follow
    rest_pace         lets uppers move less often while nothing happens
    checkpoint_log    reads the offsets that Spark has written into a query's checkpoint
    shard_follower    one shard, read under a lease by plain Python
    live_errors       which times of an object nobody may show, by its errors and its inputs'
    ending_holds      ends holds that still have the owners they were seen with
    hold_owners       finds the object of a hold by its name, and of a lease by its purpose
    object_shards     creates shards of objects before anything reads them
    spark_errors      makes sentences of the errors of running objects, of their causes
    causes            finds the innermost error that a person can act on, and a hint
    error_texts       takes apart the texts in which Spark hands errors over
    refusals          why a runtime does not do what it is asked for
    batch_errors      makes an error of a micro-batch short enough for Spark
    stopped           ends the work of an incarnation that was stopped
"""
