"""Views: an output shard that follows its inputs, one step at a time.

Owns the maintained view: when its inputs change, which step is next, how the step is computed by
Spark (anew, or from changes), and how its rows and errors are written as one.

May use: `compute.errors`, `compute.holds`, `sql`, `execution`, `datasource`. Start at
`maintained_view`, then `next_step`.

Never: writes a time twice, or lets an output's upper pass an input that has not been read up to it.

    streaming_query    the streaming query that triggers the steps and owns the checkpoint
    maintained_view    takes the steps
    view_inputs        the very shards and columns that are part of a view's definition
    session_settings   settings of a session that decide what a query means
    membership         what a view keeps while it steps in a group, and when it may
    reports            frontier, health and steps of a view, as observations
    next_step          chooses the next step: pure decisions
    input_changes      times at which inputs change, read off the states of their shards
    change_times       exact times of changes, read from rows where parts do not tell them
    due_times          asks inputs for the next time at which a view changes by itself
    due_steps          adds such times to those of the inputs, for the next step
    kept_query         a view's query over the contents of its inputs
    kept_plan          Spark's plan of a query, over rows that change
    called_functions   those of a user that a query calls
    query_at           a view's query at one time, with now() as that time
    current_time       puts a time in the place of now(), in Spark's own plan
    view_plan          each operator with the rule by which it is kept, for `plan` and EXPLAIN
    change_query       a view's query over changes, or the doubt about it
    change_plan        Spark's plan of a query, made to hand times and diffs on
    plan_part          what a part of such a plan knows of its inputs, and needs of them
    evaluation_order   where Spark may evaluate expressions that can fail
    row_conditions     filters, decided in Arrow before rows are looked up
    concern            updates of an input that can matter to a view
    column_trace       the columns of inputs that a column of an operator is
    change_operators   operators that hand times and diffs on
    join_change        the change of a join, one term for each side that has changed
    look_up            inputs of which a step needs the rows of some keys only
    first_look_up      keys of which it needs the first rows in an order only
    found_rows         finds these rows, or leaves it to Spark
    shared_changes     changes of inputs that several views read, read once
    fan_out            estimates how many rows of a shard have one key
    aggregate_rule     an aggregate, read as a state
    accumulators       the SQL by which such a state is kept
    session_groups     the same where a row of the state is a session
    view_states        the states of a view follow its inputs
    state_shard        the shard of one state
    state_identity     names it by what it is of, so that it outlives other changes of the view
    moved_groups       rows that a state's change follows from
    state_step         what is known of a step while it is taken
    step_start         starts a step: its plan, before anything is computed
    result_over        a view's rows at one time, over its states
    temporal_rule      a temporal filter, read as a state
    temporal_steps     finds the rows of such a state whose time has come
    state_rules        which operators are kept as states
    group_steps        states of groups follow what they group
    first_rows_rule    the first rows of an order, read as a state
    first_rows_steps   which follow what is ordered, as long as they are enough
    choice_rule        what ties decide, with more above it, read as a state
    limit_steps        where it is a LIMIT: it follows its first rows
    result_steps       where it is a region: it follows what the region reads
    state_check        recomputes one key of a state
    step_costs         chooses between changes and the query anew by what they have cost
    join_tree          inner joins as one join of many sides
    touched_keys       the change of a region, computed anew for keys that rows have changed of
    view_columns       a view's columns, and how a result is given them
    step_changes       the changes of a step as frames, each made when first asked for
    kept_jobs          jobs of steps of few rows, planned once
    self_check         recomputes one key of a step, and compares it with what is kept
    correction         the updates that turn one collection into another
    output             the view's shard and its errors shard, written as one
    output_contents    the contents of a small output, in memory
    output_change      the change of the output in a step, staged
    output_correction  what the output lacks of its query's result at one time, staged
    constant           a view without inputs
    idle_advancer      uppers of outputs follow those of inputs while nothing changes
    idle_failures      tells an error of the moment from one that lasts, while inputs rest
    idle_news          ends the rest of an application for rows that a view waits for
    one_task           small inputs are read by one task
"""
