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
    evaluation_order   where Spark may evaluate those that can
    row_conditions     filters, decided in Arrow before rows are looked up
    change_operators   operators that hand times and diffs on
    join_change        the change of a join, one term for each side that has changed
    look_up            inputs of which a step needs the rows of some keys only
    found_rows         finds these rows, or leaves it to Spark
    aggregate_rule     an aggregate, read as a state
    accumulators       the SQL by which such a state is kept
    view_states        the states of a view follow its inputs
    state_shard        the shard of one state
    state_step         what is known of a step while it is taken
    step_costs         chooses between changes and the query anew by what they have cost
    join_tree          inner joins as one join of many sides
    touched_keys       the change of a region, computed anew for keys that rows have changed of
    evaluate           a query over frames, in the session of its own streaming query
    correction         the updates that turn one collection into another
    output             the view's shard and its errors shard, written as one
    output_contents    the contents of a small output, in memory
    constant           a view without inputs
    idle_advancer      uppers of outputs follow those of inputs while nothing changes
    one_task           small inputs are read by one task
    session_settings   settings of a session that decide what a query means
"""
