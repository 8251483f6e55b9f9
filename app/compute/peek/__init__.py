"""Peeks: a query once, over all of its objects at one time.

Owns the ways to answer (without reading, from an index, from a shard's parts, by Spark), the choice
between them, and results of bounded size.

May use: `compute.index`, `compute.shard_follower`, `sql`, `datasource`. Start at `peek`, then
    `answer`.

Never: answers at two times at once, or differently in a cheap way than Spark would.

    peek      runs queries, a few at a time, and answers each once
    answer    one query, from its text to its rows
    fast_path queries that need no Spark job
    collect   a result as one Arrow table of bounded size; jobs that can be cancelled
    results   rows as bytes, JSON, CSV
    explain   how a query would be answered now, and why not in a cheaper way
"""
