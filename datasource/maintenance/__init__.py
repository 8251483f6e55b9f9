"""This room keeps shards small: it merges batches, deletes garbage, and moves the since.

Owns the jobs of maintenance, each of which can run at any time, in any process, several at once,
and be killed at any point. `shardline.datasource.maintainer` calls them in rounds.

May use: `shard`, `parts`, `stores`, `lease`. Start at `compact`.

Must never: change the contents of a shard at a time that can still be read; delete an object that a
reader, a writer, or a record that is being written may still need.

    compact              replaces neighbouring batches by one that means the same
    make_room            moves inline parts out of the state, for a commit without room in it
    impossible_merges    keeps only the batches of a merge that is impossible from being merged
    compaction_claim     claims a merge, so that no two processes make the same one
    garbage_collection   deletes blobs that no state needs which may still be read
    orphan_sweep         deletes blobs that nothing refers to and nobody can commit any more
    retention            moves a shard's since along with its upper
"""
