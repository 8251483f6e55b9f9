"""Introspection answers what runs, how far it is and what is wrong with it, as tables.

Owns one sink that takes events from everything that runs, the facts that they add up to, and the
relations `introspection.…` that are computed from the facts. They are Materialize's introspection
sources and builtin tables, for streaming queries of Spark.

Start reading at `events`, then `facts` and `apply`. In order of the data:

    listener, poll              Spark's events; frontiers of shards that nothing reports
    feeds                       starts all of this, and takes the events of the runtime
    events, inbox, sink         events, their queue, the one thread that applies them
    facts, apply                the facts, and how an event changes them
    shard_events                events about shards: contents, and rounds of maintenance
    input_lag                   lag behind inputs, for all objects in one walk
    verdicts/                   how each object is, why, and what to do
    relation, relations/, registry   columns, meanings, and rows computed from the facts
    store                       `relation(name) -> pa.Table`, for peeks and JSON
    publisher, change_log       relations that somebody follows: moments, and what changed since
    live                        `SELECT … FROM introspection.<name>` in the session
    histories, definitions      what was there at an earlier moment; definitions as they change
    past                        refuses moments that are not known
    history                     histories that survive a restart
    lane_history                the newest commands of the lane, and whose the location was
    location_histories          which histories are the location's, and which a follower's own
    samples, query_sections     values of metrics; those of a query's objects, for Spark's own UI
    spark_plan/                 Spark's plans and counts, matched with our operators

May use: `protocol`, `execution`, `lane` (its commands and phases); `datasource`, but not its
stores, parts, rows and filters.

Never: starts, stops or changes anything that runs, or makes it wait.
"""
