"""Indexes keep an object's contents in memory, arranged by key (Materialize's arrangements).

Owns the arrangement itself, the thread that follows a shard into it, and the registry in which
peeks find it.

May use: `compute.holds`, `compute.cached_frames`,
`compute.peek.results`, `execution`, `settings`, `datasource`. Start at `arrangement`, then `index`.

Never: holds anything that its shard does not have. Losing an index costs time and nothing else: it
is made again from its shard.
"""
