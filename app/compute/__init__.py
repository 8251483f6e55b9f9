"""The compute side of the runtime: runs views, indexes and subscriptions, and answers peeks.

Owns every dataflow from its start to its end, and every query that is run once. Materialize's
compute worker and its `render`, with Spark in the place of timely dataflow.

    worker           bookkeeping between a controller's connection and the lane; no I/O
    render           starts any dataflow: the one entry for the lane
    view/            an output shard that follows its inputs
    index/           an object's contents in memory, by key
    subscribe/       every change of an object, in order, to one client
    group/           views of the same inputs, stepped by one streaming query
    peek/            one query, over all of its objects at one time
    holds            names and ends of the holds that dataflows have on their inputs
    cached_frames    frames cached by Spark so that filters on floats find every row
    results          rows as bytes, JSON, CSV
    errors           which errors of Spark are data; reports of all others
    expression_errors  errors that an expression of Spark has thrown at a row
    user_functions   errors that a user's Python function has raised at a row

May use: `execution`, `lane`, `protocol`, `settings`, `sql`, and the public face of `datasource`.

Start at `render`, then `view/maintained_view` and `view/next_step`.

Never: reads an input at a time that nothing holds, or appends after `stop` has returned.
"""
