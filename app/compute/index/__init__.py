"""Indexes keep an object's contents in memory, arranged by key (Materialize's arrangements).

Owns the arrangement itself, the thread that follows a shard into it, and the registry in which
peeks find it.

May use: `compute.holds`, `compute.cached_frames`,
`compute.results`, `execution`, `settings`, `datasource`. Start at `arrangement`, then `index`.

Never: holds anything that its shard does not have. Losing an index costs time and nothing else: it
is made again from its shard.

    arrangement    an object's contents in memory, sorted by key
    index          the thread that follows a shard into an arrangement; the registry
    shard_lookups  rows of shards by key, from arrangements that all views of a process share
    large_arrangement  the thread that makes that of a large shard
    first_of_keys  of keys of many rows those that come first in an order
    order_codes    numbers in the order of a column's values
    runs           the updates of an arrangement, sorted, in pieces
    mapped_table   a large Arrow table in a file without a name, mapped into memory
"""
