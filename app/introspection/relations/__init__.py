"""The relations of `introspection.…`, each declared with its columns beside the rows it computes.

Owns the names, columns and meanings that users see. May use the facts, and the declarations of
`introspection.relation`. Start at `progress`.

    structure   objects, dataflows, operators and channels
    progress    how far objects are: frontiers, lag, hydration
    health      statuses with their history, statistics, errors
    movement    times and rows: where time goes, how many rows pass
    system      peeks, shards, maintenance, the lane: things that belong to no single object

Never: holds a row of its own. Rows are functions of the facts (`introspection.facts`).
"""
