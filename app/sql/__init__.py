"""The query language, without objects: the names that a text reads, and Spark's analysis of it.

Owns Spark's tokens, names in queries, the analysis of queries by Spark's own analyzer, the checks
that a result depends on nothing but its inputs, and the choice of how a view is kept up to date.

May use: `protocol`, and of `datasource` the columns of updates, ids, errors and times of options.
Start at `tokens`, then `catalyst`, then `strategy`.

Never: changes what a query means by rewriting its text. Spark's plans and expressions decide.

    tokens, references, queries   Spark's tokens; names that a query reads; statements of `sql`
    catalyst, plan_tree           Spark's analyzer, called from Python; its plans as plain values
    session_fingerprint           whether a query means the same as before
    query_tree                    an analysed plan of Spark, read once
    normal_form                   joins in the place of subqueries
    kept_aggregates               aggregates that follow from what changes add to them
    touched_keys, decided_values  what can be computed anew by key; what may be evaluated again
    strategy                      the strategy of a view, and the reason
    determinism, window_frames    expressions by which a result depends on more than its inputs
    problems, spark_errors        errors in a text, with their places
"""
