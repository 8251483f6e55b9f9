"""The relations of `introspection.…`, each declared with its columns beside the rows it computes.

Owns the names, columns and meanings that users see. May use the facts, and the declarations of
`introspection.relation`. Start at `progress`.

    structure         objects, dataflows, operators and channels
    details           one object: strategy, columns, checkpoint, micro-batches
    progress          how far objects are: frontiers, lag, hydration
    lag_distribution  how late objects were: percentiles, and shares of the minutes
    health            statuses with their history, statistics, errors
    verdicts          how each object is, why, and what to do
    movement          times and rows: where time goes, how many rows pass
    view_steps        what the steps of views took, and self-checks that failed
    marks             what has happened to objects, and when, for a time line
    system            peeks, shards, maintenance, the lane: what belongs to no single object
    process           the location, its holder, and who is connected
    native_reads      plain reads of `format("shard")`, by their path

Never: holds a row of its own. Rows are functions of the facts (`introspection.facts`), and of
`native_reads` of the process's own counts.
"""
