"""What Spark did for each operator of ours: its plans and counts, matched with our descriptions.

May use: Spark's status store, through `status_store`. Start at `operators`, then `matching`.

Never: makes a query wait or fail. What Spark has forgotten is not known here either.

    operators        a description as a plan of named operators
    relational       a query as relational nodes, in order of evaluation
    status_store     Spark's status store of SQL executions
    execution_plan   one execution: its plan, rows and times
    matching         which operator a node of Spark's plan works for
    harvest          how much each operator has done in one micro-batch
"""
