"""Transactions over many shards of one location, with nothing but their store (as txn-wal does).

Owns the transactions shard: its rows, the commits to it, and the view of registered shards. May use
`shard`, `parts`, `read`, `write`, `overwrite`, `upsert` and `maintenance`.

Never: decides anything by the state of a data shard alone. The compare-and-append to the
transactions shard decides.

Reading order:
    rows              the rows of a transactions shard
    ledger            these as one value, complete up to an upper
    commit_loop       the one loop that appends to it
    applier           brings committed updates into the data shards
    protocol          register, forget, commit, apply, tidy
    loss              where one of them was lost
    shard_view        the states of shards as readers see them
    redirected_append   appends to single registered shards, as transactions
    transaction       `with client.transaction() as t`
    client_protocol   the client, as this room sees it

Laws:
    TX1  A transaction is committed by one compare-and-append to the transactions shard; from then
         on it is durable and has its place in the order, even if the committer dies.
    TX2  When the transactions shard's upper moves, so does that of every registered shard.
    TX3  Applying is idempotent and may be done by any process, in order of time; a reader at a
         time applies what was committed by then.
    TX4  A row is retracted only after it was applied, or when a person gives up its shard, which
         is lost.
    TX5  A registered shard refuses direct writes.
    TX6  Nothing depends on the history of the transactions shard: rows carry their times.
    TX7  The facts that a commit was judged by still hold at the upper that it is appended at.
"""
