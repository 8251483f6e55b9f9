"""Transactions over many shards of one location, on nothing but their store.

Reading order:
    rows          what a transactions shard holds
    ledger        that, as one value, complete up to an upper
    commits       the one loop that appends to it
    applier       what was committed enters the data shards
    protocol      register, forget, commit, apply, tidy
    door          the states of shards as readers see them
    redirect      appends of single shards, made by transactions
    transaction   `with client.transaction() as t`

Laws:
    TX1  A transaction is committed by one compare-and-append to the transactions shard; from then
         on it is durable and has its place in the order, even if the committer dies.
    TX2  When the transactions shard's upper moves, so does that of every registered shard.
    TX3  Applying is idempotent and can be done by anybody, in order of time; whoever reads at a
         time applies what was committed by then.
    TX4  A row is taken back only after it was applied.
    TX5  A registered shard refuses direct writes.
    TX6  Nothing depends on the history of the transactions shard: rows carry their times.
    TX7  What a commit was judged by holds at the upper that it is appended at.
"""
