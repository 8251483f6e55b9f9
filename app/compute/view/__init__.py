"""Views: an output shard that follows its inputs, one step at a time.

Owns the maintained view: when its inputs change, which step is next, how the step is computed by
Spark (anew, or from changes), and how its rows and errors are written as one.

May use: `compute.errors`, `compute.holds`, `sql`, `execution`, `datasource`. Start at
`maintained_view`, then `next_step`.

Never: writes a time twice, or lets an output's upper pass an input that has not been read up to it.

    streaming_query    the streaming query that triggers the steps and owns the checkpoint
    maintained_view    takes the steps
    next_step          chooses the next step: pure decisions
    input_changes      times at which inputs change, read off the states of their shards
    kept_query         a view's query over the contents of its inputs
    kept_plan          Spark's plan of a query, over rows that change
    change_query       a view's query over changes, or the doubt about it
    change_plan        Spark's plan of a query, made to hand times and diffs on
    safe_expressions   expressions that cannot fail
    change_operators   operators that hand times and diffs on
    join_change        the change of a join, one term for each side that has changed
    touched_keys       the change of a region, computed anew for keys that rows have changed of
    evaluate           a query over frames, in the session of its own streaming query
    correction         the updates that turn one collection into another
    output             the view's shard and its errors shard, written as one
    output_contents    the contents of a small output, in memory
    constant           a view without inputs
    idle_advancer      uppers of outputs follow those of inputs while nothing changes
    one_task           small inputs are read by one task
    cached_frames      frames in Spark's cache such that filters on them find every row
    session_settings   settings of a session that decide what a query means
"""
