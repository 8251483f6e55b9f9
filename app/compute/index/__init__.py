"""Indexes: an object's contents in memory, arranged by key (Materialize's arrangements).

May use: `compute.shard_follower`, `datasource`. Start at `arrangement`.

Never: the truth. Losing an index loses nothing but time: it is made again from its shard.
"""
