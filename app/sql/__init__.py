"""The query language, without objects: the names that a text reads, and Spark's analysis of it.

Owns Spark's tokens, names in queries, the analysis of queries by Spark's own analyzer, the checks
that a result depends on nothing but its inputs, and the choice of how a view is kept up to date.

May use: `protocol`, and of `datasource` the columns of updates, ids, errors and times of options.
Start at `tokens`, then `catalyst`, then `strategy`.

Never: changes what a query means by rewriting its text. Spark's plans and expressions decide.

    tokens, references, queries   Spark's tokens; names that a query reads; statements of `sql`
    parsed_relations              what a query reads by Spark's own parser
    outside_calls                 refuses queries that run methods of Java or commands
    catalyst, plan_tree           Spark's analyzer, called from Python; its plans as plain values
    session_fingerprint           whether a query means the same as before
    plan_nodes                    walks operators and expressions of Spark as one tree
    safe_expressions              expressions that cannot fail
    query_tree                    an analysed plan of Spark, read once
    normal_form                   joins in the place of subqueries
    kept_aggregates               aggregates that follow from what changes add to them
    distinct_values               DISTINCT in calls as groups of values, counted once each
    names_apart                   names by which Spark tells columns of functions of SQL apart
    unread_columns                leaves out columns by which a join could not follow
    first_rows                    orders of which a LIMIT needs the first rows alone
    first_of_key                  windows and aggregates of the first rows of each key alone
    temporal_filters              conditions on now() that decide only when a row is there
    path_above                    what a query does with the rows of an operator
    touched_keys, decided_values  what can be computed anew by key; what may be evaluated again
    stored_types                  values that the rows of a state can have
    strategy                      the strategy of a view, and the reason
    determinism, window_frames    expressions by which a result depends on more than its inputs
    source_options, sink_options  options of sources and sinks, checked by Spark's own code
    format_calls                  calls of Spark's formats, and the option to blame for an error
    problems, spark_errors        errors in a text, with their places
"""
