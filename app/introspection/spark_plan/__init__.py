"""Matches Spark's plans, with their rows and times, with the operators of our objects.

Owns the plan of operators of each object (its ids, unlike Spark's, stay the same for ever), and the
reading of Spark's status store, from which each operator gets its rows and times.

    operators        a description as a plan of named operators: start here
    relational       a query as relational nodes, in order of evaluation
    operator_strategy  operators that could follow changes alone, and why others not
    status_store     Spark's status store of SQL executions
    execution_plan   one execution: its plan, rows and times
    matching         the operator that each node of Spark's plan works for
    kept_runs        runs of kept plans, which are no executions
    harvest          rows and times of each operator in one micro-batch, as events

May use: `introspection`'s events, facts and sink, and Spark's status store by `status_store` only.

Never: makes a query wait or fail; guesses. Plans that Spark has evicted are not known here either.
"""
