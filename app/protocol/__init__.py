"""The two protocols between controllers and the runtime: values and pure functions, no Spark.

Owns the vocabulary of both sides: descriptions of objects, commands and responses, the reduction of
a list of commands, and the difference between two lists (Materialize: compute and storage protocol,
`CommandHistory`, reconciliation).

May use: `datasource.errors`, and the names of `datasource.settings`. Start at `objects`, then
`compute`.

Never: does I/O, keeps a clock or a thread, or depends on what has happened since a command was
sent. So both sides, and tests, get the same result from the same commands.

    objects           descriptions of sources, sinks, views, indexes, subscriptions
    fingerprint       when two definitions are the same one
    project_identity  tells a project from another one that is sent to the same location
    compute           commands and responses of the compute protocol
    storage           the same of the storage protocol
    history           reduces a list of commands to the shortest one of the same meaning
    reconcile         the difference between what a runtime has and what a new controller wants
    codec             all of them as JSON, and back
    object_state      the words for the state of an object: step, phase, status, verdict
    error_kinds       what the reader of an error is to do next
    view_plan         how each operator of a view is kept up to date, as a value
    graph             order, cycles and reachability of objects
    redaction         options of objects without their secrets
"""
