"""This room holds the state of a shard, and the one loop that changes it.

Owns what persist calls state: batches with their descriptions, since and upper, readers, writers,
holds; the commands that change it, as pure functions; its encoding; and the machine, the
compare-and-set loop through which each change becomes durable (persist's `Machine` and `Applier`).

May use: `stores` (the seams of `stores.location`), `types`, `rows`. Start at `description` and
`state`, then `commands/`, then `machine`.

Must never: read the bytes of a part; change a state in any other way than a command through
`machine`; make an encoding that was released once undecodable.

    description, batch, trace   updates between two frontiers; a shard's batches in order of time
    state                       everything that is known of a shard but its rows
    commands/                   every change, as `(state, now_ms, …) -> Transition`
    plan                        the parts that a read must fetch, from one state, without I/O
    codec, replay               records and rollups to states, and back
    machine, backoff            the compare-and-set loop, and the pause after a lost race
    known                       the newest state that a process knows, and the record that made it
    group_commit                commands of several threads in one record
    rollup_attempts             which commits write a rollup, and when one that failed is repeated
    state_history               the states that a shard had
    references                  the objects that states refer to, and for how long
    drops_seen                  which transitions dropped no part, for garbage collection
    merge_finder                finds the merges that are due after an append
    merge_budget                how much writers may still merge after their appends
    covered_range               the part of its source that a numbered append is made of
"""
