"""What keeps a shard small: merged batches, collected garbage, a since that moves.

Owns the jobs of maintenance, each of which can run at any time, in any process, several at once,
and be killed at any point. `shardline.datasource.maintainer` calls them in rounds.

May use: `shard`, `parts`, `stores`, `lease`. Start at `compact`.

Never: changes the contents of a shard at a time that somebody may still read, or deletes an object
that a state refers to which a reader, a writer or a record not yet seen may still need.

    compact              neighbouring batches become one that means the same
    compaction_claim     who is merging what, so that no two do the same work
    garbage_collection   deletes what no state needs that somebody may still look at
    orphan_sweep         deletes what nothing refers to and nobody can commit any more
    retention            moves a shard's since along with its upper
"""
