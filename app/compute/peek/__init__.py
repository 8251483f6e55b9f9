"""Peeks answer queries, each run once over all of its objects at one time.

Owns the strategies for an answer (constant, from an index, from a shard's parts, by Spark), the
choice between them, and the bound on the size of a result.

May use: `compute.index`, `compute.results`, `execution`, `protocol`, `settings`,
`datasource`. Start at `peek`, then `answer`.

Never: reads two objects at different times, or answers in a cheap way other than Spark would.

    peek        runs queries, a few at a time, and answers each once
    answer      one query, from its text to its rows
    fast_path   recognises queries that need no Spark job
    collect     a result as one Arrow table of bounded size; jobs that can be cancelled
    explain     the strategy that a query would get now, and the reason
"""
