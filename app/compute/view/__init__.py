"""Views: an output shard that follows its inputs, one step at a time.

Owns the maintained view: when its inputs change, what the next step is, how the step is computed by
Spark (anew, or from the changes only), and how its rows and errors are written as one.

May use: `compute.errors`, `compute.holds`, `sql`, `execution`, `datasource`. Start at
`maintained_view`, then `next_step`.

Never: writes a time twice, or lets an output's upper pass an input that has not been read up to it.

    streaming_query    the streaming query that tells when there is something to do
    maintained_view    the steps taken
    next_step          which step is next: pure decisions
    input_changes      when inputs change, read off the states of their shards
    linear_check       may the change be computed from changes only; the last look, at run time
    evaluate           a query over frames, in the session of its own query
    correction         what must change so that one collection becomes another
    output             the view's shard and its errors shard, written as one
    output_contents    a small output, in memory
    constant           a view that reads nothing
    idle_advancer      outputs follow the clock while nothing happens
    one_task           little input is read by one task
    cached_frames      frames in Spark's cache such that filters on them find every row
    session_settings   settings of a session that decide what a query means
"""
