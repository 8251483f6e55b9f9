"""The relations of `introspection.…`: each declared, with its columns and their meanings.

Never: holds a row of its own. Rows are functions of the facts (`introspection.facts`).

    structure   what there is: objects, dataflows, operators
    progress    how far objects are: frontiers, lag, hydration
    health      what is well and what is not: statuses, errors
    movement    time and rows: where time goes, how many rows pass
    system      what belongs to no single object: peeks, shards, maintenance, the lane
"""
